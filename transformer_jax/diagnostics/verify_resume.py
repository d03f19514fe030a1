"""`train.py --verify_resume`: shows on a user's own config and machine that resuming is exact."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import paths
from transformer_jax.config import Config
from transformer_jax.errors import UserError

TOLERANCE = 1e-5  # relative, of losses on other devices without dropout
_DROPOUT = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")


def verify_resume(
    config: Config,
    workdir: str,
    command: Sequence[str],
    num_steps: int,
    say: Callable[[str], None] = print,
) -> None:
    """Trains a few steps straight, and again with a kill in the middle, as processes.

    First on the same devices: batches and losses must be the same to the last bit. Then, with
    dropout off, on another number of devices after the kill: batches must be the same, losses
    within `TOLERANCE`.

    Args:
      config: of the run.
      workdir: the runs are made below `workdir/verify_resume/`, which is emptied first.
      command: program and arguments that train this config, without `--workdir`.
      num_steps: of each run.
      say: gets the findings.

    Raises:
      UserError: where something differs, or a run fails.
    """
    if paths.is_remote(workdir):
        raise UserError(f"--verify_resume needs a local --workdir, not {workdir}: what it checks "
                        "does not depend on where a run is.")  # fmt: skip
    folder = Path(workdir) / "verify_resume"
    shutil.rmtree(folder, ignore_errors=True)
    runs = _Runs(folder, command, num_steps, say)
    plain = [f"--config.model.{name}=0.0" for name in _DROPOUT]
    straight = runs.run("straight")
    killed = runs.killed("killed")
    runs.compare(straight, killed, 0.0)
    count, platform = runs.devices("straight")
    other = count // 2 if count > 1 else 2
    if platform != "cpu" and count == 1:
        say("there is one device; going on with another number could not be verified")
        return
    without = straight
    if any(getattr(config.model, name) for name in _DROPOUT):
        without = runs.run("straight_without_dropout", plain)
    moved = runs.killed("moved", plain, _on_devices(config, other))
    say(f"going on: {count} {platform} device(s), then {other}")
    runs.compare(without, moved, TOLERANCE)


def _on_devices(config: Config, number: int) -> list[str]:
    """Flags for so many devices."""
    sizes = {"data": number, "fsdp": 1, "tensor": 1}
    return [f"--config.parallel.{name}={size}" for name, size in sizes.items()]


class _Runs:
    """Training processes in folders of their own."""

    def __init__(
        self, folder: Path, command: Sequence[str], num_steps: int, say: Callable[[str], None]
    ):
        self._folder, self._num_steps, self._say = folder, num_steps, say
        self._half = num_steps // 2
        self._command = [
            *command, f"--stop_after={num_steps}", "--config.train.log_every_steps=1",
            f"--config.train.checkpoint_every_steps={self._half}",
            "--config.train.eval_every_steps=0", "--config.train.early_stopping_patience=0",
            f"--config.checkpoint.max_to_keep={num_steps}",
        ]  # fmt: skip

    def _start(self, name: str, flags: Sequence[str]) -> subprocess.Popen:
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ)
        wanted = [f.split("=")[1] for f in flags if f.startswith("--config.parallel.data=")]
        if wanted and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
            # As many CPU devices as are asked for; it changes nothing on GPU and TPU.
            environment["XLA_FLAGS"] = (
                f"{os.environ.get('XLA_FLAGS', '')} "
                f"--xla_force_host_platform_device_count={wanted[0]}"
            )
        with (self._folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                [*self._command, f"--workdir={self._folder / name}", *flags],
                stdout=log, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip

    def run(self, name: str, flags: Sequence[str] = ()) -> dict[int, dict[str, Any]]:
        """Trains to the end; metrics by step."""
        self._say(f"{name}: {self._num_steps} steps")
        if self._start(name, flags).wait():
            raise UserError(f"The run {name} failed; see {self._folder / name}.log.")
        return self._metrics(name)

    def killed(
        self, name: str, flags: Sequence[str] = (), then: Sequence[str] = ()
    ) -> dict[int, dict[str, Any]]:
        """Trains, is killed after the checkpoint in the middle, and goes on with `then` too."""
        process = self._start(name, flags)
        checkpoints = self._folder / name / "checkpoints"
        while not (checkpoints / str(self._half)).exists() and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
        if not (checkpoints / str(self._half)).exists():
            raise UserError(f"The run {name} failed; see {self._folder / name}.log.")
        for path in checkpoints.iterdir():  # as if the kill had come in time
            if path.name.isdigit() and int(path.name) > self._half:
                shutil.rmtree(path)
        self._say(f"{name}: killed behind step {self._half}")
        return self.run(name, [*flags, *then])

    def devices(self, name: str) -> tuple[int, str]:
        """Number and platform of the devices that a run has said it uses."""
        found = re.search(r" on (\d+) (\w+) device", (self._folder / f"{name}.log").read_text())
        if found is None:
            raise UserError(f"{self._folder / name}.log does not tell its devices.")
        return int(found[1]), found[2]

    def _metrics(self, name: str) -> dict[int, dict[str, Any]]:
        lines = (self._folder / name / "metrics.jsonl").read_text().splitlines()
        return {metrics["step"]: metrics for metrics in map(json.loads, lines)}

    def compare(self, a: dict, b: dict, tolerance: float) -> None:
        """Refuses other batches, and losses that differ by more than a relative tolerance."""
        if sorted(a) != sorted(b):
            raise UserError(f"The runs have metrics of other steps: {sorted(a)} and {sorted(b)}.")
        worst = 0.0
        for step in a:
            if a[step]["batch_digest"] != b[step]["batch_digest"]:
                raise UserError(f"Step {step} was made on another batch after the kill.")
            first, second = a[step]["train_loss"], b[step]["train_loss"]
            difference = abs(first - second) / max(abs(first), 1e-30)
            worst = max(worst, difference)
            if not difference <= tolerance:
                raise UserError(
                    f"Step {step} has loss {first!r} straight and {second!r} after the kill, "
                    f"{difference:.1e} apart (allowed {tolerance:g})."
                )
        self._say(
            f"{len(a)} steps: the same batches, "
            + ("the same losses" if worst == 0 else f"losses within {worst:.1e}")
        )
