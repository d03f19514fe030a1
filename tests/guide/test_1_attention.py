"""Page 1: look-ups and the worked sentence, against NumPy."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def found(page):
    return page("1_")


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def test_a_query_that_equals_a_key_finds_its_value(found):
    np.testing.assert_array_equal(found["matches"], [[1, 0]])
    np.testing.assert_array_equal(found["found"], [[0, 0]])


def test_a_longer_query_comes_closer_to_the_look_up(found):
    shares = np.asarray(found["shares"])[:, 0]
    np.testing.assert_allclose(shares, softmax(np.outer(found["lengths"], [1, 0])), atol=1e-6)
    np.testing.assert_allclose(found["readings"][-1, 0], [np.exp(-8) / (1 + np.exp(-8))] * 2,
                               rtol=1e-4)  # fmt: skip


def test_four_similarities_side_by_side(found):
    queries, keys = found["many_queries"], found["many_keys"]
    assert list(found["weights"]) == ["dot", "scaled dot", "general", "additive"]
    np.testing.assert_allclose(found["weights"]["dot"], softmax(queries @ keys.T), atol=1e-5)
    np.testing.assert_allclose(
        found["weights"]["scaled dot"], softmax(queries @ keys.T / 4), atol=1e-5
    )
    assert all(w.shape == (5, 5) for w in found["weights"].values())


def test_the_scale_keeps_the_spread(found):
    np.testing.assert_allclose(found["spreads"]["scaled dot"], 1.0, atol=0.05)
    np.testing.assert_allclose(found["spreads"]["dot"], np.sqrt(found["widths"]), rtol=0.05)


def test_the_sentence_by_hand(found):
    w_query, w_key, w_value = (np.asarray(found[f"W_{n}"]) for n in ("query", "key", "value"))
    q, k, v = w_query[:3], w_key[:3], w_value[:3]  # the first three words of the vocabulary
    np.testing.assert_array_equal(found["one_hot"], np.eye(4)[:3])
    for name, want in (("Q", q), ("K", k), ("V", v), ("scores", q @ k.T), ("scaled", q @ k.T / 2)):
        np.testing.assert_array_equal(found[name], want)
    np.testing.assert_allclose(found["attention"], softmax(q @ k.T / 2), atol=1e-6)
    np.testing.assert_allclose(found["output"], softmax(q @ k.T / 2) @ v, atol=1e-5)
    np.testing.assert_allclose(found["same"], found["output"], atol=1e-6)
