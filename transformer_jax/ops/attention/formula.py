"""Attention by the formula, with the complete score matrix in memory."""

import jax
import jax.numpy as jnp

from transformer_jax.ops.attention.call import Extras, Settings, combined_mask, dropout_index
from transformer_jax.ops.attention.distances import by_distance
from transformer_jax.ops.attention.softmax import additive_mask, exponentials
from transformer_jax.ops.dense import soft_cap
from transformer_jax.ops.dropout import keep


def attention_weights(
    query: jax.Array,
    key: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
) -> jax.Array:
    """softmax(q·k · scale + bias) over the keys that `mask` allows, in float32.

    Args:
      query: `[B, T, H, D]`.
      key: `[B, S, G, D]`, G dividing H (each key head serves H / G query heads).
      mask: boolean, broadcastable to `[B, H, T, S]`.
      bias: added to the scores, broadcastable to `[B, H, T, S]`.
      scale: defaults to 1 / sqrt(D).
      softcap: bound of the scaled scores before the bias; 0: none.

    Returns:
      `[B, H, T, S]` float32; a row that may attend to nothing is all zeros.

    Raises:
      ValueError: G does not divide H.
    """
    if query.shape[2] % key.shape[2]:
        raise ValueError(f"{key.shape[2]} key heads do not divide {query.shape[2]} query heads")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key = query.astype(jnp.float32), key.astype(jnp.float32)
    scores = soft_cap(_scores(query, key, scale, "highest"), softcap)
    exps, total = exponentials(scores, additive_mask(mask, bias))
    return exps / total


def _scores(query: jax.Array, key: jax.Array, scale: float, precision: str | None) -> jax.Array:
    """q·k · scale, `[B, H, T, S]` float32, of `[B, T, H, D]` and `[B, S, G, D]`."""
    batch, length, heads, dim = query.shape
    size, groups = key.shape[1:3]
    query = (query * jnp.asarray(scale, query.dtype)).swapaxes(1, 2)
    scores = jnp.einsum(
        "bgtd,bgsd->bgts",
        query.reshape(batch, groups, heads // groups * length, dim),
        key.swapaxes(1, 2),
        preferred_element_type=jnp.float32,
        precision=precision,
    )
    return scores.reshape(batch, heads, length, size)  # --> [B, H, T, S]


def _attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    extras: Extras,
    settings: Settings,
    precision: str | None,
) -> jax.Array:
    """Attention `[B, T, H, D]` float32, with products at `precision`."""
    batch, length, heads, dim = query.shape
    size, groups = key.shape[1:3]
    added = additive_mask(combined_mask(extras, settings, length, size), extras.bias)
    scores = soft_cap(_scores(query, key, settings.scale, precision), settings.softcap)
    if extras.distance_bias is not None:
        by_head = by_distance(extras.distance_bias.astype(jnp.float32), length, size)
        scores = scores + by_head[None]
    # A causal mask without other masks leaves each row its first key.
    others = extras._replace(seeds=None, origin=None, distance_bias=None)
    only_causal = all(x is None for x in others)
    weights, total = exponentials(scores, added, may_be_empty=not only_causal)
    if extras.seeds is not None:
        axes = [jnp.arange(n).reshape(-1, *[1] * (3 - i)) for i, n in enumerate(weights.shape)]
        index = dropout_index(extras, settings, (length, size), axes)
        kept = keep(extras.seeds, settings.dropout_rate, index)
        weights = jnp.where(kept, weights / (1.0 - settings.dropout_rate), 0.0)
    weights = weights.reshape(batch, groups, heads // groups * length, size)  # --> [B, G, R·T, S]
    out = jnp.einsum(
        "bgts,bgsd->bgtd",
        weights.astype(value.dtype),
        value.swapaxes(1, 2),
        preferred_element_type=jnp.float32,
        precision=precision,
    )
    # Dividing here costs D divisions for each row, not S.
    out = out.reshape(batch, heads, length, dim) / total  # --> [B, H, T, D]
    return out.swapaxes(1, 2)


def reference(
    query: jax.Array, key: jax.Array, value: jax.Array, extras: Extras, settings: Settings
) -> jax.Array:
    """The formula in float32, with products at the highest precision."""
    full = [x.astype(jnp.float32) for x in (query, key, value)]
    return _attend(full[0], full[1], full[2], extras, settings, "highest").astype(query.dtype)


def xla(
    query: jax.Array, key: jax.Array, value: jax.Array, extras: Extras, settings: Settings
) -> jax.Array:
    """Products in the type of the inputs with float32 sums, differentiated by JAX."""
    return _attend(query, key, value, extras, settings, None).astype(query.dtype)
