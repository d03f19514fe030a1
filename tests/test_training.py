"""Schedules, optimizers, and whole small runs."""

import dataclasses
import json
import struct
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath

from tests.conftest import digit_pairs, tiny_config, write_pairs
from transformer_jax.config import OptimizerConfig
from transformer_jax.errors import UserError
from transformer_jax.runs.retention import quality
from transformer_jax.training.loop import train
from transformer_jax.training.optimizer import make_optimizer, make_schedule
from transformer_jax.training.progress import Progress

# --- Schedules and optimizers --------------------------------------------------------------------


def rates(schedule, steps, **fields):
    config = OptimizerConfig(schedule=schedule, **fields)
    make = make_schedule(config, d_model=512, num_steps=100)
    return [float(make(step - 1)) for step in steps]  # counts start at 0, steps at 1


def test_rsqrt_is_the_papers_formula():
    steps = [1, 100, 4000, 16_000]
    want = [512**-0.5 * min(s**-0.5, s * 4000**-1.5) for s in steps]
    np.testing.assert_allclose(rates("rsqrt", steps), want, rtol=1e-5)
    np.testing.assert_allclose(
        rates("rsqrt", steps, learning_rate=2.0), np.multiply(want, 2), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        ("constant", [0.1, 0.5, 1.0, 1.0, 1.0]),
        # 90 updates after the warm-up fall in 91 equal parts; the 91st would be the one at 0.
        ("linear", [0.1, 0.5, 1.0, 46 / 91, 1 / 91]),
        ("cosine", [0.1, 0.5, 1.0, *(0.5 + 0.5 * np.cos(np.pi * np.array([45, 90]) / 91))]),
    ],
)
def test_the_others_rise_and_then_follow_their_name(schedule, want):
    got = rates(schedule, [1, 5, 10, 55, 100], learning_rate=1.0, warmup_steps=10)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert got[-1] > 0  # the last update counts


def test_a_compiled_fall_to_zero_ends_there():
    config = OptimizerConfig(schedule="linear", learning_rate=5e-5, warmup_steps=10)
    schedule = make_schedule(config, d_model=8, num_steps=39)
    assert float(jax.jit(schedule)(39)) == 0.0


@pytest.mark.parametrize("name", ["adam", "adamw", "adafactor"])
def test_optimizers_move_against_the_gradient(name):
    weight_decay = 0.0 if name == "adam" else 0.1
    config = OptimizerConfig(
        name=name,
        weight_decay=weight_decay,
        learning_rate=0.1,
        schedule="constant",
        warmup_steps=1,
        clip_norm=1.0,
    )
    tx = make_optimizer(config, make_schedule(config, 8, 10))
    names = "kernel", "bias", "target_embedding", "scale"
    params = {name: jnp.full((4, 4), 5.0) for name in names}
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = tx.update(grads, tx.init(params), params)
    assert all(np.all(updates[name] < 0) for name in names)

    def change(**fields):
        other = dataclasses.replace(config, **fields)
        tx = make_optimizer(other, make_schedule(other, 8, 10))
        return tx.update(grads, tx.init(params), params)[0]

    # Decoupled: the rate, 0.1, of the decay of a weight of 5. By default of matrices alone.
    without, everywhere = change(weight_decay=0.0), change(weight_decay_on="all")
    for name in names:
        decayed = -0.1 * weight_decay * 5
        np.testing.assert_allclose(everywhere[name] - without[name], decayed, atol=1e-6)
        decayed *= name == "kernel"
        np.testing.assert_allclose(updates[name] - without[name], decayed, atol=1e-6)


