"""Sends the metrics of a run to Weights & Biases or MLflow (`train.loggers`), in a thread.

Their packages are imported only if the setting names them. Servers and projects are chosen by their
own environment variables, such as WANDB_PROJECT and MLFLOW_TRACKING_URI.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config, all_settings
from transformer_jax.errors import UserError

T = TypeVar("T")
Outcome = Literal["ended", "failed", "interrupted"]  # of a training, as in `history/`

PROJECT = "transformer_jax"  # of both, where no environment variable names another
RETRY_SECONDS = 60.0  # between two attempts
CLOSE_SECONDS = 15.0  # how long the end of a training waits for what is not sent yet
MAX_WAITING = 10_000  # lines that are kept for a service that fails
# With their own defaults an attempt takes minutes where a server does not answer, and Weights &
# Biases waits for it at the end of the process.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "WANDB_INIT_TIMEOUT": "30",
}
_MLFLOW_STATUS: dict[Outcome, str] = {
    "ended": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}


class Service(NamedTuple):
    """A run at a service. Its functions raise errors of any kind."""

    run_id: str
    send: Callable[[int, dict[str, float]], object]  # the metrics of a step
    finish: Callable[[Outcome], object]


def require(names: Sequence[str]) -> None:
    """Checks that the package of each logger is installed.

    Raises:
      UserError: it is not.
    """
    for name in names:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            raise UserError(
                f"config.train.loggers names {name}, which is not installed; pip install {name}, "
                "or leave it out."
            )


class Logger:
    """Sends the metrics of a run to one service. The training never waits for it.

    The first error is reported. What cannot be sent is kept, and sent later. A run that resumes
    continues the same run of the service, whose id is in the work directory (`NAME_run_id`). If the
    service does not have that run, a new one is started.

    Args:
      name: "wandb" or "mlflow".
      config: of the run.
      workdir: of the run; its name is that of the run at the service.
      say: gets a line about the first error, and at the end about metrics that were not sent.
    """

    def __init__(self, name: str, config: Config, workdir: epath.Path, say: Callable[[str], None]):
        self._name, self._config, self._workdir, self._say = name, config, workdir, say
        self._waiting: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue()
        self._num_added = self._num_sent = 0
        self._has_failed = False
        self._is_closing = threading.Event()
        self._outcome: Outcome = "ended"
        self._end = threading.Lock()  # held while `close` gives up, and while the id is written
        self._has_given_up = False
        # Before there is a thread: another one may not read variables while one is set.
        for variable, default in _DEFAULTS.items():
            os.environ.setdefault(variable, default)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        """Sends the metrics that are numbers, at once or later."""
        self._num_added += 1
        if self._waiting.qsize() < MAX_WAITING:
            numbers = {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}
            self._waiting.put((step, numbers))

    def close(self, outcome: Outcome = "ended") -> None:
        """Sends what is kept, and ends the run at the service, within `CLOSE_SECONDS`.

        Args:
          outcome: how the training ended.
        """
        self._outcome = outcome
        self._is_closing.set()
        self._waiting.put(None)
        self._thread.join(CLOSE_SECONDS)
        reason = "" if self._has_failed else ", for lack of an answer"
        with self._end:
            self._has_given_up = self._has_failed = True  # the thread does and reports nothing more
        if self._num_sent < self._num_added:
            self._say(
                f"{self._name}: {self._num_added - self._num_sent} of {self._num_added} lines of "
                f"metrics were not sent{reason}; metrics.jsonl has all of them"
            )

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # of the last attempt; the first was reported
            service = self._retry(self._open)
            try:
                while (line := self._waiting.get()) is not None:
                    self._retry(functools.partial(service.send, *line))
                    self._num_sent += 1
            finally:  # also where lines could not be sent
                self._retry(lambda: service.finish(self._outcome))

    def _retry(self, action: Callable[[], T]) -> T:
        """Result of `action`, tried until it succeeds; after `close` its error is raised.

        Raises:
          TimeoutError: `close` has given up; nothing is tried.
        """
        while not self._has_given_up:
            is_last = self._is_closing.is_set()
            try:
                return action()
            except Exception as error:  # of any kind: these are not our packages
                self._report(error)
                if is_last:
                    raise
                self._is_closing.wait(RETRY_SECONDS)
        raise TimeoutError

    def _report(self, error: Exception) -> None:
        if not self._has_failed:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._say(f"{self._name}: {lines[0][:200]}; training continues, and tries again later")
        self._has_failed = True

    def _open(self) -> Service:
        path = self._workdir / f"{self._name}_run_id"
        run_id = path.read_text(encoding="utf-8") if path.exists() else None
        service = _OPEN[self._name](self._config, self._workdir, run_id)
        with self._end:
            if service.run_id != run_id and not self._has_given_up:
                if run_id:
                    self._say(
                        f"{self._name}: there is no run {run_id}, where earlier metrics are; new "
                        f"ones are sent to the run {service.run_id}"
                    )
                paths.write_atomically(path, service.run_id)
        return service


def _open_wandb(config: Config, workdir: epath.Path, run_id: str | None) -> Service:
    import wandb

    # Its files are in the work directory, where `wandb sync` finds those of an offline run.
    is_local = not (paths.is_remote(workdir) or "WANDB_DIR" in os.environ)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=workdir.name,
        id=run_id,
        resume="allow",
        config=dataclasses.asdict(config),
        dir=os.fspath(workdir) if is_local else None,
    )
    # Its own step never goes back; ours does if a run resumes from an earlier checkpoint.
    run.define_metric("*", step_metric="step")
    return Service(
        run.id,
        lambda step, metrics: run.log({"step": step, **metrics}),
        lambda outcome: run.finish(exit_code=int(outcome != "ended")),
    )


def _open_mlflow(config: Config, workdir: epath.Path, run_id: str | None) -> Service:
    import mlflow

    if run_id is not None and not _mlflow_has(run_id):
        run_id = None
    run = mlflow.active_run()  # of this thread: an attempt that failed after it was started
    if run is None:
        experiment_id = None
        if not {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & set(os.environ):
            experiment = mlflow.get_experiment_by_name(PROJECT)
            experiment_id = (
                experiment.experiment_id if experiment else mlflow.create_experiment(PROJECT)
            )
        run = mlflow.start_run(run_id, experiment_id, workdir.name)
    if run_id is None:  # a parameter of a run cannot change later
        mlflow.log_params({s.path: str(s.value(config)) for s in all_settings(Config)})
    return Service(
        run.info.run_id,
        # It allows few characters besides letters.
        lambda step, metrics: mlflow.log_metrics(
            {name.replace("+", "p"): value for name, value in metrics.items()}, step=step
        ),
        lambda outcome: mlflow.end_run(_MLFLOW_STATUS[outcome]),
    )


def _mlflow_has(run_id: str) -> bool:
    """Whether the run exists at the server or database in use, and was not deleted there."""
    import mlflow

    try:
        return bool(mlflow.get_run(run_id).info.lifecycle_stage == "active")
    except mlflow.MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False


_OPEN: dict[str, Callable[[Config, epath.Path, str | None], Service]] = {
    "wandb": _open_wandb,
    "mlflow": _open_mlflow,
}
