"""Page 7: the smallest model learns, and its gradients are right."""

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(page):
    return page("7_")


def test_it_starts_where_numpy_does(found):
    assert found["start_loss"] == pytest.approx(2.7784030707, abs=1e-10)
    assert found["same_losses"][0] == pytest.approx(2.7784030707, abs=1e-5)


def test_equal_inputs_are_learned_without_attention(found):
    assert found["same_losses"][100] < 0.01
    logits = found["logits_of"](found["same_params"], np.array([0, 0]))
    assert logits.argmax(axis=1).tolist() == [3, 3]
    for block in found["same_grads"]["blocks"]:
        assert max(abs(block[name]).max() for name in ("query", "key")) < 1e-6
        assert abs(block["value"]).max() > 0.01


def test_small_weights_stick_where_both_positions_say_the_same(found):
    assert found["stuck_losses"][100] == pytest.approx(2 * np.log(2), abs=0.01)


def test_unequal_inputs_are_learned_by_attention(found):
    assert found["losses"][100] < 0.01
    logits = found["logits_of"](found["params"], np.array([0, 1]))
    assert logits.argmax(axis=1).tolist() == [3, 2]
    weights = np.asarray(found["weights_of"](found["params"], [0, 1]))
    assert np.abs(weights[:, 0] - weights[:, 1]).max() > 0.5


def test_gradients_are_those_of_finite_differences(found):
    jax.tree.map(
        lambda numeric, ours: np.testing.assert_allclose(ours, numeric, rtol=1e-3, atol=2e-5),
        found["by_differences"], found["by_jax"],
    )  # fmt: skip
    for block in found["by_differences"]["blocks"]:
        assert min(np.abs(block[name]).max() for name in ("query", "key")) > 0.01
