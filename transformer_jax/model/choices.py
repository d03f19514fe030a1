"""What the settings of a model choose: its type, norm, embeddings and position encoding.

The linen layers (`[..., M]`) and the cached decoder (`[M, N]`, `axis=0`) both call these functions,
so a choice is made in one place.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from transformer_jax.config import ModelConfig
from transformer_jax.ops import platforms
from transformer_jax.ops.dense import broadcastable
from transformer_jax.ops.embedding import embed
from transformer_jax.ops.norms import layer_norm, rms_norm
from transformer_jax.ops.positional import alibi_slopes, relative_buckets, sinusoids

# Platforms with fast bfloat16. All others compute in float32.
HAS_BFLOAT16 = ("gpu", "tpu", "rocm")
NormParams = dict[str, jax.Array]  # name (see `init_norm`) -> [M], or [M, 1] with axis=0


def compute_dtype(config: ModelConfig, platform: str | None = None) -> jnp.dtype:
    """Type of activations: bfloat16 on GPU and TPU, else float32, unless the config names one.

    Args:
      config: of the model.
      platform: of the computation; None: `platforms.current()`.
    """
    if config.dtype != "auto":
        return jnp.dtype(config.dtype)
    platform = platforms.current() if platform is None else platform
    return jnp.dtype(jnp.bfloat16 if platform in HAS_BFLOAT16 else jnp.float32)


class Norm(NamedTuple):
    """A value of `ModelConfig.norm`."""

    initial: dict[str, float]  # parameter, `[M]` -> its first value
    apply: Callable[..., jax.Array]  # of x, the parameters by name, `epsilon` and `axis`


NORMS = {
    "layer": Norm({"scale": 1.0, "bias": 0.0}, layer_norm),
    "rms": Norm({"scale": 1.0}, rms_norm),
}


def init_norm(config: ModelConfig) -> NormParams:
    """Initial parameters of a norm, each `[M]` float32."""
    initial = NORMS[config.norm].initial
    return {name: jnp.full(config.d_model, value, jnp.float32) for name, value in initial.items()}


def norm(config: ModelConfig, params: NormParams, x: jax.Array, axis: int = -1) -> jax.Array:
    """`x` normalized over its features, computed in float32, in the type of `x`.

    Args:
      config: of the model.
      params: of `init_norm`, which broadcast against `x`.
      x: `[..., M]`, or any array with its features along `axis`.
      axis: of the features.
    """
    chosen = NORMS[config.norm]
    weights = {name: params[name] for name in chosen.initial}
    return chosen.apply(x, **weights, epsilon=config.norm_epsilon, axis=axis).astype(x.dtype)


def norm_before(config: ModelConfig, params: NormParams, x: jax.Array, axis: int = -1) -> jax.Array:
    """What a residual branch reads: `norm(x)` in a pre-norm model, `x` in a post-norm one."""
    return norm(config, params, x, axis) if config.norm_position == "pre" else x


def norm_after(config: ModelConfig, params: NormParams, x: jax.Array, axis: int = -1) -> jax.Array:
    """What follows the residual sum `x`: `x` in a pre-norm model, `norm(x)` in a post-norm one."""
    return x if config.norm_position == "pre" else norm(config, params, x, axis)


def embed_tokens(
    config: ModelConfig,
    table: jax.Array,
    position_table: jax.Array | None,
    tokens: jax.Array,
    positions: jax.Array,
    dtype: DTypeLike,
) -> jax.Array:
    """Token vectors, times sqrt(M) where the config scales them, plus position vectors.

    Source: "Attention Is All You Need", sections 3.4 and 3.5.

    Args:
      config: of the model.
      table: `[V, M]`.
      position_table: `[max_len, M]`; None where nothing is added.
      tokens: `[...]` integers below V.
      positions: integers below max_len that broadcast to the shape of `tokens`.
      dtype: of the result.

    Returns:
      `[..., M]`.
    """
    x = embed(table, tokens, dtype)
    if config.scale_embeddings:
        x = x * jnp.asarray(config.d_model**0.5, dtype)
    if position_table is not None:
        x = x + broadcastable(embed(position_table, positions, dtype), x)
    return x


def sinusoid_table(config: ModelConfig) -> np.ndarray:
    """Sinusoids of positions 0 .. max_len - 1 of a model, `[max_len, M]` float32."""
    offset = config.position_offset
    table = sinusoids(
        config.max_len + offset, config.d_model, config.positional, config.positional_base
    )
    return table[offset:]


def position_bias(
    config: ModelConfig, table: jax.Array | None, distances: np.ndarray, causal: bool
) -> jax.Array | None:
    """What relative positions or ALiBi add to scores, `[H, ...]` float32; None: nothing.

    Args:
      config: of the model, `num_heads` being the stack's.
      table: `[buckets, H]` of relative positions.
      distances: key position minus query position, integers of any shape.
      causal: queries see no later keys.
    """
    if config.positional == "alibi":
        slopes = alibi_slopes(config.num_heads).reshape(-1, *[1] * distances.ndim)
        return jnp.asarray(-slopes * np.abs(distances), jnp.float32)
    if table is None:
        return None
    buckets = relative_buckets(
        distances, not causal, config.relative_buckets, config.relative_max_distance
    )
    return jnp.moveaxis(embed(table, jnp.asarray(buckets), jnp.float32), -1, 0)
