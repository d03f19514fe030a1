"""Scaled dot-product attention ("Attention Is All You Need", section 3.2.1) as pure functions.

Arrays are `[B, T, H, D]`; masks are boolean, True = may attend, and broadcast to `[B, H, T, S]`.
"""

import jax
import jax.numpy as jnp

from transformer_jax.ops import dropout as dropout_lib
from transformer_jax.ops import masks

IMPLEMENTATIONS = ("auto", "reference", "xla")


def attention_weights(
    query: jax.Array,
    key: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
) -> jax.Array:
    """softmax(q·k · scale + bias) over the keys that `mask` allows, in float32.

    Args:
      query: `[B, T, H, D]`.
      key: `[B, S, G, D]`, G dividing H (each key head serves H / G query heads).
      mask: boolean, broadcastable to `[B, H, T, S]`.
      bias: added to the scores, broadcastable to `[B, H, T, S]`.
      scale: defaults to 1 / sqrt(D).

    Returns:
      `[B, H, T, S]` float32; a row that may attend to nothing is all zeros.
    """
    batch, length, heads, dim = query.shape
    groups = key.shape[2]
    if heads % groups:
        raise ValueError(f"{groups} key heads do not divide {heads} query heads")
    scale = dim**-0.5 if scale is None else scale
    if groups == heads:
        scores = jnp.einsum("bthd,bshd->bhts", query, key, preferred_element_type=jnp.float32)
    else:
        grouped = query.reshape(batch, length, groups, heads // groups, dim)
        scores = jnp.einsum("btgrd,bsgd->bgrts", grouped, key, preferred_element_type=jnp.float32)
        scores = scores.reshape(batch, heads, length, key.shape[1])  # --> [B, H, T, S]
    scores = scores * scale
    if bias is not None:
        scores = scores + bias.astype(jnp.float32)
    return masked_softmax(scores, mask)


def masked_softmax(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Softmax over the last axis where `mask` allows; zeros where it allows nothing."""
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(mask, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    # A row without any allowed key has the maximum -inf; 0 instead keeps value and gradient finite.
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    exps = jnp.exp(scores - top)
    total = jnp.sum(exps, axis=-1, keepdims=True)
    return exps / jnp.where(total == 0.0, 1.0, total)


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    causal: bool = False,
    query_segment_ids: jax.Array | None = None,
    key_segment_ids: jax.Array | None = None,
    key_lengths: jax.Array | None = None,
    dropout_rate: float = 0.0,
    rng: jax.Array | None = None,
    scale: float | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """softmax(q·k / sqrt(D)) v.

    Args:
      query: `[B, T, H, D]`.
      key: `[B, S, G, D]`, G dividing H.
      value: `[B, S, G, D]`.
      mask: boolean, broadcastable to `[B, H, T, S]`; combined with the masks below.
      bias: added to the scaled scores, broadcastable to `[B, H, T, S]`.
      causal: position t sees keys 0 .. t only.
      query_segment_ids: `[B, T]`; with key_segment_ids `[B, S]`, attention stays inside a segment.
      key_segment_ids: `[B, S]`; 0 is padding.
      key_lengths: `[B]`; keys from there on are padding.
      dropout_rate: on the weights, with `rng`.
      rng: PRNG key; None means no dropout.
      scale: defaults to 1 / sqrt(D).
      implementation: `reference` computes all in float32; `xla` multiplies in the inputs' type with
        float32 scores and softmax; `auto` is `xla`.

    Returns:
      `[B, T, H, D]` in the type of `query`; rows with nothing to attend to are zeros.

    Raises:
      ValueError: unknown implementation, or only one of the two segment id arrays.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    if (query_segment_ids is None) != (key_segment_ids is None):
        raise ValueError("query_segment_ids and key_segment_ids go together")
    mask = masks.combine_masks(
        mask,
        masks.make_causal_mask(query.shape[1], key.shape[1]) if causal else None,
        None
        if query_segment_ids is None or key_segment_ids is None
        else masks.make_segment_mask(query_segment_ids, key_segment_ids),
        None if key_lengths is None else masks.make_padding_mask(key_lengths, key.shape[1]),
    )
    out_dtype = query.dtype
    if implementation == "reference":
        query, key, value = (x.astype(jnp.float32) for x in (query, key, value))
    weights = attention_weights(query, key, mask=mask, bias=bias, scale=scale)
    weights = dropout_lib.dropout(weights, dropout_rate, rng).astype(value.dtype)
    batch, heads, length, size = weights.shape
    groups, dim = value.shape[2:]
    if groups == heads:
        out = jnp.einsum("bhts,bshd->bthd", weights, value)
    else:
        weights = weights.reshape(batch, groups, heads // groups, length, size)
        out = jnp.einsum("bgrts,bsgd->btgrd", weights, value)
        out = out.reshape(batch, length, heads, dim)  # --> [B, T, H, D]
    return out.astype(out_dtype)
