"""Metrics that are sent to Weights & Biases and MLflow, with fakes of their packages."""

import importlib.util
import json
import sys
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
        wandb = types.ModuleType("wandb")
        wandb.init = self.wandb_init
        mlflow = types.ModuleType("mlflow")
        mlflow.MlflowClient = lambda: self
        mlflow.entities = types.SimpleNamespace(
            Metric=lambda *values: values, Param=lambda *values: values
        )
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        monkeypatch.setitem(sys.modules, "mlflow", mlflow)
        for name in ("WANDB_PROJECT", "WANDB_DIR", "MLFLOW_EXPERIMENT_NAME"):
            monkeypatch.delenv(name, raising=False)

    def called(self, name, *values):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no route to host\nand more")
        self.calls.append((name, *values))

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

    def create_run(self, experiment_id, run_name):
        self.called("create_run", experiment_id, run_name)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="m1"))

    def update_run(self, run_id, status):
        self.called("update_run", run_id, status)

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(params) <= 100
        for name, value in params:
            self.called("param", name, value)
        if metrics:
            self.called("mlflow", run_id, [(name, value, step) for name, value, _, step in metrics])

    def set_terminated(self, run_id):
        self.called("terminated", run_id)


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
    sent = [
        {name: value for name, value, _ in rows} | {"step": rows[0][2]}
        for _, rows in service.named("mlflow")
    ]
    assert sent == numbers

    first, second = (call[0] for call in service.named("init"))
    assert (first["name"], first["project"], first["id"]) == ("my_run", "transformer_jax", None)
    assert (second["id"], second["resume"]) == ("w1", "allow")
    assert first["config"]["train"]["num_steps"] == 4
    assert first["dir"] == str(workdir)
    assert service.named("axis")[0] == (("*",), {"step_metric": "step"})
    assert service.named("create_run") == [("7", "my_run")]
    assert service.named("update_run") == [("m1", "RUNNING")]
    assert ("train.num_steps", "4") in service.named("param")
    assert service.named("finish") == [()] * 2
    assert service.named("terminated") == [("m1",)] * 2
    assert json.loads((workdir / "loggers.json").read_text()) == {"wandb": "w1", "mlflow": "m1"}


def test_logger_that_fails_is_reported_and_sends_later(tmp_path, service):
    said = []
    service.failures = 1
    config = tiny_config(tmp_path)
    logger = loggers.Logger("wandb", config, tmp_path, said.append)
    assert said == ["wandb: no route to host; training continues, and tries again later"]
    for step in range(1, 4):
        logger.add(step, {"train_loss": 0.5, "batch_digest": "ab"})
        logger.flush()
    # The first `flush` after the failure is skipped.
    assert [call[0]["step"] for call in service.named("wandb")] == [1, 2, 3]
    service.failures = 100
    said.clear()
    for step in range(4, 104):
        logger.add(step, {"train_loss": 0.5})
        logger.flush()
    assert len(said) == 7  # after 0, 1, 3, 7, 15, 31 and 32 calls that were skipped
    service.failures = 0
    logger.close()
    assert [call[0]["step"] for call in service.named("wandb")] == list(range(1, 104))
    assert service.calls[-1] == ("finish",)


def test_training_ends_normally_where_loggers_never_work(data, tmp_path, service, capsys):
    service.failures = 10**6
    train(logging_config(data, 4), tmp_path)
    out = capsys.readouterr().out
    assert "mlflow: no route to host; training continues" in out
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
    with pytest.raises(UserError, match=r"has 'wandbb'; .*did you mean wandb\?"):
        train(logging_config(data, 4, ("wandbb",)), tmp_path / "run")
    with pytest.raises(UserError, match=r"several are written as \('wandb', 'mlflow'\)"):
        train(logging_config(data, 4, ("wandb,mlflow",)), tmp_path / "run")
