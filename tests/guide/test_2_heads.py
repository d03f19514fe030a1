"""Page 2: heads of any width, and what the module shows of them, against NumPy."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(page):
    return page("2_")


def test_head_dim_may_differ_from_d_model_over_num_heads(results):
    assert results["shapes"]["full width"]["query"] == (4, 8, 4)
    assert results["shapes"]["full width"]["out"] == (8, 4, 4)  # 4 · 8 -> 4
    assert results["shapes"]["divided"]["query"] == (4, 2, 2)


def test_intermediates_of_the_module_equal_numpy(results):
    params = results["variables"]["params"]
    x = np.asarray(results["x"][0], np.float64)
    seen = {}
    for part, name in (("query", "queries"), ("key", "keys"), ("value", "values")):
        kernel, bias = (np.asarray(params[part][p], np.float64) for p in ("kernel", "bias"))
        seen[name] = np.einsum("tm,mhd->thd", x, kernel) + bias
        np.testing.assert_allclose(results["inside"][name][0], seen[name], atol=1e-5)
    scores = np.einsum("thd,shd->hts", seen["queries"], seen["keys"]) / 2.0
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(results["inside"]["weights"][0], weights, atol=1e-5)
    mixed = np.einsum("hts,shd->thd", weights, seen["values"]).reshape(3, 32)
    want = mixed @ np.asarray(results["kernel"]).reshape(32, 4) + np.asarray(results["bias"])
    np.testing.assert_allclose(results["output"][0], want, atol=1e-5)


def test_head_contributions_sum_to_the_output(results):
    total = np.asarray(results["by_head"]).sum(axis=0) + np.asarray(results["bias"])
    np.testing.assert_allclose(total, results["output"][0], atol=1e-5)
    np.testing.assert_allclose(results["concatenated"], results["output"][0], atol=1e-5)
