"""The decoder one position at a time: `init_cache`, `decode_step`, `grow_cache`, `reorder_cache`.

It computes the same function as `Transformer.decode`, with its products arranged for few rows and
large weights. Weights are the left operands of their products (`decoder_weights`) and activations
are `[M, N]`, features first, so no weight is ever copied or transposed.

Beams are not moved in memory. At each position, each beam of a sentence writes its key and value
into a separate slot, and all beams are queries over all slots. `ancestors` says which slots are the
past of a beam, so reordering beams reorders only those few integers. Independent hypotheses, as in
sampling and greedy search, are never reordered: no other hypothesis reads the cache row of one.

Letters of shapes: B sentences, K beams (hypotheses of a sentence), N = B·K, T positions of the
cache, S source positions, and H, D, M, F, V as in `layers`.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model.decoder_weights import DecoderWeights, LayerWeights
from transformer_jax.ops import norms
from transformer_jax.ops.activations import ACTIVATIONS
from transformer_jax.ops.attention.softmax import additive_mask, exponentials
from transformer_jax.ops.embedding import embed_tokens
from transformer_jax.ops.platforms import compute_dtype
from transformer_jax.ops.positional import apply_rotary


@flax.struct.dataclass
class KeyValue:
    """Keys and values of one attention.

    Several queries read keys fastest as `[B, H, D, S]`. Where only one does, its product takes as
    long either way, and keys are laid out like values: a position is then written at one place, not
    at D places.
    """

    key: jax.Array  # self [B, H, D, T·K]; cross [B, H, D, S]; with K = 1 as the values
    value: jax.Array  # self [B, H, T·K, D]; cross [B, H, S, D]


@flax.struct.dataclass
class DecoderCache:
    """What `decode_step` keeps between positions.

    Independent hypotheses have no `ancestors`. For them the self-attention's keys and values are
    those of N sentences with one beam, both `[N, H, T, D]`.
    """

    index: jax.Array  # [], number of positions written
    self_attention: list[KeyValue]  # of each layer
    cross_attention: list[KeyValue]  # of each layer, computed once
    source_mask: jax.Array  # [B, S], True = not padding
    ancestors: jax.Array | None  # [B, K, T], the slot that holds each position of a beam
    coverage: jax.Array | None  # [B, K, S], sum of the last layer's attention to the source


def init_cache(
    config: ModelConfig,
    weights: DecoderWeights,
    encoded: jax.Array,
    source_mask: jax.Array,
    num_beams: int,
    size: int,
    coverage: bool = False,
    independent: bool = False,
) -> DecoderCache:
    """The cache before the first step.

    Args:
      config: of the model.
      weights: from `decoder_weights.prepare`.
      encoded: `[B, S, M]`.
      source_mask: `[B, S]` boolean, True where `encoded` is not padding.
      num_beams: hypotheses of each sentence, K.
      size: positions the cache has room for, T.
      coverage: sum up the last layer's attention to the source, averaged over heads.
      independent: hypotheses are never reordered.
    """
    config = config.for_decoder()
    heads, dim, dtype = config.num_heads, config.resolved_head_dim, compute_dtype(config)
    batch, length = source_mask.shape
    cross_attention = []
    for layer in weights.layers:
        dense = layer.cross_key_value
        both = jnp.einsum("bsm,nm->bsn", encoded.astype(dtype), dense.kernel) + dense.bias[:, 0]
        both = both.reshape(batch, length, 2, heads, dim)
        key, value = both.transpose(2, 0, 3, 1, 4)  # --> [B, H, S, D] each
        cross_attention.append(KeyValue(_key_layout(key, num_beams), value))
    rows, slots = (batch * num_beams, 1) if independent else (batch, num_beams)
    zeros = jnp.zeros((rows, heads, size * slots, dim), dtype)
    empty = KeyValue(_key_layout(zeros, slots), zeros)
    return DecoderCache(
        index=jnp.zeros((), jnp.int32),
        self_attention=[empty] * len(weights.layers),
        cross_attention=cross_attention,
        source_mask=source_mask,
        ancestors=None if independent else jnp.zeros((batch, num_beams, size), jnp.int32),
        coverage=jnp.zeros((batch, num_beams, length), jnp.float32) if coverage else None,
    )


def grow_cache(cache: DecoderCache, size: int) -> DecoderCache:
    """The same cache with room for `size` positions."""
    ancestors = cache.ancestors
    slots = 1 if ancestors is None else ancestors.shape[1]
    more = size - cache.self_attention[0].value.shape[2] // slots
    if ancestors is not None:
        ancestors = jnp.pad(ancestors, ((0, 0), (0, 0), (0, more)))
    unchanged, length = (0, 0), (0, more * slots)
    by_value = (unchanged, unchanged, length, unchanged)
    by_key = by_value if slots == 1 else (unchanged, unchanged, unchanged, length)
    grown = [
        KeyValue(jnp.pad(layer.key, by_key), jnp.pad(layer.value, by_value))
        for layer in cache.self_attention
    ]
    return dataclasses.replace(cache, self_attention=grown, ancestors=ancestors)


def reorder_cache(cache: DecoderCache, parents: jax.Array) -> DecoderCache:
    """The cache in which beam k of sentence b continues the former beam `parents[b, k]`.

    Raises:
      ValueError: the hypotheses are independent.
    """
    if cache.ancestors is None:
        raise ValueError("independent hypotheses cannot be reordered")
    coverage, index = cache.coverage, parents[:, :, None]
    if coverage is not None:
        coverage = jnp.take_along_axis(coverage, index, axis=1)
    ancestors = jnp.take_along_axis(cache.ancestors, index, axis=1)
    return dataclasses.replace(cache, ancestors=ancestors, coverage=coverage)


def decode_step(
    config: ModelConfig, weights: DecoderWeights, cache: DecoderCache, tokens: jax.Array
) -> tuple[jax.Array, DecoderCache]:
    """Logits of the next token.

    Args:
      config: of the model.
      weights: from `decoder_weights.prepare`.
      cache: of B sentences and K beams.
      tokens: `[B·K]`, the last token of each hypothesis.

    Returns:
      Logits `[V, B·K]` float32, and the new cache.
    """
    config, index, ancestors = config.for_decoder(), cache.index, cache.ancestors
    if ancestors is not None:
        ancestors = ancestors.at[:, :, index].set(jnp.arange(ancestors.shape[1]))
    self_bias = additive_mask(_is_past(cache, ancestors))
    source_bias = additive_mask(cache.source_mask[:, None, None, :])

    x = embed_tokens(
        config, weights.table, weights.positions, tokens, index, weights.table.dtype
    )  # --> [N, M]
    x = jax.lax.optimization_barrier(x.T)  # --> [M, N]

    self_attention = []
    for layer, self_cache, cross_cache in zip(
        weights.layers, cache.self_attention, cache.cross_attention, strict=True
    ):
        h = norms.norm_before(config, layer.self_attention_norm, x, axis=0)
        h, self_cache = _self_attention(config, layer, h, self_cache, self_bias, index)
        x = norms.norm_after(config, layer.self_attention_norm, x + h, axis=0)
        self_attention.append(self_cache)

        h = norms.norm_before(config, layer.cross_attention_norm, x, axis=0)
        h, source_weights = _cross_attention(config, layer, h, cross_cache, source_bias)
        x = norms.norm_after(config, layer.cross_attention_norm, x + h, axis=0)

        h = norms.norm_before(config, layer.feed_forward_norm, x, axis=0)
        h = layer.down(ACTIVATIONS[config.activation](layer.up(h)))
        x = norms.norm_after(config, layer.feed_forward_norm, x + h, axis=0)
    if weights.norm is not None:
        x = norms.norm(config, weights.norm, x, axis=0)

    logits = jnp.matmul(weights.output_table, x, preferred_element_type=jnp.float32)  # --> [V, N]
    if weights.output_bias is not None:
        logits = logits + weights.output_bias
    coverage = cache.coverage
    if coverage is not None:
        coverage = coverage + jnp.mean(source_weights, axis=1)  # over heads
    new_cache = dataclasses.replace(
        cache,
        index=index + 1,
        self_attention=self_attention,
        ancestors=ancestors,
        coverage=coverage,
    )
    return logits, new_cache


def _is_past(cache: DecoderCache, ancestors: jax.Array | None) -> jax.Array:
    """Whether a slot is in the past of a beam, `[B, 1, K, T·K]`; `[T]` if they are independent."""
    if ancestors is None:
        return jnp.arange(cache.self_attention[0].value.shape[2]) <= cache.index
    batch, beams, size = ancestors.shape
    is_written = (jnp.arange(size) <= cache.index)[:, None]  # [T, 1]
    is_ancestor = ancestors[..., None] == jnp.arange(beams)  # [B, K, T, K]
    return (is_written & is_ancestor).reshape(batch, 1, beams, size * beams)


def _self_attention(
    config: ModelConfig,
    layer: LayerWeights,
    x: jax.Array,
    cache: KeyValue,
    bias: jax.Array | None,
    index: jax.Array,
) -> tuple[jax.Array, KeyValue]:
    """Self-attention `[M, N]` of `x` `[M, N]`, and the cache with the position `index` written."""
    rows = cache.key.shape[0]
    query, key, value = _split_heads(config, layer.self_query_key_value(x), rows, 3)
    if config.positional == "rotary":
        query = apply_rotary(query, index[None, None], config.positional_base)
        key = apply_rotary(key, index[None, None], config.positional_base)
    slots = query.shape[2]
    start, key_axis = index * slots, 2 if slots == 1 else 3
    key = _key_layout(key, slots)
    cache = KeyValue(
        jax.lax.dynamic_update_slice_in_dim(cache.key, key, start, axis=key_axis),
        jax.lax.dynamic_update_slice_in_dim(cache.value, value, start, axis=2),
    )
    # Each query attends at least to its own position.
    out, _ = _attend(query, cache, bias, may_be_empty=False)  # --> [H·D, N]
    return layer.self_out(out), cache


def _cross_attention(
    config: ModelConfig,
    layer: LayerWeights,
    x: jax.Array,
    cache: KeyValue,
    bias: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Attention to the source `[M, N]` of `x` `[M, N]`, and its weights `[B, H, K, S]`."""
    (query,) = _split_heads(config, layer.cross_query(x), cache.key.shape[0], 1)
    out, attention_weights = _attend(query, cache, bias, may_be_empty=True)
    return layer.cross_out(out), attention_weights


