"""Products of activations with weights, against NumPy in float64."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.dense import dense, dense_general

CASES = {  # shapes of x and kernel, axes summed over
    "feed-forward": ((2, 3, 5), (5, 7), 1),
    "to heads": ((2, 3, 5), (5, 4, 3, 2), 1),
    "from heads": ((2, 3, 4, 2), (4, 2, 5), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_product_and_gradients_equal_numpys(case):
    x_shape, kernel_shape, num_axes = CASES[case]
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=x_shape), rng.normal(size=kernel_shape)
    want = np.tensordot(x, kernel, num_axes)
    d_out = rng.normal(size=want.shape)
    rows = tuple(range(len(x_shape) - num_axes))
    outer = tuple(range(len(rows), d_out.ndim))
    want_d_x = np.tensordot(d_out, kernel, (outer, tuple(range(num_axes, kernel.ndim))))
    want_d_kernel = np.tensordot(x, d_out, (rows, rows))
    as32 = [jnp.asarray(a, jnp.float32) for a in (x, kernel, d_out)]
    got, pull = jax.vjp(lambda a, b: dense(a, b, num_axes), *as32[:2])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for gradient, expected in zip(pull(as32[2]), (want_d_x, want_d_kernel), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_gradients_in_bfloat16_are_those_of_rounded_numbers():
    rng = np.random.default_rng(0)
    x, kernel, d_out = (rng.normal(size=s) for s in ((2, 3, 5), (5, 7), (2, 3, 7)))
    rounded = [jnp.asarray(a, jnp.bfloat16) for a in (x, kernel, d_out)]
    x, kernel, d_out = (np.asarray(a, np.float64) for a in rounded)
    _, pull = jax.vjp(dense, *rounded[:2])
    want = d_out @ kernel.T, np.einsum("bti,bto->io", x, d_out)
    for gradient, expected in zip(pull(rounded[2]), want, strict=True):
        assert gradient.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(gradient, np.float64), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("dimension_numbers", "precision"),
    [((((1,), (0,)), ((), ())), None), ((((2,), (1,)), ((), ())), None),
     ((((2,), (0,)), ((0,), (1,))), None), ((((2,), (0,)), ((), ())), "highest")],
)  # fmt: skip
def test_products_that_it_does_not_do_are_refused(dimension_numbers, precision):
    with pytest.raises(ValueError, match="no product of a dense layer"):
        dense_general(jnp.ones((3, 3, 3)), jnp.ones((3, 3, 3)), dimension_numbers, precision)


def test_it_serves_linens_layers():
    layer = nn.DenseGeneral(5, axis=(-2, -1), dot_general=dense_general)
    plain = nn.DenseGeneral(5, axis=(-2, -1))
    x = jax.random.normal(jax.random.key(0), (2, 3, 4, 2))
    params = plain.init(jax.random.key(1), x)
    np.testing.assert_allclose(layer.apply(params, x), plain.apply(params, x), rtol=1e-5)


def test_the_kernels_gradient_needs_no_transposed_copy():
    """What the layer is for: XLA reads the activations as they lie."""
    x, kernel = jnp.ones((8, 16, 32)), jnp.ones((32, 64))

    def loss(multiply):
        return lambda a, b: jnp.sum(jnp.tanh(multiply(a, b)))

    def transposes(multiply):
        compiled = jax.jit(jax.grad(loss(multiply), (0, 1))).lower(x, kernel).compile()
        return compiled.as_text().count("transpose(") + compiled.as_text().count(" copy(")

    assert transposes(dense) < transposes(lambda a, b: jnp.tensordot(a, b, 1))
