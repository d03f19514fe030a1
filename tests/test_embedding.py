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
    values = np.asarray(jnp.asarray(rng.normal(size=(count, width)), dtype), np.float64)
    want = np.zeros((size, width))
    np.add.at(want, ids, values)
    return jnp.asarray(ids, jnp.int32), jnp.asarray(values, dtype), want


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_embedding_gradient_sums_in_float32_in_every_form(form, dtype):
    ids, values, want = lookups(dtype)
    got = jax.jit(FORMS[form], static_argnums=2)(ids, values, len(want))
    assert got.dtype == jnp.float32
    # In bfloat16 the sum of the most frequent id would be wrong by several percent.
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    alone = FORMS[form](ids[:1], values[:1], len(want))
    np.testing.assert_array_equal(alone[ids[0]], values[0].astype(jnp.float32))
    assert np.count_nonzero(alone) == values.shape[1]


def test_embedding_gradient_equals_that_of_a_lookup():
    ids, values, want = lookups("float32")
    table = jax.random.normal(jax.random.key(0), want.shape)
    got, pull = jax.vjp(lambda t: embedding.embed(t, ids.reshape(30, 50), jnp.float32), table)
    np.testing.assert_array_equal(got, np.asarray(table)[ids].reshape(30, 50, -1))
    np.testing.assert_allclose(pull(values.reshape(got.shape))[0], want, rtol=1e-4, atol=1e-4)
