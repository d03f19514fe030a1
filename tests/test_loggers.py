"""Metrics that are sent to Weights & Biases and MLflow, with fakes of their packages.

`tests/peers/test_mlflow.py` sends them to MLflow itself.
"""

import importlib.util
import json
import os
import queue
import sys
import threading
import types

import pytest

from tests.conftest import tiny_config
from transformer_jax.errors import UserError
from transformer_jax.training import loggers, loop
from transformer_jax.training.loop import train


class NoRunError(Exception):
    error_code = "RESOURCE_DOES_NOT_EXIST"


class FakeService:
    """Replaces both packages, and records what they were asked to do."""

    def __init__(self, monkeypatch):
        self.calls, self.failures = [], 0
        self.mlflow_runs = {}  # id -> lifecycle stage
        self.has_answered = threading.Event()
        wandb = types.ModuleType("wandb")
        wandb.init = self.wandb_init
        mlflow = types.ModuleType("mlflow")
        mlflow.active_run = lambda: None
        mlflow.MlflowException = NoRunError
        for name in ("get_experiment_by_name", "create_experiment", "start_run", "get_run"):
            setattr(mlflow, name, getattr(self, name))
        mlflow.end_run = lambda status: self.called("end_run", status)
        mlflow.log_params = lambda params: self.called("params", params)
        mlflow.log_metrics = lambda metrics, step: self.called("mlflow", step, metrics)
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        monkeypatch.setitem(sys.modules, "mlflow", mlflow)
        for name in ("WANDB_PROJECT", "WANDB_DIR", "MLFLOW_EXPERIMENT_NAME", *loggers._DEFAULTS):
            monkeypatch.setenv(name, "")  # so that it is restored
            monkeypatch.delenv(name)

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
        run.finish = lambda exit_code: self.called("finish", exit_code)
        return run

    # MLflow
    def get_experiment_by_name(self, name):
        self.called("experiment", name)

    def create_experiment(self, name):
        self.called("create_experiment", name)
        return "7"

    def start_run(self, run_id, *values):
        self.called("start_run", run_id, *values)
        run_id = run_id or f"m{len(self.mlflow_runs) + 1}"
        self.mlflow_runs[run_id] = "active"
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def get_run(self, run_id):
        if run_id not in self.mlflow_runs:
            raise NoRunError
        stage = self.mlflow_runs[run_id]
        return types.SimpleNamespace(info=types.SimpleNamespace(lifecycle_stage=stage))


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
    assert service.named("finish") == [(0,), (0,)]
    assert service.named("end_run") == [("FINISHED",), ("FINISHED",)]
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
    assert service.calls[-1] == ("finish", 0)


@pytest.mark.parametrize("succeeds", [False, True])
def test_logger_does_nothing_after_close_has_given_up(tmp_path, service, monkeypatch, succeeds):
    answer, attempts = threading.Event(), queue.Queue()
    start = service.start_run

    def start_run(*values):
        attempts.put(values)
        assert answer.wait(60)
        if not succeeds:
            raise RuntimeError("too late")
        return start(*values)

    monkeypatch.setattr(sys.modules["mlflow"], "start_run", start_run)
    monkeypatch.setattr(loggers, "CLOSE_SECONDS", 0.0)
    monkeypatch.setattr(loggers, "MAX_WAITING", 3)
    said = []
    logger = loggers.Logger("mlflow", tiny_config(tmp_path), tmp_path, said.append)
    attempts.get(timeout=60)
    for step in range(5):
        logger.add(step, {"train_loss": 0.5})  # returns, though nothing is sent
    assert logger._waiting.qsize() == 3
    logger.close()
    unsent = "mlflow: 5 of 5 lines of metrics were not sent, for lack of an answer; "
    assert said == [unsent + "metrics.jsonl has all of them"]
    answer.set()
    logger._thread.join(60)
    assert not logger._thread.is_alive()
    assert len(said) == 1
    assert attempts.empty()
    assert not service.named("mlflow")
    assert not list(tmp_path.glob("mlflow*"))


@pytest.mark.parametrize("stage", ["deleted", None])
def test_logger_starts_a_new_run_where_the_former_one_is_missing(stage, tmp_path, service):
    (tmp_path / "mlflow_run_id").write_text("old")
    if stage:
        service.mlflow_runs["old"] = stage
    said = []
    loggers.Logger("mlflow", tiny_config(tmp_path), tmp_path, said.append).close()
    new = (tmp_path / "mlflow_run_id").read_text()
    assert (new != "old", new in service.mlflow_runs) == (True, True)
    assert service.named("start_run") == [(None, "7", tmp_path.name)]
    assert len(service.named("params")) == 1
    (line,) = said
    assert line.startswith("mlflow: there is no run old, ")
    assert line.endswith(f" the run {new}")


@pytest.mark.parametrize(
    ("ending", "exit_code", "status"),
    [("failed", 1, "FAILED"), ("interrupted", 1, "KILLED"), ("asked to stop", 1, "KILLED")],
)
def test_loggers_are_told_how_a_training_ended(
    data, tmp_path, service, monkeypatch, ending, exit_code, status
):
    def end(*_):
        raise RuntimeError if ending == "failed" else KeyboardInterrupt

    config = logging_config(data, 4)
    if ending == "asked to stop":
        train(config, tmp_path, stop_after=2)
    else:
        monkeypatch.setattr(loop.Trainer, "_log", end)
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            train(config, tmp_path)
    assert service.named("finish") == [(exit_code,)]
    assert service.named("end_run") == [(status,)]


def test_logger_ends_its_run_also_where_lines_could_not_be_sent(tmp_path, service, monkeypatch):
    def log_metrics(*_, **__):
        assert logger._is_closing.wait(60)
        raise RuntimeError("too large")

    monkeypatch.setattr(sys.modules["mlflow"], "log_metrics", log_metrics)
    said = []
    logger = loggers.Logger("mlflow", tiny_config(tmp_path), tmp_path, said.append)
    logger.add(1, {"train_loss": 0.5})
    logger.close()
    assert service.named("end_run") == [("FINISHED",)]
    assert [line.partition(":")[2][:10] for line in said] == [" too large", " 1 of 1 li"]


def test_logger_sets_variables_before_its_thread_starts(tmp_path, service, monkeypatch):
    seen = {}

    def start(thread):
        seen.update((name, os.environ.get(name)) for name in loggers._DEFAULTS)

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    monkeypatch.setattr(threading.Thread, "start", start)
    loggers.Logger("wandb", tiny_config(tmp_path), tmp_path, print)
    assert seen == loggers._DEFAULTS | {"MLFLOW_HTTP_REQUEST_TIMEOUT": "3"}


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
