"""Work directories, data and outputs in an object store, where nothing is appended or renamed.

`tests/gcs.py` says what the server is and what it cannot show.
"""

import dataclasses
import itertools
import json
import os
import shutil
import struct
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests.conftest import tiny_config
from transformer_jax import paths
from transformer_jax.commands import decode_output, text_output
from transformer_jax.config import CheckpointConfig, DataConfig
from transformer_jax.data import remote_cache, sources
from transformer_jax.data.token_cache import tokenize_corpora
from transformer_jax.errors import UserError
from transformer_jax.runs import appended_file, bucket_lock, digests
from transformer_jax.runs import checkpoint as checkpoint_lib
from transformer_jax.runs import workdir as workdir_lib
from transformer_jax.runs.params import load_params
from transformer_jax.training import setup
from transformer_jax.training.reporting import Reporter

TARGET = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}


def names(folder):
    """Names of all objects below a remote folder."""
    return sorted(paths.fetch_details(folder))


def copy(source, target):
    """Copies a folder between a disk and the store, either way, as `gcloud storage cp -r` does."""
    if paths.is_remote(source):
        files = names(source)
    else:
        files = [str(p.relative_to(source)) for p in Path(source).rglob("*") if p.is_file()]
    for name in files:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((source / name).read_bytes())


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


# --- What a run reports --------------------------------------------------------------------------


def report(workdir, first_step, steps):
    """A process that reports at `steps` and is then gone: nothing is closed."""
    reporter = Reporter(workdir, first_step, 10)
    for step in steps:
        reporter.training(step, {"train_loss": 1.0, "learning_rate": 1e-3, "padding": 0.0,
                                 "target_tokens_per_second": 1.0})  # fmt: skip
        sample = {"source": "a\u2028b", "reference": "ü", "hypothesis": f"ß {step}"}
        reporter.evaluation(step, {"eval_loss": 2.0}, [sample])


def event_steps(data):
    """Steps of the events in a file of TensorBoard's, whose records are length, CRC, bytes, CRC."""
    from tensorboardX.proto import event_pb2

    found = []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        found.append(event_pb2.Event.FromString(data[12 : 12 + size]).step)
        data = data[16 + size :]
    return found


def test_what_was_reported_before_a_kill_stays(bucket, monkeypatch):
    # tensorboardX would refuse gs:// where it has no client of its own kind.
    monkeypatch.setattr("tensorboardX.record_writer.GCS_ENABLED", False)
    report(bucket, 0, [2, 4, 6])
    report(bucket, 4, [6, 8])
    for name in ("metrics.jsonl", "samples.jsonl"):
        lines = (bucket / name).read_bytes().decode().split("\n")[:-1]
        found = [json.loads(line)["step"] for line in lines]
        assert sorted(set(found)) == [2, 4, 6, 8], name
        assert len(found) == (8 if name == "metrics.jsonl" else 4)
    assert "ß 8" in (bucket / "samples.jsonl").read_bytes().decode()
    files = sorted((bucket / "tensorboard").iterdir())
    steps = [step for path in files for step in event_steps(path.read_bytes())]
    # The first record of a file names its format; the second says where the run goes on.
    assert steps == [0, 1, 2, 2, 4, 4, 6, 6, 0, 5, 6, 6, 8, 8]


def test_what_cannot_be_uploaded_is_written_with_what_comes_next(bucket, monkeypatch, capsys):
    from gcsfs.retry import HttpError

    reporter = Reporter(bucket, 0, 10)
    client, _ = paths._open_store(bucket)
    whole = client.pipe_file

    def refuse(*_, **__):
        raise HttpError({"code": 503, "message": "try later"})

    monkeypatch.setattr(client, "pipe_file", refuse)
    metrics = {"eval_loss": 2.0}
    reporter.evaluation(2, metrics, [])
    assert "metrics.jsonl cannot be written (the object store answered: try later, 503" in (
        capsys.readouterr().out
    )
    monkeypatch.setattr(client, "pipe_file", whole)
    reporter.evaluation(4, metrics, [])
    lines = (bucket / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]


