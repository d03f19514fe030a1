"""`train.py --verify_resume`: shows on a user's config and machine that resuming is exact."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import paths
from transformer_jax.config import Config
from transformer_jax.config.loss_terms import LOSS_TERMS
from transformer_jax.errors import UserError
from transformer_jax.training import partition

MetricsByStep = dict[int, dict[str, Any]]  # step -> line of metrics.jsonl

TOLERANCE = 1e-5  # relative, of losses on other devices without dropout
_DROPOUT = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
# Prints the number of devices and their platform. A process of its own asks: this one must not
# occupy the devices that the runs need.
_COUNT_DEVICES = """
import json
from transformer_jax.ops import platforms
print(json.dumps([len(platforms.all_devices()), platforms.current()]))
"""


def verify_resume(
    config: Config,
    workdir: str,
    command: Sequence[str],
    num_steps: int,
    say: Callable[[str], None] = print,
) -> None:
    """Trains a few steps without a break, and again with a kill in the middle, as processes.

    First on the same devices: batches and losses must be the same to the last bit. Then, with
    dropout off, on another number of devices after the kill: batches must be the same, losses
    within `TOLERANCE`.

    Args:
      config: of the run.
      workdir: the runs are in `workdir/verify_resume/`, which is emptied first.
      command: program and arguments that train this config, without `--workdir`.
      num_steps: of each run.
      say: gets the results, line by line.

    Raises:
      UserError: where something differs, or a run fails.
    """
    if paths.is_remote(workdir):
        raise UserError(
            f"`verify_resume` needs a local `workdir`, not {workdir}; what it checks is the same "
            "in every folder."
        )
    folder = Path(workdir) / "verify_resume"
    shutil.rmtree(folder, ignore_errors=True)
    runs = _Runs(folder, command, num_steps, say)
    straight = runs.run("straight")
    runs.compare(straight, runs.run_killed("killed"), 0.0)

    count, platform = _count_devices(config)
    if platform != "cpu" and count == 1:
        say("there is one device; resuming on another number of them could not be verified")
        return
    other = count // 2 if count > 1 else 2
    no_dropout = [f"--config.model.{name}=0.0" for name in _DROPOUT]
    needs_dropout = [name for name, term in LOSS_TERMS.items() if term.compares_dropout]
    no_dropout += [f"--config.train.{name}=0.0" for name in needs_dropout]
    if any(getattr(config.model, name) for name in _DROPOUT):
        straight = runs.run("straight_without_dropout", no_dropout)
    sizes = {"data": other, "fsdp": 1, "tensor": 1}
    on_other = [f"--config.parallel.{name}={size}" for name, size in sizes.items()]
    moved = runs.run_killed("moved", no_dropout, on_other)
    say(f"resumed: {count} {platform} device(s), then {other}")
    runs.compare(straight, moved, TOLERANCE)


def _count_devices(config: Config) -> tuple[int, str]:
    """Number of devices that a run of this config uses, and their platform."""
    answer = subprocess.run(
        [sys.executable, "-c", _COUNT_DEVICES], stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    count, platform = json.loads(answer.stdout)
    return math.prod(partition.mesh_shape(config.parallel, count)), platform


class _Runs:
    """Training processes, each in its folder."""

    def __init__(
        self, folder: Path, command: Sequence[str], num_steps: int, say: Callable[[str], None]
    ):
        self._folder, self._num_steps, self._say = folder, num_steps, say
        self._half = num_steps // 2
        self._command = [
            *command,
            f"--stop_after={num_steps}",
            "--config.train.log_every_steps=1",
            f"--config.train.checkpoint_every_steps={self._half}",
            "--config.train.eval_every_steps=0",
            "--config.train.early_stopping_patience=0",
            "--config.train.loggers=()",
            f"--config.checkpoint.max_to_keep={num_steps}",
        ]

    def _start(self, name: str, flags: Sequence[str]) -> subprocess.Popen:
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ)
        counts = [f.split("=")[1] for f in flags if f.startswith("--config.parallel.data=")]
        if counts and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
            # Simulates that many devices on a CPU; it changes nothing on GPU and TPU.
            environment["XLA_FLAGS"] = (
                f"{os.environ.get('XLA_FLAGS', '')} "
                f"--xla_force_host_platform_device_count={counts[0]}"
            )
        with (self._folder / f"{name}.log").open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                [*self._command, f"--workdir={self._folder / name}", *flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def run(self, name: str, flags: Sequence[str] = ()) -> MetricsByStep:
        """Trains to the end."""
        self._say(f"{name}: {self._num_steps} steps")
        if self._start(name, flags).wait():
            raise UserError(f"The run {name} failed; see {self._folder / name}.log.")
        lines = (self._folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return {metrics["step"]: metrics for metrics in map(json.loads, lines)}

    def run_killed(
        self, name: str, flags: Sequence[str] = (), more_flags: Sequence[str] = ()
    ) -> MetricsByStep:
        """Trains, is killed after the checkpoint in the middle, and resumes with `more_flags`."""
        process = self._start(name, flags)
        checkpoints = self._folder / name / "checkpoints"
        while not (checkpoints / str(self._half)).exists() and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
        if not (checkpoints / str(self._half)).exists():
            raise UserError(f"The run {name} failed; see {self._folder / name}.log.")
        for path in checkpoints.iterdir():  # written before the process was dead
            if path.name.isdigit() and int(path.name) > self._half:
                shutil.rmtree(path)
        self._say(f"{name}: killed after step {self._half}")
        return self.run(name, [*flags, *more_flags])

    def compare(self, straight: MetricsByStep, resumed: MetricsByStep, tolerance: float) -> None:
        """Raises where batches differ, or losses by more than a relative tolerance."""
        if sorted(straight) != sorted(resumed):
            raise UserError(
                f"The runs have metrics of other steps: {sorted(straight)} and {sorted(resumed)}."
            )
        worst = 0.0
        for step in straight:
            if straight[step]["batch_digest"] != resumed[step]["batch_digest"]:
                raise UserError(f"Step {step} had another batch after the kill.")
            first, second = straight[step]["train_loss"], resumed[step]["train_loss"]
            difference = abs(first - second) / max(abs(first), 1e-30)
            worst = max(worst, difference)
            if not difference <= tolerance:
                raise UserError(
                    f"Step {step} has loss {first!r} straight and {second!r} after the kill, "
                    f"{difference:.1e} apart (allowed {tolerance:g})."
                )
        self._say(
            f"{len(straight)} steps: the same batches, "
            + ("the same losses" if worst == 0 else f"losses within {worst:.1e}")
        )
