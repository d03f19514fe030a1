"""Sends the metrics of a run to Weights & Biases or MLflow (`train.loggers`).

Their packages are imported only if the setting names them. Servers and projects are chosen by their
own environment variables, such as WANDB_PROJECT and MLFLOW_TRACKING_URI.
"""

import dataclasses
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config, all_settings
from transformer_jax.errors import UserError

PROJECT = "transformer_jax"  # of both, where no environment variable names another
_MAX_PARAMS = 100  # MLflow's limit for one request
_MAX_WAIT = 32  # calls of `flush` between two attempts, after several failures


class Backend(Protocol):
    """A run at a service. Its methods raise errors of any kind."""

    run_id: str

    def log(self, step: int, metrics: dict[str, float]) -> None: ...
    def finish(self) -> None: ...


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
    """Sends the metrics of a run to one service.

    Metrics that cannot be sent are kept, and sent later. An error is reported, and never ends the
    training. A run that resumes continues the same run of the service, whose id is in the work
    directory (`loggers.json`).

    Args:
      name: "wandb" or "mlflow".
      config: of the run.
      workdir: of the run; its name is that of the run at the service.
      say: gets a line about each failure.
    """

    def __init__(self, name: str, config: Config, workdir: epath.Path, say: Callable[[str], None]):
        self._name, self._config, self._workdir, self._say = name, config, workdir, say
        self._backend: Backend | None = None
        self._waiting: list[tuple[int, dict[str, float]]] = []
        self._pause, self._skip = (
            0,
            0,
        )  # calls of `flush` to skip after a failure, and still to skip
        self.flush()

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        """Keeps the metrics that are numbers for the next `flush`."""
        numbers = {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}
        self._waiting.append((step, numbers))

    def flush(self) -> None:
        """Sends what is kept; does nothing for a while after a failure, which takes time."""
        if self._skip:
            self._skip -= 1
            return
        self._try(self._send)

    def close(self) -> None:
        """Sends what is kept, and ends the run at the service."""
        self._try(self._send)
        if self._backend is not None:
            self._try(self._backend.finish)

    def _send(self) -> None:
        if self._backend is None:
            self._backend = self._open()
        while self._waiting:
            self._backend.log(*self._waiting[0])
            del self._waiting[0]

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
            self._pause = 0
        except Exception as error:  # of any kind: these are not our packages
            self._pause = min(2 * self._pause + 1, _MAX_WAIT)
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._say(f"{self._name}: {lines[0]}; training continues, and tries again later")
        self._skip = self._pause

    def _open(self) -> Backend:
        path = self._workdir / "loggers.json"
        ids = json.loads(path.read_text()) if path.exists() else {}
        backend = _BACKENDS[self._name](self._config, self._workdir, ids.get(self._name))
        if ids.get(self._name) != backend.run_id:
            paths.write_atomically(path, json.dumps({**ids, self._name: backend.run_id}) + "\n")
        return backend


class _WeightsAndBiases:
    """A run of Weights & Biases."""

    def __init__(self, config: Config, workdir: epath.Path, run_id: str | None):
        import wandb

        # Its files are in the work directory, where `wandb sync` finds those of an offline run.
        is_local = not (paths.is_remote(workdir) or "WANDB_DIR" in os.environ)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=workdir.name,
            id=run_id,
            resume="allow",
            config=dataclasses.asdict(config),
            dir=os.fspath(workdir) if is_local else None,
        )
        self.run_id = self._run.id
        # Its own step never goes back; ours does if a run resumes from an earlier checkpoint.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def finish(self) -> None:
        self._run.finish()


class _MLflow:
    """A run of MLflow, by its client, which leaves the process's active run alone."""

    def __init__(self, config: Config, workdir: epath.Path, run_id: str | None):
        import mlflow

        self._mlflow, self._client = mlflow, mlflow.MlflowClient()
        if run_id is None:
            self.run_id = self._create(config, workdir.name)
        else:
            self.run_id = run_id
            self._client.update_run(run_id, status="RUNNING")

    def _create(self, config: Config, name: str) -> str:
        experiment_name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(experiment_name)
        experiment_id = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(experiment_name)
        )
        run_id = self._client.create_run(experiment_id, run_name=name).info.run_id
        settings = [  # a parameter of a run cannot change later
            self._mlflow.entities.Param(setting.path, str(setting.value(config)))
            for setting in all_settings(Config)
        ]
        for start in range(0, len(settings), _MAX_PARAMS):
            self._client.log_batch(run_id, params=settings[start : start + _MAX_PARAMS])
        return run_id

    def log(self, step: int, metrics: dict[str, float]) -> None:
        now = int(1000 * time.time())
        entities = self._mlflow.entities
        rows = [entities.Metric(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=rows)

    def finish(self) -> None:
        self._client.set_terminated(self.run_id)


_BACKENDS: dict[str, Callable[[Config, epath.Path, str | None], Backend]] = {
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}
