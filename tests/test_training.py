"""Small runs of training, from start to end."""

import contextlib
import dataclasses
import itertools
import json
import queue
import shutil
import struct
import threading
import types

import jax
import numpy as np
import pytest
from etils import epath

from tests.conftest import digit_pairs, tiny_config, write_pairs
from transformer_jax import waiting
from transformer_jax.config import Config, TrainConfig
from transformer_jax.errors import UserError
from transformer_jax.training import loop
from transformer_jax.training.loop import train
from transformer_jax.training.progress import Progress
from transformer_jax.workdir.retention import quality


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_training_writes_the_files_of_a_work_directory(tiny_run):
    _, workdir = tiny_run
    assert {p.name for p in workdir.iterdir()} >= {
        "config.json",
        "tokenizer",
        "checkpoints",
        "metrics.jsonl",
        "tensorboard",
        "samples.jsonl",
    }
    metrics = lines(workdir / "metrics.jsonl")
    training = [m for m in metrics if "train_loss" in m]
    assert [m["step"] for m in training] == [10, 20, 30, 40, 50, 60]
    assert training[-1]["train_loss"] < training[0]["train_loss"]
    assert {"learning_rate", "target_tokens_per_second", "padding"} <= training[0].keys()
    evaluated = [m for m in metrics if "eval_bleu" in m]
    assert [m["step"] for m in evaluated] == [30, 60]
    assert evaluated[1]["eval_loss"] < evaluated[0]["eval_loss"]
    samples = lines(workdir / "samples.jsonl")
    assert {"step", "source", "reference", "hypothesis"} == samples[0].keys()
    config = json.loads((workdir / "config.json").read_text())
    assert config["model"]["source_vocab_size"] == 295


def final_params(workdir):
    from transformer_jax import Translator

    return Translator.load(workdir, "latest").params


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_resume_is_exact_and_repeats_no_line_of_metrics(tiny_run, tmp_path):
    data, straight = tiny_run
    config = tiny_config(data, num_steps=30, eval_every_steps=0)
    train(config, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as out:  # written before a crash
        out.write(b'{"step": 40, "train_loss": 1.0}\n{"step": 3, "text": "\xc3')
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, num_steps=60))
    train(longer, tmp_path / "run")
    assert_same(final_params(tmp_path / "run"), final_params(straight))
    steps = [m["step"] for m in lines(tmp_path / "run" / "metrics.jsonl") if "train_loss" in m]
    assert steps == [10, 20, 30, 40, 50, 60]


def test_resume_is_exact_with_subword_sampling(tiny_run, tmp_path):
    data, _ = tiny_run

    def config(num_steps):
        tiny = tiny_config(data, num_steps=num_steps, eval_every_steps=0, log_every_steps=1)
        sampled = dataclasses.replace(tiny.data, subword_sampling=0.3)
        return dataclasses.replace(tiny, data=sampled)

    train(config(40), tmp_path / "straight")
    train(config(25), tmp_path / "run")
    train(config(40), tmp_path / "run")
    assert_same(final_params(tmp_path / "run"), final_params(tmp_path / "straight"))
    digests = [
        [m["batch_digest"] for m in lines(tmp_path / name / "metrics.jsonl")]
        for name in ("straight", "run")
    ]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 40


