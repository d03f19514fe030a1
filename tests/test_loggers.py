"""Metrics that are sent to Weights & Biases and MLflow, with fakes of their packages.

`tests/peers/test_mlflow.py` sends them to MLflow itself.
"""

import importlib.util
import json
import sys
import threading
import types

import pytest

from tests.conftest import tiny_config
from transformer_jax.errors import UserError
from transformer_jax.training import loggers
from transformer_jax.training.loop import train


class FakeService:
    """Replaces both packages, and records what they were asked to do."""

    def __init__(self, monkeypatch):
        self.calls, self.failures = [], 0
        self.has_answered = threading.Event()
        wandb = types.ModuleType("wandb")
        wandb.init = self.wandb_init
        mlflow = types.ModuleType("mlflow")
        mlflow.active_run = lambda: None
        for name in ("get_experiment_by_name", "create_experiment", "start_run", "end_run"):
            setattr(mlflow, name, getattr(self, name))
        mlflow.log_params = lambda params: self.called("params", params)
        mlflow.log_metrics = lambda metrics, step: self.called("mlflow", step, metrics)
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        monkeypatch.setitem(sys.modules, "mlflow", mlflow)
        for name in ("WANDB_PROJECT", "WANDB_DIR", "MLFLOW_EXPERIMENT_NAME"):
            monkeypatch.delenv(name, raising=False)

    def called(self, name, *values):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no route to host\nand more")
        self.calls.append((name, *values))
        self.has_answered.set()

    def named(self, name):
        return [call[1:] for call in self.calls if call[0] == name]

    # Weights & Biases
    def wandb_init(self, **fields):
        self.called("init", fields)
        run = types.SimpleNamespace(id=fields["id"] or "w1")
        run.define_metric = lambda *names, **settings: self.called("axis", names, settings)
        run.log = lambda numbers: self.called("wandb", numbers)
        run.finish = lambda: self.called("finish")
        return run

    # MLflow
    def get_experiment_by_name(self, name):
        self.called("experiment", name)

    def create_experiment(self, name):
        self.called("create_experiment", name)
        return "7"

    def start_run(self, *values):
        self.called("start_run", *values)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="m1"))

    def end_run(self):
        self.called("end_run")


@pytest.fixture
def service(monkeypatch):
    return FakeService(monkeypatch)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def logging_config(data, num_steps, names=("wandb", "mlflow")):
    return tiny_config(
        data,
        num_steps=num_steps,
        eval_every_steps=0,
        log_every_steps=2,
        checkpoint_every_steps=4,
        loggers=names,
    )


def test_loggers_get_the_numbers_of_metrics_jsonl_and_continue_their_run(data, tmp_path, service):
    workdir = tmp_path / "my_run"
    train(logging_config(data, 4), workdir)
    train(logging_config(data, 8, ("mlflow", "wandb")), workdir)  # the setting may change
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    numbers = [{k: v for k, v in line.items() if not isinstance(v, str)} for line in lines]
    assert [line["step"] for line in numbers] == [2, 4, 6, 8]
    assert [call[0] for call in service.named("wandb")] == numbers
    sent = [metrics | {"step": step} for step, metrics in service.named("mlflow")]
    assert sent == numbers

    first, second = (call[0] for call in service.named("init"))
    assert (first["name"], first["project"], first["id"]) == ("my_run", "transformer_jax", None)
    assert (second["id"], second["resume"]) == ("w1", "allow")
    assert first["config"]["train"]["num_steps"] == 4
    assert first["dir"] == str(workdir)
    assert service.named("axis")[0] == (("*",), {"step_metric": "step"})
    assert service.named("start_run") == [(None, "7", "my_run"), ("m1", "7", "my_run")]
    (params,) = service.named("params")  # of the first start only: they cannot change
    assert params[0]["train.num_steps"] == "4"
    assert len(service.named("finish")) == len(service.named("end_run")) == 2
    assert (workdir / "wandb_run_id").read_text() == "w1"
    assert (workdir / "mlflow_run_id").read_text() == "m1"


def test_logger_that_fails_is_reported_once_and_sends_later(tmp_path, service, monkeypatch):
    monkeypatch.setattr(loggers, "RETRY_SECONDS", 0.0)
    said = []
    service.failures = 5
    logger = loggers.Logger("wandb", tiny_config(tmp_path), tmp_path, said.append)
    for step in range(1, 4):
        logger.add(step, {"train_loss": 0.5, "batch_digest": "ab"})
    assert service.has_answered.wait(60)
    logger.close()
    assert said == ["wandb: no route to host; training continues, and tries again later"]
    sent = [call[0] for call in service.named("wandb")]
    assert sent == [{"step": step, "train_loss": 0.5} for step in (1, 2, 3)]
    assert service.calls[-1] == ("finish",)


def test_logger_whose_server_never_answers_keeps_nobody_waiting(tmp_path, service, monkeypatch):
    answer, is_asked = threading.Event(), threading.Event()

    def start_run(*values):
        is_asked.set()
        assert answer.wait(60)
        raise RuntimeError("too late")

    monkeypatch.setattr(sys.modules["mlflow"], "start_run", start_run)
    monkeypatch.setattr(loggers, "CLOSE_SECONDS", 0.0)
    monkeypatch.setattr(loggers, "MAX_WAITING", 3)
    said = []
    logger = loggers.Logger("mlflow", tiny_config(tmp_path), tmp_path, said.append)
    assert is_asked.wait(60)
    for step in range(5):
        logger.add(step, {"train_loss": 0.5})  # returns, though nothing is sent
    assert logger._waiting.qsize() == 3
    logger.close()
    assert said == [
        "mlflow: 5 of 5 lines of metrics were not sent, for lack of an answer; metrics.jsonl has "
        "all of them"
    ]
    answer.set()
    logger._thread.join(60)
    assert len(said) == 1


def test_training_ends_normally_where_loggers_never_work(data, tmp_path, service, capsys):
    service.failures = 10**6
    train(logging_config(data, 4), tmp_path)
    out = capsys.readouterr().out
    assert out.count("mlflow: no route to host; training continues") == 1
    assert "mlflow: 2 of 2 lines of metrics were not sent" in out
    assert "finished at step 4" in out


def test_logger_that_is_not_installed_is_an_error_before_anything_is_written(
    data, tmp_path, monkeypatch
):
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"names mlflow, .* pip install mlflow, or leave it out"):
        train(logging_config(data, 4, ("mlflow",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_loggers_of_other_names_are_refused(data, tmp_path):
    with pytest.raises(UserError, match=r"has 'wandbb', .*did you mean wandb\?"):
        train(logging_config(data, 4, ("wandbb",)), tmp_path / "run")
    with pytest.raises(UserError, match=r"several are written as \('wandb', 'mlflow'\)"):
        train(logging_config(data, 4, ("wandb,mlflow",)), tmp_path / "run")
