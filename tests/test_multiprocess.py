"""Several processes on one machine, over gloo: the same run as in one process, and no hangs."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.conftest import fill
from tests.test_processes import ROOT, as_on_a_terminal, train_command, wait_for

pytestmark = pytest.mark.slow

NUM_STEPS = 12


# Tests in other processes use other ranges of ports: a port stays free until the program that it
# is for has bound it.
PORTS = itertools.count(20_000 + 500 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


def free_port() -> int:
    for port in PORTS:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable: ports are not endless, but tests are fewer")


def start(command, num_processes, devices_each, missing=(), connect_timeout=60):
    """Starts the same command `num_processes` times, except the numbers of `missing`."""
    port = free_port()
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices_each), "JAX_PLATFORMS": "cpu"}
    processes = []
    for i in range(num_processes):
        flags = [
            f"--coordinator_address=127.0.0.1:{port}",
            f"--num_processes={num_processes}",
            f"--process_id={i}",
            f"--connect_timeout={connect_timeout}",
        ]
        if i not in missing:
            process = subprocess.Popen(
                [*command, *(flags if num_processes > 1 else [])],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
    return processes


def finish(processes):
    """Waits for all processes, and returns what each has printed."""
    outputs = [process.communicate(timeout=240) for process in processes]
    for process, (_, error) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, error[-3000:]
    return [out for out, _ in outputs]


def command(data, workdir, num_steps=NUM_STEPS, *more):
    replaced = ("parallel.data", "eval_every", "dropout", "checkpoint_every")
    flags = train_command(data, workdir, num_steps)
    flags = [flag for flag in flags if not any(name in flag for name in replaced)]
    train = {"checkpoint_every_steps": 4, "eval_every_steps": 12, "log_every_steps": 1}
    flags += [f"--config.train.{name}={value}" for name, value in train.items()]
    return [*flags, "--config.model.dropout_rate=0.0", *more]


def params(workdir):
    from transformer_jax import Translator

    return Translator.load(workdir, str(NUM_STEPS)).params


def assert_close(a, b):
    def close(path, x, y):
        # A bias on keys moves all scores of a row alike: its gradient is rounding.
        if "['key']['bias']" not in jax.tree_util.keystr(path):
            np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-3)

    jax.tree_util.tree_map_with_path(close, a, b)


def metrics(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [m["train_loss"] for m in lines if "train_loss" in m]
    digests = [m["batch_digest"] for m in lines if "train_loss" in m]
    (scores,) = [m for m in lines if "eval_bleu" in m]
    return losses, digests, scores


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """One process of four devices, undisturbed."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    finish(start(command(data, workdir), 1, 4))
    return workdir


def assert_same_run(workdir, alone):
    losses, digests, scores = metrics(workdir)
    want_losses, want_digests, want_scores = metrics(alone)
    assert digests == want_digests
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    for name, value in want_scores.items():
        want = value if isinstance(value, str) else pytest.approx(value, rel=1e-4)
        assert scores[name] == want, name
    assert_close(params(workdir), params(alone))


@pytest.mark.parametrize(
    "flags",
    [(), ("runner=pmap",), ("data=1", "fsdp=2", "tensor=2")],
    ids=["data", "pmap", "fsdp-tensor"],
)
def test_processes_two_of_two_devices_train_like_one_of_four(data, alone, tmp_path, flags):
    flags = [f"--config.parallel.{flag}" for flag in flags]
    first, second = finish(start(command(data, tmp_path / "run", NUM_STEPS, *flags), 2, 2))
    assert "4 cpu device(s) of 2 processes" in first
    assert f"finished at step {NUM_STEPS}" in first
    assert "step" not in second  # only the first reports
    assert_same_run(tmp_path / "run", alone)


def test_processes_begin_with_the_model_of_a_run(data, alone, tmp_path):
    """Each process reads the shards of its devices only."""
    start_from = f"--config.train.init_from={alone}"
    finish(start(command(data, tmp_path / "one", NUM_STEPS, start_from), 1, 4))
    flags = (start_from, "--config.parallel.data=1", "--config.parallel.fsdp=4")
    finish(start(command(data, tmp_path / "two", NUM_STEPS, *flags), 2, 2))
    assert_same_run(tmp_path / "two", tmp_path / "one")
    assert metrics(tmp_path / "two")[0][0] < metrics(alone)[0][0]  # of the first step


@pytest.fixture(scope="module")
def killed(data, tmp_path_factory):
    """Two processes of two devices, killed after step 4."""
    workdir = tmp_path_factory.mktemp("killed") / "run"
    both = start(command(data, workdir), 2, 2)
    wait_for(workdir / "checkpoints" / "4", both[0])
    for process in both:
        process.kill()
        process.communicate()
    for path in (workdir / "checkpoints").iterdir():  # written before both were dead
        if path.name.isdigit() and int(path.name) > 4:
            subprocess.run(["rm", "-r", str(path)], check=True)
    return workdir


