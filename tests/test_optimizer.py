"""Schedules and optimizers."""

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.config import Config, OptimizerConfig, optimizer_kinds
from transformer_jax.ops.losses import LossSums
from transformer_jax.training import optimizer
from transformer_jax.training.optimizer import (
    gradient_point,
    make_optimizer,
    make_schedule,
    num_updates,
)
from transformer_jax.training.step import Sums, TrainStep

NAMES = [*typing.get_args(typing.get_type_hints(OptimizerConfig)["name"])]


def rates(schedule, steps, **fields):
    config = OptimizerConfig(schedule=schedule, **fields)
    make = make_schedule(config, d_model=512, num_steps=100)
    return [float(make(step - 1)) for step in steps]  # counts start at 0, steps at 1


def test_schedule_rsqrt_is_the_papers_formula():
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
        # The 90 updates after the warm-up fall in 91 equal parts; a 91st update would be at 0.
        ("linear", [0.1, 0.5, 1.0, 46 / 91, 1 / 91]),
        ("cosine", [0.1, 0.5, 1.0, *(0.5 + 0.5 * np.cos(np.pi * np.array([45, 90]) / 91))]),
    ],
)
def test_schedules_warm_up_and_then_follow_their_formula(schedule, want):
    got = rates(schedule, [1, 5, 10, 55, 100], learning_rate=1.0, warmup_steps=10)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert got[-1] > 0  # the last update counts


def test_schedule_is_never_negative_when_compiled():
    config = OptimizerConfig(schedule="linear", learning_rate=5e-5, warmup_steps=10)
    schedule = make_schedule(config, d_model=8, num_steps=39)
    assert float(jax.jit(schedule)(39)) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_optimizers_move_against_the_gradient_and_decay_decoupled(name):
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
    params = {name: np.full((4, 4), 5.0, np.float32) for name in names}
    grads = jax.tree.map(np.ones_like, params)
    first = lambda tx: jax.jit(lambda g, p: tx.update(g, tx.init(p), p)[0])(grads, params)  # noqa: E731
    updates = first(tx)
    assert all(np.all(updates[name] < 0) for name in names)

    def change(**fields):
        other = dataclasses.replace(config, **fields)
        return first(make_optimizer(other, make_schedule(other, 8, 10)))

    # Decoupled: the rate, 0.1, of the decay of a weight of 5. By default of matrices alone.
    without, everywhere = change(weight_decay=0.0), change(weight_decay_on="all")
    for name in names:
        decayed = -0.1 * weight_decay * 5
        np.testing.assert_allclose(everywhere[name] - without[name], decayed, atol=1e-6)
        decayed *= name == "kernel"
        np.testing.assert_allclose(updates[name] - without[name], decayed, atol=1e-6)


