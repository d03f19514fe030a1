"""Arguments of an attention call other than query, key and value."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.ops import masks
from transformer_jax.ops.dropout import ElementIndex, element_index


class Extras(NamedTuple):
    """Optional arrays of a call. A key is visible only if all masks allow it."""

    mask: jax.Array | None = None  # boolean, broadcastable to [B, H, T, S]
    bias: jax.Array | None = None  # broadcastable to [B, H, T, S]
    distance_bias: jax.Array | None = None  # [H, T + S - 1] (`distances`)
    query_segment_ids: jax.Array | None = None  # [B, T]
    key_segment_ids: jax.Array | None = None  # [B, S]
    key_lengths: jax.Array | None = None  # [B]
    seeds: jax.Array | None = None  # [2] uint32: dropout
    origin: jax.Array | None = None  # [2] uint32: index of the first row and head of a shard


@dataclasses.dataclass(frozen=True)
class Settings:
    """Static arguments of a call."""

    causal: bool
    scale: float
    dropout_rate: float
    num_heads: int  # of all shards together
    softcap: float = 0.0  # bound of the scaled scores (`ops.dense.soft_cap`); 0: none


def combined_mask(
    extras: Extras, settings: Settings, query_size: int, key_size: int
) -> jax.Array | None:
    """All masks of a call combined, broadcastable to `[B, H, T, S]`; None: no mask."""
    parts = [extras.mask]
    if settings.causal:
        parts.append(masks.make_causal_mask(query_size, key_size))
    if extras.query_segment_ids is not None and extras.key_segment_ids is not None:
        parts.append(masks.make_segment_mask(extras.query_segment_ids, extras.key_segment_ids))
    if extras.key_lengths is not None:
        parts.append(masks.make_padding_mask(extras.key_lengths, key_size))
    return masks.combine_masks(*parts)


def expand(x: jax.Array) -> jax.Array:
    """`x` with leading axes of size 1 added, up to four axes."""
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def dropout_index(
    extras: Extras, settings: Settings, sizes: tuple[int, int], coordinates: list[jax.Array]
) -> ElementIndex:
    """Index that determines the dropout of an attention weight in every implementation.

    Args:
      extras: `origin` is set in a shard.
      settings: of the call.
      sizes: (T, S).
      coordinates: of batch row, head, query and key; they broadcast.
    """
    row, head, query, key = (x.astype(jnp.uint32) for x in coordinates)
    if extras.origin is not None:
        row, head = row + extras.origin[0], head + extras.origin[1]
    return element_index((None, settings.num_heads, *sizes), [row, head, query, key])
