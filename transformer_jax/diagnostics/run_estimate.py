"""Estimates how long a run takes and what memory it needs, by doing a little of it."""

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import jax
from etils import epath

from transformer_jax.config import Config
from transformer_jax.config.sizing import TokenFacts
from transformer_jax.data.loader import BatchSource
from transformer_jax.decoding.engine import Engine
from transformer_jax.diagnostics.dry_run import peak_bytes
from transformer_jax.runs import host_memory
from transformer_jax.training import partition, setup
from transformer_jax.training.evaluate import evaluate
from transformer_jax.training.runners import Runner, make_runner
from transformer_jax.training.step import TrainState

MIN_STEPS, MAX_STEPS = 3, 20
STEPS_SECONDS = 10.0  # no further step is timed after this time
EVALUATED = 128  # validation pairs that are translated


@dataclasses.dataclass(frozen=True)
class RunEstimate:
    """Measured parts of a run, and what follows for all of it.

    Attributes:
      num_params: parameters of the model.
      step_seconds: median of the timed steps.
      num_timed_steps: that were timed, after a first one that was not.
      compile_seconds: of the training step.
      evaluation_seconds: of one evaluation.
      num_evaluations: of the run, without early stopping.
      num_steps: of the run.
      step_bytes: memory of the compiled step on one device: state, activations, program; None if
        the compiler does not say.
    """

    num_params: int
    step_seconds: float
    num_timed_steps: int
    compile_seconds: float
    evaluation_seconds: float
    num_evaluations: int
    num_steps: int
    step_bytes: int | None

    @property
    def total_seconds(self) -> float:
        """Of the run: compiling, all steps, all evaluations."""
        steps = self.num_steps * self.step_seconds
        return self.compile_seconds + steps + self.num_evaluations * self.evaluation_seconds


def estimate_run(
    config: Config, sample: list[tuple[str, str]], num_validation: int, tokens: TokenFacts
) -> RunEstimate:
    """Trains a few steps on a sample of the corpus and evaluates once, in a temporary folder.

    Args:
      config: of the run.
      sample: (source, target) from its corpus.
      num_validation: pairs of an evaluation.
      tokens: lengths of the corpus.

    Raises:
      UserError: the corpus or the config cannot be used.
    """
    host_memory.keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="transformer_jax_") as folder:
        on_sample = _on_sample(config, sample, Path(folder), tokens.most)
        workdir = epath.Path(folder) / "run"
        config, data = setup.prepare(on_sample, workdir, lambda _: None)
        runner = make_runner(config, partition.choose_devices(config))
        state = runner.init(config.seed)
        multiple = runner.num_batch_shards * config.train.accumulate_steps
        started = time.monotonic()
        compiled = [runner.compile(shape, state) for shape in data.padded_shapes(multiple)]
        compile_seconds = time.monotonic() - started
        batches = data.batches(config, multiple, runner.local_rows)
        state, seconds = _time_steps(runner, state, batches)
        params = runner.gather(runner.to_checkpoint_layout(state).params)
        del state
        engine, pairs = Engine(config, data.tokenizers), data.validation
        for _ in range(2):  # the first one compiles
            started = time.monotonic()
            evaluate(config, engine, params, pairs)
            evaluation_seconds = time.monotonic() - started
    train = config.train
    return RunEstimate(
        num_params=runner.num_params(),
        step_seconds=statistics.median(seconds),
        num_timed_steps=len(seconds),
        compile_seconds=compile_seconds,
        evaluation_seconds=evaluation_seconds * num_validation / len(pairs),
        num_evaluations=-(-train.num_steps // train.eval_every_steps),
        num_steps=train.num_steps,
        step_bytes=max(peak_bytes(step) or 0 for step in compiled) or None,
    )


def _on_sample(
    config: Config, sample: list[tuple[str, str]], folder: Path, target_len: int
) -> Config:
    """The config with a sample as its corpus, and outputs of at most `target_len` tokens.

    An untrained model would write every output up to the limit of its config.
    """
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
    decode = dataclasses.replace(config.decode, max_decode_len=target_len)
    return dataclasses.replace(config, data=data, decode=decode)


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