def test_adam_with_clipping_matches_numpy():
    config = OptimizerConfig(
        learning_rate=0.1,
        schedule="constant",
        warmup_steps=1,
        b1=0.9,
        b2=0.98,
        eps=1e-9,
        clip_norm=0.5,
    )
    tx = make_optimizer(config, make_schedule(config, 8, 10))
    params = jnp.array([1.0, 2.0])
    state, update = tx.init(params), jax.jit(tx.update)
    grads = [np.array([3.0, 4.0]), np.array([0.1, -0.2])]
    m = v = np.zeros(2)
    want = np.array([1.0, 2.0])
    for t, grad in enumerate(grads, start=1):
        updates, state = update(np.float32(grad), state, params)
        params = optax.apply_updates(params, updates)
        clipped = grad * min(1.0, 0.5 / np.linalg.norm(grad))
        m, v = 0.9 * m + 0.1 * clipped, 0.98 * v + 0.02 * clipped**2
        want = want - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
    np.testing.assert_allclose(params, want, rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_adam_has_optax_updates_and_state(name, clip_norm):
    config = OptimizerConfig(
        name=name,
        schedule="linear",
        learning_rate=0.1,
        warmup_steps=2,
        weight_decay=0.3 if name == "adamw" else 0.0,
        weight_decay_on="all",
        clip_norm=clip_norm,
    )
    schedule = make_schedule(config, 8, 10)
    theirs = getattr(optax, name)(
        schedule,
        config.b1,
        config.b2,
        config.eps,
        **({"weight_decay": 0.3} if name == "adamw" else {}),
    )
    if clip_norm:
        theirs = optax.chain(optax.clip_by_global_norm(clip_norm), theirs)
    ours = make_optimizer(config, schedule)
    params = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2))}
    want, got = params, params
    their_state, our_state = theirs.init(params), ours.init(params)

    @jax.jit
    def updated(step, want, their_state, got, our_state):
        grads = jax.tree.map(lambda p: jnp.cos(p * (step + 1)) * 3.0, want)
        their_updates, their_state = theirs.update(grads, their_state, want)
        our_updates, our_state = ours.update(grads, our_state, got, accept=jnp.bool_(True))
        want, got = map(optax.apply_updates, (want, got), (their_updates, our_updates))
        return want, their_state, got, our_state

    for step in range(4):
        want, their_state, got, our_state = updated(step, want, their_state, got, our_state)
        for a, b in zip(
            jax.tree.leaves((got, our_state)), jax.tree.leaves((want, their_state)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert jax.tree.structure(our_state) == jax.tree.structure(their_state)


def test_adam_keeps_its_first_moment_in_bfloat16_and_computes_in_float32():
    config = OptimizerConfig(schedule="constant", learning_rate=0.1, warmup_steps=1, b1=0.5)
    config.mu_dtype = "bfloat16"
    tx = make_optimizer(config, make_schedule(config, 8, 10))
    params = jnp.array([1.0, 2.0])
    state = tx.init(params)
    mean, variance = np.zeros(2), np.zeros(2)
    for step, grad in enumerate(([0.3, -1.7], [1e-4, 5.0], [0.9, 0.001]), start=1):
        updates, state = tx.update(jnp.asarray(grad), state, params)
        moments = next(x for x in state if hasattr(x, "mu"))
        assert (moments.mu.dtype, moments.nu.dtype) == (jnp.bfloat16, jnp.float32)
        mean = np.asarray(jnp.asarray(0.5 * mean + 0.5 * np.array(grad), jnp.bfloat16), float)
        variance = config.b2 * variance + (1 - config.b2) * np.square(grad)
        np.testing.assert_array_equal(np.asarray(moments.mu, float), mean)
        corrected = mean / (1 - 0.5**step), variance / (1 - config.b2**step)
        np.testing.assert_allclose(updates, -0.1 * corrected[0] / np.sqrt(corrected[1]), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_optimizers_change_nothing_in_a_bad_step(name):
    decay = 0.0 if name == "adam" else 0.1
    config = OptimizerConfig(
        name=name, schedule="constant", warmup_steps=1, weight_decay=decay, clip_norm=1.0
    )
    tx = make_optimizer(config, make_schedule(config, 8, 10))
    params = {"a": jnp.arange(3.0)}
    _, state = tx.update({"a": jnp.ones(3)}, tx.init(params), params, accept=jnp.bool_(True))
    bad = {"a": jnp.array([jnp.nan, jnp.inf, 1.0])}
    updates, after = tx.update(bad, state, params, accept=jnp.bool_(False))
    np.testing.assert_array_equal(updates["a"], 0.0)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    assert int(num_updates(after)) == 1


def test_schedule_free_adamw_has_the_points_and_averages_of_optax():
    """Optax keeps the points as its parameters, and computes the averages from them."""
    config = OptimizerConfig(
        name="schedule_free_adamw",
        schedule="constant",
        learning_rate=0.3,
        warmup_steps=5,
        weight_decay=0.1,
        clip_norm=2.0,
    )
    schedule = make_schedule(config, 8, 10)
    tx = make_optimizer(config, schedule)
    base = optax.chain(
        optax.scale_by_rms(config.b2, config.eps, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )
    # Optax weighs an average by the learning rate of one update later than the update's.
    weights = lambda count: schedule(count - 1)  # noqa: E731
    peer = optax.contrib.schedule_free(base, weights, b1=config.b1)
    params = {"kernel": jax.random.normal(jax.random.key(0), (3, 4))}
    target = jax.random.normal(jax.random.key(1), (3, 4))

    @jax.jit
    def step(params, state, points, peer_state):
        point = gradient_point(config, state, params)
        grads = jax.tree.map(lambda x: x - target, point)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        clipped, _ = optax.clip_by_global_norm(2.0).update(
            jax.tree.map(lambda x: x - target, points), optax.EmptyState()
        )
        updates, peer_state = peer.update(clipped, peer_state, points)
        return point, params, state, optax.apply_updates(points, updates), peer_state

    points, state, peer_state = params, tx.init(params), peer.init(params)
    for _ in range(20):
        previous = points
        point, params, state, points, peer_state = step(params, state, points, peer_state)
        want = optax.contrib.schedule_free_eval_params(peer_state, points)
        np.testing.assert_allclose(point["kernel"], previous["kernel"], atol=1e-5)
        np.testing.assert_allclose(params["kernel"], want["kernel"], atol=1e-5)
    assert np.abs(params["kernel"] - points["kernel"]).max() > 0.01
    assert int(num_updates(state)) == 20


@pytest.mark.parametrize(
    ("tx", "rate"),
    [
        (optax.sgd(optax.linear_schedule(0.1, 0.2, 3), momentum=0.9), np.nan),
        (optax.chain(optax.clip_by_global_norm(0.1), optax.lion(0.01, weight_decay=0.1)), np.nan),
        (optax.inject_hyperparams(optax.adam)(learning_rate=0.25), 0.25),
        (
            optax.multi_transform(
                {"a": optax.sgd(0.1), "b": optax.adam(0.2)}, {"w": "a", "v": "b"}
            ),
            np.nan,
        ),
    ],
)
def test_a_step_takes_any_optimizer_of_optax(tx, rate):
    step = TrainStep(Config(optimizer=OptimizerConfig(name="schedule_free_adamw")), optimizer=tx)
    params = {"w": jnp.array([1.0, 2.0]), "v": jnp.array([3.0])}
    state = step.init_state(jax.random.key(0), params)
    assert step.gradient_point(state) is state.params
    want, want_state = params, tx.init(params)
    num_accepted = 0
    for scale in (1.0, np.nan, -2.0, 0.5):
        grads = jax.tree.map(lambda x, s=scale: s * x, params)
        sums = Sums(jax.tree.map(lambda g: 4.0 * g, grads), LossSums(*jnp.float32([8, 8, 1, 4])))
        state, metrics = step.apply_sums(state, sums)
        assert metrics["skipped"] == np.isnan(scale)
        np.testing.assert_equal(np.asarray(metrics["learning_rate"]), np.float32(rate))
        if not np.isnan(scale):
            updates, want_state = tx.update(grads, want_state, want)
            want = optax.apply_updates(want, updates)
            num_accepted += 1
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), state.params, want)
        assert num_updates(state.opt_state) == num_accepted


def test_records_of_optimizers_and_schedules_agree_with_what_computes_them():
    types = typing.get_type_hints(OptimizerConfig)
    assert optimizer_kinds.OPTIMIZERS.keys() == optimizer.OPTIMIZERS.keys()
    assert optimizer_kinds.OPTIMIZERS.keys() == set(typing.get_args(types["name"]))
    assert optimizer_kinds.SCHEDULES.keys() == optimizer.SCHEDULES.keys()
    assert optimizer_kinds.SCHEDULES.keys() == set(typing.get_args(types["schedule"]))
    for name, kind in optimizer_kinds.SCHEDULES.items():
        schedule = make_schedule(OptimizerConfig(schedule=name, warmup_steps=2), 4, num_steps=9)
        assert (float(schedule(9)) == 0) == kind.falls_to_zero


def test_updates_of_an_optimizer_without_a_schedule_are_not_counted():
    with pytest.raises(ValueError, match="0 states of a schedule"):
        num_updates(optax.adam(0.1).init({"x": jnp.zeros(2)}))
