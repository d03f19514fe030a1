"""A dense layer for training, and the projection to the vocabulary."""

import math

import jax
import jax.numpy as jnp

Residuals = tuple[jax.Array, jax.Array, jax.Array]  # x, kernel, bias


@jax.custom_vjp
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """`x · kernel + bias`, summed over the axes of `kernel` that `bias` does not have.

    It is `jnp.tensordot` with a backward pass of plain matrix products. The gradient of the kernel
    sums over several axes of the activations, for which XLA for CPU would transpose them first.

    The product is computed in the type of `x`. The gradients of `kernel` and `bias` are sums over
    positions. They are accumulated in float32, so rounding errors of bfloat16 do not add up, and
    have the type of the parameter.

    Args:
      x: `[..., *inner]`.
      kernel: `[*inner, *outer]`. Of merged axes only the first may be sharded over devices.
      bias: `[*outer]`.

    Returns:
      `[..., *outer]` in the type of `x`.
    """
    return _product(x, kernel, bias)


def _product(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    num_inner = kernel.ndim - bias.ndim
    return jnp.tensordot(x, kernel.astype(x.dtype), num_inner) + bias.astype(x.dtype)


def _forward(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, Residuals]:
    # Not `dense`: a policy of `jax.checkpoint` sees the product only if it is here. Of the bias
    # only shape and type are needed.
    return _product(x, kernel, bias), (x, kernel, bias)


def _backward(residuals: Residuals, d_out: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, kernel, bias = residuals
    inner = math.prod(kernel.shape[: kernel.ndim - bias.ndim])
    # Three products read it; without the barrier XLA would recompute it for each.
    d_out = jax.lax.optimization_barrier(d_out)
    flat_x, flat_kernel = x.reshape(-1, inner), kernel.reshape(inner, -1).astype(x.dtype)
    flat_d_out = d_out.reshape(-1, flat_kernel.shape[1])
    d_x = jnp.einsum("no,io->ni", flat_d_out, flat_kernel)
    d_kernel = jnp.einsum("ni,no->io", flat_x, flat_d_out, preferred_element_type=jnp.float32)
    d_bias = jnp.sum(flat_d_out, axis=0, dtype=jnp.float32)
    return (
        d_x.reshape(x.shape),
        d_kernel.reshape(kernel.shape).astype(kernel.dtype),
        d_bias.reshape(bias.shape).astype(bias.dtype),
    )


dense.defvjp(_forward, _backward)


def projected_logits(hidden: jax.Array, table: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Float32 logits `[..., V]` of `hidden` `[..., M]`, by `table` `[V, M]` and `bias` `[V]`.

    The product reads the table in the type of `hidden` and accumulates in float32.
    """
    table = table.astype(hidden.dtype)
    logits = jnp.einsum("...m,vm->...v", hidden, table, preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias
