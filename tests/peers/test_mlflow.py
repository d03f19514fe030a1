"""Metrics that are sent to MLflow itself: a local database, and servers that do not answer."""

import socket

import pytest

from tests.conftest import tiny_config
from transformer_jax.training import loggers

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def tracking(tmp_path, monkeypatch):
    """Sets MLflow's server, its database by default."""

    def choose(uri):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        mlflow.set_tracking_uri(None)

    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", *loggers._DEFAULTS):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    choose(f"sqlite:///{tmp_path}/mlflow.db")
    return choose


def log_steps(workdir, steps):
    said = []
    logger = loggers.Logger("mlflow", tiny_config(workdir), workdir, said.append)
    for step in steps:
        logger.add(step, {"train_loss": 1 / step, "bleu_signature": "x"})
    logger.close()
    return said


def test_mlflow_has_every_number_and_one_run_after_resuming(tmp_path, tracking):
    for steps in ((1, 2), (3,)):
        assert log_steps(tmp_path, steps) == []
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("transformer_jax")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (tmp_path.name, "FINISHED")
    assert run.data.params["train.num_steps"] == str(tiny_config(tmp_path).train.num_steps)
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]


def test_mlflow_that_refuses_connections_is_one_warning(tmp_path, tracking):
    tracking("http://127.0.0.1:9")
    failed, unsent = log_steps(tmp_path, (1, 2))
    assert "Max retries exceeded" in failed
    assert "2 of 2 lines of metrics were not sent" in unsent


def test_mlflow_that_accepts_and_never_answers_ends_with_the_training(
    tmp_path, tracking, monkeypatch
):
    monkeypatch.setattr(loggers, "CLOSE_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        tracking(f"http://127.0.0.1:{server.getsockname()[1]}")
        (unsent,) = log_steps(tmp_path, (1, 2))
    assert "2 of 2 lines of metrics were not sent, for lack of an answer" in unsent
