"""Page 3: masks, and that no future token matters."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(page):
    return page("3_")


def test_masks_equal_hand_written_ones(results):
    masks = {name: np.asarray(mask[0, 0]) for name, mask in results["masks"].items()}
    np.testing.assert_array_equal(masks["padding, length 4"], [[1, 1, 1, 1, 0, 0]] * 6)
    np.testing.assert_array_equal(masks["causal"], np.tril(np.ones((6, 6))))
    within = np.zeros((6, 6))
    within[:3, :3], within[3:5, 3:5] = 1, 1
    np.testing.assert_array_equal(masks["segments 1 1 1 2 2 0"], within)
    np.testing.assert_array_equal(masks["causal and segments"], np.tril(within))


def test_masked_positions_have_zero_weight(results):
    hidden = np.asarray(results["hidden"][0, 0])
    weights = np.asarray(results["weights"])
    assert (weights[~hidden] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), [1, 1, 1, 1, 1, 0], atol=1e-6)
    assert (np.asarray(results["nothing"]) == 0).all()


def test_causal_decoder_has_no_gradient_from_the_future(results):
    to_target, to_source = np.asarray(results["to_target"]), np.asarray(results["to_source"])
    assert (np.triu(to_target, k=1) == 0).all()
    assert (to_target[np.tril_indices(6)] > 1e-4).all()
    assert (to_source > 1e-4).all()