def test_appending_keeps_what_is_there_on_a_disk_and_in_a_store(bucket, tmp_path):
    for folder in (bucket, epath.Path(tmp_path)):
        path = folder / "file"
        path.write_bytes(b"a\n")
        file = appended_file.AppendedFile(path)
        file.append(b"b\n")
        file.append("ü\n".encode())
        assert path.read_bytes() == "a\nb\nü\n".encode()


def test_event_files_do_not_grow_without_end(bucket, monkeypatch):
    from transformer_jax.training import reporting

    monkeypatch.setattr(reporting, "MAX_REMOTE_EVENTS", 100)
    report(bucket, 0, range(1, 6))
    files = list((bucket / "tensorboard").iterdir())
    assert len(files) > 2
    found = sorted(step for path in files for step in event_steps(path.read_bytes()))
    assert [step for step in found if step > 0] == sorted([1, *range(1, 6), *range(1, 6)])


def test_what_other_processes_write_is_seen(bucket, gcs):
    (bucket / "a").write_bytes(b"")
    assert [path.name for path in bucket.iterdir()] == ["a"]
    name = urllib.parse.quote(str(bucket / "b").removeprefix("gs://bucket/"), safe="")
    url = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}"
    urllib.request.urlopen(urllib.request.Request(url, b"of another")).close()
    assert sorted(path.name for path in bucket.iterdir()) == ["a", "b"]
    assert (bucket / "b").read_bytes() == b"of another"


# --- Checkpoints ---------------------------------------------------------------------------------


def save(workdir, *steps, **config):
    checkpointer = checkpoint_lib.Checkpointer(workdir, CheckpointConfig(**config))
    for step in steps:
        problem = checkpointer.save(
            step, {"params": {"w": jnp.full((3,), float(step))}}, {"metrics": {"eval_bleu": -step}}
        )
        assert problem is None
    assert checkpointer.close() is None


def test_an_unfinished_commit_is_no_checkpoint(bucket):
    save(bucket, 1, 2)
    (bucket / "checkpoints" / "2" / "commit_success.txt").unlink()
    (bucket / "checkpoints" / "3" / "params" / "d" / "x").write_bytes(b"half")
    assert checkpoint_lib.steps(bucket) == [1]
    assert {path.name for path in workdir_lib.uncommitted_checkpoints(bucket)} == {"2", "3"}
    (bucket / "checkpoints" / "1" / "commit_success.txt").unlink()
    assert not workdir_lib.has_checkpoints(bucket)
    save(bucket, 4)
    assert {name.split("/")[0] for name in names(bucket / "checkpoints")} == {"4"}


def test_what_makes_a_checkpoint_complete_is_written_last(bucket):
    save(bucket, 1)
    details = paths.fetch_details(bucket / "checkpoints" / "1")
    # The store numbers what it is sent.
    in_order = sorted(details, key=lambda name: int(details[name]["generation"]))
    assert in_order[-3:] == [digests.NAME, "_CHECKPOINT_METADATA", workdir_lib.COMMIT_FILE]
    recorded = json.loads((bucket / "checkpoints" / "1" / digests.NAME).read_text())
    assert set(recorded) == set(in_order[:-3])


def test_older_checkpoints_are_removed(bucket):
    save(bucket, 1, 2, 3, 4, max_to_keep=1)
    assert {name.split("/")[0] for name in names(bucket / "checkpoints")} == {"1", "4"}


