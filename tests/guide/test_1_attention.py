"""Page 1: look-ups and the worked sentence, against NumPy."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def results(page):
    return page("1_")


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def test_query_equal_to_a_key_looks_up_its_value(results):
    np.testing.assert_array_equal(results["matches"], [[1, 0]])
    np.testing.assert_array_equal(results["looked_up"], [[0, 0]])


def test_soft_lookup_sharpens_with_longer_queries(results):
    shares = np.asarray(results["shares"])[:, 0]
    np.testing.assert_allclose(shares, softmax(np.outer(results["lengths"], [1, 0])), atol=1e-6)
    np.testing.assert_allclose(
        results["outputs"][-1, 0], [np.exp(-8) / (1 + np.exp(-8))] * 2, rtol=1e-4
    )


def test_weights_of_four_similarities(results):
    queries, keys = results["many_queries"], results["many_keys"]
    assert list(results["weights"]) == ["dot", "scaled dot", "general", "additive"]
    np.testing.assert_allclose(results["weights"]["dot"], softmax(queries @ keys.T), atol=1e-5)
    np.testing.assert_allclose(
        results["weights"]["scaled dot"], softmax(queries @ keys.T / 4), atol=1e-5
    )
    assert all(w.shape == (5, 5) for w in results["weights"].values())


def test_scaled_scores_keep_their_spread(results):
    np.testing.assert_allclose(results["spreads"]["scaled dot"], 1.0, atol=0.05)
    np.testing.assert_allclose(results["spreads"]["dot"], np.sqrt(results["widths"]), rtol=0.05)


def test_attention_of_the_worked_sentence(results):
    w_query, w_key, w_value = (np.asarray(results[f"W_{n}"]) for n in ("query", "key", "value"))
    q, k, v = w_query[:3], w_key[:3], w_value[:3]  # the first three words of the vocabulary
    np.testing.assert_array_equal(results["one_hot"], np.eye(4)[:3])
    for name, want in (("Q", q), ("K", k), ("V", v), ("scores", q @ k.T), ("scaled", q @ k.T / 2)):
        np.testing.assert_array_equal(results[name], want)
    np.testing.assert_allclose(results["attention"], softmax(q @ k.T / 2), atol=1e-6)
    np.testing.assert_allclose(results["output"], softmax(q @ k.T / 2) @ v, atol=1e-5)
    np.testing.assert_allclose(results["same"], results["output"], atol=1e-6)
