"""Dropout: right rate, right scale, and bits that look independent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.attention.call import Extras, Settings, dropout_index
from transformer_jax.ops.dropout import dropout, element_index, keep, keep_mask, seed_words


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_dropout_rate_and_scale(rate):
    x = np.ones((400, 500), np.float32)
    out = np.asarray(jax.jit(dropout, static_argnums=1)(x, rate, jax.random.key(1)))
    # Five standard deviations of a binomial.
    tolerance = 5 * np.sqrt(rate * (1 - rate) / x.size)
    assert abs(np.mean(out == 0) - rate) < tolerance
    np.testing.assert_allclose(out[out != 0], 1 / (1 - rate), rtol=1e-6)


def test_dropout_without_key_or_rate_changes_nothing():
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(dropout(x, 0.5, None), x)
    np.testing.assert_array_equal(dropout(x, 0.0, jax.random.key(0)), x)
    assert dropout(x.astype(jnp.bfloat16), 0.5, jax.random.key(0)).dtype == jnp.bfloat16


def test_dropout_gradient_has_the_mask_of_the_value():
    x = np.linspace(1.0, 2.0, 64, dtype=np.float32)

    @jax.jit
    def compute(x):
        dropped = lambda x: dropout(x, 0.5, jax.random.key(3))  # noqa: E731
        return *jax.value_and_grad(lambda x: jnp.sum(dropped(x)))(x), dropped(x)

    out, grad, value = compute(x)
    np.testing.assert_array_equal(grad, np.where(value != 0, 2.0, 0.0))
    assert np.isfinite(out)


def test_dropout_bits_are_uncorrelated_with_neighbours_and_other_keys():
    shape = (256, 512)
    kept = jax.jit(lambda key: keep_mask(key, 0.5, shape))
    draw = lambda seed: np.asarray(kept(jax.random.key(seed))) * 2.0 - 1  # noqa: E731
    a = draw(0)
    bound = 5 / np.sqrt(a.size)
    for shifted in (a[1:] * a[:-1], a[:, 1:] * a[:, :-1], a[:, 8:] * a[:, :-8], a[4:] * a[:-4]):
        assert abs(shifted.mean()) < bound * 1.1
    for seed in range(1, 20):
        b = draw(seed)
        assert abs((a * b).mean()) < bound
        assert abs((a[:, 1:] * b[:, :-1]).mean()) < bound * 1.1
    # Per row and per column counts spread like a binomial.
    for axis, n in ((0, 256), (1, 512)):
        spread = (a.sum(axis=axis) / np.sqrt(n)).var()
        assert 0.7 < spread < 1.3


def test_dropout_bits_are_the_same_under_jit():
    eager = keep_mask(jax.random.key(5), 0.3, (7, 9))
    jitted = jax.jit(lambda k: keep_mask(k, 0.3, (7, 9)))(jax.random.key(5))
    np.testing.assert_array_equal(eager, jitted)


@pytest.mark.parametrize(
    ("heads", "length"), [(16, 2**14), (8, 2**15), (1, 2**16)], ids=lambda size: str(size)
)
def test_dropout_bits_differ_beyond_2_to_the_32_attention_weights(heads, length):
    """A row of the batch has 2^32 weights here, so that one 32-bit number would repeat."""
    settings = Settings(causal=False, scale=1.0, dropout_rate=0.5, num_heads=heads)
    rows, queries, keys = np.arange(16), np.arange(30), np.arange(40)
    axes = np.meshgrid(rows, [heads - 1], length - 1 - queries, keys, indexing="ij")
    index = dropout_index(Extras(), settings, (length, length), [jnp.asarray(a) for a in axes])
    kept = np.asarray(keep(seed_words(jax.random.key(0)), 0.5, index)) * 2.0 - 1
    kept = kept.reshape(len(rows), -1)
    correlation = kept @ kept.T / kept.shape[1]
    assert np.abs(correlation - np.eye(len(rows))).max() < 5 / np.sqrt(kept.shape[1])


@pytest.mark.parametrize(
    "shape", [(3, 4, 5), (None, 4, 5), (2, 2**16, 2**16), (None, 2, 2**31), (7, 2**16, 2**16 + 1)]
)
def test_element_index_is_unique(shape):
    sizes = [6 if size is None else size for size in shape]
    corners = [sorted({0, 1, size // 2, size - 2, size - 1}) for size in sizes]
    axes = np.meshgrid(*corners, indexing="ij")
    index = element_index(shape, [jnp.asarray(a, jnp.uint32) for a in axes])
    low = np.broadcast_to(index.low, axes[0].shape).ravel()
    high = np.zeros_like(low) if index.high is None else np.broadcast_to(index.high, axes[0].shape)
    assert len({*zip(low.tolist(), high.ravel().tolist(), strict=True)}) == low.size
