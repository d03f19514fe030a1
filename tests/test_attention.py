"""Attention and masks against the formula in NumPy, float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops import attention, masks


def oracle(query, key, value, mask, bias=None, scale=None):
    """softmax(q·k·scale + bias) v by loops; rows without a key are zeros."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, length, heads, dim = query.shape
    groups = key.shape[2]
    out = np.zeros_like(query)
    mask = np.broadcast_to(mask, (batch, heads, length, key.shape[1]))
    for b, h, t in itertools.product(range(batch), range(heads), range(length)):
        allowed = np.flatnonzero(mask[b, h, t])
        if not len(allowed):
            continue
        g = h // (heads // groups)
        scores = key[b, allowed, g] @ query[b, t, h] * (dim**-0.5 if scale is None else scale)
        if bias is not None:
            scores = scores + np.broadcast_to(bias, mask.shape)[b, h, t, allowed]
        weights = np.exp(scores - scores.max())
        out[b, t, h] = weights / weights.sum() @ value[b, allowed, g]
    return out


def inputs(batch=2, length=5, size=7, heads=4, groups=4, dim=8, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(
        rng.normal(size=shape).astype(np.float32)
        for shape in (
            (batch, length, heads, dim),
            (batch, size, groups, dim),
            (batch, size, groups, dim),
        )
    )


CASES = {
    "none": {},
    "causal": {"causal": True},
    "lengths": {"key_lengths": np.array([7, 3])},
    "empty_row": {"key_lengths": np.array([0, 4])},
    "segments": {
        "query_segment_ids": np.array([[1, 1, 2, 2, 0], [1, 2, 2, 3, 3]]),
        "key_segment_ids": np.array([[1, 2, 2, 2, 0, 0, 0], [1, 1, 1, 2, 2, 0, 0]]),
    },
    "scale": {"scale": 0.5},
    "bias": {"bias": np.linspace(-2, 2, 35).reshape(1, 1, 5, 7)},
}


def explicit_mask(case, length=5, size=7, batch=2):
    mask = np.ones((batch, 1, length, size), bool)
    if case.get("causal"):
        mask &= np.arange(size)[None, None, None] <= np.arange(length)[None, None, :, None]
    if "key_lengths" in case:
        mask &= np.arange(size)[None, None, None] < case["key_lengths"][:, None, None, None]
    if "key_segment_ids" in case:
        for b, t, s in itertools.product(range(batch), range(length), range(size)):
            q, k = case["query_segment_ids"][b, t], case["key_segment_ids"][b, s]
            mask[b, 0, t, s] &= bool(q == k and k != 0)
    return mask


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("name", CASES)
def test_value_equals_the_formula(name, implementation, groups):
    query, key, value = inputs(groups=groups)
    case = CASES[name]
    got = attention.dot_product_attention(query, key, value, implementation=implementation, **case)
    want = oracle(query, key, value, explicit_mask(case), case.get("bias"), case.get("scale"))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_bfloat16_stays_close_and_keeps_its_type():
    query, key, value = (jnp.asarray(x, jnp.bfloat16) for x in inputs())
    got = attention.dot_product_attention(query, key, value)
    assert got.dtype == jnp.bfloat16
    want = oracle(query, key, value, explicit_mask({}))
    np.testing.assert_allclose(got.astype(jnp.float32), want, rtol=2e-2, atol=2e-2)


def test_a_row_without_keys_is_zero_in_value_and_gradient():
    query, key, value = inputs()
    mask = np.ones((2, 1, 5, 7), bool)
    mask[0, :, 2] = False

    def total(q, k, v):
        return jnp.sum(attention.dot_product_attention(q, k, v, mask=mask) ** 2)

    out = attention.dot_product_attention(query, key, value, mask=mask)
    assert not np.any(out[0, 2])
    grads = jax.grad(total, argnums=(0, 1, 2))(query, key, value)
    assert all(np.all(np.isfinite(g)) for g in grads)
    assert not np.any(grads[0][0, 2])
    assert np.any(grads[0][0, 1])


def test_gradients_equal_finite_differences():
    query, key, value = inputs(batch=1, length=2, size=3, heads=1, groups=1, dim=2)
    mask = np.array([[[[True, False, True], [True, True, True]]]])
    probe = np.random.default_rng(1).normal(size=(1, 2, 1, 2))

    def loss(*args):
        return jnp.sum(attention.dot_product_attention(*args, mask=mask) * probe)

    grads = jax.grad(loss, argnums=(0, 1, 2))(query, key, value)
    arrays = [np.asarray(x, np.float64) for x in (query, key, value)]
    for i, array in enumerate(arrays):
        for index in np.ndindex(array.shape):
            sums = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[i][index] += sign * 1e-5
                sums.append(np.sum(oracle(*moved, mask) * probe))
            np.testing.assert_allclose(grads[i][index], (sums[0] - sums[1]) / 2e-5, atol=2e-5)


def test_weights_sum_to_one_and_dropout_scales_them():
    query, key, value = inputs()
    weights = attention.attention_weights(query, key)
    np.testing.assert_allclose(jnp.sum(weights, axis=-1), 1.0, rtol=1e-5)
    rng = jax.random.key(0)
    ones = np.ones_like(value)
    kept = attention.dot_product_attention(query, key, ones, dropout_rate=0.5, rng=rng)
    assert np.std(kept) > 0.1
    whole = attention.dot_product_attention(query, key, value, dropout_rate=0.5, rng=None)
    np.testing.assert_array_equal(whole, attention.dot_product_attention(query, key, value))


def test_wrong_arguments_are_refused():
    query, key, value = inputs(groups=3)
    with pytest.raises(ValueError, match="3 key heads do not divide 4"):
        attention.dot_product_attention(query, key, value)
    query, key, value = inputs()
    with pytest.raises(ValueError, match="implementation"):
        attention.dot_product_attention(query, key, value, implementation="flash")
    with pytest.raises(ValueError, match="go together"):
        attention.dot_product_attention(query, key, value, key_segment_ids=np.ones((2, 7), int))


def test_masks_by_hand():
    np.testing.assert_array_equal(
        masks.make_causal_mask(2, 4, offset=1)[0, 0], [[1, 1, 0, 0], [1, 1, 1, 0]]
    )
    np.testing.assert_array_equal(
        masks.make_padding_mask(jnp.array([0, 2]), 3)[:, 0, 0], [[0, 0, 0], [1, 1, 0]]
    )
    segments = masks.make_segment_mask(jnp.array([[1, 2, 0]]), jnp.array([[1, 0, 2]]))
    np.testing.assert_array_equal(segments[0, 0], [[1, 0, 0], [0, 0, 1], [0, 0, 0]])
    assert masks.combine_masks(None, None) is None
    both = masks.combine_masks(jnp.array([True, False]), None, jnp.array([True, True]))
    np.testing.assert_array_equal(both, [True, False])