def test_fine_tuning_that_was_killed_in_its_first_save_starts_from_its_model_again(
    bucket, tiny_run
):
    data, base = tiny_run
    config = tiny_config(data, init_from=str(base), eval_every_steps=0)
    _, first = setup.prepare(config, bucket, lambda _: None)
    assert first.initial_params is not None
    (bucket / "checkpoints" / "4" / "params" / "d" / "x").write_bytes(b"half")
    _, again = setup.prepare(config, bucket, lambda _: None)
    assert again.initial_params is not None  # None: the run would start from random ones
    jax.tree.map(np.testing.assert_array_equal, again.initial_params, first.initial_params)


def test_digests_in_a_store_are_compared_without_downloading(bucket, gcs):
    save(bucket, 1, 2)
    before = len(gcs.downloads())
    assert checkpoint_lib.newest_intact(bucket, print) == 2
    read = {name.rpartition("/")[2] for name in gcs.downloads()[before:]}
    assert read == {digests.NAME, "_CHECKPOINT_METADATA"}


@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink()], ids=["flip", "remove"])
def test_a_damaged_object_is_named_and_its_checkpoint_set_aside(bucket, damage):
    save(bucket, 1, 2)
    newest = bucket / "checkpoints" / "2"
    held = names(newest)
    (name,) = [n for n in held if n.startswith("params/d/")][:1]
    damage(newest / name)
    said = []
    assert checkpoint_lib.newest_intact(bucket, said.append) == 1
    assert len(said) == 1
    assert f"checkpoint 2 is damaged: {name}" in said[0]
    moved = names(bucket / "damaged_checkpoints" / "2")
    assert moved == (held if damage is flip else [n for n in held if n != name])
    assert checkpoint_lib.steps(bucket) == [1]


def test_a_run_moves_between_a_disk_and_a_store_with_its_digests(bucket, tmp_path):
    def check(folder):
        assert checkpoint_lib.newest_intact(folder, print) == 2
        params, _ = load_params(folder, "latest", CheckpointConfig(), TARGET)
        np.testing.assert_array_equal(params["w"], 2.0)
        data = folder / "checkpoints" / "2" / "params" / "d"
        flip(next(iter(data.iterdir())))
        assert checkpoint_lib.newest_intact(folder, lambda _: None, read_only=True) == 1

    save(bucket / "first", 1, 2)
    down = epath.Path(tmp_path / "down")
    copy(bucket / "first", down)
    check(down)
    (tmp_path / "local").mkdir()
    save(epath.Path(tmp_path / "local"), 1, 2)
    copy(epath.Path(tmp_path / "local"), bucket / "up")
    check(bucket / "up")


# --- The lock ------------------------------------------------------------------------------------


def test_a_work_directory_in_a_store_is_held_by_one(bucket):
    with (
        workdir_lib.lock(bucket),
        pytest.raises(UserError, match=f"process {os.getpid()} on .*another --workdir"),
        workdir_lib.lock(bucket),
    ):
        pass
    with workdir_lib.lock(bucket):
        assert names(bucket) == [".lock"]
    assert names(bucket) == []


def test_the_lock_of_a_disk_that_was_copied_with_its_run_is_none(bucket):
    (bucket / ".lock").write_text("process 7 on vm, since 2026-11-01 00:00:00\n")
    with workdir_lib.lock(bucket):
        assert json.loads((bucket / ".lock").read_text())["pid"] == os.getpid()
    assert names(bucket) == []


def leave_lock(bucket, **changes):
    with workdir_lib.lock(bucket):
        found = json.loads((bucket / ".lock").read_text())
    found |= {"id": "other", "who": "process 7 on other", **changes}
    (bucket / ".lock").write_text(json.dumps(found))
    return found


def test_a_lock_that_a_killed_process_left_is_taken_over(bucket, monkeypatch, capsys):
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


def test_a_lock_whose_creation_was_not_answered_is_held(bucket, monkeypatch):
    whole = paths.write

    def write(path, data, must_be_new):
        whole(path, data, must_be_new)
        whole(path, data, must_be_new)  # as the client does when it gets no answer

    monkeypatch.setattr(paths, "write", write)
    with workdir_lib.lock(bucket):
        assert names(bucket) == [".lock"]
    assert names(bucket) == []


