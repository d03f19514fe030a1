"""Page 7: the smallest model learns, and its gradients are right."""

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(page):
    return page("7_")


def test_initial_loss_equals_numpy(results):
    assert results["start_loss"] == pytest.approx(2.7784030707, abs=1e-10)
    assert results["same_losses"][0] == pytest.approx(2.7784030707, abs=1e-5)


def test_equal_inputs_are_learned_without_attention(results):
    assert results["same_losses"][100] < 0.01
    logits = results["logits_of"](results["same_params"], np.array([0, 0]))
    assert logits.argmax(axis=1).tolist() == [3, 3]
    for block in results["same_grads"]["blocks"]:
        assert max(abs(block[name]).max() for name in ("query", "key")) < 1e-6
        assert abs(block["value"]).max() > 0.01


def test_training_with_small_weights_stops_at_two_log_two(results):
    assert results["stuck_losses"][100] == pytest.approx(2 * np.log(2), abs=0.01)


def test_unequal_inputs_are_learned_by_attention(results):
    assert results["losses"][100] < 0.01
    logits = results["logits_of"](results["params"], np.array([0, 1]))
    assert logits.argmax(axis=1).tolist() == [3, 2]
    weights = np.asarray(results["weights_of"](results["params"], [0, 1]))
    assert np.abs(weights[:, 0] - weights[:, 1]).max() > 0.5


def test_gradients_equal_finite_differences(results):
    jax.tree.map(
        lambda numeric, ours: np.testing.assert_allclose(ours, numeric, rtol=1e-3, atol=2e-5),
        results["by_differences"],
        results["by_jax"],
    )
    for block in results["by_differences"]["blocks"]:
        assert min(np.abs(block[name]).max() for name in ("query", "key")) > 0.01
