"""The training loop: steps, evaluations, checkpoints, and going on where a run stopped."""

import dataclasses
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from transformer_jax import evaluation
from transformer_jax.checkpoint import Checkpointer, quality
from transformer_jax.config import Config
from transformer_jax.data.loader import load_batches
from transformer_jax.decoding.engine import Engine
from transformer_jax.errors import UserError
from transformer_jax.training import setup
from transformer_jax.training.reporting import Reporter
from transformer_jax.training.partition import choose_devices
from transformer_jax.training.runners import Runner, make_runner
from transformer_jax.training.step import TrainState
from transformer_jax.validation import validate

NUM_SAMPLES = 5


@dataclasses.dataclass
class Progress:
    """What early stopping remembers; kept in every checkpoint."""

    metric: str = ""
    best: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0


def train(config: Config, workdir: epath.PathLike) -> None:
    """Trains in `workdir`, or goes on there, until `train.num_steps` or early stopping.

    Raises:
      UserError: before any compilation, for whatever cannot work.
    """
    validate(config)
    workdir = epath.Path(workdir)
    devices = choose_devices(config)
    config, data = setup.prepare(config, workdir, print)
    trainer = Trainer(config, workdir, make_runner(config, devices), data)
    try:
        trainer.run()
    finally:
        trainer.close()


class Trainer:
    """One run: its state on the devices and everything that happens between steps."""

    def __init__(
        self, config: Config, workdir: epath.Path, runner: Runner, data: setup.TrainingData
    ):
        self._config, self._runner, self._data = config, runner, data
        self._row_multiple = runner.num_row_parts * config.train.accumulate_steps
        self._checkpointer = Checkpointer(workdir, config.checkpoint)
        self._state = runner.init(config.seed, data.initial_params)
        self._progress = Progress()
        self._restore()
        self._step = int(jax.device_get(runner.to_host_layout(self._state).step))
        self._engine = Engine(config, data.tokenizers)
        size = sum(x.size for x in jax.tree.leaves(runner.to_host_layout(self._state).params))
        print(
            f"model: {size:,} parameters on {runner.num_devices} {jax.devices()[0].platform} "
            f"device(s), runner {config.parallel.runner}",
            flush=True,
        )
        self._reporter = Reporter(workdir, self._step, config.train.num_steps)
        self._window = _Window(data.padding)

    def run(self) -> None:
        """Steps until the end. Metrics are read one step late, so the device never waits."""
        train = self._config.train
        if self._step >= train.num_steps or self._stops_early():
            self._reporter.say(f"nothing to do: the run stands at step {self._step}")
            return
        self._compile()
        source = self._data.batches(self._config, self._row_multiple)
        batches = load_batches(source, self._step)
        self._window.resume()
        late = None
        while self._step < train.num_steps and not self._stops_early():
            self._state, metrics = self._runner.step(self._state, next(batches))
            self._step += 1
            self._read(late)
            late = self._step, metrics
            evaluates = bool(train.eval_every_steps) and (
                self._step % train.eval_every_steps == 0 or self._step == train.num_steps
            )
            saves = self._step % train.checkpoint_every_steps == 0 or self._step == train.num_steps
            if evaluates or saves:
                self._read(late)
                late = None
                self._window.pause()
                self._save(self._evaluate() if evaluates else {})
                self._window.resume()
        self._read(late)
        self._reporter.say(f"finished at step {self._step}")

    def close(self) -> None:
        self._checkpointer.close()
        self._reporter.close()

    def _compile(self) -> None:
        shapes = [shape.padded(self._row_multiple) for shape in self._data.plan.shapes]
        started = time.monotonic()
        for shape in shapes:  # largest first
            self._runner.compile(shape)
        self._reporter.say(
            f"compiled {len(shapes)} batch shape(s) in {time.monotonic() - started:.1f} s"
        )

    def _read(self, late: tuple[int, dict[str, jax.Array]] | None) -> None:
        """Adds a step's metrics to the window; reports the window where it is full."""
        if late is None:
            return
        step, metrics = late
        self._window.add(jax.device_get(metrics))
        self._reporter.advance(step)
        if step % self._config.train.log_every_steps == 0 or step == self._config.train.num_steps:
            self._reporter.training(step, self._window.summary())
            self._window = _Window(self._data.padding)
            self._window.resume()

    def _model_params(self) -> Any:
        state = self._runner.to_host_layout(self._state)
        return self._runner.whole(state.params if state.ema is None else state.ema)

    def _evaluate(self) -> dict[str, float]:
        decode = dataclasses.replace(
            self._config.decode, method="beam", beam_size=self._config.train.eval_beam_size,
            beam_groups=1,
        )  # fmt: skip
        scores, outputs = evaluation.evaluate(
            self._engine, self._model_params(), self._data.validation, decode
        )
        self._engine.programs.release()
        metrics = {
            f"eval_{name}": float(value)
            for name, value in dataclasses.asdict(scores).items()
            if isinstance(value, float)
        }
        pairs = list(zip(self._data.validation, outputs, strict=True))[:NUM_SAMPLES]
        samples = [
            {"source": source, "reference": reference, "hypothesis": output.text}
            for (source, reference), output in pairs
        ]
        self._reporter.evaluation(self._step, metrics, samples)
        self._note_progress(metrics)
        return metrics

    def _note_progress(self, metrics: dict[str, float]) -> None:
        name = self._config.checkpoint.best_metric
        value = quality(metrics, name)
        old = self._progress
        if old.best is None or old.metric != name or value > old.best:
            self._progress = Progress(name, value, self._step, 0)
        else:
            self._progress.evaluations_since_best += 1

    def _stops_early(self) -> bool:
        patience = self._config.train.early_stopping_patience
        if not patience or self._progress.evaluations_since_best < patience:
            return False
        self._reporter.say(
            f"stopped early: {self._config.checkpoint.best_metric} has not improved for {patience} "
            f"evaluations, the best was at step {self._progress.best_step}"
        )
        return True

    def _save(self, metrics: dict[str, float]) -> None:
        state = self._runner.to_host_layout(self._state)
        if jax.default_backend() == "cpu":
            # Orbax writes in the background from the very buffers that the next step overwrites.
            state = jax.tree.map(jnp.copy, state)
        meta = {"metrics": metrics, "progress": dataclasses.asdict(self._progress)}
        self._checkpointer.save(self._step, _items(state), meta)

    def _restore(self) -> None:
        step = self._checkpointer.latest_step()
        if step is None:
            return
        target = self._runner.restore_target()
        items, meta = self._checkpointer.restore(step, _items(target))
        optimizer = items["optimizer"]
        restored = TrainState(
            optimizer["step"], items["params"], optimizer["opt_state"], items["ema"]
        )
        self._state = self._runner.from_host_layout(restored)
        self._progress = Progress(**meta["progress"])
        print(f"going on from step {step}", flush=True)


