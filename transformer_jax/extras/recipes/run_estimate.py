"""Estimates how long a run takes and what memory it needs, by doing a little of it."""

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
from etils import epath

from transformer_jax import units
from transformer_jax.config import Config
from transformer_jax.data.loader import BatchSource
from transformer_jax.errors import is_out_of_memory
from transformer_jax.extras.diagnostics.dry_run import peak_bytes
from transformer_jax.training import partition, setup
from transformer_jax.training.evaluate import Evaluator
from transformer_jax.training.runners import Runner, make_runner
from transformer_jax.training.setup import TrainingData
from transformer_jax.training.step import TrainState
from transformer_jax.workdir import host_memory, machine

MIN_STEPS, MAX_STEPS = 3, 20
STEPS_SECONDS = 10.0  # no further step is timed after this time
EVALUATED = 128  # validation pairs that are translated
USABLE_MEMORY = 0.9  # of a device; evaluation and other programs need some


@dataclasses.dataclass(frozen=True)
class RunEstimate:
    """Measured parts of a run, and what follows for all of it.

    Attributes:
      config: of the run, with `train.accumulate_steps` raised as far as its memory needs.
      num_params: parameters of the model.
      step_seconds: median of the timed steps.
      num_timed_steps: that were timed, after a first one that was not.
      compile_seconds: of the training step.
      evaluation_seconds: of one evaluation.
      num_evaluations: of the run, without early stopping.
      step_bytes: memory of the compiled step on one device: state, activations, program; None if
        the compiler does not say.
    """

    config: Config
    num_params: int
    step_seconds: float
    num_timed_steps: int
    compile_seconds: float
    evaluation_seconds: float
    num_evaluations: int
    step_bytes: int | None

    @property
    def total_seconds(self) -> float:
        """Of the run: compiling, all steps, all evaluations."""
        steps = self.config.train.num_steps * self.step_seconds
        return self.compile_seconds + steps + self.num_evaluations * self.evaluation_seconds


def estimate_run(
    config: Config,
    sample: Sequence[tuple[str, str]],
    num_validation: int,
    longest_output: int,
    memory: int | None = None,
) -> RunEstimate:
    """Trains a few steps on a sample of the corpus and evaluates once, in a temporary folder.

    Args:
      config: of the run.
      sample: (source, target) from its corpus.
      num_validation: pairs of an evaluation.
      longest_output: tokens; an untrained model would write every output up to its limit.
      memory: bytes of a device, which the step has to fit; None if unknown.

    Raises:
      UserError: the corpus or the config cannot be used.
    """
    host_memory.keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="transformer_jax_") as folder:
        on_sample = _on_sample(config, sample, Path(folder), longest_output)
        on_sample, data = setup.prepare(on_sample, epath.Path(folder) / "run", lambda _: None)
        started = time.monotonic()
        runner, step_bytes = _fit_memory(on_sample, data, memory)
        compile_seconds = time.monotonic() - started
        multiple = _row_multiple(runner)
        batches = data.batches(runner.train_step.config, multiple, runner.local_rows)
        state, seconds = _time_steps(runner, runner.init(config.seed), batches)
        evaluate, pairs = Evaluator(on_sample, data.tokenizers, runner), data.validation
        for _ in range(2):  # the first one compiles
            started = time.monotonic()
            evaluate(state, pairs)
            evaluation_seconds = time.monotonic() - started
    train = dataclasses.replace(
        config.train, accumulate_steps=runner.train_step.config.train.accumulate_steps
    )
    return RunEstimate(
        config=dataclasses.replace(config, train=train),
        num_params=runner.num_params(),
        step_seconds=statistics.median(seconds),
        num_timed_steps=len(seconds),
        compile_seconds=compile_seconds,
        evaluation_seconds=evaluation_seconds * num_validation / len(pairs),
        num_evaluations=-(-train.num_steps // train.eval_every_steps),
        step_bytes=step_bytes,
    )


def describe_estimate(estimate: RunEstimate, memory: int | None) -> list[str]:
    """Time and memory in words; `memory` is that of a device."""
    train, needed = estimate.config.train, estimate.step_bytes
    step = ""
    if needed is not None:
        parts = f" in {train.accumulate_steps} parts" if train.accumulate_steps > 1 else ""
        step = f"; a step{parts} needs {units.size(needed)}"
        if memory and needed > memory:
            step += f" of {units.size(memory)}: it DOES NOT FIT, lower config.data.max_len"
    # At most two units, and no seconds after minutes.
    seconds, cores = estimate.total_seconds, machine.num_cores()
    total = units.duration(60 * max(round(seconds / 60), 1), 1 if seconds < 3570 else 2)
    load = os.getloadavg()[0]
    busy = f" (now {load:.0f} programs share {cores} cores)" if load > 1.5 * cores + 1 else ""
    return [
        f"model: {estimate.num_params:,} parameters{step}",
        f"time: about {total} for all {train.num_steps:,} steps, from "
        f"{estimate.num_timed_steps} timed steps of {estimate.step_seconds:.2g} s and "
        f"{estimate.num_evaluations} evaluations of about {estimate.evaluation_seconds:.0f} s; "
        f"other work on this machine makes it longer{busy}",
    ]


def _on_sample(
    config: Config, sample: Sequence[tuple[str, str]], folder: Path, longest_output: int
) -> Config:
    """The config with a sample as its corpus, and short outputs."""
    for part, pairs in (("train", sample), ("validation", sample[:EVALUATED])):
        for side, language in enumerate((config.data.source_lang, config.data.target_lang)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8", newline="\n")
    data = dataclasses.replace(
        config.data,
        train=str(folder / "train"),
        validation=str(folder / "validation"),
        cache_dir=str(folder / "cache"),
    )
    decode = dataclasses.replace(config.decode, max_decode_len=longest_output)
    return dataclasses.replace(config, data=data, decode=decode)


def _fit_memory(
    config: Config, data: TrainingData, memory: int | None
) -> tuple[Runner, int | None]:
    """A runner whose step is compiled, in as many parts as it needs to fit; and its bytes."""
    devices = partition.choose_devices(config)
    row_len = config.data.pack_len or config.data.max_len
    while True:
        runner = make_runner(config, devices)
        try:
            shapes = data.padded_shapes(_row_multiple(runner))
            needed = max(peak_bytes(runner.compile(shape)) or 0 for shape in shapes)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            needed = None
        num_parts = 2 * config.train.accumulate_steps
        fits = needed is not None and (memory is None or needed <= USABLE_MEMORY * memory)
        if fits or config.data.batch_tokens < row_len * num_parts * runner.num_batch_shards:
            return runner, needed or None
        train = dataclasses.replace(config.train, accumulate_steps=num_parts)
        config = dataclasses.replace(config, train=train)


def _row_multiple(runner: Runner) -> int:
    """What the rows of each batch must be a multiple of."""
    return runner.num_batch_shards * runner.train_step.config.train.accumulate_steps


def _time_steps(
    runner: Runner, state: TrainState, batches: BatchSource
) -> tuple[TrainState, list[float]]:
    """Takes steps; returns the new state and the seconds of each step after the first."""
    seconds: list[float] = []
    for step in range(1 + MAX_STEPS):
        batch = batches[step]
        started = time.monotonic()
        state, metrics = runner.step(state, batch)
        jax.block_until_ready((state, metrics))
        seconds.append(time.monotonic() - started)
        if step >= MIN_STEPS and sum(seconds[1:]) > STEPS_SECONDS:
            break
    return state, seconds[1:]
