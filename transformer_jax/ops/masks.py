"""Boolean attention masks: True means "may attend". All broadcast to `[B, H, T, S]`."""

import jax
import jax.numpy as jnp

from transformer_jax.ops.arguments import require_integers, require_shapes


def make_padding_mask(key_lengths: jax.Array, key_size: int) -> jax.Array:
    """Masks keys from each row's `key_lengths` `[B]` on. Returns `[B, 1, 1, S]`.

    Raises:
      ValueError: lengths of another shape.
    """
    require_shapes(key_lengths=(key_lengths, key_lengths.shape[:1]))
    return (jnp.arange(key_size) < key_lengths[:, None])[:, None, None, :]


def make_causal_mask(query_size: int, key_size: int, offset: int | jax.Array = 0) -> jax.Array:
    """Query `t` attends to keys `0 .. t + offset`. Returns `[1, 1, T, S]`."""
    rows = jnp.arange(query_size)[:, None] + offset
    return (jnp.arange(key_size)[None, :] <= rows)[None, None]


def make_segment_mask(query_segment_ids: jax.Array, key_segment_ids: jax.Array) -> jax.Array:
    """Positions attend within their segment; segment id 0 is padding and attends to nothing.

    Args:
      query_segment_ids: `[B, T]` integers.
      key_segment_ids: `[B, S]` integers.

    Returns:
      `[B, 1, T, S]`.

    Raises:
      ValueError: ids that are no integers, or of different batch sizes.
    """
    require_integers(query_segment_ids=query_segment_ids, key_segment_ids=key_segment_ids)
    batch, size = query_segment_ids.shape[0], key_segment_ids.shape[-1]
    require_shapes(key_segment_ids=(key_segment_ids, (batch, size)))
    same = query_segment_ids[:, :, None] == key_segment_ids[:, None, :]
    return (same & (key_segment_ids != 0)[:, None, :])[:, None]


def combine_masks(*masks: jax.Array | None) -> jax.Array | None:
    """Logical and of the masks that are not None; None if there are none.

    Raises:
      ValueError: a mask that is not boolean.
    """
    present = [mask for mask in masks if mask is not None]
    for mask in present:
        if mask.dtype != jnp.bool_:
            raise ValueError(f"masks must be boolean, True = may attend, got {mask.dtype}")
    if not present:
        return None
    combined = present[0]
    for mask in present[1:]:
        combined = combined & mask
    return combined
