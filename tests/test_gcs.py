"""Work directories, data and outputs in an object store, where nothing is appended or renamed.

`tests/gcs.py` says what the server is and what it cannot show.
"""

import dataclasses
import itertools
import json
import shutil
import struct
import urllib.parse
import urllib.request
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests.conftest import digit_pairs, tiny_config, write_pairs
from transformer_jax import paths
from transformer_jax.commands import decode_output, text_output
from transformer_jax.config import CheckpointConfig, Config, DataConfig
from transformer_jax.data import remote_cache, sources, token_cache
from transformer_jax.data.plans import row_stream
from transformer_jax.data.shards import shard_mirror
from transformer_jax.data.token_cache import tokenize_corpora
from transformer_jax.data.workers import IN_THIS_PROCESS
from transformer_jax.errors import UserError
from transformer_jax.training import prepare_data, reporting, setup
from transformer_jax.training.reporting import Reporter
from transformer_jax.workdir import checkpoint as checkpoint_lib
from transformer_jax.workdir import digests
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir.params import load_params

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


# --- Reports ----------------------------------------------------------------------------------


def report(workdir, first_step, steps):
    """A process that reports at `steps` and is then gone: nothing is closed."""
    reporter = Reporter(workdir, first_step, 10)
    for step in steps:
        metrics = {"train_loss": 1.0, "learning_rate": 1e-3, "padding": 0.0}
        reporter.training(step, {**metrics, "target_tokens_per_second": 1.0})
        sample = {"source": "a\u2028b", "reference": "ü", "hypothesis": f"ß {step}"}
        reporter.evaluation(step, {"eval_loss": 2.0}, [sample])


def event_steps(data):
    """Steps of the events in a file of TensorBoard's, whose records are length, CRC, bytes, CRC."""
    from tensorboardX.proto import event_pb2

    steps = []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        steps.append(event_pb2.Event.FromString(data[12 : 12 + size]).step)
        data = data[16 + size :]
    return steps


def test_reports_in_a_bucket_survive_a_kill(bucket, monkeypatch):
    # tensorboardX would refuse gs:// where it has no client of its own kind.
    monkeypatch.setattr("tensorboardX.record_writer.GCS_ENABLED", False)
    report(bucket, 0, [2, 4, 6])
    report(bucket, 4, [6, 8])
    for name in ("metrics.jsonl", "samples.jsonl"):
        lines = (bucket / name).read_bytes().decode().split("\n")[:-1]
        steps = [json.loads(line)["step"] for line in lines]
        assert sorted(set(steps)) == [2, 4, 6, 8], name
        assert len(steps) == (8 if name == "metrics.jsonl" else 4)
    assert "ß 8" in (bucket / "samples.jsonl").read_bytes().decode()
    files = sorted((bucket / "tensorboard").iterdir())
    steps = [step for path in files for step in event_steps(path.read_bytes())]
    # The first record of a file names its format; the second has the step that the run resumes at.
    assert steps == [0, 1, 2, 2, 4, 4, 6, 6, 0, 5, 6, 6, 8, 8]


def test_reports_that_cannot_be_uploaded_are_written_later(bucket, monkeypatch, capsys):
    from gcsfs.retry import HttpError

    reporter = Reporter(bucket, 0, 10)
    client, _ = paths._open_store(bucket)
    original = client.pipe_file

    def refuse(*_, **__):
        raise HttpError({"code": 503, "message": "try later"})

    monkeypatch.setattr(client, "pipe_file", refuse)
    metrics = {"eval_loss": 2.0}
    reporter.evaluation(2, metrics, [])
    assert "metrics.jsonl cannot be written (the object store answered: try later, 503" in (
        capsys.readouterr().out
    )
    monkeypatch.setattr(client, "pipe_file", original)
    reporter.evaluation(4, metrics, [])
    lines = (bucket / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]


def test_appended_file_keeps_its_content_on_a_disk_and_in_a_bucket(bucket, tmp_path):
    for folder in (bucket, epath.Path(tmp_path)):
        path = folder / "file"
        path.write_bytes(b"a\n")
        file = reporting.AppendedFile(path)
        file.append(b"b\n")
        file.append("ü\n".encode())
        assert path.read_bytes() == "a\nb\nü\n".encode()


def test_event_files_in_a_bucket_are_of_limited_size(bucket, monkeypatch):
    from transformer_jax.training import reporting

    monkeypatch.setattr(reporting, "MAX_REMOTE_EVENTS", 100)
    report(bucket, 0, range(1, 6))
    files = list((bucket / "tensorboard").iterdir())
    assert len(files) > 2
    steps = sorted(step for path in files for step in event_steps(path.read_bytes()))
    assert [step for step in steps if step > 0] == sorted([1, *range(1, 6), *range(1, 6)])


