"""What happens to long runs: kills, full disks, broken batches, signals, a second process."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests.conftest import fill, tiny_config, write_pairs
from tests.test_processes import ROOT, train_command, wait_for
from transformer_jax.diagnostics.replay import replay
from transformer_jax.errors import UserError
from transformer_jax.runs import workdir as workdir_lib
from transformer_jax.training import faults, loop, runners, setup
from transformer_jax.training.loop import train
from transformer_jax.training.step import TrainStep

STEP_POINTS = ["0", "2", "4", "5", "7", "8", "9", "11"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny_config(folder)
    return folder


def short_config(data, **train_fields):
    fields = {"num_steps": 12, "checkpoint_every_steps": 4, "eval_every_steps": 0,
              "log_every_steps": 3, **train_fields}  # fmt: skip
    return tiny_config(data, **fields)


def run(config, workdir):
    """Trains; the last state, on the host."""
    with loop.open_run(config, epath.Path(workdir)) as trainer:
        trainer.run()
        return jax.device_get(trainer.state)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    return run(short_config(data), tmp_path_factory.mktemp("undisturbed"))


# --- Memory --------------------------------------------------------------------------------------


def live_bytes():
    """Bytes of all arrays on all devices; those of views count once."""
    buffers = {
        (shard.device.id, shard.data.unsafe_buffer_pointer()): shard.data.nbytes
        for x in jax.live_arrays()
        for shard in x.addressable_shards
    }
    return sum(buffers.values())


@pytest.mark.parametrize("runner", ["jit", "pmap"])
def test_resuming_holds_one_state(data, tmp_path, monkeypatch, runner):
    config = short_config(data, num_steps=4, ema_decay=0.9)
    devices = 1 if runner == "jit" else 2
    config = dataclasses.replace(
        config, parallel=dataclasses.replace(config.parallel, runner=runner, data=devices)
    )
    run(config, tmp_path)
    before, most = live_bytes(), []

    def watched(function):
        def call(*arguments, **named):
            most.append(live_bytes() - before)
            result = function(*arguments, **named)
            most.append(live_bytes() - before)
            return result

        return call

    monkeypatch.setattr(loop.Checkpointer, "restore", watched(loop.Checkpointer.restore))
    monkeypatch.setattr(runners.Runner, "init", watched(runners.Runner.init))
    monkeypatch.setattr(runners, "_map_shards", watched(runners._map_shards))
    with loop.open_run(config, epath.Path(tmp_path)) as trainer:
        state = jax.tree.leaves(trainer.state)
        one = sum(s.data.nbytes for x in state for s in x.addressable_shards)
        largest = devices * max(x.nbytes for x in state)
    assert len(most) >= 2
    assert max(most) <= one + largest  # an array is copied while the old one is there
    assert one > 3 * largest


# --- Kills ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_anywhere_a_run_ends_as_if_undisturbed(data, tmp_path):
    done = subprocess.run(
        [sys.executable, "tests/kill_points.py", data, tmp_path, "24", *STEP_POINTS],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    points = found["points"]
    assert found["num_events"] > 100
    assert len(points) == 32
    # The last event may come a little sooner or later: files are written by threads.
    assert sum(p["killed"] for p in points) >= 30
    assert {p["began"] for p in points if p["killed"]} >= {0, 4, 8}
    assert [p for p in points if p["digest"] != found["straight"]] == []


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_costs_only_its_steps(data, undisturbed, tmp_path, capsys):
    workdir = tmp_path / "run"
    run(short_config(data, num_steps=8), workdir)
    (part, *_) = sorted((workdir / "checkpoints" / "8" / "params" / "d").iterdir())
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(bytes(content))
    same(run(short_config(data), workdir), undisturbed)
    out = capsys.readouterr().out
    assert "checkpoint 8 is damaged: params/d/" in out
    assert "resuming from step 4" in out


# --- Disks ---------------------------------------------------------------------------------------


def at_steps(monkeypatch, actions):
    """Calls `actions[t]` before step t + 1."""
    whole = loop.Trainer._read

    def read(self, late):
        if late is not None and late[0] in actions:
            self._tell(self._checkpointer.wait())  # so that it strikes no save that began before it
            actions.pop(late[0])()
        whole(self, late)

    monkeypatch.setattr(loop.Trainer, "_read", read)


def bar(folder):
    """Makes what is reached by name below `folder` read-only."""
    for options in (["--bind", folder, folder], ["-o", "remount,ro,bind", folder]):
        subprocess.run(["mount", *map(str, options)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "nearly full", "read-only"])
def test_a_disk_that_cannot_be_written_for_a_while(
    data, undisturbed, small_disk, monkeypatch, capfd, fault
):
    workdir = small_disk / "run"
    begin = {
        "full": lambda: fill(small_disk),
        "nearly full": lambda: fill(small_disk, room=100_000),
        "read-only": lambda: bar(workdir),
    }
    end = {
        "full": (small_disk / "filler").unlink,
        "nearly full": (small_disk / "filler").unlink,
        "read-only": lambda: subprocess.run(["umount", str(workdir)], check=True),
    }
    seen = []
    at_steps(
        monkeypatch,
        {
            6: begin[fault],
            10: lambda: (
                seen.extend(p.name for p in (workdir / "checkpoints").iterdir()),
                end[fault](),
            ),
        },
    )
    config = short_config(data)
    config = dataclasses.replace(
        config, checkpoint=dataclasses.replace(config.checkpoint, max_to_keep=1)
    )
    same(run(config, workdir), undisturbed)
    out = capfd.readouterr().out
    assert "the checkpoint could not be written" in out
    assert "that of step 4 is kept" in out
    if fault == "read-only":  # on a full one there is room left in the file's last block
        assert "metrics.jsonl cannot be written (Read-only file system)" in out
    else:
        assert "(No space left on device)" in out
    assert "4" in seen  # the only good one, though only one is kept
    kept = [p.name for p in (workdir / "checkpoints").iterdir()]
    assert kept == ["12"]
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 6, 9, 12]


@pytest.mark.slow
def test_a_last_checkpoint_that_cannot_be_written_ends_in_an_error(data, small_disk, monkeypatch):
    at_steps(monkeypatch, {6: lambda: fill(small_disk)})
    with pytest.raises(UserError, match=r"Step 12 could not be saved .*step 4 is the newest"):
        run(short_config(data), small_disk / "run")
    (small_disk / "filler").unlink()
    assert int(run(short_config(data), small_disk / "run").step) == 12


# --- Steps that go wrong -------------------------------------------------------------------------


def poison(monkeypatch, config, workdir, steps):
    """Makes the loss of the batches of `steps` NaN, wherever they are computed."""
    _, data = setup.prepare(config, epath.Path(workdir), lambda _: None)
    batches = data.batches(config)
    sums = jnp.asarray([batches[t - 1]["inputs"].sum() for t in steps])
    whole = TrainStep.loss_sums

    def loss_sums(self, params, batch, rng):
        found = whole(self, params, batch, rng)
        is_poison = jnp.any(jnp.sum(batch["inputs"]) == sums)
        return found._replace(loss=found.loss * jnp.where(is_poison, jnp.nan, 1.0))

    monkeypatch.setattr(TrainStep, "loss_sums", loss_sums)


@pytest.mark.slow
def test_a_poisoned_batch_is_skipped_kept_and_replayed(data, tmp_path, monkeypatch, capsys):
    config = short_config(data)
    workdir = epath.Path(tmp_path / "run")
    clean = TrainStep.loss_sums
    poison(monkeypatch, config, workdir, [6])
    state = run(config, workdir)
    out = capsys.readouterr().out
    path = workdir / "bad_batches" / "step_6.npz"
    assert f"step 6: skipped, loss nan, gradient norm nan; its batch is in {path}" in out
    last = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["skipped_steps"] == 1
    with np.load(path) as file:
        texts = list(zip(file["sources"], file["targets"], strict=True))
        about = json.loads(str(file["about"]))
    lines = [(data / f"train.{language}").read_text().splitlines() for language in ("en", "de")]
    assert about["step"] == 6
    assert set(texts) <= set(zip(*lines, strict=True))
    assert len(texts) > 10

    written = (workdir / "config.json").read_text()
    other = dataclasses.replace(config, train=dataclasses.replace(config.train, num_steps=99))
    found = replay(other, workdir, path)
    assert found["skipped"] == 1
    assert (workdir / "config.json").read_text() == written
    with pytest.raises(UserError, match="is no work directory"):
        replay(config, tmp_path / "nowhere", path)
    out = capsys.readouterr().out
    assert "gradients: not finite" in out
    assert "as recorded" in out
    assert "another now" not in out

    # What is left is a run that has never seen the batch.
    resolved, prepared = setup.prepare(config, epath.Path(tmp_path / "other"), lambda _: None)
    from transformer_jax.training.runners import make_runner

    runner = make_runner(resolved, jax.devices()[:1])
    wanted, batches = runner.init(config.seed), prepared.batches(resolved)
    for t in range(12):
        if t != 5:
            wanted, _ = runner.step(wanted, batches[t])
        else:
            wanted = wanted.replace(step=wanted.step + 1)
    same(state, jax.device_get(wanted))

    monkeypatch.setattr(TrainStep, "loss_sums", clean)
    healthy = replay(config, workdir, path)
    assert healthy["skipped"] == 0
    runner = make_runner(resolved, jax.devices()[:1])
    clean_state = runner.init(config.seed)
    for t in range(6):
        clean_state, metrics = runner.step(clean_state, batches[t])
    loss = float(metrics["loss_sum"] / metrics["tokens"])
    assert healthy["loss"] == pytest.approx(loss, rel=1e-4)
    assert "recorded were nan and nan" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_is_stopped_behind_a_skipped_step_saves_it(data, tmp_path, monkeypatch):
    config = short_config(data)
    poison(monkeypatch, config, tmp_path / "run", [6])
    train(config, tmp_path / "run", stop_after=6)
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["4", "6"]


@pytest.mark.slow
def test_ten_skipped_steps_in_a_row_end_the_run(data, tmp_path, monkeypatch):
    config = short_config(data, num_steps=30)
    poison(monkeypatch, config, tmp_path / "run", range(6, 31))
    with pytest.raises(UserError, match=r"last 10 steps .* up to step 15: lower .*clip_norm"):
        run(config, tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["4"]  # none of those 10
    with pytest.raises(UserError, match="is no file of a run's bad_batches"):
        replay(config, tmp_path / "run", tmp_path / "run" / "config.json")


def test_advice_fits_the_trouble(tmp_path):
    config = tiny_config(tmp_path)
    nan = {"loss_sum": np.float32("nan"), "grad_norm": np.float32("nan")}
    early, late = faults.advice(config, 5, nan), faults.advice(config, 500, nan)
    assert "warmup_steps" in early
    assert "warmup_steps" not in late
    assert "clip_norm" in late
    spikes = dataclasses.replace(config, train=dataclasses.replace(config.train, skip_spikes=3.0))
    finite = {"loss_sum": np.float32(4), "grad_norm": np.float32(9)}
    assert "config.train.skip_spikes=3" in faults.advice(spikes, 500, finite)


# --- Signals and other processes -----------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_saves_once_and_the_run_goes_on_exactly(tmp_path):
    data, straight, stopped = tmp_path / "data", tmp_path / "straight", tmp_path / "stopped"
    data.mkdir()
    endless = subprocess.Popen(
        train_command(data, stopped, 1_000_000), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    wait_for(stopped / "checkpoints" / "10", endless)
    second = subprocess.run(
        train_command(data, stopped, 1_000_000), cwd=ROOT, capture_output=True, text=True
    )
    assert second.returncode == 2
    assert f"Another process trains in {stopped} (process {endless.pid} on " in second.stderr
    endless.send_signal(signal.SIGTERM)
    out = endless.communicate()[0]
    assert endless.returncode == 0
    step = int(out.split("asked to stop: saved step ")[1].split(";")[0])
    assert step == max(int(name) for name in os.listdir(stopped / "checkpoints"))
    for workdir in (stopped, straight):
        command = [*train_command(data, workdir, step + 15), "--config.train.log_every_steps=1"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    last = [
        json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
        for workdir in (stopped, straight)
    ]
    assert last[0]["step"] == step + 15
    for name in ("train_loss", "grad_norm", "batch_digest"):
        assert last[0][name] == last[1][name]


@pytest.mark.slow
def test_sigterm_before_the_first_step_ends_at_once(tmp_path):
    """Preparing a large corpus takes hours; nothing of it would have to be saved."""
    command = train_command(tmp_path, tmp_path / "run", 10)
    endless = tmp_path / "train.en"
    endless.unlink()
    os.mkfifo(endless)
    process = subprocess.Popen(command, cwd=ROOT)
    with endless.open("w"):  # as soon as the program reads the corpus, of which nothing comes
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    endless.unlink()
    subprocess.run(train_command(tmp_path, tmp_path / "run", 10), cwd=ROOT, check=True)


def test_a_work_directory_is_held_by_one(tmp_path):
    with (
        workdir_lib.lock(tmp_path / "run"),
        pytest.raises(UserError, match=f"process {os.getpid()} on .*another --workdir"),
        workdir_lib.lock(tmp_path / "run"),
    ):
        pass
    with workdir_lib.lock(tmp_path / "run"):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot be written"),
        workdir_lib.lock(tmp_path / "file" / "run"),
    ):
        pass


def test_a_changed_tokenizer_is_refused_by_name(tiny_run, tmp_path):
    import shutil

    data, done = tiny_run
    workdir = tmp_path / "run"
    shutil.copytree(done, workdir)
    kept = json.loads((workdir / "data.json").read_text())
    assert set(kept) == {"corpus", "tokenizer", "tokenizer_settings"}
    (workdir / "data.json").write_text(json.dumps({**kept, "tokenizer": "other"}))
    with pytest.raises(UserError, match="The training tokenizer is not the one"):
        train(tiny_config(data, num_steps=70), workdir)


def test_without_a_checkpoint_the_tokenizer_follows_the_settings(tmp_path, monkeypatch):
    """A run that was stopped before its first checkpoint begins anew, with what it is given."""
    workdir, making = epath.Path(tmp_path / "run"), []
    original = setup.make_tokenizers
    monkeypatch.setattr(setup, "make_tokenizers", lambda *a: making.append(1) or original(*a))

    def prepare(**fields):
        config = tiny_config(tmp_path)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, **fields))
        config, data = setup.prepare(config, workdir, lambda _: None)
        kept = workdir_lib.read_tokenizers(workdir)
        assert kept.fingerprint == data.tokenizers.fingerprint
        assert config.model.source_vocab_size == data.tokenizers.source.vocab_size
        return kept

    first = prepare()
    assert prepare().fingerprint == first.fingerprint
    assert len(making) == 1
    assert prepare(vocab_size=290).source.vocab_size == 290
    assert prepare(lowercase=True).source.lowercase
    assert prepare(tokenizer="bpe").source.model != first.source.model
    (tmp_path / "train.en").write_text("one\n" * 400)
    assert prepare(vocab_size=286).source.vocab_size == 286
    assert prepare(vocab_size=287).source.vocab_size == 287
    assert len(making) == 6

    # A kill between the model and its description leaves no mixture.
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(workdir), "replace", die)
        with pytest.raises(KeyboardInterrupt):
            prepare(vocab_size=288)
    assert prepare(vocab_size=287).source.vocab_size == 287
    # Nor does one between the tokenizer and the record of how it was made.
    with monkeypatch.context() as patch:
        patch.setattr(workdir_lib, "write_data_record", die)
        with pytest.raises(KeyboardInterrupt):
            prepare(vocab_size=288)
    assert prepare(vocab_size=287).source.vocab_size == 287


def test_a_tokenizer_that_came_with_a_model_is_not_kept_without_it(tiny_run, tmp_path):
    """A run that fine-tuned was stopped before its first checkpoint; the next one starts fresh."""
    data, done = tiny_run
    config = tiny_config(data)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, vocab_size=290))
    tuned = dataclasses.replace(
        config, train=dataclasses.replace(config.train, init_from=str(done))
    )
    for wanted, size in ((tuned, 295), (config, 290), (tuned, 295)):
        _, prepared = setup.prepare(wanted, epath.Path(tmp_path), lambda _: None)
        assert prepared.tokenizers.source.vocab_size == size


def test_references_that_the_tokenizer_cannot_write_are_counted(tmp_path):
    """Printed before step 0 where they are more than 0.1%, with the place of the difference."""
    config = tiny_config(tmp_path)

    def prepared(num_lost, **fields):
        rows = [("one", "eins")] * (2000 - num_lost) + [("two", "x" * 3000 + " zwei… ")] * num_lost
        write_pairs(tmp_path, "val", rows)
        said = []
        data = dataclasses.replace(config.data, **fields)
        train = dataclasses.replace(config.train, eval_every_steps=10, eval_sentences=0)
        setup.prepare(
            dataclasses.replace(config, data=data, train=train),
            epath.Path(tmp_path / "run"), said.append,
        )  # fmt: skip
        return [line for line in said if "survive" in line]

    assert prepared(2) == []
    (line,) = prepared(3, normalization="nfkc")
    assert "0.1% of the validation references" in line
    assert "zwei… '" in line
    assert "zwei...'" in line
    assert len(line) < 300


@pytest.mark.slow
def test_verify_resume_shows_that_it_is_exact(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    command = [*train_command(data, tmp_path / "run", 20), "--verify_resume", "--verify_steps=8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8 steps: the same batches, the same losses" in done.stdout
    assert "going on: 1 cpu device(s), then 2" in done.stdout
    assert "losses within" in done.stdout.splitlines()[-1]
