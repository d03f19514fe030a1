"""The package under settings of JAX that a user's program may have made for its process."""

import contextlib
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import run_command
from tests.test_step import SHAPE, step_config, uneven_batch
from transformer_jax import Translator
from transformer_jax.ops.losses import cross_entropy
from transformer_jax.training import partition, runners
from transformer_jax.training.step import TrainStep
from transformer_jax.translator import programs

SETTINGS = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_transfer_guard": "disallow",
}
# Settings of the training step that together trace most of the package's functions of arrays.
STEPS = {
    "layer norm": (
        {"positional": "relative", "tie_embeddings": "none", "output_bias": True},
        {"name": "adamw", "schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1},
        {"alignment_weight": 0.1, "ema_decay": 0.9, "skip_spikes": 3.0, "accumulate": 2},
    ),
    "rms norm": (
        {
            "positional": "rotary",
            "norm": "rms",
            "norm_position": "pre",
            "feed_forward": "gated",
            "attention": "blockwise",
            "attention_dropout_rate": 0.1,
            "num_kv_heads": 1,
            "logit_softcap": 5.0,
            "attention_softcap": 5.0,
            "dtype": "bfloat16",
        },
        {"name": "schedule_free_adamw", "schedule": "constant", "clip_norm": 1.0},
        {"r_drop": 5.0, "label_smoothing": 0.1, "remat": "dots"},
    ),
    "layer norm, bfloat16": (
        {"positional": "learned", "dtype": "bfloat16", "qk_norm": True},
        {"name": "adafactor"},
        {"lora_rank": 2},
    ),
}


@contextlib.contextmanager
def strict_process():
    """All settings at once: whatever fails under one of them fails here."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def types(tree):
    return jax.tree.map(lambda x: str(x.dtype), tree)


@pytest.mark.parametrize("name", STEPS)
def test_own_loops_trace_the_step_and_keep_its_types(name):
    model, optimizer, train = STEPS[name]
    config = step_config(dropout=0.1, **train)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **model),
        optimizer=dataclasses.replace(config.optimizer, **optimizer),
    )
    step, key = TrainStep(config), jax.random.key(0)
    batch = uneven_batch(0)
    batch["alignment"] = np.full((*batch["targets"].shape, 3), -1, np.int32)
    with strict_process():
        state = jax.eval_shape(step.init_state, key)
        point = jax.eval_shape(step.gradient_point, state)
        sums = jax.eval_shape(step.grad_sums, point, batch, key)
        after, metrics = jax.eval_shape(step.apply_sums, state, sums)
        shapes = [((2, 3, 5), "float32"), ((2, 3), "int32"), ((2, 3), "float32")]
        losses = jax.eval_shape(cross_entropy, *itertools.starmap(jax.ShapeDtypeStruct, shapes))
    assert types(after) == types(state)
    assert set(jax.tree.leaves(types(state))) == {"float32", "int32"}
    assert set(jax.tree.leaves(types((metrics, losses)))) == {"float32"}


def two_steps():
    config = step_config(dropout=0.1)
    runner = runners.make_runner(config, partition.choose_devices(config))
    state = runner.init(0)
    runner.compile(SHAPE)
    for t in range(2):
        state, metrics = runner.step(state, uneven_batch(t))
    return jax.device_get((state, metrics))


def results(workdir):
    """Of searches and of scoring: text and numbers."""
    translator = Translator.load(workdir)
    texts = ["one two three", "four"]
    beams = translator.translate(
        texts, beam_size=2, coverage_penalty=0.1, no_repeat_ngram_size=2, length_penalty_kind="gnmt"
    )
    samples = translator.translate(texts, method="sample", n_best=2, top_k=9, top_p=0.9, min_p=0.01)
    scores = translator.score(texts, ["eins zwei", "vier"])
    outputs = [*beams, *(sample for group in samples for sample in group)]
    return [o.text for o in outputs], [o.score for o in outputs], scores


def test_training_searches_and_scores_are_those_of_any_process(tiny_run, monkeypatch):
    want = results(tiny_run[1]), two_steps()
    monkeypatch.setattr(programs, "_of_process", programs.ProgramCache(99))  # so that all trace
    with strict_process():
        got = results(tiny_run[1]), two_steps()
    assert got[0][0] == want[0][0]
    np.testing.assert_allclose(got[0][1], want[0][1], rtol=1e-5)
    np.testing.assert_allclose(got[0][2], want[0][2], rtol=1e-5)
    assert types(got[1]) == types(want[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got[1], want[1])
    assert jnp.arange(2).dtype == jnp.int32  # the setting is undone


def test_commands_compute_under_the_settings_of_the_package(tiny_run, tmp_path):
    picture = tmp_path / "schedule.svg"
    with strict_process():
        done = run_command("plot", "schedule", f"--workdir={tiny_run[1]}", f"--output={picture}")
    assert done.returncode == 0, done.stderr
    assert picture.exists()