def test_adam_and_clipping_by_hand():
    config = OptimizerConfig(learning_rate=0.1, schedule="constant", warmup_steps=1, b1=0.9,
                             b2=0.98, eps=1e-9, clip_norm=0.5)  # fmt: skip
    tx = make_optimizer(config, make_schedule(config, 8, 10))
    params, state = jnp.array([1.0, 2.0]), None
    state = tx.init(params)
    grads = [np.array([3.0, 4.0]), np.array([0.1, -0.2])]
    m = v = np.zeros(2)
    want = np.array([1.0, 2.0])
    for t, grad in enumerate(grads, start=1):
        updates, state = tx.update(jnp.asarray(grad, jnp.float32), state, params)
        params = optax.apply_updates(params, updates)
        clipped = grad * min(1.0, 0.5 / np.linalg.norm(grad))
        m, v = 0.9 * m + 0.1 * clipped, 0.98 * v + 0.02 * clipped**2
        want = want - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
    np.testing.assert_allclose(params, want, rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_adam_is_optaxs_and_keeps_its_state(name, clip_norm):
    config = OptimizerConfig(name=name, schedule="linear", learning_rate=0.1, warmup_steps=2,
                             weight_decay=0.3 if name == "adamw" else 0.0,
                             weight_decay_on="all", clip_norm=clip_norm)  # fmt: skip
    schedule = make_schedule(config, 8, 10)
    theirs = getattr(optax, name)(
        schedule, config.b1, config.b2, config.eps,
        **({"weight_decay": 0.3} if name == "adamw" else {}),
    )  # fmt: skip
    if clip_norm:
        theirs = optax.chain(optax.clip_by_global_norm(clip_norm), theirs)
    ours = make_optimizer(config, schedule)
    params = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2))}
    want, got = params, params
    their_state, our_state = theirs.init(params), ours.init(params)
    for step in range(4):
        grads = jax.tree.map(lambda p, s=step: jnp.cos(p * (s + 1)) * 3.0, want)
        updates, their_state = theirs.update(grads, their_state, want)
        want = optax.apply_updates(want, updates)
        updates, our_state = ours.update(grads, our_state, got, good=jnp.bool_(True))
        got = optax.apply_updates(got, updates)
        for a, b in zip(jax.tree.leaves((got, our_state)), jax.tree.leaves((want, their_state)),
                        strict=True):  # fmt: skip
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert jax.tree.structure(our_state) == jax.tree.structure(their_state)


@pytest.mark.parametrize("name", ["adam", "adamw", "adafactor"])
def test_a_bad_step_changes_nothing(name):
    decay = 0.0 if name == "adam" else 0.1
    config = OptimizerConfig(name=name, schedule="constant", warmup_steps=1, weight_decay=decay,
                             clip_norm=1.0)  # fmt: skip
    tx = make_optimizer(config, make_schedule(config, 8, 10))
    params = {"a": jnp.arange(3.0)}
    _, state = tx.update({"a": jnp.ones(3)}, tx.init(params), params, good=jnp.bool_(True))
    bad = {"a": jnp.array([jnp.nan, jnp.inf, 1.0])}
    updates, after = tx.update(bad, state, params, good=jnp.bool_(False))
    np.testing.assert_array_equal(updates["a"], 0.0)
    jax.tree.map(np.testing.assert_array_equal, after, state)


# --- Whole runs ----------------------------------------------------------------------------------


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_what_the_contract_names(tiny_run):
    _, workdir = tiny_run
    assert {p.name for p in workdir.iterdir()} >= {
        "config.json", "tokenizer", "checkpoints", "metrics.jsonl", "tensorboard", "samples.jsonl"
    }  # fmt: skip
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


def test_going_on_is_exact_and_leaves_no_line_of_metrics_twice(tiny_run, tmp_path):
    data, straight = tiny_run
    config = tiny_config(data, num_steps=30, eval_every_steps=0)
    train(config, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as out:
        out.write('{"step": 40, "train_loss": 1.0}\n{"step": 3')  # written before a crash
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, num_steps=60))
    train(longer, tmp_path / "run")
    assert_same(final_params(tmp_path / "run"), final_params(straight))
    steps = [m["step"] for m in lines(tmp_path / "run" / "metrics.jsonl") if "train_loss" in m]
    assert steps == [10, 20, 30, 40, 50, 60]


