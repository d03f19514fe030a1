"""A dense layer for training, and the projection to the vocabulary."""

import functools
import math

import jax
import jax.numpy as jnp

from transformer_jax.ops.derivatives import with_gradient


def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, num_inner: int = 1) -> jax.Array:
    """`x · kernel + bias`, summed over the first axes of `kernel`.

    It is `jnp.tensordot` with a backward pass of plain matrix products. The gradient of the kernel
    sums over several axes of the activations, for which XLA for CPU would transpose them first.

    The product is computed in the type of `x`. The gradients of `kernel` and `bias` are sums over
    positions. They are accumulated in float32, so rounding errors of bfloat16 do not add up, and
    have the type of the parameter.

    Args:
      x: `[..., *inner]`.
      kernel: `[*inner, *outer]`. Of merged axes only the first may be sharded over devices.
      bias: `[*outer]`; None: there is none.
      num_inner: number of inner axes.

    Returns:
      `[..., *outer]` in the type of `x`.
    """
    product = functools.partial(_product, num_inner=num_inner)

    # Not `dense`: a policy of `jax.checkpoint` sees the product only if it is here.
    def forward(*arrays: jax.Array) -> tuple[jax.Array, None]:
        return product(*arrays), None

    backward = functools.partial(_backward, num_inner=num_inner)
    return with_gradient(product, forward, backward)(x, kernel, bias)


def _product(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, num_inner: int) -> jax.Array:
    out = jnp.tensordot(x, kernel.astype(x.dtype), num_inner)
    return out if bias is None else out + broadcastable(bias.astype(x.dtype), out)


def _backward(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    residuals: None,
    d_out: jax.Array,
    num_inner: int,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    inner = math.prod(kernel.shape[:num_inner])
    # Three products read it; without the barrier XLA would recompute it for each.
    d_out = jax.lax.optimization_barrier(d_out)
    flat_x, flat_kernel = x.reshape(-1, inner), kernel.reshape(inner, -1).astype(x.dtype)
    flat_d_out = d_out.reshape(-1, flat_kernel.shape[1])
    d_x = jnp.einsum("no,io->ni", flat_d_out, flat_kernel)
    d_kernel = jnp.einsum("ni,no->io", flat_x, flat_d_out, preferred_element_type=jnp.float32)
    d_bias = None
    if bias is not None:
        d_bias = jnp.sum(flat_d_out, axis=0, dtype=jnp.float32)
        d_bias = d_bias.reshape(bias.shape).astype(bias.dtype)
    return d_x.reshape(x.shape), d_kernel.reshape(kernel.shape).astype(kernel.dtype), d_bias


def projected_logits(
    hidden: jax.Array, table: jax.Array, bias: jax.Array | None, softcap: float = 0.0
) -> jax.Array:
    """Float32 logits `[..., V]` of `hidden` `[..., M]`, by `table` `[V, M]` and `bias` `[V]`.

    The product reads the table in the type of `hidden` and accumulates in float32. `softcap` is the
    bound of `soft_cap`, after the bias; 0: none.
    """
    table = table.astype(hidden.dtype)
    logits = jnp.einsum("...m,vm->...v", hidden, table, preferred_element_type=jnp.float32)
    return soft_cap(logits if bias is None else logits + broadcastable(bias, logits), softcap)


def broadcastable(param: jax.Array, x: jax.Array) -> jax.Array:
    """`param` with as many axes as `x`, for processes with `jax_numpy_rank_promotion=raise`."""
    return jnp.expand_dims(param, range(x.ndim - param.ndim))


def soft_cap(x: jax.Array, bound: float) -> jax.Array:
    """`bound · tanh(x / bound)`, which stays between ±bound (Bello et al. 2016); 0: `x`."""
    return bound * jnp.tanh(x / bound) if bound else x


def soft_cap_slope(capped: jax.Array, bound: float) -> jax.Array | float:
    """Derivative of `soft_cap` where its value is `capped`; 1 without a bound."""
    return 1.0 - jnp.square(capped / bound) if bound else 1.0
