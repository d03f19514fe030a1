"""Attention of the decoder's layers to what is cached, for `incremental.decode_step`.

Letters of shapes are those of `incremental`.
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.model import choices
from transformer_jax.model.decoder_weights import LayerWeights
from transformer_jax.ops import norms, positional
from transformer_jax.ops.attention.softmax import exponentials
from transformer_jax.ops.dense import soft_cap


@flax.struct.dataclass
class KeyValue:
    """Keys and values of one attention.

    Several queries read keys fastest as `[B, G, D, S]`. Where only one beam does, its product takes
    as long either way, and keys are laid out like values: a position is then written at one place,
    not at D places.
    """

    key: jax.Array  # self [B, G, D, T·K]; cross [B, G, D, S]; with K = 1 as the values
    value: jax.Array  # self [B, G, T·K, D]; cross [B, G, S, D]


def position_bias(
    config: ModelConfig, layer: LayerWeights, num_slots: int, cache: KeyValue, index: jax.Array
) -> jax.Array | None:
    """What relative positions or ALiBi add to the scores of position `index`; None: nothing.

    `[1, H, 1, T·K]` float32. Positions after `index` have any value: they are masked.
    """
    # For all distances: in an export, the size of the cache is a symbolic dimension.
    longest = config.max_len
    by_distance = choices.position_bias(
        config, layer.self_position_bias, -np.arange(longest), causal=True
    )
    if by_distance is None:
        return None
    positions = jnp.arange(cache.value.shape[2] // num_slots)
    distances = jnp.clip(index - positions, 0, longest - 1)
    return jnp.repeat(by_distance[:, distances], num_slots, axis=1)[None, :, None]


def self_attention(
    config: ModelConfig,
    layer: LayerWeights,
    x: jax.Array,
    cache: KeyValue,
    bias: jax.Array | None,
    index: jax.Array,
) -> tuple[jax.Array, KeyValue]:
    """Self-attention `[M, N]` of `x` `[M, N]`, and the cache with the position `index` written."""
    rows = cache.key.shape[0]
    counts = config.num_heads, config.resolved_kv_heads, config.resolved_kv_heads
    query, key, value = _split_heads(config, layer.self_query_key_value(x), rows, counts)
    if layer.self_head_norms is not None:
        query = head_norm(config, query, layer.self_head_norms.query)
        key = head_norm(config, key, layer.self_head_norms.key)
    if config.positional == "rotary":
        query = positional.apply_rotary(query, index[None, None], config.positional_base)
        key = positional.apply_rotary(key, index[None, None], config.positional_base)
    slots = query.shape[2]
    start, key_axis = index * slots, 2 if slots == 1 else 3
    key = key_layout(key, slots)
    cache = KeyValue(
        jax.lax.dynamic_update_slice_in_dim(cache.key, key, start, axis=key_axis),
        jax.lax.dynamic_update_slice_in_dim(cache.value, value, start, axis=2),
    )
    # Each query attends at least to its own position.
    out, _ = _attend(config, query, cache, bias, may_be_empty=False)  # --> [H·D, N]
    return layer.self_out(out), cache


def cross_attention(
    config: ModelConfig,
    layer: LayerWeights,
    x: jax.Array,
    cache: KeyValue,
    bias: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Attention to the source `[M, N]` of `x` `[M, N]`, and its weights `[B, H, K, S]`."""
    rows = cache.key.shape[0]
    (query,) = _split_heads(config, layer.cross_query(x), rows, (config.num_heads,))
    if layer.cross_head_norms is not None:
        query = head_norm(config, query, layer.cross_head_norms.query)
    out, attention_weights = _attend(config, query, cache, bias, may_be_empty=True)
    return layer.cross_out(out), attention_weights


def _split_heads(
    config: ModelConfig, x: jax.Array, rows: int, counts: tuple[int, ...]
) -> list[jax.Array]:
    """`x` `[sum(counts)·D, N]` as arrays `[rows, count, N/rows, D]`."""
    x = x.reshape(sum(counts), config.resolved_head_dim, rows, -1).transpose(2, 0, 3, 1)
    return jnp.split(x, np.cumsum(counts)[:-1], axis=1)


def head_norm(config: ModelConfig, x: jax.Array, scale: jax.Array) -> jax.Array:
    """`x` `[..., D]` normalized as `config.qk_norm` asks."""
    return norms.rms_norm(x, scale, config.norm_epsilon).astype(x.dtype)


def key_layout(key: jax.Array, num_beams: int) -> jax.Array:
    """Keys `[B, G, S, D]` as `KeyValue` has them where `num_beams` of a row read them."""
    return key if num_beams == 1 else key.swapaxes(2, 3)


def _attend(
    config: ModelConfig,
    query: jax.Array,
    cache: KeyValue,
    bias: jax.Array | None,
    may_be_empty: bool,
) -> tuple[jax.Array, jax.Array]:
    """Attention over a cache.

    Args:
      config: of the stack.
      query: `[B, H, K, D]`.
      cache: keys and values.
      bias: added to the scores, broadcastable to `[B, H, K, S]`.
      may_be_empty: some query may have every key hidden.

    Returns:
      The output `[H·D, N]` and the attention weights `[B, H, K, S]` float32.
    """
    rows, heads, beams, dim = query.shape
    groups, size = cache.value.shape[1:3]
    query = query * jnp.asarray(config.resolved_attention_scale, query.dtype)
    query = query.reshape(rows, groups, heads // groups * beams, dim)
    product = "bgqd,bgsd->bgqs" if beams == 1 else "bgqd,bgds->bgqs"
    scores = jnp.einsum(product, query, cache.key, preferred_element_type=jnp.float32)
    scores = soft_cap(scores.reshape(rows, heads, beams, size), config.attention_softcap)
    exps, total = exponentials(scores, bias, may_be_empty)
    out = jnp.einsum(
        "bgqs,bgsd->bgqd",
        exps.astype(cache.value.dtype).reshape(rows, groups, -1, size),
        cache.value,
        preferred_element_type=jnp.float32,
    )
    out = (out.reshape(rows, heads, beams, dim) / total).astype(cache.value.dtype)
    out = out.transpose(1, 3, 0, 2)  # --> [H, D, B, K]
    return out.reshape(heads * dim, -1), exps / total