def _items(state: TrainState) -> dict[str, Any]:
    """The state as a checkpoint's items."""
    return {
        "params": state.params,
        "ema": state.ema,
        "optimizer": {"step": state.step, "opt_state": state.opt_state},
    }


class _Window:
    """Metrics of the steps between two reports."""

    def __init__(self, padding: float):
        self._padding = padding
        self._sums = {"loss_sum": 0.0, "correct_sum": 0.0, "tokens": 0.0}
        self._last: dict[str, Any] = {}
        self._seconds = 0.0
        self._started: float | None = None

    def resume(self) -> None:
        """Lets the clock run."""
        self._started = time.monotonic()

    def pause(self) -> None:
        """Stops the clock while something other than training goes on."""
        self._seconds += time.monotonic() - (self._started or time.monotonic())
        self._started = None

    def add(self, metrics: dict[str, Any]) -> None:
        for name in self._sums:
            self._sums[name] += float(metrics[name])
        self._last = metrics
        if not (math.isfinite(metrics["loss_sum"]) and math.isfinite(metrics["grad_norm"])):
            raise UserError(
                "The training loss or its gradient is not finite; lower "
                "config.optimizer.learning_rate, lengthen the warm-up, or set "
                "config.optimizer.clip_norm."
            )

    def summary(self) -> dict[str, float]:
        self.pause()
        tokens = max(self._sums["tokens"], 1.0)
        return {
            "train_loss": self._sums["loss_sum"] / tokens,
            "train_token_accuracy": 100.0 * self._sums["correct_sum"] / tokens,
            "learning_rate": float(self._last["learning_rate"]),
            "grad_norm": float(self._last["grad_norm"]),
            "target_tokens_per_second": self._sums["tokens"] / max(self._seconds, 1e-9),
            "padding": self._padding,
        }