def _split_heads(config: ModelConfig, x: jax.Array, rows: int, count: int) -> list[jax.Array]:
    """`x` `[count·H·D, N]` as `count` arrays `[rows, H, N/rows, D]`."""
    x = x.reshape(count, config.num_heads, config.resolved_head_dim, rows, -1)
    return list(x.transpose(0, 3, 1, 4, 2))


def _key_layout(key: jax.Array, num_queries: int) -> jax.Array:
    """Keys `[B, H, S, D]` as `KeyValue` has them where `num_queries` read them."""
    return key if num_queries == 1 else key.swapaxes(2, 3)


def _attend(
    query: jax.Array, cache: KeyValue, bias: jax.Array | None, may_be_empty: bool
) -> tuple[jax.Array, jax.Array]:
    """Attention over a cache.

    Args:
      query: `[B, H, K, D]`.
      cache: keys and values.
      bias: added to the scores, broadcastable to `[B, H, K, S]`.
      may_be_empty: some query may have every key hidden.

    Returns:
      The output `[H·D, N]` and the attention weights `[B, H, K, S]` float32.
    """
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    product = "bhkd,bhsd->bhks" if query.shape[2] == 1 else "bhkd,bhds->bhks"
    scores = jnp.einsum(product, query, cache.key, preferred_element_type=jnp.float32)
    exps, total = exponentials(scores, bias, may_be_empty)
    out = jnp.einsum(
        "bhks,bhsd->bhkd",
        exps.astype(cache.value.dtype),
        cache.value,
        preferred_element_type=jnp.float32,
    )
    out = (out / total).astype(cache.value.dtype).transpose(1, 3, 0, 2)  # --> [H, D, B, K]
    return out.reshape(out.shape[0] * out.shape[1], -1), exps / total
