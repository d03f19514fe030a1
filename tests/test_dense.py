"""Dense layers and their gradients, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.dense import dense

CASES = {  # shapes of x, kernel and bias
    "feed-forward": ((2, 3, 5), (5, 7), (7,)),
    "to heads": ((2, 3, 5), (5, 4, 3, 2), (4, 3, 2)),
    "from heads": ((2, 3, 4, 2), (4, 2, 5), (5,)),
    "from heads, no bias": ((2, 3, 4, 2), (4, 2, 5), None),
}


def numpys(x, kernel, bias, d_out):
    """The layer's output, and the gradients of its arguments."""
    inner = kernel.ndim - bias.ndim  # a bias of zeros has the same gradients of x and kernel
    rows = tuple(range(x.ndim - inner))
    outer = tuple(range(len(rows), d_out.ndim))
    return np.tensordot(x, kernel, inner) + bias, (
        np.tensordot(d_out, kernel, (outer, tuple(range(inner, kernel.ndim)))),
        np.tensordot(x, d_out, (rows, rows)),
        d_out.sum(axis=rows),
    )


@pytest.mark.parametrize("case", CASES)
def test_dense_output_and_gradients_equal_numpy(case):
    rng = np.random.default_rng(0)
    x_shape, kernel_shape, bias_shape = CASES[case]
    num_inner = 2 if case.startswith("from") else 1
    outer = kernel_shape[num_inner:]
    x, kernel = rng.normal(size=x_shape), rng.normal(size=kernel_shape)
    bias = np.zeros(outer) if bias_shape is None else rng.normal(size=bias_shape)
    d_out = rng.normal(size=(*x_shape[:-num_inner], *outer))
    want, gradients = numpys(x, kernel, bias, d_out)
    arguments = (x, kernel) if bias_shape is None else (x, kernel, bias)

    @jax.jit
    def compute(d_out, *arguments):
        layer = lambda x, kernel, bias=None: dense(x, kernel, bias, num_inner)  # noqa: E731
        out, pull = jax.vjp(layer, *arguments)
        return out, pull(d_out)

    got, d_arguments = compute(*map(np.float32, (d_out, *arguments)))
    gradients = gradients[: len(arguments)]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for gradient, expected in zip(d_arguments, gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_dense_gradients_of_parameters_are_float32_sums():
    """Sums over 6,000 positions, which bfloat16 could not hold: it has 8 bits."""
    rng = np.random.default_rng(0)
    x, kernel, bias, d_out = (rng.normal(size=s) for s in ((3, 2000, 5), (5, 7), 7, (3, 2000, 7)))
    x, d_out = (jnp.asarray(a + 0.5, jnp.bfloat16) for a in (x, d_out))
    kernel, bias = jnp.asarray(kernel, jnp.float32), jnp.asarray(bias, jnp.float32)
    got, pull = jax.vjp(dense, x, kernel, bias)
    d_x, *of_parameters = pull(d_out)
    assert got.dtype == d_x.dtype == jnp.bfloat16
    _, want = numpys(*(np.asarray(a, np.float64) for a in (x, kernel, bias, d_out)))
    for gradient, expected in zip(of_parameters, want[1:], strict=True):
        assert gradient.dtype == jnp.float32
        np.testing.assert_allclose(gradient, expected, rtol=1e-3)


def test_dense_kernel_gradient_needs_no_transposed_copy():
    """XLA reads the activations without transposing them first."""
    x, kernel, bias = jnp.ones((8, 16, 32)), jnp.ones((32, 64)), jnp.ones(64)

    def loss(multiply):
        return lambda *arguments: jnp.sum(jnp.tanh(multiply(*arguments)))

    def transposes(multiply):
        compiled = jax.jit(jax.grad(loss(multiply), (0, 1))).lower(x, kernel, bias).compile()
        return compiled.as_text().count("transpose(") + compiled.as_text().count(" copy(")

    assert transposes(dense) < transposes(lambda a, b, c: jnp.tensordot(a, b, 1) + c)