def test_going_on_is_exact_where_words_are_cut_anew_each_epoch(tiny_run, tmp_path):
    data, _ = tiny_run

    def config(num_steps):
        made = tiny_config(data, num_steps=num_steps, eval_every_steps=0, log_every_steps=1)
        sampled = dataclasses.replace(made.data, subword_sampling=0.3)
        return dataclasses.replace(made, data=sampled)

    train(config(40), tmp_path / "straight")
    train(config(25), tmp_path / "run")
    train(config(40), tmp_path / "run")
    assert_same(final_params(tmp_path / "run"), final_params(tmp_path / "straight"))
    digests = [[m["batch_digest"] for m in lines(tmp_path / name / "metrics.jsonl")]
               for name in ("straight", "run")]  # fmt: skip
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 40


@pytest.mark.slow
def test_a_run_goes_on_under_any_mesh_and_runner(tiny_run, tmp_path):
    """The optimizer state of each is taken over: every later loss is that of one device."""
    data, _ = tiny_run
    places = [{"data": 1}, {"data": 1, "fsdp": 8}, {"data": 1, "fsdp": 3},
              {"runner": "pmap", "data": 2}, {"data": 2, "fsdp": 2, "tensor": 2}]  # fmt: skip
    config = tiny_config(data, num_steps=20, checkpoint_every_steps=10, eval_every_steps=0,
                         log_every_steps=1, ema_decay=0.9)  # fmt: skip
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
def test_bucket_batches_and_ema_train_too(tiny_run, tmp_path):
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
            ["config.model.d_ff was 32, is 64", "another --workdir"],
        ),
        (
            lambda c: dataclasses.replace(c, parallel=dataclasses.replace(c.parallel, data=9)),
            ["config.parallel (data=9", "8 devices"],
        ),
    ],
)
def test_another_run_is_not_started_over_an_old_one(tiny_run, change, words):
    data, workdir = tiny_run
    before = (workdir / "config.json").read_text()
    with pytest.raises(UserError) as error:
        train(change(tiny_config(data)), workdir)
    for word in words:
        assert word in str(error.value)
    assert (workdir / "config.json").read_text() == before


def test_another_corpus_is_refused(tiny_run, tmp_path):
    data, workdir = tiny_run
    config = tiny_config(data, num_steps=70)
    prefix = write_pairs(tmp_path, "train", digit_pairs(400, seed=77))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, train=prefix))
    with pytest.raises(UserError, match="not the one that the run"):
        train(config, workdir)


@pytest.mark.slow
def test_several_corpora_with_weights_and_tags(tmp_path):
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

    metrics = {"train_loss": 2.5, "learning_rate": 0.125, "target_tokens_per_second": 1234.5,
               "padding": 0.0625, "batch_digest": "ab"}  # fmt: skip
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
    assert "step 20/100: loss 2.500, lr 1.25e-01, 1,234 target tokens/s, padding 6.2%, " \
           "1m28s left\n" in out  # fmt: skip
    assert "bleu 33.25\n" in out
    written = lines(tmp_path / "metrics.jsonl")
    assert written == [{"step": 11, **metrics}, {"step": 20, **metrics},
                       {"step": 20, **evaluation}]  # fmt: skip
    numbers = {name: value for name, value in metrics.items() if name != "batch_digest"}
    want = {(name, step): value for name, value in numbers.items() for step in (11, 20)}
    want["eval_bleu", 20] = 33.25
    assert board_values(tmp_path / "tensorboard") == want


def test_a_terminal_gets_a_bar(tmp_path, monkeypatch, capsys):
    import sys

    from transformer_jax.training import reporting

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    reporter = reporting.Reporter(epath.Path(tmp_path), 0, 100)
    reporter.advance(50)
    reporter.training(50, {"train_loss": 2.5, "learning_rate": 1e-3,
                           "target_tokens_per_second": 1234.5, "padding": 0.04})  # fmt: skip
    reporter.say("a line")
    reporter.close()
    error = capsys.readouterr().err
    assert "50/100" in error
    assert "loss 2.500" in error
