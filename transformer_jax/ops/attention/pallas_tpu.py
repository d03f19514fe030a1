"""JAX's Pallas kernel for TPUs ("splash attention"), extended to any length and to empty rows."""

import jax
import jax.numpy as jnp

from transformer_jax.ops.attention.call import Extras, Settings

# The kernel's tiles are multiples of a vector register's width.
_LANES = 128
_LARGEST_BLOCK = 512


def refuses(
    query: jax.Array, key: jax.Array, extras: Extras, settings: Settings, platform: str
) -> str | None:
    """Why the kernel cannot compute a call; None: it can."""
    if platform != "tpu":
        return f"it needs a TPU, and this is a {platform}"
    for name in ("mask", "bias", "distance_bias"):
        if getattr(extras, name) is not None:
            return f"it takes causality, lengths and segments, but no {name}"
    if extras.seeds is not None:
        return "it has no dropout"
    return None


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    extras: Extras,
    settings: Settings,
    interpret: bool = False,
) -> jax.Array:
    """Attention `[B, T, H, D]`, with lengths padded to multiples of the kernel's tiles.

    Padding and masked keys are expressed as segments.

    Args:
      query: `[B, T, H, D]`.
      key: `[B, S, G, D]`.
      value: `[B, S, G, D]`.
      extras: lengths and segments.
      settings: scale and causality.
      interpret: run the kernel on any device, slowly, for tests.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    batch, length, heads, _ = query.shape
    size = key.shape[1]
    query_ids, key_ids = _segments(batch, length, size, extras)
    padded, padded_size = (-(-n // _LANES) * _LANES for n in (length, size))
    query = jnp.pad(query * jnp.asarray(settings.scale, query.dtype), _padding(length, padded, 4))
    key, value = (jnp.pad(x, _padding(size, padded_size, 4)) for x in (key, value))
    query_ids = jnp.pad(query_ids, _padding(length, padded, 2), constant_values=_NO_QUERY)
    key_ids = jnp.pad(key_ids, _padding(size, padded_size, 2), constant_values=_NO_KEY)

    shape = (padded, padded_size)
    mask = splash.CausalMask(shape) if settings.causal else splash.FullMask(shape)
    query_block, key_block = (_block(n) for n in shape)
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(
            block_q=query_block,
            block_kv=key_block,
            block_q_dkv=query_block,
            block_kv_dkv=key_block,
            block_q_dq=query_block,
            block_kv_dq=key_block,
        ),
        attn_logits_soft_cap=settings.softcap or None,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    heads_first = (x.swapaxes(1, 2) for x in (query, key, value))  # --> [B, H, T, D]
    out = jax.vmap(kernel)(*heads_first, splash.SegmentIds(query_ids, key_ids))
    out = out.swapaxes(1, 2)[:, :length]  # --> [B, T, H, D]
    # The kernel computes an average over masked keys for a row without any key.
    has_key = _has_key(query_ids, key_ids, settings.causal)[:, :length, None, None]
    return jnp.where(has_key, out, jnp.zeros((), out.dtype))


# Ids of padding. Those of queries and keys differ, so that they do not attend to each other.
_NO_QUERY, _NO_KEY = -1, 0


def _segments(batch: int, length: int, size: int, extras: Extras) -> tuple[jax.Array, jax.Array]:
    """Segment ids `[B, T]` and `[B, S]` that express lengths and segments; equal ids attend."""
    if extras.query_segment_ids is None or extras.key_segment_ids is None:
        query_ids, key_ids = (jnp.ones((batch, n), jnp.int32) for n in (length, size))
    else:
        query_ids, key_ids = extras.query_segment_ids, extras.key_segment_ids
        query_ids = jnp.where(query_ids == 0, _NO_QUERY, query_ids)
    if extras.key_lengths is not None:
        inside = jnp.arange(size) < extras.key_lengths[:, None]
        key_ids = jnp.where(inside, key_ids, _NO_KEY)
    return query_ids, key_ids


def _has_key(query_ids: jax.Array, key_ids: jax.Array, causal: bool) -> jax.Array:
    """Whether each query has a key to attend to, `[B, T]`."""
    same = query_ids[:, :, None] == key_ids[:, None, :]
    if causal:
        same = same & jnp.tri(same.shape[1], same.shape[2], dtype=bool)
    return jnp.any(same, axis=-1)


def _padding(size: int, padded: int, rank: int) -> list[tuple[int, int]]:
    """Widths for `jnp.pad` that extend axis 1 from `size` to `padded`."""
    return [(0, padded - size) if axis == 1 else (0, 0) for axis in range(rank)]


def _block(size: int) -> int:
    """Largest tile that divides `size`, a multiple of the register's width."""
    return max(b for b in range(_LANES, _LARGEST_BLOCK + 1, _LANES) if size % b == 0)
