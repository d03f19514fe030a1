"""The norm of a residual branch ("Attention Is All You Need", section 3.1), before or after it.

The layers of training (`[..., M]`) and the incremental decoder (`[M, N]`, `axis=0`) both use them.
"""

import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.ops.dense import broadcastable

NormParams = dict[str, jax.Array]  # name (see `init_norm`) -> [M], or [M, 1] with axis=0


def init_norm(config: ModelConfig) -> NormParams:
    """Initial parameters of a norm, each `[M]` float32: `scale`, and `bias` of layer norms."""
    scale = {"scale": jnp.ones(config.d_model, jnp.float32)}
    if config.norm == "rms":
        return scale
    return {**scale, "bias": jnp.zeros(config.d_model, jnp.float32)}


def norm(config: ModelConfig, params: NormParams, x: jax.Array, axis: int = -1) -> jax.Array:
    """`x` normalized over its features, computed in float32, in the type of `x`.

    Args:
      config: of the model.
      params: of `init_norm`, which broadcast against `x`.
      x: `[..., M]`, or any array with its features along `axis`.
      axis: of the features.
    """
    if config.norm == "rms":
        y = rms_norm(x, params["scale"], config.norm_epsilon, axis)
    else:
        y = layer_norm(x, params["scale"], params["bias"], config.norm_epsilon, axis)
    return y.astype(x.dtype)


def norm_before(config: ModelConfig, params: NormParams, x: jax.Array, axis: int = -1) -> jax.Array:
    """What a residual branch reads: `norm(x)` in a pre-norm model, `x` in a post-norm one."""
    return norm(config, params, x, axis) if config.norm_position == "pre" else x


def norm_after(config: ModelConfig, params: NormParams, x: jax.Array, axis: int = -1) -> jax.Array:
    """What follows the residual sum `x`: `x` in a pre-norm model, `norm(x)` in a post-norm one."""
    return x if config.norm_position == "pre" else norm(config, params, x, axis)


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
