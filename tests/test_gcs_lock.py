"""The lock of a work directory in an object store, against the simulated store of `gcs.py`."""

import json
import os
import threading

import pytest

from tests.test_gcs import names
from transformer_jax import paths
from transformer_jax.errors import UserError
from transformer_jax.workdir import bucket_lock
from transformer_jax.workdir import folder as workdir_lib


def test_bucket_lock_refuses_a_second_process(bucket):
    with (
        workdir_lib.lock(bucket),
        pytest.raises(UserError, match=f"process {os.getpid()} on .*another `workdir`"),
        workdir_lib.lock(bucket),
    ):
        pass
    with workdir_lib.lock(bucket):
        assert names(bucket) == [".lock"]
    assert names(bucket) == []


def test_bucket_lock_replaces_a_copied_lock_of_a_disk(bucket):
    (bucket / ".lock").write_text("process 7 on vm, since 2026-11-01 00:00:00\n")
    with workdir_lib.lock(bucket):
        assert json.loads((bucket / ".lock").read_text())["pid"] == os.getpid()
    assert names(bucket) == []


def leave_lock(bucket, **changes):
    with workdir_lib.lock(bucket):
        content = json.loads((bucket / ".lock").read_text())
    content |= {"id": "other", "who": "process 7 on other", **changes}
    (bucket / ".lock").write_text(json.dumps(content))
    return content


def test_bucket_lock_replaces_that_of_a_killed_process(bucket, monkeypatch, capsys):
    leave_lock(bucket, started="1")  # another process had this number
    with workdir_lib.lock(bucket):
        pass
    assert capsys.readouterr().out == ""
    leave_lock(bucket, machine="other", renewed=1.0)  # for years
    with workdir_lib.lock(bucket):
        pass
    assert capsys.readouterr().out == ""
    leave_lock(bucket, machine="other")
    monkeypatch.setattr(bucket_lock, "EXPIRES", 0.0)
    monkeypatch.setattr(bucket_lock.time, "sleep", lambda _: None)
    with workdir_lib.lock(bucket):
        pass
    assert "is locked by process 7 on other; waiting" in capsys.readouterr().out


def test_bucket_lock_is_created_though_the_answer_was_lost(bucket, monkeypatch):
    original = paths.write

    def write(path, data, must_be_new):
        original(path, data, must_be_new)
        original(path, data, must_be_new)  # as the client does when it gets no answer

    monkeypatch.setattr(paths, "write", write)
    with workdir_lib.lock(bucket):
        assert names(bucket) == [".lock"]
    assert names(bucket) == []


def test_bucket_lock_respects_one_that_is_renewed(bucket, monkeypatch):
    lock = leave_lock(bucket, machine="other")

    def renew(_):
        (bucket / ".lock").write_text(json.dumps({**lock, "renewed": 2.0**40}))

    monkeypatch.setattr(bucket_lock.time, "sleep", renew)
    with pytest.raises(UserError, match="process 7 on other"), workdir_lib.lock(bucket):
        pass


def test_bucket_lock_ends_a_process_that_has_lost_it(bucket, monkeypatch, capsys):
    ended = threading.Event()
    statuses = []

    def end(status):
        statuses.append(status)
        ended.set()

    monkeypatch.setattr(bucket_lock.os, "_exit", end)
    monkeypatch.setattr(bucket_lock, "PERIOD", 0.01)
    with workdir_lib.lock(bucket):
        (bucket / ".lock").write_text(json.dumps({"id": "other", "who": "process 7 on other"}))
        assert ended.wait(60)
    assert statuses[0] == 2
    assert "process 7 on other trains in" in capsys.readouterr().err


def test_bucket_lock_names_a_missing_bucket(gcs):
    with (
        pytest.raises(
            UserError, match="gs://nowhere/run cannot be written: there is no such bucket"
        ),
        workdir_lib.lock("gs://nowhere/run"),
    ):
        pass
