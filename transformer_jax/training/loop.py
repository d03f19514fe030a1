"""The training loop: steps, evaluations, checkpoints, and going on where a run stopped."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from transformer_jax import distributed, paths
from transformer_jax.config import Config, validate
from transformer_jax.data.loader import BatchSource, load_batches
from transformer_jax.decoding.engine import Engine
from transformer_jax.errors import UserError
from transformer_jax.evaluation import model_metrics
from transformer_jax.runs import checkpoint as checkpoint_lib
from transformer_jax.runs import workdir as workdir_lib
from transformer_jax.runs.checkpoint import Checkpointer, quality
from transformer_jax.training import faults, setup
from transformer_jax.training.faults import StopRequest
from transformer_jax.training.partition import choose_devices
from transformer_jax.training.reporting import Reporter, Window
from transformer_jax.training.runners import Runner, make_runner
from transformer_jax.training.step import TrainState

NUM_SAMPLES = 5


@dataclasses.dataclass
class Progress:
    """What a run remembers besides its state; kept in every checkpoint."""

    metric: str = ""
    best: list[float] | float | None = None  # `checkpoint.quality`
    best_step: int = 0
    evaluations_since_best: int = 0
    skipped: int = 0  # steps whose loss or gradient was not finite, or a spike
    skipped_in_a_row: int = 0


def train(config: Config, workdir: epath.PathLike, stop_after: int | None = None) -> bool:
    """Trains in `workdir`, or goes on there, until `train.num_steps` or early stopping.

    On SIGTERM or a preemption notice, and behind step `stop_after`, it saves and returns; the next
    call goes on. Before the first step there is nothing to save, and SIGTERM ends the process.

    Returns:
      Whether the run has come to its end.

    Raises:
      UserError: before any compilation, for whatever cannot work; later, where training cannot go
        on or its last checkpoint could not be written.
    """
    with prepared(config, workdir) as trainer:
        return trainer.run(stop_after)


@contextlib.contextmanager
def prepared(config: Config, workdir: epath.PathLike, writes: bool = True) -> Iterator["Trainer"]:
    """A `Trainer` that stands where the run in `workdir` stopped, which is held meanwhile.

    With `writes=False` nothing is written and nothing said.
    """
    config, folder = paths.locate(config, workdir)
    workdir = epath.Path(folder)
    validate(config)
    say = functools.partial(print, flush=True) if distributed.is_primary() else lambda _: None
    with contextlib.ExitStack() as stack:
        held = workdir_lib.lock(workdir)
        distributed.run_on_primary(lambda: _enter(stack, held), "lock")
        devices = choose_devices(config)
        step = distributed.run_on_primary(
            lambda: checkpoint_lib.newest_intact(workdir, say, writes), "checkpoints"
        )
        config, data = setup.prepare_everywhere(config, workdir, say, writes)
        trainer = Trainer(config, workdir, make_runner(config, devices), data, step, writes)
        del data  # which may hold the parameters that the run started from
        try:
            yield trainer
        except BaseException as error:
            # Closing waits for the other processes, who may know nothing of what went wrong here.
            if distributed.process_count() == 1 or isinstance(error, UserError):
                trainer.close()
            raise
        trainer.close()


def _enter(stack: contextlib.ExitStack, context: contextlib.AbstractContextManager[None]) -> None:
    stack.enter_context(context)


class Trainer:
    """One run: its state on the devices and everything that happens between steps."""

    def __init__(
        self,
        config: Config,
        workdir: epath.Path,
        runner: Runner,
        data: setup.TrainingData,
        step: int | None,
        writes: bool = True,
    ):
        self.config, self.runner = config, runner
        self.data = dataclasses.replace(data, initial_params=None)
        self._workdir = workdir
        self.row_multiple = runner.num_row_parts * config.train.accumulate_steps
        self._checkpointer = Checkpointer(workdir, config.checkpoint)
        self._progress = Progress()
        self.step = step or 0
        self._reporter = Reporter(
            workdir, self.step, config.train.num_steps, writes and distributed.is_primary()
        )
        self._describe()
        if step is None:
            self.state = runner.init(config.seed, data.initial_params)
        else:
            self.restore(step)
            self._reporter.say(f"going on from step {step}")
        self._engine = Engine(config, data.tokenizers)
        self._window = Window(data.padding)
        self._save_is_due = False

    def _describe(self) -> None:
        runner, parallel = self.runner, self.config.parallel
        mesh = " x ".join(f"{name} {size}" for name, size in runner.mesh.shape.items() if size > 1)
        several = (
            f" of {distributed.process_count()} processes"
            if distributed.process_count() > 1
            else ""
        )
        self._reporter.say(
            f"model: {runner.num_params():,} parameters on {runner.num_devices} "
            f"{runner.mesh.devices.flat[0].platform} device(s){several}, runner {parallel.runner}"
            + (f", {mesh}" if mesh else "")
        )
        for axis, share in runner.replicated_share().items():
            if share:
                self._reporter.say(
                    f"{axis}={runner.mesh.shape[axis]} divides no axis of {100 * share:.2g}% of "
                    "the parameters; each device has all of those"
                )

    def run(self, stop_after: int | None = None) -> bool:
        """Steps until the end; False where it was asked to stop before."""
        if self.step >= self.config.train.num_steps or self._stops_early():
            self._reporter.say(f"nothing to do: the run stands at step {self.step}")
            return True
        self.compile()
        with StopRequest(stop_after) as stop:
            return self._run_steps(stop)

    def _run_steps(self, stop: StopRequest) -> bool:
        """The loop of `run`. Metrics are read one step late, so the device never waits."""
        train = self.config.train
        batches = load_batches(self.batches(), self.step)
        self._window.resume()
        late = None
        while self.step < train.num_steps and not self._stops_early():
            if stop.reached(self.step + 1):
                self._read(late)
                self._stop_here()
                return False
            self.state, metrics = self.runner.step(self.state, next(batches))
            self.step += 1
            self._read(late)
            late = self.step, metrics
            evaluates = self._is_due(train.eval_every_steps)
            self._save_is_due |= self._is_due(train.checkpoint_every_steps)
            if evaluates or self._save_is_due:
                self._read(late)
                late = None
                self._window.pause()
                self._save(self._evaluate() if evaluates else {})
                self._window.resume()
        self._read(late)
        self._finish()
        self.data.epochs.close()
        self._reporter.say(f"finished at step {self.step}")
        return True

    def _is_due(self, every_steps: int) -> bool:
        """Whether this step ends a period of so many steps, or the run; 0: never."""
        at_end = self.step == self.config.train.num_steps
        return bool(every_steps) and (self.step % every_steps == 0 or at_end)

    def compile(self) -> None:
        """Compiles the step for every batch shape, the largest first."""
        shapes = self.data.padded_shapes(self.row_multiple)
        started = time.monotonic()
        for shape in shapes:
            self.runner.compile(shape, self.state)
        self._reporter.say(
            f"compiled {len(shapes)} batch shape(s) in {time.monotonic() - started:.1f} s"
        )

    def close(self) -> None:
        self._checkpointer.close()
        self._reporter.close()

    def batches(self) -> BatchSource:
        """The batches of the run, those rows of them that this process loads."""
        return self.data.batches(self.config, self.row_multiple, self.runner.local_rows)

    # --- Metrics -------------------------------------------------------------------------------

    def _read(self, late: tuple[int, dict[str, jax.Array]] | None) -> None:
        """Adds a step's metrics to the window; reports the window where it is full."""
        if late is None:
            return
        step, arrays = late
        metrics = jax.device_get(arrays)
        if metrics["skipped"]:
            self._note_skipped(step, metrics)
        else:
            self._progress.skipped_in_a_row = 0
            self._window.add(metrics)
        self._reporter.advance(step)
        if step % self.config.train.log_every_steps == 0 or step == self.config.train.num_steps:
            if distributed.is_primary() and self._window.num_steps:
                summary = self._window.summary(self._progress.skipped)
                digest = self.data.batches(self.config).digest(step - 1)
                self._reporter.training(step, summary | {"batch_digest": digest})
            self._window = Window(self.data.padding)
            self._window.resume()
            if distributed.process_count() == 1 and not self._checkpointer.is_saving():
                self._tell(self._checkpointer.wait())

    def _note_skipped(self, step: int, metrics: dict[str, Any]) -> None:
        """Keeps the batch of a step that changed nothing; ends a run of nothing but such steps."""
        self._progress.skipped += 1
        self._progress.skipped_in_a_row += 1
        where = ""
        if distributed.is_primary():
            try:
                path = faults.write_bad_batch(self._workdir, step, metrics, self.data, self.config)
                where = f"; its batch is in {path}"
            except OSError as error:
                where = f"; its batch could not be written ({error.strerror})"
        loss = metrics["loss_sum"] / metrics["tokens"]
        self._reporter.say(
            f"step {step}: skipped, loss {loss:.4g}, gradient norm {metrics['grad_norm']:.4g}"
            + where
        )
        if self._progress.skipped_in_a_row >= faults.MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"The last {faults.MAX_SKIPPED_IN_A_ROW} steps were all skipped, up to step "
                f"{step}: {faults.advice(self.config, step, metrics)}; --replay=FILE looks at one "
                "of their batches."
            )

    # --- Evaluation ----------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, float]:
        decode = dataclasses.replace(
            self.config.decode, method="beam", beam_size=self.config.train.eval_beam_size,
            beam_groups=1,
        )  # fmt: skip
        state = self.runner.to_host_layout(self.state)
        params = self.runner.whole(state.params if state.ema is None else state.ema)
        scores, outputs = model_metrics.evaluate(self._engine, params, self.data.validation, decode)
        self._engine.programs.release()
        told = {f"eval_{name}": value for name, value in dataclasses.asdict(scores).items()}
        metrics = {name: value for name, value in told.items() if isinstance(value, float)}
        pairs = list(zip(self.data.validation, outputs, strict=True))[:NUM_SAMPLES]
        samples = [
            {"source": source, "reference": reference, "hypothesis": output.text}
            for (source, reference), output in pairs
        ]
        self._reporter.evaluation(self.step, told, samples)
        self._note_quality(metrics)
        return metrics

    def _note_quality(self, metrics: dict[str, float]) -> None:
        name = self.config.checkpoint.best_metric
        value = quality(metrics, name)
        old = self._progress
        best = [old.best] if isinstance(old.best, float) else old.best  # 0.1.0 kept no loss
        if best is None or old.metric != name or value > best:
            old.metric, old.best = name, value
            old.best_step, old.evaluations_since_best = self.step, 0
        else:
            old.evaluations_since_best += 1

    def _stops_early(self) -> bool:
        patience = self.config.train.early_stopping_patience
        if not patience or self._progress.evaluations_since_best < patience:
            return False
        self._reporter.say(
            f"stopped early: {self.config.checkpoint.best_metric} has not improved for {patience} "
            f"evaluations, the best was at step {self._progress.best_step}"
        )
        return True

    # --- Checkpoints ---------------------------------------------------------------------------

    def _save(self, metrics: dict[str, float], ends: bool = False) -> None:
        """Starts to save; what went wrong, now or with the save before, is told.

        Behind a skipped step it waits for one that is not, but where the run `ends` or was
        evaluated: nothing has changed, and parameters may be beyond repair.
        """
        if self._progress.skipped_in_a_row and not (metrics or ends):
            return
        self._save_is_due = False
        state = self.runner.to_host_layout(self.state)
        if self.runner.mesh.devices.flat[0].platform == "cpu":
            # Orbax writes in the background from the very buffers that the next step overwrites.
            state = jax.tree.map(jnp.copy, state)
        train = self.config.train
        meta = {
            "metrics": metrics,
            "progress": dataclasses.asdict(self._progress),
            "scheduled": not ends
            or any(map(self._is_due, (train.checkpoint_every_steps, train.eval_every_steps))),
        }
        self._tell(self._checkpointer.save(self.step, _items(state), meta))

    def _tell(self, problem: str | None) -> None:
        if problem:
            kept = self._checkpointer.newest_saved
            self._reporter.say(
                f"step {self.step}: the checkpoint could not be written ({problem}); "
                + (f"that of step {kept} is kept" if kept is not None else "there is none yet")
                + ", training goes on and tries again at the next"
            )

    def _stop_here(self) -> None:
        """Saves what is new and says how to go on."""
        self._finish()
        self._reporter.say(f"asked to stop: saved step {self.step}; the same command goes on")

    def _finish(self) -> None:
        """Saves what is new, and waits until it is written.

        Raises:
          UserError: where it could not be.
        """
        self._tell(self._checkpointer.wait())
        problem = None
        if self._checkpointer.newest_saved != self.step:
            self._save({}, ends=True)
            problem = self._checkpointer.wait()
        self._reporter.flush()
        kept = self._checkpointer.newest_saved
        if kept != self.step:
            raise UserError(
                f"Step {self.step} could not be saved in {self._workdir}"
                + (f" ({problem})" if problem else "")
                + (f"; step {kept} is the newest there" if kept is not None else "")
                + "; make room or mend it, and give the same command again."
            )

    def restore(self, step: int) -> None:
        """Takes over the checkpoint of `step`, which may be of other devices or another runner."""
        if hasattr(self, "state"):
            del self.state  # two may not fit
        target = self.runner.restore_target()
        items, meta = self._checkpointer.restore(step, _items(target))
        state = _state(items)
        del items
        self.state = self.runner.from_host_layout(state)
        self._progress = Progress(**meta["progress"])
        self.step = step


def _items(state: TrainState) -> dict[str, Any]:
    """The state as a checkpoint's items."""
    optimizer = {"step": state.step, "opt_state": state.opt_state}
    if state.usual_norm is not None:
        optimizer["usual_norm"] = state.usual_norm
    return {"params": state.params, "ema": state.ema, "optimizer": optimizer}


def _state(items: dict[str, Any]) -> TrainState:
    """Inverse of `_items`."""
    optimizer = items["optimizer"]
    return TrainState(
        optimizer["step"], items["params"], optimizer["opt_state"], items["ema"],
        optimizer.get("usual_norm"),
    )  # fmt: skip
