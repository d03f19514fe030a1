"""Cross-entropy against NumPy in float64 and Optax; the fused form against the plain one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.ops import losses


def oracle(logits, targets, weights, smoothing):
    logits = np.asarray(logits, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    classes = logits.shape[-1]
    wanted = np.full(logits.shape, smoothing / classes)
    wanted[np.arange(len(targets)), targets] += 1 - smoothing
    nll = -log_probs[np.arange(len(targets)), targets]
    return (
        (-(wanted * log_probs).sum(-1) * weights).sum(),
        (nll * weights).sum(),
        ((logits.argmax(-1) == targets) * weights).sum(),
        weights.sum(),
    )


def example(size=11, width=6, classes=9):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(size, width)).astype(np.float32)
    table = rng.normal(size=(classes, width)).astype(np.float32)
    targets = rng.integers(0, classes, size)
    weights = (rng.random(size) < 0.7).astype(np.float32)
    return hidden, table, targets, weights


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_sums_equal_the_formula(smoothing):
    hidden, table, targets, weights = example()
    want = oracle(hidden @ table.T, targets, weights, smoothing)
    plain = jax.jit(losses.cross_entropy)(hidden @ table.T, targets, weights, smoothing)
    np.testing.assert_allclose(plain, want, rtol=1e-5)
    fused_of = jax.jit(losses.projected_cross_entropy, static_argnums=(4, 5))
    for chunk_size in (1, 4, 11, 100):
        fused = fused_of(hidden, table, targets, weights, smoothing, chunk_size)
        np.testing.assert_allclose(fused, want, rtol=1e-5)


def test_label_smoothing_equals_optax():
    hidden, table, targets, _ = example()
    labels = optax.smooth_labels(jax.nn.one_hot(targets, 9), 0.1)
    want = optax.softmax_cross_entropy(hidden @ table.T, labels).sum()
    got = losses.cross_entropy(hidden @ table.T, targets, np.ones(11), 0.1).loss
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(("platform", "rows"), [("cpu", 512), ("tpu", 512), ("gpu", 4096)])
def test_loss_chunks_have_the_size_of_the_platform(monkeypatch, platform, rows):
    monkeypatch.setattr(losses.platforms, "current", lambda: platform)
    tokens, width, vocab = 5000, 2, 3
    shapes = (tokens, width), (vocab, width), (tokens,), (tokens,)
    dtypes = jnp.float32, jnp.float32, jnp.int32, jnp.float32
    arguments = [jax.ShapeDtypeStruct(*pair) for pair in zip(shapes, dtypes, strict=True)]
    # A function of its own for each platform: JAX keeps the programs of those that it has traced.
    program = str(jax.make_jaxpr(lambda *xs: losses.projected_cross_entropy(*xs))(*arguments))
    assert f"f32[{rows},{vocab}]" in program  # the logits of a chunk


@pytest.mark.parametrize(
    ("chunk_size", "softcap", "platform", "size"),
    [
        (4, 0.0, "cpu", 1.0),
        (100, 0.0, "cpu", 1.0),
        (4, 1.5, "cpu", 1.0),
        (4, 0.0, "gpu", 1.0),  # one pass over the logits
        (4, 0.0, "gpu", 40.0),  # exponentials of differences that overflow or vanish
        (4, 1.5, "rocm", 1.0),
    ],
)
def test_loss_fused_gradients_equal_those_of_the_plain_form(
    monkeypatch, chunk_size, softcap, platform, size
):
    monkeypatch.setattr(losses.platforms, "current", lambda: platform)
    hidden, table, targets, weights = example()
    hidden = hidden * size
    bias = np.linspace(-2.0, 1.0, 9, dtype=np.float32)

    def logits(h, t, b, tanh=jnp.tanh):
        uncapped = h @ t.T + b
        return softcap * tanh(uncapped / softcap) if softcap else uncapped

    def plain(h, t, b):
        return losses.cross_entropy(logits(h, t, b), targets, weights, 0.1).loss * 3.0

    def fused(h, t, b):
        return sums(h, t, b)[0] * 3.0

    def sums(h, t, b):
        result = losses.projected_cross_entropy(h, t, targets, weights, 0.1, chunk_size, b, softcap)
        return result.loss, result

    @jax.jit
    def compute(h, t, b):
        want, want_grads = jax.value_and_grad(plain, argnums=(0, 1, 2))(h, t, b)
        # With a gradient, another function computes the sums.
        _, aux = jax.grad(sums, has_aux=True)(h, t, b)
        return want, fused(h, t, b), aux, want_grads, jax.grad(fused, argnums=(0, 1, 2))(h, t, b)

    value, fused_value, aux, want, got = compute(hidden, table, bias)
    np.testing.assert_allclose(fused_value, value, rtol=1e-5)
    np.testing.assert_allclose(
        aux, oracle(logits(hidden, table, bias, np.tanh), targets, weights, 0.1), rtol=1e-5
    )
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6 * size)


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_each_sum_has_its_gradient_by_weights_and_the_loss_second_derivatives(r_drop):
    hidden, table, targets, weights = example()
    rng = np.random.default_rng(1)
    second = hidden + rng.normal(scale=0.3, size=hidden.shape).astype(np.float32)
    factors = np.float32([0.7, -1.3, 0.4, 2.0])  # of the four sums
    moves = rng.normal(size=hidden.shape).astype(np.float32)

    def plain(h, w):
        both = [losses.cross_entropy(x @ table.T, targets, w, 0.1) for x in (h, second)]
        if not r_drop:
            return both[0]
        logits = jnp.stack([h, second]) @ table.T
        loss = r_drop_oracle(logits, targets, w, 0.1, r_drop)
        return losses.LossSums(
            loss, *((a + b) / 2 for a, b in zip(*(x[1:] for x in both), strict=True))
        )

    def fused(h, w):
        other = {"second": second, "r_drop": r_drop} if r_drop else {}
        return losses.projected_cross_entropy(h, table, targets, w, 0.1, 4, **other)

    @functools.partial(jax.jit, static_argnums=0)
    def compute(sums):
        of_weights = jax.grad(lambda w: jnp.vdot(jnp.stack(sums(hidden, w)), factors))(weights)
        gradient = jax.grad(lambda h: sums(h, weights).loss)
        along = jax.grad(lambda h: jnp.vdot(gradient(h), moves))(hidden)
        forward = jax.jvp(lambda h: sums(h, weights).loss, (hidden,), (moves,))[1]
        return of_weights, jax.jvp(gradient, (hidden,), (moves,))[1], along, forward

    for got, want in zip(compute(fused), compute(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_loss_of_impossible_classes_and_of_no_position_is_finite():
    logits = np.float32([[1.0, 2.0, -np.inf]])
    got, grad = jax.value_and_grad(
        lambda x: losses.cross_entropy(x, np.zeros(1, int), np.ones(1)).loss
    )(logits)
    np.testing.assert_allclose(got, np.log1p(np.e), rtol=1e-6)
    np.testing.assert_allclose(grad, [[-np.e / (1 + np.e), np.e / (1 + np.e), 0.0]], rtol=1e-6)
    none = losses.projected_cross_entropy(
        np.ones((0, 8)), np.ones((3, 8)), np.ones(0, int), np.ones(0)
    )
    assert none == losses.LossSums(0, 0, 0, 0)


def r_drop_oracle(logits, targets, weights, smoothing, r_drop):
    """Loss of two passes by the formulas, in the type of the logits `[2, N, V]`."""
    log_p = logits - jnp.log(jnp.sum(jnp.exp(logits), axis=-1, keepdims=True))
    at_target = jnp.take_along_axis(log_p, jnp.stack([targets] * 2)[..., None], -1)[..., 0]
    entropies = -(1 - smoothing) * at_target - smoothing * log_p.mean(-1)
    p, q = jnp.exp(log_p)
    divergence = (p * (log_p[0] - log_p[1])).sum(-1) + (q * (log_p[1] - log_p[0])).sum(-1)
    return jnp.sum(weights * (entropies.mean(0) + r_drop / 4 * divergence))


@pytest.mark.parametrize(
    ("chunk_size", "softcap", "platform"), [(8, 0.0, "cpu"), (100, 1.5, "cpu"), (1, 0.0, "gpu")]
)
def test_loss_of_two_passes_is_that_of_r_drop(monkeypatch, chunk_size, softcap, platform):
    monkeypatch.setattr(losses.platforms, "current", lambda: platform)
    hidden, table, targets, weights = example()
    second = hidden + np.random.default_rng(1).normal(scale=0.3, size=hidden.shape)
    second = second.astype(np.float32)
    bias = np.linspace(-2.0, 1.0, 9, dtype=np.float32)

    def plain(h, s, t, b):
        logits = jnp.stack([h, s]) @ t.T + b
        logits = softcap * jnp.tanh(logits / softcap) if softcap else logits
        return r_drop_oracle(logits, targets, weights, 0.1, 5.0)

    def fused(h, s, t, b):
        sums = losses.projected_cross_entropy(
            h, t, targets, weights, 0.1, chunk_size, b, softcap, second=s, r_drop=5.0
        )
        return sums.loss, sums

    @jax.jit
    def compute(*arguments):
        # Where a pass is compared with itself, all sums equal those of one pass.
        h, _, t, b = arguments
        once = functools.partial(
            losses.projected_cross_entropy, h, t, targets, weights, 0.1, bias=b, softcap=softcap
        )
        every = 0, 1, 2, 3
        return (
            fused(*arguments),
            jax.value_and_grad(fused, every, has_aux=True)(*arguments),
            jax.value_and_grad(plain, every)(*arguments),
            once(),
            once(second=h, r_drop=5.0),
        )

    (value, sums), ((_, with_gradient), got), (plain_value, want), once, same = compute(
        hidden, second, table, bias
    )
    np.testing.assert_allclose(value, plain_value, rtol=1e-5)
    np.testing.assert_allclose(with_gradient, sums, rtol=1e-5)
    np.testing.assert_allclose(same, once, rtol=1e-5)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=3e-6)


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_loss_is_the_same_on_a_mesh_that_divides_tokens_and_vocabulary(
    monkeypatch, platform, r_drop
):
    monkeypatch.setattr(losses.platforms, "current", lambda: platform)
    rng = np.random.default_rng(0)
    hidden, second, table = (rng.normal(size=(n, 6)).astype(np.float32) for n in (16, 16, 12))
    targets, weights = rng.integers(0, 12, 16), (rng.random(16) < 0.7).astype(np.float32)

    def loss(h, s, t, y, w):
        other = {"second": s, "r_drop": r_drop} if r_drop else {}
        return losses.projected_cross_entropy(h, t, y, w, 0.1, 4, **other).loss

    arguments = hidden, second, table, targets, weights
    want = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*arguments)
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), auto, devices=jax.devices()[:4])
    specs = [("data",), ("data",), ("tensor",), ("data",), ("data",)]
    placed = [
        jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))
        for x, spec in zip(arguments, specs, strict=True)
    ]
    got = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*placed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)


def test_loss_holds_no_array_of_all_logits():
    hidden, table = jnp.ones((512, 4)), jnp.ones((64, 4))
    targets, weights = jnp.zeros(512, jnp.int32), jnp.ones(512)

    def loss(h, t):
        return losses.projected_cross_entropy(h, t, targets, weights, 0.1, 32).loss

    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(hidden, table).as_text()
    assert "32x64xf32" in text
    assert "512x64xf32" not in text
    assert "16x32x64xf32" not in text


def test_loss_gradients_in_bfloat16_equal_those_of_the_plain_form():
    hidden, table, targets, weights = example()
    hidden = jnp.asarray(hidden, jnp.bfloat16)

    def plain(h, t):
        return losses.cross_entropy(h @ t.T, targets, weights, 0.1).loss

    def fused(h, t):
        return losses.projected_cross_entropy(h, t, targets, weights, 0.1, 4).loss

    exact = jnp.asarray(hidden, jnp.float32), jnp.asarray(table, jnp.bfloat16).astype(jnp.float32)
    want = jax.jit(jax.grad(plain, argnums=(0, 1)))(*exact)
    got = jax.jit(jax.grad(fused, argnums=(0, 1)))(hidden, jnp.asarray(table))
    assert [g.dtype for g in got] == [jnp.bfloat16, jnp.float32]
    for g, w in zip(got, want, strict=True):
        largest = np.max(np.abs(w))
        np.testing.assert_allclose(np.asarray(g, np.float32), w, rtol=0, atol=0.01 * largest)


def test_loss_sums_are_float32_for_bfloat16_activations():
    hidden, table, targets, weights = example()
    got = jax.jit(losses.projected_cross_entropy, static_argnums=(4, 5))(
        jnp.asarray(hidden, jnp.bfloat16), table, targets, weights, 0.1, 4
    )
    assert all(x.dtype == jnp.float32 for x in got)
    want = oracle(hidden @ table.T, targets, weights, 0.1)
    np.testing.assert_allclose(got.loss, want[0], rtol=2e-2)