@pytest.mark.parametrize(("num_processes", "devices_each"), [(1, 2), (4, 1)])
def test_processes_resume_in_another_number(
    data, alone, killed, tmp_path, num_processes, devices_each
):
    workdir = tmp_path / "run"
    subprocess.run(["cp", "-r", str(killed), str(workdir)], check=True)
    first, *_ = finish(start(command(data, workdir), num_processes, devices_each))
    assert "resuming from step 4" in first
    assert_same_run(workdir, alone)


def test_evaluation_by_two_processes_has_the_same_scores(data, alone, tmp_path):
    def evaluate(num_processes, to):
        base = [
            sys.executable,
            "eval.py",
            f"--workdir={alone}",
            "--checkpoint=latest",
            f"--config.data.test={data / 'test'}",
            f"--json={to}",
        ]
        out = finish(start(base, num_processes, 1))
        assert ["BLEU" in text for text in out] == [True] + [False] * (num_processes - 1)
        return json.loads(to.read_text())

    one, two = evaluate(1, tmp_path / "one.json"), evaluate(2, tmp_path / "two.json")
    assert one["num_sentences"] == 20
    for name, value in one.items():
        assert two[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)


def test_decoding_by_two_processes_has_the_same_texts(data, alone, tmp_path):
    def decode(num_processes):
        to = tmp_path / str(num_processes)
        base = [
            sys.executable,
            "decode.py",
            f"--workdir={alone}",
            "--checkpoint=latest",
            f"--input={data / 'test.en'}",
            f"--output={to}",
        ]
        finish(start(base, num_processes, 1))
        return to.read_text()

    assert decode(2) == decode(1)
    assert decode(1).count("\n") == 20


def test_processes_continue_after_a_disk_was_full(data, small_disk):
    checkpoints = small_disk / "run" / "checkpoints"
    more = [f"--config.data.cache_dir={data / 'cache'}", "--config.checkpoint.max_to_keep=1"]
    both = start(command(data, small_disk / "run", 1_000_000, *more), 2, 1)
    wait_for(checkpoints / "4", both[0])
    fill(small_disk)
    for line in both[0].stdout:
        if "could not be written" in line:
            break
    (small_disk / "filler").unlink()
    failed_step = int(line.split("step ")[1].split(":")[0])
    wait_for(checkpoints / str(failed_step // 4 * 4 + 12), both[0])
    both[1].send_signal(signal.SIGTERM)
    first, _ = finish(both)
    assert "asked to stop: saved step" in first


@pytest.mark.parametrize("who", [0, 1])
def test_processes_end_if_one_of_them_dies(data, tmp_path, who):
    both = start(command(data, tmp_path / "run", 1_000_000), 2, 1)
    wait_for(tmp_path / "run" / "checkpoints" / "4", both[0])
    both[who].send_signal(signal.SIGKILL)
    # After 30 s without a heartbeat at latest; a busy machine needs more for the rest.
    _, error = both[1 - who].communicate(timeout=240)
    assert both[1 - who].returncode not in (0, None)
    assert "Another process of this run has ended" in error or "another task died" in error
    both[who].communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_one_process_stops_all_at_one_step(data, tmp_path, number):
    both = start(as_on_a_terminal(command(data, tmp_path / "run", 1_000_000)), 2, 1)
    wait_for(tmp_path / "run" / "checkpoints" / "4", both[0])
    both[1].send_signal(number)
    first, _ = finish(both)
    step = int(first.split("asked to stop: saved step ")[1].split(";")[0])
    assert (tmp_path / "run" / "checkpoints" / str(step)).exists()


def test_connect_names_missing_processes(data, tmp_path):
    here = start(command(data, tmp_path / "run"), 3, 1, missing=[1], connect_timeout=20)
    outputs = [process.communicate(timeout=100) for process in here]
    assert [process.returncode for process in here] == [2, 2]
    # The first to give up names the missing process. The other may find the first one gone.
    assert any("of 3 processes, 1 did not arrive after 20 s" in error for _, error in outputs)
    assert not (tmp_path / "run").exists()


def test_bad_input_ends_all_processes_with_the_same_sentence(data, tmp_path):
    bad = command(data, tmp_path / "run", NUM_STEPS, "--config.data.train=nowhere")
    both = start(bad, 2, 1)
    outputs = [process.communicate(timeout=100) for process in both]
    assert [process.returncode for process in both] == [2, 2]
    assert all("error: " in error and "nowhere" in error for _, error in outputs)
    assert not (tmp_path / "run").exists()
