"""Page 2: heads of any width, and what the module shows of them, against NumPy."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(page):
    return page("2_")


def test_heads_may_be_as_wide_as_the_model_or_a_part_of_it(found):
    assert found["shapes"]["full width"]["query"] == (4, 8, 4)
    assert found["shapes"]["full width"]["out"] == (8, 4, 4)  # 4 · 8 -> 4
    assert found["shapes"]["divided"]["query"] == (4, 2, 2)


def test_what_the_module_shows_is_what_it_computes(found):
    params = found["variables"]["params"]
    x = np.asarray(found["x"][0], np.float64)
    seen = {}
    for part, name in (("query", "queries"), ("key", "keys"), ("value", "values")):
        kernel, bias = (np.asarray(params[part][p], np.float64) for p in ("kernel", "bias"))
        seen[name] = np.einsum("tm,mhd->thd", x, kernel) + bias
        np.testing.assert_allclose(found["inside"][name][0], seen[name], atol=1e-5)
    scores = np.einsum("thd,shd->hts", seen["queries"], seen["keys"]) / 2.0
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found["inside"]["weights"][0], weights, atol=1e-5)
    mixed = np.einsum("hts,shd->thd", weights, seen["values"]).reshape(3, 32)
    want = mixed @ np.asarray(found["kernel"]).reshape(32, 4) + np.asarray(found["bias"])
    np.testing.assert_allclose(found["output"][0], want, atol=1e-5)


def test_the_sum_over_heads_is_the_output(found):
    total = np.asarray(found["by_head"]).sum(axis=0) + np.asarray(found["bias"])
    np.testing.assert_allclose(total, found["output"][0], atol=1e-5)
    np.testing.assert_allclose(found["concatenated"], found["output"][0], atol=1e-5)