def test_a_lock_that_is_renewed_elsewhere_is_respected(bucket, monkeypatch):
    found = leave_lock(bucket, machine="other")
    renew = lambda _: (bucket / ".lock").write_text(json.dumps({**found, "renewed": 2.0**40}))  # noqa: E731
    monkeypatch.setattr(bucket_lock.time, "sleep", renew)
    with pytest.raises(UserError, match="process 7 on other"), workdir_lib.lock(bucket):
        pass


def test_a_process_that_has_lost_its_lock_ends(bucket, monkeypatch, capsys):
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


def test_a_missing_bucket_is_told_in_a_sentence(gcs):
    with (
        pytest.raises(
            UserError, match="gs://nowhere/run cannot be written: there is no such bucket"
        ),
        workdir_lib.lock("gs://nowhere/run"),
    ):
        pass


# --- Other files ---------------------------------------------------------------------------------


def test_an_output_is_there_when_all_of_it_is_written(bucket):
    path = bucket / "out.txt"
    path.write_text("of last week")
    text_output.check_writable(str(path))
    assert path.read_text() == "of last week"
    assert names(bucket) == ["out.txt"]

    def fail():
        with text_output.writing(str(path)) as out:
            out.write("half")
            out.flush()
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    def interrupted():
        with decode_output.ResumableOutput(str(path), dict) as out:
            list(itertools.islice(out.remaining(iter("ab")), 1))
            out.write("half")
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert path.read_text() == "of last week"
    with text_output.writing(str(path)) as out:
        out.writelines(["ü\n", "b\n"])
    assert path.read_bytes() == "ü\nb\n".encode()
    with pytest.raises(
        UserError, match="gs://nowhere/x cannot be written: there is no such bucket"
    ):
        text_output.check_writable("gs://nowhere/x")


def test_a_remote_cache_of_tokens_serves_other_machines(bucket, tokenizers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(tiny_config(tmp_path).data, cache_dir=str(bucket / "cache"))
    corpora = sources.open_corpora(config, "train")

    def on_machine(name, corpora):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return tokenize_corpora(corpora, tokenizers, config)

    made = on_machine("a", corpora)
    unreadable = [dataclasses.replace(corpus, read=None) for corpus in corpora]
    fetched = on_machine("b", unreadable)
    np.testing.assert_array_equal(fetched.target.tokens, made.target.tokens)
    np.testing.assert_array_equal(fetched.source.offsets, made.source.offsets)
    assert not (tmp_path / "gs:").exists()
    # A copy whose upload was cut short is not used, and completed by the next that has one.
    (mark,) = [n for n in names(bucket) if n.endswith(remote_cache.MANIFEST)]
    (bucket / mark).unlink()
    with pytest.raises(TypeError):
        on_machine("c", unreadable)
    on_machine("a", unreadable)
    assert (bucket / mark).exists()
    # A damaged copy is replaced by the next machine that can make it.
    (array,) = [n for n in names(bucket) if n.endswith("target_tokens.npy")]
    for damage in (lambda: (bucket / array).write_bytes(b"x"), (bucket / array).unlink,
                   lambda: (bucket / mark).write_text("{"),
                   lambda: (bucket / mark).write_text('{"../../x": {}}')):  # fmt: skip
        damage()
        with pytest.raises(TypeError):
            on_machine("d", unreadable)
        on_machine("a", unreadable)
        fetched = on_machine("d", unreadable)
        np.testing.assert_array_equal(fetched.target.tokens, made.target.tokens)
        shutil.rmtree(tmp_path / "d")


def test_prepared_data_sets_are_local(bucket):
    config = DataConfig(data_dir=str(bucket))
    with pytest.raises(UserError, match=r"config\.data\.data_dir=gs://.*local folder only"):
        sources.open_corpora(config, "train")