@pytest.mark.slow
def test_resume_works_on_any_mesh_and_runner(tiny_run, tmp_path):
    """Optimizer state is restored on all of them: every later loss is that of one device."""
    data, _ = tiny_run
    places = [
        {"data": 1},
        {"data": 1, "fsdp": 8},
        {"data": 1, "fsdp": 3},
        {"runner": "pmap", "data": 2},
        {"data": 2, "fsdp": 2, "tensor": 2},
    ]
    config = tiny_config(
        data,
        num_steps=20,
        checkpoint_every_steps=10,
        eval_every_steps=0,
        log_every_steps=1,
        ema_decay=0.9,
    )
    model = dataclasses.replace(config.model, dropout_rate=0.0)
    config = dataclasses.replace(config, model=model)
    train(config, tmp_path / "straight")
    for number, place in enumerate(places, start=1):
        parallel = dataclasses.replace(config.parallel, **place)
        moved = dataclasses.replace(config, parallel=parallel)
        train(moved, tmp_path / "moved", stop_after=4 * number)
    straight, moved = (lines(tmp_path / name / "metrics.jsonl") for name in ("straight", "moved"))
    assert [m["batch_digest"] for m in moved] == [m["batch_digest"] for m in straight]
    for name in ("train_loss", "grad_norm"):
        np.testing.assert_allclose(
            [m[name] for m in moved], [m[name] for m in straight], rtol=2e-5, err_msg=name
        )


@pytest.mark.slow
def test_early_stopping_counts_across_restarts(tiny_run, tmp_path):
    data, _ = tiny_run
    config = tiny_config(
        data,
        num_steps=40,
        eval_every_steps=10,
        early_stopping_patience=2,
        checkpoint_every_steps=40,
    )
    # No parameter changes at this rate, so all evaluations are alike and the first is the best.
    config = dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, learning_rate=1e-30),
        checkpoint=dataclasses.replace(config.checkpoint, best_metric="eval_exact_match"),
    )
    first = dataclasses.replace(config, train=dataclasses.replace(config.train, num_steps=20))
    train(first, tmp_path / "run")
    train(config, tmp_path / "run")
    evaluated = [m["step"] for m in lines(tmp_path / "run" / "metrics.jsonl") if "eval_loss" in m]
    assert evaluated == [10, 20, 30]
    train(config, tmp_path / "run")  # nothing left to do
    assert [m["step"] for m in lines(tmp_path / "run" / "metrics.jsonl")][-1] == 30


def test_bleu_of_0_is_explained_where_translations_are_right():
    class Said(list):
        say = list.append

        def evaluation(self, *_):
            pass

    for exact_match, want in ((99.5, 1), (0.0, 0)):
        said, metrics = Said(), {"eval_bleu": 0.0, "eval_exact_match": exact_match}
        config = types.SimpleNamespace(checkpoint=types.SimpleNamespace(best_metric="eval_loss"))
        trainer = types.SimpleNamespace(
            step=1,
            state=None,
            config=config,
            data=types.SimpleNamespace(validation=()),
            _reporter=said,
            _has_explained_bleu=False,
            _evaluator=lambda *_, metrics=metrics: (metrics, []),
        )
        for _ in range(2):
            assert loop.Trainer._evaluate(trainer) == metrics
        assert len(said) == want  # not at each evaluation
        assert all("no output shares four words in a row" in line for line in said)


def test_early_stopping_ranks_equal_scores_by_loss_also_in_runs_of_0_1_0():
    older = [Progress(metric="eval_bleu", best=best, best_step=7) for best in (0.0, 1.0)]
    runs = [(Progress(), (5.0, 4.0, 4.5, 3.0)), (older[0], (4.0, 5.0)), (older[1], (4.0,))]
    counters = []
    for progress, losses in runs:
        for step, loss in enumerate(losses, start=10):
            score = quality({"eval_bleu": 0.0, "eval_loss": loss}, "eval_bleu")
            progress = progress.after_evaluation(step, "eval_bleu", score)
            counters.append((progress.best_step, progress.evaluations_since_best))
    assert counters == [(10, 0), (11, 0), (11, 1), (13, 0), (10, 0), (10, 1), (7, 1)]


def test_early_stopping_waits_for_patience_and_another_metric_starts_again():
    progress = Progress().after_evaluation(10, "eval_bleu", [5.0, -1.0])
    worse = progress.after_evaluation(20, "eval_bleu", [4.0, -1.0])
    assert not progress.stops_early(1)
    assert worse.stops_early(1)
    assert not worse.stops_early(2)
    assert not worse.stops_early(0)
    other = worse.after_evaluation(30, "eval_chrf", [1.0, -1.0])
    assert (other.best_step, other.stops_early(1)) == (30, False)


