"""Products of activations with weights, for layers that are trained."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def dense(x: jax.Array, kernel: jax.Array, num_axes: int = 1) -> jax.Array:
    """Sums over the last `num_axes` axes of `x` and the first ones of `kernel`, of equal sizes.

    `jnp.tensordot` with a backward pass of plain matrix products: XLA's CPU compiler would first
    transpose the activations, as the gradient of the kernel sums over several of their axes.

    Args:
      x: `[..., *inner]`.
      kernel: `[*inner, *outer]`. Of merged axes only the first may be parted over devices.
      num_axes: how many are inner.

    Returns:
      `[..., *outer]`.
    """
    return jnp.tensordot(x, kernel, num_axes)


def _forward(x, kernel, num_axes):
    return dense(x, kernel, num_axes), (x, kernel)


def _backward(num_axes, residuals, d_out):
    x, kernel = residuals
    inner = math.prod(kernel.shape[:num_axes])
    # Two products read it; without the barrier each would compute it anew.
    d_out = jax.lax.optimization_barrier(d_out)
    flat_x, flat_kernel = x.reshape(-1, inner), kernel.reshape(inner, -1)
    flat_d_out = d_out.reshape(-1, flat_kernel.shape[1])
    d_x = jnp.einsum("no,io->ni", flat_d_out, flat_kernel)
    d_kernel = jnp.einsum("ni,no->io", flat_x, flat_d_out)
    return d_x.reshape(x.shape), d_kernel.reshape(kernel.shape)


dense.defvjp(_forward, _backward)


def dense_general(
    x: jax.Array, kernel: jax.Array, dimension_numbers: Any, precision: Any = None
) -> jax.Array:
    """`dense` as the `dot_general` of linen's `Dense` and `DenseGeneral`.

    Raises:
      ValueError: batch axes, other axes than the last of `x` and the first of `kernel`, or a
        precision of its own.
    """
    (of_x, of_kernel), (batch, _) = dimension_numbers
    n = len(of_x)
    plain = [*of_x] == [*range(x.ndim - n, x.ndim)] and [*of_kernel] == [*range(n)] and not batch
    if precision is not None or not plain:
        raise ValueError(f"no product of a dense layer: {dimension_numbers}, {precision=}")
    return dense(x, kernel, n)