def test_bucket_listing_shows_files_of_other_processes(bucket, gcs):
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
        failed = checkpointer.save(
            step, {"params": {"w": jnp.full((3,), float(step))}}, {"metrics": {"eval_bleu": -step}}
        )
        assert failed is None
    assert checkpointer.close() is None


def test_checkpoint_in_a_bucket_counts_only_when_complete(bucket):
    save(bucket, 1, 2)
    (bucket / "checkpoints" / "2" / "commit_success.txt").unlink()
    (bucket / "checkpoints" / "3" / "params" / "d" / "x").write_bytes(b"half")
    assert checkpoint_lib.steps(bucket) == [1]
    assert {path.name for path in workdir_lib.uncommitted_checkpoints(bucket)} == {"2", "3"}
    (bucket / "checkpoints" / "1" / "commit_success.txt").unlink()
    assert not workdir_lib.has_checkpoints(bucket)
    save(bucket, 4)
    assert {name.split("/")[0] for name in names(bucket / "checkpoints")} == {"4"}


def test_checkpoint_in_a_bucket_writes_its_commit_file_last(bucket):
    save(bucket, 1)
    details = paths.fetch_details(bucket / "checkpoints" / "1")
    # The store numbers what it is sent.
    in_order = sorted(details, key=lambda name: int(details[name]["generation"]))
    assert in_order[-3:] == [digests.NAME, "_CHECKPOINT_METADATA", workdir_lib.COMMIT_FILE]
    recorded = json.loads((bucket / "checkpoints" / "1" / digests.NAME).read_text())
    assert set(recorded) == set(in_order[:-3])


def test_checkpoints_in_a_bucket_follow_the_retention(bucket):
    save(bucket, 1, 2, 3, 4, max_to_keep=1)
    assert {name.split("/")[0] for name in names(bucket / "checkpoints")} == {"1", "4"}


def test_fine_tuning_restarts_from_its_model_after_a_kill_in_the_first_save(bucket, tiny_run):
    data, base = tiny_run
    config = tiny_config(data, init_from=str(base), eval_every_steps=0)
    _, first = setup.prepare(config, bucket, lambda _: None)
    assert first.initial_params is not None
    (bucket / "checkpoints" / "4" / "params" / "d" / "x").write_bytes(b"half")
    _, again = setup.prepare(config, bucket, lambda _: None)
    assert again.initial_params is not None  # None: the run would start from random ones
    jax.tree.map(np.testing.assert_array_equal, again.initial_params, first.initial_params)


def test_digests_in_a_bucket_are_compared_without_downloading(bucket, gcs):
    save(bucket, 1, 2)
    before = len(gcs.downloads())
    assert checkpoint_lib.find_resume_step(bucket, print) == 2
    read = {name.rpartition("/")[2] for name in gcs.downloads()[before:]}
    assert read == {digests.NAME, "_CHECKPOINT_METADATA"}


@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink()], ids=["flip", "remove"])
def test_damaged_checkpoint_in_a_bucket_is_reported_and_moved(bucket, damage):
    save(bucket, 1, 2)
    newest = bucket / "checkpoints" / "2"
    objects = names(newest)
    (name,) = [n for n in objects if n.startswith("params/d/")][:1]
    damage(newest / name)
    lines = []
    assert checkpoint_lib.find_resume_step(bucket, lines.append) == 1
    assert len(lines) == 1
    assert f"checkpoint 2 is damaged: {name}" in lines[0]
    moved = names(bucket / "damaged_checkpoints" / "2")
    assert moved == (objects if damage is flip else [n for n in objects if n != name])
    assert checkpoint_lib.steps(bucket) == [1]


def test_checkpoints_move_between_a_disk_and_a_bucket_with_their_digests(bucket, tmp_path):
    def check(folder):
        assert checkpoint_lib.find_resume_step(folder, print) == 2
        params, _ = load_params(folder, "latest", Config(), TARGET)
        np.testing.assert_array_equal(params["w"], 2.0)
        data = folder / "checkpoints" / "2" / "params" / "d"
        flip(next(iter(data.iterdir())))
        assert checkpoint_lib.find_resume_step(folder, lambda _: None, move_damaged=False) == 1

    save(bucket / "first", 1, 2)
    down = epath.Path(tmp_path / "down")
    copy(bucket / "first", down)
    check(down)
    (tmp_path / "local").mkdir()
    save(epath.Path(tmp_path / "local"), 1, 2)
    copy(epath.Path(tmp_path / "local"), bucket / "up")
    check(bucket / "up")


# --- Other files ---------------------------------------------------------------------------------


def test_output_in_a_bucket_appears_when_it_is_complete(bucket):
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


def test_token_cache_in_a_bucket_is_shared_by_machines(bucket, tokenizers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(tiny_config(tmp_path).data, cache_dir=str(bucket / "cache"))
    corpora = sources.open_corpora(config, "train")

    def on_machine(name, corpora):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return tokenize_corpora(corpora, tokenizers, config)

    original = on_machine("a", corpora)
    unreadable = [dataclasses.replace(corpus, read=None, files=()) for corpus in corpora]
    fetched = on_machine("b", unreadable)
    np.testing.assert_array_equal(fetched.target.tokens, original.target.tokens)
    np.testing.assert_array_equal(fetched.source.lengths, original.source.lengths)
    assert not (tmp_path / "gs:").exists()
    # A copy whose upload was cut short is not used; the next machine with a cache completes it.
    (mark,) = [n for n in names(bucket) if n.endswith(remote_cache.MANIFEST)]
    (bucket / mark).unlink()
    with pytest.raises(TypeError):
        on_machine("c", unreadable)
    on_machine("a", unreadable)
    assert (bucket / mark).exists()
    # A damaged copy is replaced by the next machine that has the tokens.
    (array,) = [n for n in names(bucket) if n.endswith("target_tokens.npy")]
    for damage in (
        lambda: (bucket / array).write_bytes(b"x"),
        (bucket / array).unlink,
        lambda: (bucket / mark).write_text("{"),
        lambda: (bucket / mark).write_text('{"../../x": {}}'),
    ):
        damage()
        with pytest.raises(TypeError):
            on_machine("d", unreadable)
        on_machine("a", unreadable)
        fetched = on_machine("d", unreadable)
        np.testing.assert_array_equal(fetched.target.tokens, original.target.tokens)
        shutil.rmtree(tmp_path / "d")


def test_tfds_data_dir_must_be_local(bucket):
    config = DataConfig(data_dir=str(bucket))
    with pytest.raises(UserError, match=r"config\.data\.data_dir=gs://.*local folder only"):
        sources.open_corpora(config, "train")


def test_prepared_folder_in_a_bucket_is_copied_shard_by_shard_and_bounded(
    bucket, tmp_path, monkeypatch
):
    """The same batches as from the disk, with room for two shards of six."""
    monkeypatch.setattr(token_cache, "SHARD_PAIRS", 40)
    monkeypatch.setattr(row_stream, "GROUP_SHARDS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine"))
    config = tiny_config(tmp_path)
    data = dataclasses.replace(
        config.data, train=write_pairs(tmp_path, "text", digit_pairs(240)), batch_tokens=160
    )
    config = dataclasses.replace(config, data=data)
    prepare_data.prepare(config, tmp_path / "out", IN_THIS_PROCESS, print)
    copy(tmp_path / "out", bucket / "out")
    size = sum(f.stat().st_size for f in next((tmp_path / "out").glob("tokens/*/0*")).iterdir())

    def batches(folder, **changes):
        data = dataclasses.replace(config.data, source="prepared", train=str(folder), **changes)
        run = dataclasses.replace(config, data=data)
        return setup.prepare(run, epath.Path(tmp_path / "run"), print)[1].batches(run)

    monkeypatch.setattr(shard_mirror, "fetch_some_ahead", lambda shards, numbers: None)
    from_disk = batches(tmp_path / "out")
    shutil.rmtree(tmp_path / "run")
    from_bucket = batches(bucket / "out", local_gib=2.5 * size / 2**30)
    copies = tmp_path / "machine" / "transformer_jax" / "prepared"
    most = 0
    for t in range(int(from_disk._epochs.first.plan.batches_per_epoch) + 1):
        assert from_bucket.digest(t) == from_disk.digest(t)
        most = max(most, len([p for p in copies.glob("*/tokens/*/0*") if p.is_dir()]))
    assert most <= 3  # one is written before another is removed
    # A damaged shard is named, and not kept.
    shutil.rmtree(copies)
    (name,) = [n for n in names(bucket) if n.endswith("00003/target_tokens.npy")]
    flip(bucket / name)
    damaged = batches(bucket / "out")
    with pytest.raises(UserError, match=r"gs://.*00003 is damaged \(target_tokens\.npy has"):
        [damaged.digest(t) for t in range(60)]
    assert not list(copies.glob("*/tokens/*/00003"))
    with pytest.raises(UserError, match=r"gs://.*nothing is no prepared folder"):
        batches(bucket / "nothing")


def test_next_group_is_fetched_ahead_across_epochs():
    asked = []
    rows = np.array([5, 6, 7, 8])
    plans = row_stream.PlannedShards([], [0, 1, 2, 3], asked.append)
    stream = row_stream.RowStream(plans, rows, seed=0)
    following = stream._order_of_epoch(1)[0]
    assert row_stream.GROUP_SHARDS >= 4
    stream._locate(np.arange(3))
    stream._locate(np.arange(3))
    assert asked == [following.tolist()]
    assert sorted(following) == [0, 1, 2, 3]
