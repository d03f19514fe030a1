"""Faults of long runs: kills, full disks, bad batches, signals, a second process."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests.conftest import fill, tiny_config
from tests.test_processes import ROOT, as_on_a_terminal, assert_runs, train_command, wait_for
from transformer_jax.config import CheckpointConfig
from transformer_jax.errors import UserError
from transformer_jax.extras.diagnostics import replay as replay_lib
from transformer_jax.extras.diagnostics.replay import replay
from transformer_jax.training import evaluate, faults, loop, reporting, setup, stopping
from transformer_jax.training.loop import train
from transformer_jax.training.objective import Objective
from transformer_jax.workdir import checkpoint, digests
from transformer_jax.workdir.folder import TMP_SUFFIX

STEP_POINTS = ["0", "4", "7", "11"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny_config(folder)
    return folder


def short_config(data, **train_fields):
    every_steps = {"checkpoint_every_steps": 4, "eval_every_steps": 0, "log_every_steps": 3}
    return tiny_config(data, **{"num_steps": 12, **every_steps, **train_fields})


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


# --- Kills ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_resume_is_exact_after_a_kill_anywhere(data, tmp_path):
    done = subprocess.run(
        [sys.executable, "tests/kill_points.py", data, tmp_path, "8", *STEP_POINTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    points = report["points"]
    assert report["num_events"] > 100
    assert len(points) == 12
    # The last event may come a little sooner or later: files are written by threads.
    assert sum(p["killed"] for p in points) >= 11
    assert {p["began"] for p in points if p["killed"]} >= {0, 4, 8}
    assert [p for p in points if p["digest"] != report["straight"]] == []


@pytest.mark.slow
def test_resume_uses_the_checkpoint_before_a_damaged_one(data, undisturbed, tmp_path, capsys):
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
    original = loop.Trainer._process_metrics

    def process(self, pending):
        if pending is not None and pending[0] in actions:
            self._saver._report(self._saver._checkpointer.wait())  # of earlier saves, which succeed
            actions.pop(pending[0])()
        original(self, pending)

    monkeypatch.setattr(loop.Trainer, "_process_metrics", process)


def make_read_only(folder):
    """Remounts `folder` read-only."""
    for options in (["--bind", folder, folder], ["-o", "remount,ro,bind", folder]):
        subprocess.run(["mount", *map(str, options)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "nearly full", "read-only"])
def test_checkpoints_continue_after_a_disk_was_full_or_read_only(
    data, undisturbed, small_disk, monkeypatch, capfd, fault
):
    workdir = small_disk / "run"
    begin = {
        "full": lambda: fill(small_disk),
        "nearly full": lambda: fill(small_disk, room=100_000),
        "read-only": lambda: make_read_only(workdir),
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
    assert [p.name for p in (workdir / "checkpoints").iterdir()] == ["12"]
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 6, 9, 12]


@pytest.mark.slow
def test_last_checkpoint_that_cannot_be_written_is_an_error(data, small_disk, monkeypatch):
    at_steps(monkeypatch, {6: lambda: fill(small_disk)})
    with pytest.raises(UserError, match=r"Step 12 could not be saved .*step 4 is the newest"):
        run(short_config(data), small_disk / "run")
    (small_disk / "filler").unlink()
    assert int(run(short_config(data), small_disk / "run").step) == 12


def fail_saves(monkeypatch, workdir, steps):
    """Lets the next save of each of `steps` fail in the background, as on a full disk."""
    original = digests.write

    def write(folder):
        step = int(folder.name.partition(".")[0])
        if step in steps:
            steps.remove(step)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(folder)

    monkeypatch.setattr(digests, "write", write)


def test_failed_saves_are_named_and_the_last_step_keeps_its_scores(
    data, tmp_path, monkeypatch, capsys
):
    scores = {"eval_bleu": 5.0, "eval_loss": 1.0}
    monkeypatch.setattr(evaluate.Evaluator, "__call__", lambda *_: (scores, []))
    fail_saves(monkeypatch, tmp_path, [2, 3])
    config = short_config(data, num_steps=3, checkpoint_every_steps=1, eval_every_steps=3)
    assert train(config, tmp_path)
    reports = [line for line in capsys.readouterr().out.splitlines() if "could not" in line]
    reason = "the checkpoint could not be written (No space left on device); that of step 1 is kept"
    continues = "training continues, and saves again when the next checkpoint is due"
    assert reports == [f"step 2: {reason}; {continues}", f"step 3: {reason}; saving step 3 now"]
    assert checkpoint.steps(tmp_path) == [1, 3]
    assert checkpoint.read_metrics(tmp_path, 3) == scores


def test_failed_saves_leave_no_folder_even_where_their_threads_write_on(tmp_path):
    checkpointer = checkpoint.Checkpointer(tmp_path, CheckpointConfig())
    after_close = tmp_path / "checkpoints" / f"2{TMP_SUFFIX}" / "optimizer"
    checkpointer.save(1, {"params": {"kernel": jnp.zeros(3)}}, {})
    assert checkpointer.wait() is None
    after_close.mkdir(parents=True)
    (after_close / "part").write_bytes(b"0")
    checkpointer.close()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["1"]


def test_error_about_the_last_step_has_the_reason_of_a_save_that_fails_at_once(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoint.Checkpointer, "_probe", lambda _: "Read-only file system")
    with pytest.raises(UserError, match=r"Step 1 could not be saved .* \(Read-only file system\);"):
        train(short_config(data, num_steps=1), tmp_path)


# --- Steps that go wrong -------------------------------------------------------------------------


def poison(monkeypatch, config, workdir, steps):
    """Makes the loss of the batches of `steps` NaN, also when a step is repeated."""
    _, data = setup.prepare(config, epath.Path(workdir), lambda _: None)
    batches = data.batches(config)
    sums = jnp.asarray([batches[t - 1]["inputs"].sum() for t in steps])
    original = Objective.loss_sums

    def loss_sums(self, params, batch, rng):
        losses = original(self, params, batch, rng)
        is_poison = jnp.any(jnp.sum(batch["inputs"]) == sums)
        return losses._replace(loss=losses.loss * jnp.where(is_poison, jnp.nan, 1.0))

    monkeypatch.setattr(Objective, "loss_sums", loss_sums)


@pytest.mark.slow
def test_skipped_batch_is_written_and_replayed(data, tmp_path, monkeypatch, capsys):
    config = short_config(data)
    workdir = epath.Path(tmp_path / "run")
    clean = Objective.loss_sums
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
    assert replay(other, workdir, path)["skipped"] == 1
    assert (workdir / "config.json").read_text() == written
    with pytest.raises(UserError, match="is no work directory"):
        replay(config, tmp_path / "nowhere", path)
    out = capsys.readouterr().out
    assert "gradients: not finite" in out
    assert "as recorded" in out
    assert "another now" not in out

    # The run ends like one that has never seen the batch.
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

    monkeypatch.setattr(Objective, "loss_sums", clean)
    healthy = replay(config, workdir, path)
    assert healthy["skipped"] == 0
    runner = make_runner(resolved, jax.devices()[:1])
    clean_state = runner.init(config.seed)
    for t in range(6):
        clean_state, metrics = runner.step(clean_state, batches[t])
    loss = float(metrics["loss_sum"] / metrics["tokens"])
    assert healthy["loss"] == pytest.approx(loss, rel=1e-4)
    assert "recorded were nan and nan" in capsys.readouterr().out


def test_every_array_of_a_replayed_batch_gets_empty_rows():
    batch = {"inputs": np.ones((3, 5), np.int32), "alignment": np.zeros((3, 5, 4), np.int32)}
    padded = replay_lib._padded(batch, SimpleNamespace(row_multiple=4))
    assert {name: x.shape[0] for name, x in padded.items()} == {"inputs": 4, "alignment": 4}
    assert np.all(padded["inputs"][3] == 0)
    assert np.all(padded["alignment"][3] == -1)  # no link


@pytest.mark.slow
def test_stop_after_a_skipped_step_saves_it(data, tmp_path, monkeypatch, capsys):
    config = short_config(data)
    poison(monkeypatch, config, tmp_path / "run", [6])
    train(config, tmp_path / "run", stop_after=6)
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["4", "6"]
    assert not train(config, tmp_path / "run", stop_after=5)
    printed = capsys.readouterr().out
    assert "`stop_after=6` is reached: saved step 6; without it, the same command" in printed
    assert "the run is at step 6: `stop_after=5` is reached" in printed
    assert printed.count("compiling the training step") == 1


@pytest.mark.slow
def test_skipping_ten_steps_in_a_row_ends_the_run(data, tmp_path, monkeypatch):
    config = short_config(data, num_steps=30)
    poison(monkeypatch, config, tmp_path / "run", range(6, 31))
    with pytest.raises(UserError, match=r"last 10 steps .* up to step 15: lower .*clip_norm"):
        run(config, tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["4"]  # none of those 10
    with pytest.raises(UserError, match="is no file of a run's bad_batches"):
        replay(config, tmp_path / "run", tmp_path / "run" / "config.json")


def test_advice_for_skipped_steps_fits_their_cause(tmp_path, monkeypatch):
    config = tiny_config(tmp_path)
    nan = {"loss_sum": np.float32("nan"), "grad_norm": np.float32("nan")}
    in_warmup, after_warmup = faults.advice(config, 5, nan), faults.advice(config, 500, nan)
    assert "warmup_steps" in in_warmup
    assert "warmup_steps" not in after_warmup
    assert "clip_norm" in after_warmup
    of_kernel = {"loss_sum": np.float32(4), "grad_norm": np.float32("nan")}
    on_cpu = faults.advice(config, 500, of_kernel)
    assert "attention" not in on_cpu
    assert "dtype" not in on_cpu  # "auto" is float32 there
    monkeypatch.setattr(faults.platforms, "current", lambda: "gpu")
    on_gpu = faults.advice(config, 500, of_kernel)
    assert "config.model.attention=xla" in on_gpu
    assert "config.model.dtype=float32" in on_gpu
    assert "attention" not in faults.advice(config, 500, nan)
    xla = dataclasses.replace(config, model=dataclasses.replace(config.model, attention="xla"))
    assert "attention" not in faults.advice(xla, 500, of_kernel)
    spikes = dataclasses.replace(config, train=dataclasses.replace(config.train, skip_spikes=3.0))
    finite = {"loss_sum": np.float32(4), "grad_norm": np.float32(9)}
    assert "config.train.skip_spikes=3" in faults.advice(spikes, 500, finite)


# --- Opening a run -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [UserError("other devices"), RuntimeError("out of memory")])
def test_open_run_closes_everything_where_the_state_cannot_be_made(
    data, tmp_path, monkeypatch, error
):
    closed = []

    def fail(*_):
        raise error

    for owner in (checkpoint.Checkpointer, reporting.Reporter):
        monkeypatch.setattr(owner, "close", lambda self, *_: closed.append(type(self).__name__))
    monkeypatch.setattr(loop.Trainer, "start", fail)
    with pytest.raises(type(error)), loop.open_run(short_config(data), tmp_path):
        pass
    assert closed == ["Checkpointer", "Reporter"]

    monkeypatch.setattr(checkpoint.Checkpointer, "close", fail)
    with pytest.raises(type(error)), loop.open_run(short_config(data), tmp_path):
        pass
    assert closed == ["Checkpointer", "Reporter", "Reporter"]


# --- Signals and other processes -----------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_saves_once_and_resume_is_exact(tmp_path):
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


@pytest.fixture
def default_sigint():
    """SIGINT as on a terminal, also where pytest was started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_the_step_and_then_interrupts(
    data, undisturbed, tmp_path, monkeypatch, capfd, default_sigint
):
    at_steps(monkeypatch, {6: lambda: signal.raise_signal(signal.SIGINT)})
    with pytest.raises(KeyboardInterrupt):
        train(short_config(data), tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    steps = checkpoint.steps(tmp_path)
    assert steps[:-1] == [4]
    out, error = capfd.readouterr()
    assert f"asked to stop: saved step {steps[-1]}; the same command resumes the run" in out
    assert (
        error == "\nstopping: saves this step and ends; Ctrl-C again ends at once, without saving\n"
    )
    same(run(short_config(data), tmp_path), undisturbed)


def test_ctrl_c_is_ignored_where_the_process_was_started_so(default_sigint):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stopping.StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert not stop.is_due(1)


def test_second_ctrl_c_ends_the_process_at_once():
    code = (
        "import signal\n"
        "from transformer_jax.training.stopping import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    print(stop.is_due(1), flush=True)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "print('not reached')\n"
    )
    command = as_on_a_terminal([sys.executable, "-c", code])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "True\n")


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_status_130_after_saving(tmp_path):
    command = as_on_a_terminal(train_command(tmp_path, tmp_path / "run", 1_000_000))
    endless = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(tmp_path / "run" / "checkpoints" / "10", endless)
    endless.send_signal(signal.SIGINT)
    out, error = endless.communicate()
    assert endless.returncode == 130
    step = int(out.split("asked to stop: saved step ")[1].split(";")[0])
    assert step == checkpoint.steps(tmp_path / "run")[-1]
    assert (out + error).count("the same command resumes") == 1
    assert error.endswith("without saving\ninterrupted.\n")


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_ends_at_once_and_leaves_no_folder(tmp_path):
    process, endless = start_that_reads_without_end(tmp_path, as_on_a_terminal)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    endless.close()
    assert not (tmp_path / "run").exists()


