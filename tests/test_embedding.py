"""Embedding look-ups and their gradients, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops import embedding

FORMS = {
    "scatter": embedding.sums_by_scatter,
    "product": embedding.sums_by_product,
    "sorting": embedding.sums_by_sorting,
}


def lookups(dtype, count=1500, size=50, width=3):
    """Ids of which some are frequent, one is the last, and some are not there; and values."""
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.3, count), size) - 1
    ids[ids == 7] = size - 1
    values = rng.normal(size=(count, width)).astype(dtype).astype(np.float64)
    want = np.zeros((size, width))
    np.add.at(want, ids, values)
    return ids.astype(np.int32), values.astype(dtype), want


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_embedding_gradient_sums_in_float32_in_every_form(form, dtype):
    ids, values, want = lookups(dtype)
    sums = jax.jit(FORMS[form], static_argnums=2)
    got = sums(ids, values, len(want))
    assert got.dtype == jnp.float32
    # In bfloat16 the sum of the most frequent id would be wrong by several percent.
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    # XLA for CPU computes in float32 even where the program says bfloat16.
    program = jax.make_jaxpr(FORMS[form], static_argnums=2)(ids, values, len(want))
    assert "bf16[50,3]" not in str(program)
    alone = np.asarray(sums(ids[:1], values[:1], len(want)))
    np.testing.assert_array_equal(alone[ids[0]], values[0].astype(np.float32))
    assert np.count_nonzero(alone) == values.shape[1]


def test_embedding_gradient_equals_that_of_a_lookup():
    ids, values, want = lookups("float32")
    table = np.random.default_rng(0).normal(size=want.shape).astype(np.float32)

    @jax.jit
    def compute(table, values):
        look_up = lambda t: embedding.embed(t, ids.reshape(30, 50), jnp.float32)  # noqa: E731
        rows, pull = jax.vjp(look_up, table)
        return rows, pull(values)[0]

    got, gradient = compute(table, values.reshape(30, 50, -1))
    np.testing.assert_array_equal(got, table[ids].reshape(30, 50, -1))
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-4)
