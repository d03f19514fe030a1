"""Page 5: norm, feed-forward, residual; pre against post."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(page):
    return page("5_")


def test_a_norm_for_each_position(found):
    x = np.asarray(found["x"], np.float64)
    want = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(found["normal"], want, atol=1e-4)
    np.testing.assert_allclose(found["with_gain"], want * [1, 1, 3, 1], atol=1e-4)


def test_feed_forward_looks_at_each_position_alone(found):
    np.testing.assert_allclose(found["shuffled"], found["thought"][:, found["order"]], atol=1e-6)


def test_a_silent_pre_norm_layer_changes_nothing(found):
    np.testing.assert_array_equal(found["unchanged"], found["sentence"])


def test_post_norm_rescales_the_stream_and_pre_norm_lets_it_grow(found):
    post, pre = (np.asarray(found["streams"][name]) for name in ("post", "pre"))
    np.testing.assert_allclose(post, np.sqrt(7 * 64), rtol=1e-3)
    assert pre[-1] > 3 * post[-1]


def test_gradients_fade_towards_the_output_of_pre_norm_alone(found):
    first, last = slice(None, 8), slice(-8, None)
    post, pre = (np.asarray(found["gradients"][name]) for name in ("post", "pre"))
    assert pre[first].mean() > 2 * pre[last].mean()
    assert post[last].mean() > post[first].mean()
    assert post[last].mean() > 3 * pre[last].mean()
