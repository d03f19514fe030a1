"""Page 3: masks, and that no future token matters."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(page):
    return page("3_")


def test_masks_by_hand(found):
    masks = {name: np.asarray(mask[0, 0]) for name, mask in found["masks"].items()}
    np.testing.assert_array_equal(masks["padding, length 4"], [[1, 1, 1, 1, 0, 0]] * 6)
    np.testing.assert_array_equal(masks["causal"], np.tril(np.ones((6, 6))))
    own = np.zeros((6, 6))
    own[:3, :3], own[3:5, 3:5] = 1, 1
    np.testing.assert_array_equal(masks["segments 1 1 1 2 2 0"], own)
    np.testing.assert_array_equal(masks["causal and segments"], np.tril(own))


def test_what_is_hidden_weighs_nothing(found):
    hidden = np.asarray(found["hidden"][0, 0])
    weights = np.asarray(found["weights"])
    assert (weights[~hidden] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), [1, 1, 1, 1, 1, 0], atol=1e-6)
    assert (np.asarray(found["nothing"]) == 0).all()


def test_no_gradient_comes_from_the_future(found):
    to_target, to_source = np.asarray(found["to_target"]), np.asarray(found["to_source"])
    assert (np.triu(to_target, k=1) == 0).all()
    assert (to_target[np.tril_indices(6)] > 1e-4).all()
    assert (to_source > 1e-4).all()
