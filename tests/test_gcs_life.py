"""The life of a run in a bucket: two processes train, are killed twice, evaluate and decode.

Text, work directory, cache, translations and scores are all in the bucket; `tests/gcs.py` says what
its server is. The oracle is an undisturbed run of one process on this machine's disk.
"""

import dataclasses
import json
import sys
import time

import numpy as np
import pytest

from tests.conftest import tiny_config
from tests.test_gcs import event_steps, names
from tests.test_multiprocess import assert_close, command, finish, start
from transformer_jax import Translator
from transformer_jax.translator import model_metrics
from transformer_jax.workdir import checkpoint as checkpoint_lib
from transformer_jax.workdir import folder as workdir_lib

pytestmark = pytest.mark.slow

NUM_STEPS, SAVE_EVERY = 24, 4
ENDLESS = 1_000_000


def flags(data, workdir, num_steps):
    """A run on the files of `data`, which may be in the bucket, as may be all else."""
    places = {"train": data / "train", "validation": data / "val", "cache_dir": data / "cache"}
    given = [f"--config.data.{name}={place}" for name, place in places.items()]
    # Each process holds, and saves, a part of the parameters.
    given += [f"--config.train.eval_every_steps={NUM_STEPS}", "--config.parallel.fsdp=2"]
    return [*given, f"--workdir={workdir}", f"--config.train.num_steps={num_steps}"]


def kill_at(step, workdir, processes):
    """Kills all with SIGKILL after the checkpoint of `step`, and makes it the last one."""
    deadline = time.monotonic() + 120
    while step not in checkpoint_lib.steps(workdir):
        for process in processes:
            assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for process in processes:
        process.kill()
        process.communicate()
    for later in (s for s in checkpoint_lib.steps(workdir) if s > step):
        # It was killed while it wrote this one.
        (workdir / "checkpoints" / str(later) / workdir_lib.COMMIT_FILE).unlink()


def lines(path):
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


def check_commands_read_and_write_the_bucket(bucket, local, theirs):
    """`eval.py` and `decode.py` by two processes, compared with `theirs` on texts in `local`."""
    data = bucket / "data"

    def run(program, *more):
        given = [f"--workdir={bucket / 'run'}", "--checkpoint=latest", *more]
        finish(start([sys.executable, program, *given], 2, 1))

    run(
        "eval.py",
        f"--config.data.test={data / 'test'}",
        f"--json={bucket / 'eval.json'}",
        f"--output={bucket / 'eval.txt'}",
    )
    run("decode.py", f"--input={data / 'test.en'}", f"--output={bucket / 'decoded.txt'}")
    pairs = list(
        zip(
            *((local / f"test.{language}").read_text().splitlines() for language in ("en", "de")),
            strict=True,
        )
    )
    scores, outputs = model_metrics.evaluate(
        theirs.engine, theirs.params, pairs, theirs.config.decode
    )
    result = json.loads((bucket / "eval.json").read_text())
    for name, value in dataclasses.asdict(scores).items():
        want = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
        assert result[name] == want, name
    texts = "".join(output.text + "\n" for output in outputs)
    assert (bucket / "eval.txt").read_bytes().decode() == texts
    assert (bucket / "decoded.txt").read_bytes().decode() == texts
    assert len(set(texts.split())) > 3  # after few steps, but not nothing


def test_run_in_a_bucket_killed_twice_equals_an_uninterrupted_run(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    tiny_config(tmp_path)  # writes the text
    data, workdir = bucket / "data", bucket / "run"
    for name in ("train", "val", "test"):
        for language in ("en", "de"):
            text = (tmp_path / f"{name}.{language}").read_bytes()
            (data / f"{name}.{language}").write_bytes(text)
    base = command(tmp_path, "-", NUM_STEPS)
    (alone,) = start([*base, *flags(tmp_path, tmp_path / "alone", NUM_STEPS)], 1, 2)
    finish([alone])

    kill_at(8, workdir, start([*base, *flags(data, workdir, ENDLESS)], 2, 1))
    kill_at(16, workdir, start([*base, *flags(data, workdir, ENDLESS)], 2, 1))
    first, second = finish(start([*base, *flags(data, workdir, NUM_STEPS)], 2, 1))
    assert "2 cpu device(s) of 2 processes" in first
    assert "resuming from step 16" in first
    assert f"finished at step {NUM_STEPS}" in first
    assert "step" not in second

    # Each step is reported once, though those after a kill were done twice.
    trained, undisturbed = (
        [metrics for metrics in lines(folder / "metrics.jsonl") if "train_loss" in metrics]
        for folder in (workdir, tmp_path / "alone")
    )
    assert [m["step"] for m in trained] == list(range(1, NUM_STEPS + 1))
    assert [m["batch_digest"] for m in trained] == [m["batch_digest"] for m in undisturbed]
    np.testing.assert_allclose(
        [m["train_loss"] for m in trained], [m["train_loss"] for m in undisturbed], rtol=1e-5
    )
    assert lines(workdir / "samples.jsonl") == lines(tmp_path / "alone" / "samples.jsonl")
    events = [event_steps(path.read_bytes()) for path in (workdir / "tensorboard").iterdir()]
    assert len(events) == 3
    assert {step for steps in events for step in steps} >= set(range(1, NUM_STEPS + 1))
    files = {"config.json", "data.json", "metrics.jsonl", "samples.jsonl"}
    folders = {"checkpoints", "history", "tensorboard", "tokenizer"}
    assert {name.split("/")[0] for name in names(workdir)} == files | folders
    assert checkpoint_lib.find_resume_step(workdir, print) == NUM_STEPS
    saved = names(workdir / "checkpoints" / str(NUM_STEPS) / "params")
    assert {name.split("/")[0] for name in saved} >= {"ocdbt.process_0", "ocdbt.process_1"}
    ours = Translator.load(workdir, str(NUM_STEPS))
    theirs = Translator.load(tmp_path / "alone", str(NUM_STEPS))
    assert_close(ours.params, theirs.params)
    check_commands_read_and_write_the_bucket(bucket, tmp_path, theirs)
