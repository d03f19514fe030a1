"""Soft look-up by the four similarities, against loops in NumPy and by hand."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops import attention

RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = (RNG.normal(size=(2, n, d)) for n, d in ((3, 4), (5, 4), (5, 6)))
KERNEL, VECTOR = RNG.normal(size=(4, 4)), RNG.normal(size=7)
INTO_QUERY, INTO_KEY = RNG.normal(size=(2, 4, 7))

SIMILARITIES = {
    "dot": (attention.dot, lambda q, k: q @ k),
    "scaled_dot": (attention.scaled_dot, lambda q, k: q @ k / 2),
    "general": (attention.general(KERNEL), lambda q, k: q @ KERNEL @ k),
    "additive": (
        attention.additive(INTO_QUERY, INTO_KEY, VECTOR),
        lambda q, k: VECTOR @ np.tanh(q @ INTO_QUERY + k @ INTO_KEY),
    ),
}


@pytest.mark.parametrize("name", SIMILARITIES)
def test_scores_and_look_up_equal_loops(name):
    similarity, one_pair = SIMILARITIES[name]
    scores = np.zeros((2, 3, 5))
    for b, t, s in itertools.product(range(2), range(3), range(5)):
        scores[b, t, s] = one_pair(QUERY[b, t], KEY[b, s])
    np.testing.assert_allclose(
        similarity(jnp.asarray(QUERY), jnp.asarray(KEY)), scores, rtol=2e-5, atol=1e-5
    )
    out, weights = attention.soft_lookup(QUERY, KEY, VALUE, similarity)
    want = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(out, want @ VALUE, rtol=1e-4, atol=1e-5)


def test_one_query_by_hand():
    query, keys = jnp.array([[0.0, 1.0]]), jnp.array([[0.0, 1.0], [1.0, 0.0]])
    values = jnp.array([[0.0, 0.0], [1.0, 1.0]])
    out, weights = attention.soft_lookup(query, keys, values, attention.dot)
    e = np.e
    np.testing.assert_allclose(weights, [[e / (e + 1), 1 / (e + 1)]], rtol=1e-6)
    np.testing.assert_allclose(out, [[1 / (e + 1)] * 2], rtol=1e-6)
    # The sharper the similarity, the nearer to looking the key up exactly.
    out, _ = attention.soft_lookup(30 * query, keys, values, attention.dot)
    np.testing.assert_allclose(out, [[0.0, 0.0]], atol=1e-9)


def test_a_query_that_may_read_nothing_reads_zero():
    mask = np.array([[True, True, False, False, True], [False] * 5, [True] * 5])
    out, weights = attention.soft_lookup(QUERY, KEY, VALUE, mask=mask)
    assert not np.any(out[:, 1])
    assert not np.any(weights[:, 1])
    assert not np.any(weights[:, 0, 2:4])
    np.testing.assert_allclose(weights[:, 0].sum(axis=-1), 1.0, rtol=1e-6)


def test_scaled_dot_is_what_multi_head_attention_weighs_by():
    _, weights = attention.soft_lookup(QUERY, KEY, VALUE)
    heads = attention.attention_weights(QUERY[:, :, None], KEY[:, :, None])
    np.testing.assert_allclose(weights, heads[:, 0], rtol=1e-4)
