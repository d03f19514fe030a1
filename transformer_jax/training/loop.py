"""The training loop: sets up a run, or resumes it, then steps, evaluates and saves.

Words:
  step: reads one batch; step n uses batch n - 1. It updates the parameters, unless it is *skipped*
    (`step.py`).
  ended: the last step is done, or early stopping has ended the run. The other way to leave the loop
    is a request to *stop*, after which the run can be resumed.
  runner: puts the step on devices, in its layout of the state. Checkpoints have a layout of their
    own, which every runner can read (`runners.py`).
  primary process: process 0, the only one that prints and writes, except for its checkpoint shards.
  window: the steps since the last log line.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence

import jax
from etils import epath

from transformer_jax import distributed, paths, waiting
from transformer_jax.config import Config, validate
from transformer_jax.data.loader import BatchSource, load_batches
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.training import faults, setup
from transformer_jax.training.partition import choose_devices
from transformer_jax.training.progress import Progress
from transformer_jax.training.reporting import Reporter, Window
from transformer_jax.training.runners import Runner, make_runner
from transformer_jax.training.saving import StateSaver
from transformer_jax.training.step import Metrics, PyTree, TrainState
from transformer_jax.training.stopping import StopRequest
from transformer_jax.workdir import compilation_cache, history, host_memory
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir.checkpoint import find_resume_step
from transformer_jax.workdir.new_files import NewFiles
from transformer_jax.workdir.retention import quality

RESUMES = "the same command resumes the run"


def train(
    config: Config,
    workdir: epath.PathLike,
    stop_after: int | None = None,
    train_pairs: Iterable[tuple[str, str]] | None = None,
) -> bool:
    """Trains in `workdir`, or resumes there, until `train.num_steps` or early stopping.

    On SIGTERM, a preemption notice, and after step `stop_after`, it saves and returns. The next
    call resumes the run. Until everything is compiled there is nothing new to save, and SIGTERM
    ends the process. A stop between that and the first step of a new run saves step 0.

    Ctrl-C saves too, once everything is compiled. A second Ctrl-C ends the process at once.

    Args:
      config: the run's configuration.
      workdir: the run's folder; made if missing.
      stop_after: a step of the run, after which to stop; None: only the config ends the run.
      train_pairs: source and target texts to train on, in the place of `data.train`; a run is
        resumed with the same ones. They are kept in memory, and each process needs all of them.

    Returns:
      True if the run has ended; False if it was asked to stop and can be resumed.

    Raises:
      UserError: before compiling, if the config, data or work directory cannot be used; then the
        work directory is as it was before. Later, if training cannot continue or the last
        checkpoint could not be written.
      KeyboardInterrupt: after Ctrl-C, when everything is saved; not with several processes.
    """
    host_memory.keep_freed_memory()  # saves up to a fifth of a step's time on CPU
    compilation_cache.keep_programs()
    with open_run(config, workdir, train_pairs=train_pairs) as trainer:
        return trainer.run(stop_after)


@contextlib.contextmanager
def open_run(
    config: Config,
    workdir: epath.PathLike,
    read_only: bool = False,
    train_pairs: Iterable[tuple[str, str]] | None = None,
) -> Iterator["Trainer"]:
    """Sets up the run in `workdir` and yields its `Trainer`, at the step where the run stopped.

    The work directory is locked until the context ends. What can fail on one process alone is
    called through `distributed`, which raises a `UserError` of any process on all of them.

    Args:
      config: the run's configuration.
      workdir: the run's folder.
      read_only: for tools that inspect a run: change none of its files. The work directory is
        locked all the same, and `Trainer.run` refuses.
      train_pairs: as of `train`.
    """
    config, folder = paths.locate(config, workdir)  # with `~` expanded
    workdir = epath.Path(folder)
    validate(config)
    say = functools.partial(print, flush=True) if distributed.is_primary() else lambda _: None
    with contextlib.ExitStack() as stack:
        new_files = NewFiles(workdir)
        distributed.run_on_primary(lambda: stack.enter_context(workdir_lib.lock(workdir)), "lock")
        stack.enter_context(new_files)  # removes them where the set-up fails
        devices = choose_devices(config)
        resume_step = distributed.run_on_primary(
            lambda: find_resume_step(workdir, say, move_damaged=not read_only), name="checkpoints"
        )
        # On the primary process first: the others read its caches.
        config, data = distributed.run_primary_first(
            lambda: setup.prepare(config, workdir, say, read_only, train_pairs), name="data"
        )
        runner = make_runner(config, devices)
        reporter = Reporter(
            workdir,
            first_step=resume_step or 0,
            num_steps=config.train.num_steps,
            is_primary=distributed.is_primary() and not read_only,
        )
        stack.push(reporter.close)
        for line in (*runner.describe(), *setup.describe_loss(config)):
            reporter.say(line)

        trainer = Trainer(config, workdir, data.without_params(), runner, reporter, read_only)
        try:
            trainer.start(resume_step, data.initial_params)
            del data  # frees the initial parameters: they are on the devices now
            stack.enter_context(trainer.record_training(devices))
            new_files.keep()
            yield trainer
        except BaseException as error:
            # Closing waits for the other processes, which an error of this one alone does not end.
            is_on_all = new_files.are_kept and isinstance(error, distributed.SharedError)
            if distributed.process_count() == 1 or is_on_all:
                trainer.close()
            raise
        trainer.close()


class Trainer:
    """One run: its state on the devices, and everything that happens between steps.

    Attributes:
      config: the run's configuration, complete.
      data: training batches and validation pairs.
      runner: the step on the devices.
      row_multiple: batches get empty rows up to a multiple of this number, so that the shards and
        accumulated parts of a batch are equal.
      state: parameters, optimizer state and average, in the layout of `runner`.
      step: steps done.
      progress: counters that are saved with the state.
    """

    state: TrainState  # by `start` or `restore`
    _window: Window  # by `run`

    def __init__(
        self,
        config: Config,
        workdir: epath.Path,
        data: setup.TrainingData,
        runner: Runner,
        reporter: Reporter,
        read_only: bool = False,
    ):
        self.config, self.data, self.runner = config, data, runner
        self.row_multiple = runner.num_batch_shards * config.train.accumulate_steps
        self.step, self.progress = 0, Progress()
        self._has_explained_bleu = False  # of 0, which short sentences have
        self._workdir = workdir
        self._reporter = reporter
        self._read_only = read_only
        self._saver = StateSaver(workdir, config.checkpoint, runner, reporter)
        if config.train.eval_every_steps:
            from transformer_jax.training.evaluate import Evaluator  # it loads the translator

            self._evaluator = Evaluator(config, data.tokenizers, runner)

    def run(self, stop_after: int | None = None) -> bool:
        """Trains until the run ends or is asked to stop; returns whether it has ended.

        In pseudo-code:
          compile the step for every batch shape
          while the run has not ended and was not asked to stop:
            take a step
            read the metrics of the step before, so that the device never waits
            evaluate, if that is due
            save, if that is due, and after every evaluation, so that the best parameters are kept
          save the last step
        """
        if self._read_only:
            raise ValueError("The run was opened with read_only=True; `run` writes into it.")
        train = self.config.train
        if self._has_ended() or (stop_after and self.step >= stop_after):
            return self._take_no_step(stop_after)
        self._reporter.open_loggers(self.config)
        self.compile()
        batches = load_batches(self.batches(), self.step)
        pending: tuple[int, Metrics] | None = None  # the newest step and its metrics, not yet read
        scores: dict[str, float] = {}  # of the newest step, if it was evaluated
        save_is_due = False
        self._window = Window(self.data.padding)
        with StopRequest(stop_after) as stop:  # also during the last save
            while not self._has_ended() and not stop.is_due(before_step=self.step + 1):
                self.state, metrics = self.runner.step(self.state, next(batches))
                self.step += 1
                self._process_metrics(pending)
                pending = self.step, metrics

                scores = {}
                eval_is_due = self._is_due(self.step, train.eval_every_steps)
                save_is_due |= self._is_due(self.step, train.checkpoint_every_steps)
                if eval_is_due or save_is_due:
                    self._process_metrics(pending)
                    pending = None
                    with self._window.paused():
                        if eval_is_due:
                            scores = self._evaluate()
                        # While steps are skipped the parameters do not change, and a run that
                        # diverges would replace its good checkpoints. The save waits for an update.
                        if scores or self.progress.skipped_in_a_row == 0:
                            self._saver.save(self.step, self.state, self.progress, scores)
                            save_is_due = False
            self._process_metrics(pending)
            scheduled = self._is_due(self.step, train.checkpoint_every_steps) or self._is_due(
                self.step, train.eval_every_steps
            )
            self._saver.save_last(self.step, self.state, self.progress, scores, scheduled)
            self._reporter.flush()
        if not self._has_ended():
            self._say_stopped(stop_after)
            stop.raise_if_interrupted()
            return False
        self.data.epochs.close()  # removes cached tokens that only a resumed run would need
        self._reporter.say(self._why_ended())
        return True

    def _say_stopped(self, stop_after: int | None) -> None:
        """Says why the run was stopped, and how it is resumed."""
        why, resumes = "asked to stop", RESUMES
        if stop_after and self.step >= stop_after:
            why = f"`stop_after={stop_after}` is reached"
            resumes = "without it, the same command resumes the run"
        self._reporter.outcome = "interrupted"
        self._reporter.say(f"{why}: saved step {self.step}; {resumes}")
        if self.config.train.eval_every_steps and not self.progress.best_step:
            self._reporter.say("no evaluation was due, so none is best; use `checkpoint=latest`")

    def _take_no_step(self, stop_after: int | None) -> bool:
        """Says why there is nothing to do; returns whether the run has ended."""
        if self._has_ended():
            self._reporter.say(f"{self._why_ended()}; nothing to do")
            return True
        self._reporter.outcome = "interrupted"
        self._reporter.say(f"the run is at step {self.step}: `stop_after={stop_after}` is reached")
        return False

    def compile(self) -> None:
        """Compiles the step for every batch shape, the largest first."""
        shapes = self.data.padded_shapes(self.row_multiple)
        what = f"the training step for {len(shapes)} shape(s) of batches"
        with waiting.announced(what, self._reporter.say):
            for shape in shapes:
                self.runner.compile(shape, self.state)

    def batches(self) -> BatchSource:
        """The batches of the run, of each the rows that this process loads."""
        return self.data.batches(self.config, self.row_multiple, self.runner.local_rows)

    def start(self, resume_step: int | None, params: PyTree | None) -> None:
        """Begins with a checkpoint or `params` (on the host; None: fresh), then writes the config.

        In this order: a resumed run that cannot start keeps its settings.
        """
        if resume_step is None:
            with waiting.announced("the initialization", self._reporter.say):
                self.state = self.runner.init(self.config.seed, params)
        else:
            self.restore(resume_step)
            self._reporter.say(f"resuming from step {resume_step}")
        if not self._read_only:
            write = functools.partial(workdir_lib.write_config, self._workdir, self.config)
            distributed.run_on_primary(write, name="config")

    def restore(self, step: int) -> None:
        """Continues from the checkpoint of `step`."""
        # Shapes alone, which frees the old state: device memory may not hold two.
        self.state = self.runner.restore_target()
        self.state, self.progress = self._saver.restore(step)
        self.step = step

    def close(self) -> None:
        """Waits until the last checkpoint is written, or reports that it could not be."""
        self._saver.close()

    def record_training(
        self, devices: Sequence[jax.Device]
    ) -> contextlib.AbstractContextManager[None]:
        """A context whose training is recorded in `history/`, if there is something to train."""
        if not distributed.is_primary() or self._read_only or self._has_ended():
            return contextlib.nullcontext()
        return history.record_training(self._workdir, devices, distributed.process_count())

    # --- Schedule and end of the run -----------------------------------------------------------

    def _is_due(self, step: int, every_steps: int) -> bool:
        """Whether `step` ends a period of `every_steps`, or the run; 0: never."""
        at_end = step == self.config.train.num_steps
        return bool(every_steps) and (step % every_steps == 0 or at_end)

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

    def _process_metrics(self, pending: tuple[int, Metrics] | None) -> None:
        """Waits for the metrics of a step, counts it, and logs if that is due; None: does nothing.

        Raises:
          UserError: after too many skipped steps in a row.
        """
        if pending is None:
            return
        step, metrics = pending[0], jax.device_get(pending[1])
        skipped = bool(metrics["skipped"])
        self.progress = self.progress.after_step(skipped)
        if skipped:
            line = faults.record_skipped_step(self._workdir, step, metrics, self.data, self.config)
            self._reporter.say(line)
            faults.check_skipped_in_a_row(self.progress, step, metrics, self.config)
        else:
            self._window.add(metrics)
        self._reporter.advance(step)
        if self._is_due(step, self.config.train.log_every_steps):
            self._log(step)

    def _log(self, step: int) -> None:
        """Writes the metrics of the window, and starts another one."""
        if distributed.is_primary() and self._window.num_steps:
            summary = self._window.summary(self.progress.skipped)
            # Equal digests show that two runs, or a resumed one, train on the same batches.
            digest = self.data.batches(self.config).digest(step - 1)
            counts = self.data.pairs_of_corpora(step)
            self._reporter.training(step, summary | counts | {"batch_digest": digest})
        self._window = Window(self.data.padding)
        self._saver.report_finished()

    # --- Evaluation ----------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, float]:
        """Scores and translates the validation set, and reports; returns the scores."""
        with waiting.reminded(lambda s: f"still evaluating after {s:.0f} s", self._reporter.say):
            metrics, samples = self._evaluator(self.state, self.data.validation)
        self._reporter.evaluation(self.step, metrics, samples)
        is_odd = metrics.get("eval_bleu") == 0.0 and metrics.get("eval_exact_match")
        if is_odd and not self._has_explained_bleu:
            self._has_explained_bleu = True
            self._reporter.say(f"  ({bleu_tokenizers.NO_FOUR_WORDS})")
        scores = {name: value for name, value in metrics.items() if isinstance(value, float)}
        metric = self.config.checkpoint.best_metric
        if metric in scores:  # else it could not be computed
            rank = quality(scores, metric)
            self.progress = self.progress.after_evaluation(self.step, metric, rank)
        return scores
