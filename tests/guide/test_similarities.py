"""Soft look-up with each of the four similarities, compared with NumPy loops."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from similarities import additive, dot, general, scaled_dot, soft_lookup

from transformer_jax.ops.attention import attention_weights

RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = (RNG.normal(size=(2, n, d)) for n, d in ((3, 4), (5, 4), (5, 6)))
KERNEL, VECTOR = RNG.normal(size=(4, 4)), RNG.normal(size=7)
INTO_QUERY, INTO_KEY = RNG.normal(size=(2, 4, 7))

SIMILARITIES = {
    "dot": (dot, lambda q, k: q @ k),
    "scaled_dot": (scaled_dot, lambda q, k: q @ k / 2),
    "general": (general(KERNEL), lambda q, k: q @ KERNEL @ k),
    "additive": (
        additive(INTO_QUERY, INTO_KEY, VECTOR),
        lambda q, k: VECTOR @ np.tanh(q @ INTO_QUERY + k @ INTO_KEY),
    ),
}


@pytest.mark.parametrize("name", SIMILARITIES)
def test_soft_lookup_equals_loops(name):
    similarity, one_pair = SIMILARITIES[name]
    scores = np.zeros((2, 3, 5))
    for b, t, s in itertools.product(range(2), range(3), range(5)):
        scores[b, t, s] = one_pair(QUERY[b, t], KEY[b, s])
    np.testing.assert_allclose(
        similarity(jnp.asarray(QUERY), jnp.asarray(KEY)), scores, rtol=2e-5, atol=1e-5
    )
    out, weights = soft_lookup(QUERY, KEY, VALUE, similarity)
    want = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(out, want @ VALUE, rtol=1e-4, atol=1e-5)


def test_soft_lookup_of_one_query_by_hand():
    query, keys = jnp.array([[0.0, 1.0]]), jnp.array([[0.0, 1.0], [1.0, 0.0]])
    values = jnp.array([[0.0, 0.0], [1.0, 1.0]])
    out, weights = soft_lookup(query, keys, values, dot)
    e = np.e
    np.testing.assert_allclose(weights, [[e / (e + 1), 1 / (e + 1)]], rtol=1e-6)
    np.testing.assert_allclose(out, [[1 / (e + 1)] * 2], rtol=1e-6)
    # The sharper the similarity, the nearer to looking the key up exactly.
    out, _ = soft_lookup(30 * query, keys, values, dot)
    np.testing.assert_allclose(out, [[0.0, 0.0]], atol=1e-9)


def test_scaled_dot_gives_the_weights_of_multi_head_attention():
    _, weights = soft_lookup(QUERY, KEY, VALUE)
    heads = attention_weights(QUERY[:, :, None], KEY[:, :, None])
    np.testing.assert_allclose(weights, heads[:, 0], rtol=1e-4)
