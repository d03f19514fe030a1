"""Layer normalization and RMS normalization, computed in float32."""

import jax
import jax.numpy as jnp

from transformer_jax.ops.dense import broadcastable


def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, axis: int = -1
) -> jax.Array:
    """`(x - mean) / sqrt(variance + ε) · scale + bias` over `axis`, float32 (Ba et al. 2016)."""
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32, axis, keepdims=True)
    variance = jnp.mean(jnp.square(x32 - mean), axis, keepdims=True)
    scale, bias = broadcastable(scale, x), broadcastable(bias, x)
    return (x32 - mean) * (jax.lax.rsqrt(variance + epsilon) * scale) + bias


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float, axis: int = -1) -> jax.Array:
    """`x / sqrt(mean(x²) + ε) · scale` over `axis`, float32 (Zhang and Sennrich 2019)."""
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis, keepdims=True)
    return x * (jax.lax.rsqrt(mean_square + epsilon) * broadcastable(scale, x))