@pytest.mark.slow
def test_training_with_bucket_batches_and_ema(tiny_run, tmp_path):
    data, _ = tiny_run
    config = tiny_config(data, num_steps=10, eval_every_steps=10, ema_decay=0.9)
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, batching="bucket", num_buckets=2)
    )
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "10" / "ema").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: dataclasses.replace(c, seed=1), ["config.seed was 0, is 1"]),
        (
            lambda c: dataclasses.replace(c, model=dataclasses.replace(c.model, d_ff=64)),
            ["config.model.d_ff was 32, is 64", "another `workdir`"],
        ),
        (
            lambda c: dataclasses.replace(c, parallel=dataclasses.replace(c.parallel, data=9)),
            ["config.parallel (data=9", "8 devices"],
        ),
    ],
)
def test_resume_refuses_other_settings(tiny_run, change, words):
    data, workdir = tiny_run
    before = (workdir / "config.json").read_text()
    with pytest.raises(UserError) as error:
        train(change(tiny_config(data)), workdir)
    for word in words:
        assert word in str(error.value)
    assert (workdir / "config.json").read_text() == before


def test_resume_refuses_a_checkpoint_with_the_state_of_another_step(tiny_run, tmp_path):
    data, workdir = tiny_run
    shutil.copytree(workdir, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "60").rename(checkpoints / "61")
    with pytest.raises(UserError, match=r"Checkpoint 61 in .* contains the state of step 60;"):
        train(tiny_config(data, num_steps=70), tmp_path / "run")
    assert (tmp_path / "run" / "config.json").read_text() == (workdir / "config.json").read_text()


def test_resume_refuses_another_corpus(tiny_run, tmp_path):
    data, workdir = tiny_run
    config = tiny_config(data, num_steps=70)
    prefix = write_pairs(tmp_path, "train", digit_pairs(400, seed=77))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, train=prefix))
    with pytest.raises(UserError, match="not the one that the run"):
        train(config, workdir)


@pytest.mark.slow
def test_training_on_several_corpora_with_weights_and_tags(tmp_path):
    config = tiny_config(tmp_path, num_steps=4, eval_every_steps=4, eval_sentences=2)
    swapped = [(b, a) for a, b in digit_pairs(100, seed=4)]
    (tmp_path / "back.de").write_text("".join(a + "\n" for a, _ in swapped))
    (tmp_path / "back.en").write_text("".join(b + "\n" for _, b in swapped))
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(
            config.data,
            train=f"{config.data.train},{tmp_path / 'back'}",
            train_languages=("en-de", "de-en"),
            train_weights=(1.0, 1.0),
            target_language_tags=True,
        ),
    )
    train(config, tmp_path / "run")
    from transformer_jax import Translator

    translator = Translator.load(tmp_path / "run")
    assert translator.engine.language_tags("en") != translator.engine.language_tags()
    with pytest.raises(UserError, match="<2fr>"):
        list(translator.translate(["one"], target_lang="fr"))


def board_values(folder):
    """(name, step) -> value of all event files, read as TFRecords."""
    from tensorboardX.proto import event_pb2

    values = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            values |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
            data = data[16 + length :]
    return values