def test_stop_between_compiling_and_the_first_step_saves_step_0(data, tmp_path):
    config = short_config(data, num_steps=2)
    assert not train(config, tmp_path, stop_after=0)
    assert checkpoint.steps(tmp_path) == [0]
    with loop.open_run(config, tmp_path, read_only=True) as trainer:
        assert trainer.step == trainer.state.step == 0
        with pytest.raises(ValueError, match="read_only=True"):
            trainer.run()


def start_that_reads_without_end(folder, wrap=list):
    """A training process that is reading its corpus, and the open file, which sends nothing."""
    command = wrap(train_command(folder, folder / "run", 10))
    (folder / "train.en").unlink()
    os.mkfifo(folder / "train.en")
    process = subprocess.Popen(command, cwd=ROOT)
    while True:
        try:
            # It can be opened for writing once the program reads it.
            return process, os.fdopen(
                os.open(folder / "train.en", os.O_WRONLY | os.O_NONBLOCK), "wb"
            )
        except OSError:
            assert_runs(process)


@pytest.mark.slow
def test_sigterm_before_the_first_step_ends_at_once(tmp_path):
    """Preparing a large corpus takes hours, and needs no saving."""
    process, endless = start_that_reads_without_end(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == -signal.SIGTERM
    endless.close()
    (tmp_path / "train.en").unlink()
    subprocess.run(train_command(tmp_path, tmp_path / "run", 10), cwd=ROOT, check=True)
