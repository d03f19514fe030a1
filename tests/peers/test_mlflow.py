"""Metrics that are sent to MLflow itself: a local database, and servers that do not answer."""

import socket

import pytest

from tests.conftest import tiny_config
from transformer_jax.training import loggers

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def tracking(tmp_path, monkeypatch):
    """Sets MLflow's server, its database by default, which is slow when it is new."""

    def choose(uri):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        mlflow.set_tracking_uri(None)

    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", *loggers._DEFAULTS):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr(loggers, "CLOSE_SECONDS", 120.0)
    choose(f"sqlite:///{tmp_path}/mlflow.db")
    return choose


def log_steps(workdir, steps, outcome="ended"):
    said = []
    logger = loggers.Logger("mlflow", tiny_config(workdir), workdir, said.append)
    for step in steps:
        logger.add(step, {"train_loss": 1 / step, "bleu_signature": "x"})
    logger.close(outcome)
    logger._thread.join(60)  # before the variables are restored
    assert not logger._thread.is_alive()
    return said


def only_run():
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("transformer_jax")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def test_mlflow_has_every_number_and_one_run_after_resuming(tmp_path, tracking):
    for steps in ((1, 2), (3,)):
        assert log_steps(tmp_path, steps) == []
    client, run = only_run()
    assert (run.info.run_name, run.info.status) == (tmp_path.name, "FINISHED")
    assert run.data.params["train.num_steps"] == str(tiny_config(tmp_path).train.num_steps)
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]


def test_mlflow_without_the_former_run_gets_a_new_one(tmp_path, tracking):
    (tmp_path / "mlflow_run_id").write_text("0" * 32)
    (line,) = log_steps(tmp_path, (1, 2), "interrupted")
    _, run = only_run()
    assert line.endswith(f"are sent to the run {run.info.run_id}")
    assert (run.info.status, run.data.metrics["train_loss"]) == ("KILLED", 0.5)
    assert (tmp_path / "mlflow_run_id").read_text() == run.info.run_id


def test_mlflow_that_refuses_connections_is_one_warning(tmp_path, tracking):
    tracking("http://127.0.0.1:9")
    failed, unsent = log_steps(tmp_path, (1, 2))
    assert "Max retries exceeded" in failed
    assert "2 of 2 lines of metrics were not sent" in unsent


def test_mlflow_that_accepts_and_never_answers_ends_with_the_training(
    tmp_path, tracking, monkeypatch
):
    monkeypatch.setattr(loggers, "CLOSE_SECONDS", 1.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.chdir(tmp_path)  # where MLflow's default database would be
    with socket.create_server(("127.0.0.1", 0)) as server:
        tracking(f"http://127.0.0.1:{server.getsockname()[1]}")
        (unsent,) = log_steps(tmp_path, (1, 2))
    assert "2 of 2 lines of metrics were not sent, for lack of an answer" in unsent
    assert not list(tmp_path.glob("mlflow*"))