def test_terminal_and_files_tell_the_same_numbers(tmp_path, capsys, monkeypatch):
    from transformer_jax.training import reporting

    seconds = iter([500.0, 510.0])  # when the first step is done, and nine steps later
    clock = types.SimpleNamespace(monotonic=lambda: next(seconds), time=lambda: 0.0)
    monkeypatch.setattr(reporting, "time", clock)

    metrics = {
        "train_loss": 2.5,
        "learning_rate": 0.125,
        "target_tokens_per_second": 1234.5,
        "padding": 0.0625,
        "batch_digest": "ab",
    }
    reporter = reporting.Reporter(epath.Path(tmp_path), 10, 100)
    reporter.advance(11)
    reporter.training(11, metrics)
    assert "padding 6.2%, ? left\n" in capsys.readouterr().out
    reporter.training(20, metrics)
    evaluation = {"eval_bleu": 33.25, "eval_bleu_signature": "nrefs:1"}
    samples = [
        {"source": "one", "reference": "eins", "hypothesis": hypothesis}
        for hypothesis in ("eins", "zwei", "drei")
    ]
    reporter.evaluation(20, evaluation, samples)
    reporter.close()
    out = capsys.readouterr().out
    # Of right translations no reference, and no more than two.
    assert out.endswith("\n  one  ->  eins\n  one  ->  zwei\n    reference: eins\n")
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 3
    assert (
        "step 20/100: loss 2.500, lr 1.25e-01, 1,234 target tokens/s, padding 6.2%, "
        "1 min 29 s left\n" in out
    )
    assert "bleu 33.25\n" in out
    written = lines(tmp_path / "metrics.jsonl")
    assert written == [{"step": 11, **metrics}, {"step": 20, **metrics}, {"step": 20, **evaluation}]
    numbers = {name: value for name, value in metrics.items() if name != "batch_digest"}
    want = {(name, step): value for name, value in numbers.items() for step in (11, 20)}
    want["eval_bleu", 20] = 33.25
    assert board_values(tmp_path / "tensorboard") == want


def test_time_left_is_estimated_from_the_first_ten_steps(tmp_path, capsys, monkeypatch):
    from transformer_jax.training import reporting

    # When the first step is done, ten steps later, and 34 steps after the first.
    seconds = iter([100.0, 120.0, 170.0])
    clock = types.SimpleNamespace(monotonic=lambda: next(seconds), time=lambda: 0.0)
    monkeypatch.setattr(reporting, "time", clock)
    reporter = reporting.Reporter(epath.Path(tmp_path), 5, 3616)
    for step in range(6, 40):
        reporter.advance(step)
    assert capsys.readouterr().out == "step 16/3616: about 2 h left\n"
    monkeypatch.setattr(waiting, "SILENCE", -1.0)
    reporter.advance(40)  # 3,576 steps are left, of 70 / 34 s
    assert capsys.readouterr().out == "step 40/3616: 2 h 2 min left\n"


def test_long_compilations_say_that_they_go_on(monkeypatch):
    seconds, said = itertools.count(100.0, 8.0), queue.SimpleQueue()
    clock = types.SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(waiting, "SILENCE", 0.0)
    with contextlib.suppress(KeyError), waiting.announced("a program", said.put):
        lines = [said.get(timeout=60) for _ in range(3)]
        raise KeyError
    assert lines == [
        "compiling a program",
        "still compiling after 8.0 s",
        "still compiling after 16.0 s",
    ]
    assert not [thread for thread in threading.enumerate() if "remind" in thread.name]
    monkeypatch.setattr(waiting, "SILENCE", 60.0)
    said = queue.SimpleQueue()
    with waiting.announced("another", said.put):
        pass
    assert said.get() == "compiling another"
    assert said.get().startswith("compiled in ")


@pytest.mark.parametrize(
    ("best_step", "every_steps", "is_said"), [(0, 4, True), (4, 4, False), (0, 0, False)]
)
def test_stop_before_the_first_evaluation_says_how_to_read_the_checkpoint(
    best_step, every_steps, is_said
):
    said = []
    trainer = types.SimpleNamespace(
        step=3,
        progress=Progress(best_step=best_step),
        config=Config(train=TrainConfig(eval_every_steps=every_steps)),
        _reporter=types.SimpleNamespace(say=said.append),
    )
    loop.Trainer._say_stopped(trainer, stop_after=3)
    assert said[0].startswith("`stop_after=3` is reached: saved step 3; without it")
    assert [("checkpoint=latest" in line) for line in said[1:]] == [True] * is_said
