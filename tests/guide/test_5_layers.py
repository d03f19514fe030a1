"""Page 5: norm, feed-forward, residual; pre against post."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(page):
    return page("5_")


def test_layer_norm_normalises_each_position(results):
    x = np.asarray(results["x"], np.float64)
    want = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(results["normal"], want, atol=1e-4)
    np.testing.assert_allclose(results["with_gain"], want * [1, 1, 3, 1], atol=1e-4)


def test_feed_forward_treats_positions_separately(results):
    np.testing.assert_allclose(
        results["shuffled"], results["transformed"][:, results["order"]], atol=1e-6
    )


def test_pre_norm_layer_with_zero_weights_is_the_identity(results):
    np.testing.assert_array_equal(results["unchanged"], results["sentence"])


def test_residual_stream_grows_with_pre_norm_only(results):
    post, pre = (np.asarray(results["streams"][name]) for name in ("post", "pre"))
    np.testing.assert_allclose(post, np.sqrt(7 * 64), rtol=1e-3)
    assert pre[-1] > 3 * post[-1]


def test_gradients_decrease_towards_the_output_with_pre_norm_only(results):
    first, last = slice(None, 8), slice(-8, None)
    post, pre = (np.asarray(results["gradients"][name]) for name in ("post", "pre"))
    assert pre[first].mean() > 2 * pre[last].mean()
    assert post[last].mean() > post[first].mean()
    assert post[last].mean() > 3 * pre[last].mean()
