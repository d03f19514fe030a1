"""Runs that are started as processes and killed, and the package installed from a wheel."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.conftest import tiny_config

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


def train_command(data: Path, workdir: Path, num_steps: int) -> list[str]:
    tiny_config(data)  # writes the files
    return [
        sys.executable,
        "train.py",
        "--config=configs/tiny.py",
        f"--workdir={workdir}",
        "--config.data.source=files",
        "--config.data.vocab_size=295",
        f"--config.data.train={data / 'train'}",
        f"--config.data.validation={data / 'val'}",
        f"--config.data.cache_dir={data / 'cache'}",
        f"--config.train.num_steps={num_steps}",
        "--config.train.checkpoint_every_steps=10",
        "--config.checkpoint.max_to_keep=100",
        "--config.parallel.data=1",
        "--config.train.eval_every_steps=0",
        "--config.model.dropout_rate=0.2",
    ]


def as_on_a_terminal(command: list[str]) -> list[str]:
    """`command` with the default handler of SIGINT."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", code, *command]


def latest_params(workdir):
    from transformer_jax import Translator

    return Translator.load(workdir, "60").params


def assert_runs(process: subprocess.Popen) -> None:
    """Waits a moment, in which the process has the processor to itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        raise AssertionError(f"the run ended by itself, with status {process.wait(0.02)}")


def wait_for(path: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert_runs(process)
        assert time.monotonic() < deadline, f"{path} was not written"


def test_resume_after_a_kill_equals_an_uninterrupted_run(tmp_path):
    data, straight, killed = tmp_path / "data", tmp_path / "straight", tmp_path / "killed"
    data.mkdir()
    subprocess.run(train_command(data, straight, 60), cwd=ROOT, check=True, capture_output=True)
    endless = subprocess.Popen(
        train_command(data, killed, 1_000_000), cwd=ROOT, stdout=subprocess.DEVNULL
    )
    wait_for(killed / "checkpoints" / "30", endless)
    endless.send_signal(signal.SIGKILL)
    assert endless.wait() == -signal.SIGKILL
    reached = [int(p.name) for p in (killed / "checkpoints").iterdir() if p.name.isdigit()]
    for step in reached:  # written before it was dead
        if step > 30:
            subprocess.run(["rm", "-r", str(killed / "checkpoints" / str(step))], check=True)
    done = subprocess.run(
        train_command(data, killed, 60), cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert "resuming from step 30" in done.stdout
    jax.tree.map(np.testing.assert_array_equal, latest_params(killed), latest_params(straight))


def test_wheel_installs_a_command_that_works_anywhere(tmp_path):
    run = lambda *a, **k: subprocess.run(  # noqa: E731
        a, check=True, capture_output=True, text=True, **k
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    run(*pip, "install", "--no-deps", "--target", str(site), str(wheel))
    data = tmp_path / "data"
    data.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    tiny_config(data)
    flags = train_command(data, tmp_path / "run", 10)[4:]
    command = str(site / "bin" / "transformer-jax")
    done = run(
        command,
        "train",
        "--config=tiny",
        f"--workdir={tmp_path / 'run'}",
        *flags,
        cwd=tmp_path,
        env=environment,
    )
    assert "finished at step 10" in done.stdout
    where = run(
        sys.executable,
        "-c",
        "import transformer_jax; print(transformer_jax.__file__)",
        cwd=tmp_path,
        env=environment,
    )
    assert where.stdout.startswith(str(site))
    done = run(
        command,
        "decode",
        f"--workdir={tmp_path / 'run'}",
        "--checkpoint=latest",
        input="one\n",
        cwd=tmp_path,
        env=environment,
    )
    assert done.stdout.count("\n") == 1


def test_commands_load_neither_tensorflow_nor_torch(tmp_path):
    """Importable fakes of both record that they are loaded."""
    for name in ("tensorflow", "torch"):
        (tmp_path / "fake" / name).mkdir(parents=True)
        (tmp_path / "fake" / name / "__init__.py").write_text(
            f"import traceback\nopen({str(tmp_path / 'loaded')!r}, 'a').write("
            f"{name!r} + ''.join(traceback.format_stack()[-3:]))\n"
        )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "fake")}
    data = tmp_path / "data"
    data.mkdir()
    workdir = tmp_path / "run"
    train = [*train_command(data, workdir, 10), "--config.train.eval_every_steps=10"]
    evaluate = [
        sys.executable,
        "eval.py",
        f"--workdir={workdir}",
        f"--config.data.test={data / 'val'}",
    ]
    decode = [sys.executable, "decode.py", f"--workdir={workdir}", f"--input={data / 'val.en'}"]
    embedded = [
        sys.executable,
        "-c",
        "from transformer_jax.data import number_words, tfds_corpora\n"
        "number_words.SIZES = {'train': 1010, 'validation': 5, 'test': 5}\n"
        f"b = tfds_corpora.prepared_builder('number_words/de', {str(tmp_path / 'tfds')!r})\n"
        "print(b.as_data_source('train')[0])",
    ]
    for command in (train, evaluate, decode, embedded):
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    loaded = tmp_path / "loaded"
    assert not loaded.exists(), loaded.read_text()


def test_embedded_corpus_can_be_prepared_by_two_runs_at_once(tmp_path):
    command = [
        sys.executable,
        "-c",
        "from transformer_jax.data import number_words, tfds_corpora\n"
        "number_words.SIZES = {'train': 1500, 'validation': 5, 'test': 5}\n"
        f"b = tfds_corpora.prepared_builder('number_words/de', {str(tmp_path)!r})\n"
        "print(len(b.as_data_source('train')))",
    ]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.communicate()[0].split()[-1] for p in both] == ["1500", "1500"]
    assert [p.name for p in tmp_path.iterdir()] == ["number_words"]
