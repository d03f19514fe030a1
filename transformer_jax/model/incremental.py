"""The decoder one position at a time: `init_cache`, `decode_step`, `grow_cache`, `reorder_cache`.

It computes the same function as `Transformer.decode`, with its products arranged for few rows and
large weights. Weights are the left operands of their products (`decoder_weights`) and activations
are `[M, N]`, features first, so no weight is ever copied or transposed.

Beams are not moved in memory. At each position, each beam of a sentence writes its key and value
into a separate slot, and all beams are queries over all slots. `ancestors` says which slots are the
past of a beam, so reordering beams reorders only those few integers. Independent hypotheses, as in
sampling and greedy search, are never reordered: no other hypothesis reads the cache row of one.

Letters of shapes: B sentences, K beams (hypotheses of a sentence), N = B·K, T positions of the
cache, S source positions, G heads of keys and values, and H, D, M, F, V as in `layers`.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model import cached_attention, choices
from transformer_jax.model.cached_attention import KeyValue
from transformer_jax.model.decoder_weights import DecoderWeights, LayerWeights
from transformer_jax.ops.activations import ACTIVATIONS
from transformer_jax.ops.attention.softmax import additive_mask
from transformer_jax.ops.dense import soft_cap


@flax.struct.dataclass
class DecoderCache:
    """What `decode_step` keeps between positions.

    Independent hypotheses have no `ancestors`. For them the self-attention's keys and values are
    those of N sentences with one beam, both `[N, G, T, D]`.
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
    heads, dim = config.resolved_kv_heads, config.resolved_head_dim
    dtype = choices.compute_dtype(config)
    batch, length = source_mask.shape
    cross_attention = []
    for layer in weights.layers:
        dense = layer.cross_key_value
        both = jnp.einsum("bsm,nm->bsn", encoded.astype(dtype), dense.kernel)
        both = both if dense.bias is None else both + dense.bias[:, 0]
        both = both.reshape(batch, length, 2, heads, dim)
        key, value = both.transpose(2, 0, 3, 1, 4)  # --> [B, G, S, D] each
        if layer.cross_head_norms is not None:
            key = cached_attention.head_norm(config, key, layer.cross_head_norms.key)
        cross_attention.append(KeyValue(cached_attention.key_layout(key, num_beams), value))
    rows, slots = (batch * num_beams, 1) if independent else (batch, num_beams)
    zeros = jnp.zeros((rows, heads, size * slots, dim), dtype)
    empty = KeyValue(cached_attention.key_layout(zeros, slots), zeros)
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
    num_slots = 1 if ancestors is None else ancestors.shape[1]
    is_past = _is_past(cache, ancestors)
    source_bias = additive_mask(cache.source_mask[:, None, None, :])

    x = choices.embed_tokens(
        config, weights.table, weights.positions, tokens, index, weights.table.dtype
    )  # --> [N, M]
    x = jax.lax.optimization_barrier(x.T)  # --> [M, N]
    if weights.embedding_norm is not None:
        x = choices.norm(config, weights.embedding_norm, x, axis=0)

    layer_caches = []
    for layer, *caches in zip(
        weights.layers, cache.self_attention, cache.cross_attention, strict=True
    ):
        self_bias = additive_mask(
            is_past, cached_attention.position_bias(config, layer, num_slots, caches[0], index)
        )
        x, layer_cache, source_weights = _layer(
            config, layer, x, (caches[0], caches[1]), (self_bias, source_bias), index
        )
        layer_caches.append(layer_cache)
    if weights.norm is not None:
        x = choices.norm(config, weights.norm, x, axis=0)
    if config.logit_scale != 1.0:
        x = x * config.logit_scale

    logits = jnp.matmul(weights.output_table, x, preferred_element_type=jnp.float32)  # --> [V, N]
    if weights.output_bias is not None:
        logits = logits + weights.output_bias
    logits = soft_cap(logits, config.logit_softcap)
    coverage = cache.coverage
    if coverage is not None:
        coverage = coverage + jnp.mean(source_weights, axis=1)  # over heads
    new_cache = dataclasses.replace(
        cache,
        index=index + 1,
        self_attention=layer_caches,
        ancestors=ancestors,
        coverage=coverage,
    )
    return logits, new_cache


def _layer(
    config: ModelConfig,
    layer: LayerWeights,
    x: jax.Array,
    caches: tuple[KeyValue, KeyValue],
    biases: tuple[jax.Array | None, jax.Array | None],
    index: jax.Array,
) -> tuple[jax.Array, KeyValue, jax.Array]:
    """One layer of the decoder.

    Args:
      config: of the stack.
      layer: its weights.
      x: `[M, N]`.
      caches: of self-attention and cross-attention.
      biases: of their scores, masks included.
      index: of the position.

    Returns:
      `[M, N]`, the cache of self-attention with the position `index` written, and the weights of
      cross-attention `[B, H, K, S]`.
    """
    h = choices.norm_before(config, layer.self_attention_norm, x, axis=0)
    h, cache = cached_attention.self_attention(config, layer, h, caches[0], biases[0], index)
    x = choices.norm_after(config, layer.self_attention_norm, x + h, axis=0)

    h = choices.norm_before(config, layer.cross_attention_norm, x, axis=0)
    h, source_weights = cached_attention.cross_attention(config, layer, h, caches[1], biases[1])
    x = choices.norm_after(config, layer.cross_attention_norm, x + h, axis=0)

    h = choices.norm_before(config, layer.feed_forward_norm, x, axis=0)
    x = choices.norm_after(
        config, layer.feed_forward_norm, x + _feed_forward(config, layer, h), axis=0
    )
    return x, cache, source_weights


def _feed_forward(config: ModelConfig, layer: LayerWeights, x: jax.Array) -> jax.Array:
    """The feed-forward block, `[M, N]` to `[M, N]`."""
    activation, up = ACTIVATIONS[config.activation], layer.up(x)
    return layer.down(activation(up) if layer.gate is None else activation(layer.gate(x)) * up)


def _is_past(cache: DecoderCache, ancestors: jax.Array | None) -> jax.Array:
    """Whether a slot is in the past of a beam, `[B, 1, K, T·K]`; `[T]` if they are independent."""
    if ancestors is None:
        return jnp.arange(cache.self_attention[0].value.shape[2]) <= cache.index
    batch, beams, size = ancestors.shape
    is_written = (jnp.arange(size) <= cache.index)[:, None]  # [T, 1]
    is_ancestor = ancestors[..., None] == jnp.arange(beams)  # [B, K, T, K]
    return (is_written & is_ancestor).reshape(batch, 1, beams, size * beams)
