"""The training loop: set up a run, step, evaluate, save, and resume where the run stopped."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from etils import epath

from transformer_jax import distributed, paths
from transformer_jax.config import Config, validate
from transformer_jax.data.loader import BatchSource, load_batches
from transformer_jax.decoding.engine import Engine
from transformer_jax.errors import UserError
from transformer_jax.runs import host_memory
from transformer_jax.runs import workdir as workdir_lib
from transformer_jax.runs.checkpoint import Checkpointer, newest_intact
from transformer_jax.runs.retention import quality
from transformer_jax.training import faults, setup
from transformer_jax.training.evaluate import evaluate
from transformer_jax.training.faults import StopRequest
from transformer_jax.training.partition import choose_devices
from transformer_jax.training.progress import Progress
from transformer_jax.training.reporting import Reporter, Window
from transformer_jax.training.runners import Runner, make_runner
from transformer_jax.training.step import Metrics, PyTree, TrainState


def train(config: Config, workdir: epath.PathLike, stop_after: int | None = None) -> bool:
    """Trains in `workdir`, or resumes there, until `train.num_steps` or early stopping.

    On SIGTERM, a preemption notice, and after step `stop_after`, it saves and returns. The next
    call resumes the run. Before the first step there is nothing to save, and SIGTERM ends the
    process.

    Args:
      config: of the run.
      workdir: folder of the run; made if missing.
      stop_after: step to stop after; None: only the config ends the run.

    Returns:
      Whether the run has ended.

    Raises:
      UserError: before any compilation, for whatever cannot work. Later, where training cannot
        continue or the last checkpoint could not be written.
    """
    host_memory.keep_freed_memory()
    with open_run(config, workdir) as trainer:
        return trainer.run(stop_after)


@contextlib.contextmanager
def open_run(
    config: Config, workdir: epath.PathLike, read_only: bool = False
) -> Iterator["Trainer"]:
    """Sets up the run in `workdir` and yields its `Trainer`, at the step where the run stopped.

    The work directory is locked until the context ends. Stages that can fail on one process alone
    are called through `distributed`, which raises their errors on every process.

    Args:
      config: of the run.
      workdir: folder of the run.
      read_only: write no file of the run.
    """
    config, folder = paths.locate(config, workdir)
    workdir = epath.Path(folder)
    validate(config)
    say = functools.partial(print, flush=True) if distributed.is_primary() else lambda _: None
    with contextlib.ExitStack() as stack:
        lock = workdir_lib.lock(workdir)
        distributed.run_on_primary(lambda: stack.enter_context(lock), "lock")
        devices = choose_devices(config)
        step = distributed.run_on_primary(
            lambda: newest_intact(workdir, say, read_only), "checkpoints"
        )
        config, data = distributed.run_primary_first(
            lambda: setup.prepare(config, workdir, say, read_only), "data"
        )
        runner = make_runner(config, devices)
        reporter = Reporter(
            workdir, step or 0, config.train.num_steps, distributed.is_primary() and not read_only
        )
        for line in runner.describe():
            reporter.say(line)

        trainer = Trainer(config, workdir, data.without_params(), runner, reporter)
        if step is None:
            trainer.start(data.initial_params)
        else:
            trainer.restore(step)
            reporter.say(f"resuming from step {step}")
        del data  # the initial parameters are on the devices now
        try:
            yield trainer
        except BaseException as error:
            # Closing waits for the other processes, who may not know of an error here.
            if distributed.process_count() == 1 or isinstance(error, UserError):
                trainer.close()
            raise
        trainer.close()


class Trainer:
    """One run: its state on the devices, and everything that happens between steps.

    Attributes:
      state: parameters, optimizer state and average, in the layout of `runner`.
      step: steps done.
      progress: counters that are saved with the state.
    """

    state: TrainState

    def __init__(
        self,
        config: Config,
        workdir: epath.Path,
        data: setup.TrainingData,
        runner: Runner,
        reporter: Reporter,
    ):
        self.config, self.data, self.runner = config, data, runner
        self.step, self.progress = 0, Progress()
        self.row_multiple = runner.num_batch_shards * config.train.accumulate_steps
        self._workdir = workdir
        self._reporter = reporter
        self._checkpointer = Checkpointer(workdir, config.checkpoint)
        self._engine = Engine(config, data.tokenizers)
        self._window = Window(data.padding)

    def run(self, stop_after: int | None = None) -> bool:
        """Trains until the run ends or is asked to stop; returns whether it has ended.

        In pseudo-code:
          compile the step for every batch shape
          while the run has not ended and was not asked to stop:
            take a step
            read the metrics of the step before, so that the device never waits
            evaluate and save, if either is due
          save the last step
        """
        train = self.config.train
        if self._has_ended():
            self._reporter.say(f"{self._why_ended()}; nothing to do")
            return True
        self.compile()
        batches = load_batches(self.batches(), self.step)
        unread: tuple[int, Metrics] | None = None  # newest step and its metrics
        save_is_due = False
        self._window.resume()
        with StopRequest(stop_after) as stop:
            while not self._has_ended() and not stop.reached(self.step + 1):
                self.state, metrics = self.runner.step(self.state, next(batches))
                self.step += 1
                self._read(unread)
                unread = self.step, metrics

                eval_is_due = self._is_due(train.eval_every_steps)
                save_is_due |= self._is_due(train.checkpoint_every_steps)
                if eval_is_due or save_is_due:
                    self._read(unread)
                    unread = None
                    with self._window.paused():
                        scores = self._evaluate() if eval_is_due else {}
                        # Parameters after a skipped step are worth no checkpoint, unless they
                        # were evaluated: the next step that is not skipped is saved instead.
                        if scores or not self.progress.skipped_in_a_row:
                            self._save(scores)
                            save_is_due = False
            self._read(unread)
            self._save_last_step()
            if not self._has_ended():
                self._reporter.say(
                    f"asked to stop: saved step {self.step}; the same command resumes the run"
                )
                return False
            self.data.epochs.close()
            self._reporter.say(self._why_ended())
            return True

    def compile(self) -> None:
        """Compiles the step for every batch shape, the largest first."""
        shapes = self.data.padded_shapes(self.row_multiple)
        started = time.monotonic()
        for shape in shapes:
            self.runner.compile(shape, self.state)
        seconds = time.monotonic() - started
        self._reporter.say(f"compiled {len(shapes)} batch shape(s) in {seconds:.1f} s")

    def batches(self) -> BatchSource:
        """The batches of the run; of each, the rows that this process loads."""
        return self.data.batches(self.config, self.row_multiple, self.runner.local_rows)

    def start(self, params: PyTree = None) -> None:
        """Initialises the state with given parameters (on the host), or with fresh ones."""
        self.state = self.runner.init(self.config.seed, params)

    def restore(self, step: int) -> None:
        """Continues from the checkpoint of `step`, written on any devices, by any runner."""
        if hasattr(self, "state"):
            del self.state  # two may not fit
        target = self.runner.restore_target().to_items()
        items, meta = self._checkpointer.restore(step, target)
        state = TrainState.from_items(items)
        del items
        self.state = self.runner.from_checkpoint_layout(state)
        self.step, self.progress = step, Progress(**meta["progress"])

    def close(self) -> None:
        """Waits until everything is written."""
        self._checkpointer.close()
        self._reporter.close()

    # --- When ----------------------------------------------------------------------------------

    def _is_due(self, every_steps: int) -> bool:
        """Whether this step ends a period of `every_steps`, or the run; 0: never."""
        at_end = self.step == self.config.train.num_steps
        return bool(every_steps) and (self.step % every_steps == 0 or at_end)

    def _has_ended(self) -> bool:
        """Whether the last step is done, or early stopping ends the run."""
        train = self.config.train
        stops_early = self.progress.stops_early(train.early_stopping_patience)
        return self.step >= train.num_steps or stops_early

    def _why_ended(self) -> str:
        patience = self.config.train.early_stopping_patience
        if not self.progress.stops_early(patience):
            return f"finished at step {self.step}"
        return (
            f"stopped early at step {self.step}: {self.config.checkpoint.best_metric} has not "
            f"improved for {patience} evaluations, the best was at step {self.progress.best_step}"
        )

    # --- Metrics -------------------------------------------------------------------------------

    def _read(self, unread: tuple[int, Metrics] | None) -> None:
        """Waits for the metrics of a step, counts them, and reports every `log_every_steps`."""
        if unread is None:
            return
        step, metrics = unread[0], jax.device_get(unread[1])
        skipped = bool(metrics["skipped"])
        self.progress = self.progress.after_step(skipped)
        if skipped:
            line = faults.record_skipped_step(self._workdir, step, metrics, self.data, self.config)
            self._reporter.say(line)
            faults.check_skipped_in_a_row(self.progress, step, metrics, self.config)
        else:
            self._window.add(metrics)
        self._reporter.advance(step)
        if step % self.config.train.log_every_steps == 0 or step == self.config.train.num_steps:
            if distributed.is_primary() and self._window.num_steps:
                summary = self._window.summary(self.progress.skipped)
                digest = self.data.batches(self.config).digest(step - 1)
                self._reporter.training(step, summary | {"batch_digest": digest})
            self._window = Window(self.data.padding)
            self._window.resume()
            if distributed.process_count() == 1 and not self._checkpointer.is_saving():
                self._report_failed_save(self._checkpointer.wait())

    # --- Evaluation ----------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, float]:
        """Scores and translates the validation set, and reports; returns the metrics."""
        state = self.runner.to_checkpoint_layout(self.state)
        params = self.runner.gather(state.params if state.ema is None else state.ema)
        metrics, samples = evaluate(self.config, self._engine, params, self.data.validation)
        self._reporter.evaluation(self.step, metrics, samples)
        scores = {name: value for name, value in metrics.items() if isinstance(value, float)}
        metric = self.config.checkpoint.best_metric
        self.progress = self.progress.after_evaluation(self.step, metric, quality(scores, metric))
        return scores

    # --- Checkpoints ---------------------------------------------------------------------------

    def _save(self, metrics: dict[str, float], scheduled: bool = True) -> None:
        """Starts to save, in the background; reports if this save or the one before failed."""
        state = self.runner.to_checkpoint_layout(self.state)
        if self.runner.mesh.devices.flat[0].platform == "cpu":
            # Orbax writes in the background from the very buffers that the next step overwrites.
            state = jax.tree.map(jnp.copy, state)
        meta = {
            "metrics": metrics,
            "progress": dataclasses.asdict(self.progress),
            "scheduled": scheduled,
        }
        problem = self._checkpointer.save(self.step, state.to_items(), meta)
        self._report_failed_save(problem)

    def _report_failed_save(self, problem: str | None) -> None:
        if problem:
            newest = self._checkpointer.newest_saved
            self._reporter.say(
                f"step {self.step}: the checkpoint could not be written ({problem}); "
                + (f"that of step {newest} is kept" if newest is not None else "there is none yet")
                + ", training continues and tries again at the next"
            )

    def _save_last_step(self) -> None:
        """Saves the newest step unless it is saved, and waits until it is written.

        Raises:
          UserError: where it could not be written.
        """
        self._report_failed_save(self._checkpointer.wait())
        problem = None
        if self._checkpointer.newest_saved != self.step:
            train = self.config.train
            periods = (train.checkpoint_every_steps, train.eval_every_steps)
            self._save({}, scheduled=any(map(self._is_due, periods)))
            problem = self._checkpointer.wait()
        self._reporter.flush()
        newest = self._checkpointer.newest_saved
        if newest != self.step:
            raise UserError(
                f"Step {self.step} could not be saved in {self._workdir}"
                + (f" ({problem})" if problem else "")
                + (f"; step {newest} is the newest there" if newest is not None else "")
                + "; make room or fix the folder, and give the same command again."
            )
