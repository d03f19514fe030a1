"""The encoder-decoder of "Attention Is All You Need" as Flax linen modules.

Modules own parameters and call the pure functions of `transformer_jax.ops`. Decoding is explicit:
`encode -> init_cache -> decode_step(cache, tokens)`, where the cache is a plain pytree.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.ops import attention as attention_lib
from transformer_jax.ops import positional
from transformer_jax.ops.dropout import dropout

Cache = dict[str, Any]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
}


def compute_dtype(config: ModelConfig) -> jnp.dtype:
    """Type of activations: bfloat16 on GPU and TPU, float32 on CPU, unless the config names one."""
    if config.dtype != "auto":
        return jnp.dtype(config.dtype)
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)


class Dropout(nn.Module):
    """`ops.dropout` with a key from the `dropout` collection."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or self.rate == 0.0:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))


class LayerNorm(nn.Module):
    """LayerNorm over the last axis, computed in float32, returned in the type of its input."""

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = nn.LayerNorm(
            epsilon=self.epsilon, dtype=jnp.float32, use_fast_variance=False, name="norm"
        )
        return norm(x).astype(x.dtype)


class HeadProjection(nn.Module):
    """Parameters of a projection to heads: kernel `[M, H, D]` and bias `[H, D]`."""

    config: ModelConfig

    def setup(self) -> None:
        heads, dim = self.config.num_heads, self.config.resolved_head_dim
        init = nn.initializers.xavier_uniform(in_axis=0, out_axis=(1, 2))
        self.kernel = self.param("kernel", init, (self.config.d_model, heads, dim))
        self.bias = self.param("bias", nn.initializers.zeros, (heads, dim))


def project_heads(x: jax.Array, *projections: HeadProjection) -> list[jax.Array]:
    """`x` `[B, T, M]` under each projection, `[B, T, H, D]`, by one matrix product for all."""
    width = projections[0].bias.size
    kernel = jnp.concatenate([p.kernel.reshape(-1, width) for p in projections], axis=1)
    bias = jnp.concatenate([p.bias.reshape(-1) for p in projections])
    out = jnp.einsum("btm,mn->btn", x, kernel.astype(x.dtype)) + bias.astype(x.dtype)
    heads = out.reshape(*out.shape[:2], len(projections), *projections[0].bias.shape)
    return [heads[:, :, i] for i in range(len(projections))]


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2); `head_dim` is free of `d_model`."""

    config: ModelConfig

    def setup(self) -> None:
        self.query = HeadProjection(self.config)
        self.key = HeadProjection(self.config)
        self.value = HeadProjection(self.config)
        self.out = nn.DenseGeneral(
            self.config.d_model,
            axis=(-2, -1),
            dtype=compute_dtype(self.config),
            kernel_init=nn.initializers.xavier_uniform(),
        )

    def project_self(
        self, x: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Query, key and value `[B, T, H, D]` of `x` `[B, T, M]`; rotary positions turn them."""
        query, key, value = project_heads(x, self.query, self.key, self.value)
        if self.config.positional == "rotary":
            query, key = (
                positional.apply_rotary(y, positions, self.config.positional_base)
                for y in (query, key)
            )
        return query, key, value

    def project_query(self, x: jax.Array) -> jax.Array:
        """Query `[B, T, H, D]` of `x` `[B, T, M]`."""
        return project_heads(x, self.query)[0]

    def project_source(self, encoded: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Key and value `[B, S, H, D]` of the encoder's output `[B, S, M]`."""
        key, value = project_heads(encoded, self.key, self.value)
        return key, value

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        deterministic: bool = True,
        **masking: Any,
    ) -> jax.Array:
        """Attention over `key` and `value`, projected back to `[B, T, M]`."""
        config = self.config
        use_dropout = config.attention_dropout_rate > 0.0 and not deterministic
        out = attention_lib.dot_product_attention(
            query,
            key,
            value,
            dropout_rate=config.attention_dropout_rate,
            rng=self.make_rng("dropout") if use_dropout else None,
            implementation=config.attention,
            **masking,
        )
        return self.out(out)


class FeedForward(nn.Module):
    """Two dense layers with an activation between (section 3.3)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        config, dtype = self.config, compute_dtype(self.config)
        dense = functools.partial(
            nn.Dense, dtype=dtype, kernel_init=nn.initializers.xavier_uniform()
        )
        x = ACTIVATIONS[config.activation](dense(config.d_ff, name="up")(x))
        x = Dropout(config.activation_dropout_rate)(x, deterministic)
        return dense(config.d_model, name="down")(x)


class _Layer(nn.Module):
    """What encoder and decoder layers share: a residual branch with its norm and dropout."""

    config: ModelConfig

    def _norm(self) -> LayerNorm:
        return LayerNorm(self.config.norm_epsilon)

    def _residual(self, x, norm, branch, dropout_layer, deterministic):
        if self.config.norm_position == "pre":
            # Without the barrier XLA adds up the gradient of the stream anew for every layer.
            x = jax.lax.optimization_barrier(x)
            return x + dropout_layer(branch(norm(x)), deterministic)
        return norm(x + dropout_layer(branch(x), deterministic))


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward."""

    def setup(self) -> None:
        self.self_attention = MultiHeadAttention(self.config)
        self.feed_forward = FeedForward(self.config)
        self.self_attention_norm, self.feed_forward_norm = self._norm(), self._norm()
        self.dropout = Dropout(self.config.dropout_rate)

    def __call__(self, x, positions, segment_ids, deterministic):
        def attend(h):
            return self.self_attention.attend(
                *self.self_attention.project_self(h, positions),
                deterministic,
                query_segment_ids=segment_ids,
                key_segment_ids=segment_ids,
            )

        x = self._residual(x, self.self_attention_norm, attend, self.dropout, deterministic)
        feed = functools.partial(self.feed_forward, deterministic=deterministic)
        return self._residual(x, self.feed_forward_norm, feed, self.dropout, deterministic)


class DecoderLayer(_Layer):
    """Causal self-attention, attention over the encoder's output, feed-forward."""

    def setup(self) -> None:
        self.self_attention = MultiHeadAttention(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.feed_forward = FeedForward(self.config)
        self.self_attention_norm = self._norm()
        self.cross_attention_norm = self._norm()
        self.feed_forward_norm = self._norm()
        self.dropout = Dropout(self.config.dropout_rate)

    def __call__(self, x, encoded, positions, segment_ids, source_segment_ids, deterministic):
        def attend_self(h):
            return self.self_attention.attend(
                *self.self_attention.project_self(h, positions),
                deterministic,
                causal=True,
                query_segment_ids=segment_ids,
                key_segment_ids=segment_ids,
            )

        def attend_source(h):
            return self.cross_attention.attend(
                self.cross_attention.project_query(h),
                *self.cross_attention.project_source(encoded),
                deterministic,
                query_segment_ids=segment_ids,
                key_segment_ids=source_segment_ids,
            )

        x = self._residual(x, self.self_attention_norm, attend_self, self.dropout, deterministic)
        x = self._residual(x, self.cross_attention_norm, attend_source, self.dropout, deterministic)
        feed = functools.partial(self.feed_forward, deterministic=deterministic)
        return self._residual(x, self.feed_forward_norm, feed, self.dropout, deterministic)

    def decode_step(self, x, self_cache, cross_cache, source_mask, index):
        """One position `x` `[N, 1, M]`; returns its output and the self-attention cache with it.

        N may be a multiple of the B sentences in `cross_cache`: the beams of a sentence are then
        queries of one attention over its keys, which are not copied.
        """
        positions = index[None, None]

        def attend_self(h):
            query, key, value = self.self_attention.project_self(h, positions)
            for name, new in (("key", key), ("value", value)):
                self_cache[name] = jax.lax.dynamic_update_slice_in_dim(
                    self_cache[name], new.astype(self_cache[name].dtype), index, axis=1
                )
            mask = jnp.arange(self_cache["key"].shape[1]) <= index
            return self.self_attention.attend(
                query, self_cache["key"], self_cache["value"], mask=mask[None, None, None]
            )

        def attend_source(h):
            rows = cross_cache["key"].shape[0]
            h = h.reshape(rows, -1, h.shape[-1])  # --> [B, K, M]
            out = self.cross_attention.attend(
                self.cross_attention.project_query(h),
                cross_cache["key"],
                cross_cache["value"],
                mask=source_mask[:, None, None, :],
            )
            return out.reshape(-1, 1, out.shape[-1])  # --> [N, 1, M]

        self_cache = dict(self_cache)
        x = self._residual(x, self.self_attention_norm, attend_self, self.dropout, True)
        x = self._residual(x, self.cross_attention_norm, attend_source, self.dropout, True)
        feed = functools.partial(self.feed_forward, deterministic=True)
        return self._residual(x, self.feed_forward_norm, feed, self.dropout, True), self_cache


class Embedding(nn.Module):
    """Token vectors times sqrt(M), plus positions, with dropout (sections 3.4, 3.5)."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        if config.positional == "learned":
            self.learned = self.param(
                "positions", nn.initializers.normal(0.02), (config.max_len, config.d_model)
            )
        self.dropout = Dropout(config.dropout_rate)

    def __call__(self, table, tokens, positions, deterministic):
        config = self.config
        x = table[tokens].astype(compute_dtype(config)) * jnp.asarray(
            config.d_model**0.5, compute_dtype(config)
        )
        if config.positional in positional.SINUSOIDS:
            encodings = positional.sinusoids(
                config.max_len, config.d_model, config.positional, config.positional_base
            )
            x = x + jnp.asarray(encodings)[positions].astype(x.dtype)
        elif config.positional == "learned":
            x = x + self.learned[positions].astype(x.dtype)
        return self.dropout(x, deterministic)


class Transformer(nn.Module):
    """Encoder and decoder with their embeddings.

    Token and segment id arrays are `[B, S]` and `[B, T]` integers; segment id 0 is padding.
    Positions default to 0, 1, 2, …; packed rows pass positions that restart with each segment.
    """

    config: ModelConfig
    remat: bool = False

    def setup(self) -> None:
        config = self.config
        encoder_layer, decoder_layer = EncoderLayer, DecoderLayer
        if self.remat:
            encoder_layer = nn.remat(EncoderLayer, static_argnums=(4,))
            decoder_layer = nn.remat(DecoderLayer, static_argnums=(6,))
        self.encoder_layers = [encoder_layer(config) for _ in range(config.num_encoder_layers)]
        self.decoder_layers = [decoder_layer(config) for _ in range(config.num_decoder_layers)]
        if config.norm_position == "pre":
            self.encoder_norm = LayerNorm(config.norm_epsilon)
            self.decoder_norm = LayerNorm(config.norm_epsilon)
        init = nn.initializers.normal(config.d_model**-0.5)
        self.target_table = self.param(
            "target_embedding", init, (config.target_vocab_size, config.d_model)
        )
        self.source_table = self.target_table
        self.output_table = self.target_table
        if config.tie_embeddings != "all":
            self.source_table = self.param(
                "source_embedding", init, (config.source_vocab_size, config.d_model)
            )
        if config.tie_embeddings == "none":
            self.output_table = self.param(
                "output_embedding", init, (config.target_vocab_size, config.d_model)
            )
        self.embed_source = Embedding(config)
        self.embed_target = Embedding(config)

    def encode(self, inputs, positions=None, segment_ids=None, deterministic=True) -> jax.Array:
        """Encoder output `[B, S, M]`. Without segment_ids every position counts."""
        if positions is None:
            positions = jnp.arange(inputs.shape[1])[None]
        if segment_ids is None:
            segment_ids = jnp.ones_like(inputs)
        x = self.embed_source(self.source_table, inputs, positions, deterministic)
        for layer in self.encoder_layers:
            x = layer(x, positions, segment_ids, deterministic)
        return self.encoder_norm(x) if self.config.norm_position == "pre" else x

    def decode(
        self,
        encoded,
        decoder_inputs,
        source_segment_ids=None,
        positions=None,
        segment_ids=None,
        deterministic=True,
    ) -> jax.Array:
        """Decoder output `[B, T, M]` before the projection to the vocabulary."""
        if positions is None:
            positions = jnp.arange(decoder_inputs.shape[1])[None]
        if segment_ids is None:
            segment_ids = jnp.ones_like(decoder_inputs)
        if source_segment_ids is None:
            source_segment_ids = jnp.ones(encoded.shape[:2], jnp.int32)
        x = self.embed_target(self.target_table, decoder_inputs, positions, deterministic)
        for layer in self.decoder_layers:
            x = layer(x, encoded, positions, segment_ids, source_segment_ids, deterministic)
        return self.decoder_norm(x) if self.config.norm_position == "pre" else x

    def hidden(self, batch: dict[str, jax.Array], deterministic: bool = True) -> jax.Array:
        """Decoder output `[B, T, M]` of a training batch (teacher forcing)."""
        encoded = self.encode(
            batch["inputs"], batch["inputs_positions"], batch["inputs_segment_ids"], deterministic
        )
        return self.decode(
            encoded,
            batch["decoder_inputs"],
            batch["inputs_segment_ids"],
            batch["targets_positions"],
            batch["targets_segment_ids"],
            deterministic,
        )

    def output_embedding(self) -> jax.Array:
        """Projection to the vocabulary, `[V, M]` float32."""
        return self.output_table

    def logits(self, hidden: jax.Array) -> jax.Array:
        """float32 `[..., V]` of hidden `[..., M]`."""
        table = self.output_table.astype(hidden.dtype)
        return jnp.einsum("...m,vm->...v", hidden, table, preferred_element_type=jnp.float32)

    def __call__(self, batch: dict[str, jax.Array], deterministic: bool = True) -> jax.Array:
        """Logits `[B, T, V]` of a training batch."""
        return self.logits(self.hidden(batch, deterministic))

    def init_cache(self, encoded, source_mask, num_beams: int, max_decode_len: int) -> Cache:
        """Cache before the first step.

        Args:
          encoded: `[B, S, M]`.
          source_mask: `[B, S]` boolean, True where `encoded` is no padding.
          num_beams: hypotheses a sentence, K.
          max_decode_len: positions the cache holds, T.

        Returns:
          `index` (positions written so far), `self` (per layer key and value `[B·K, T, H, D]`),
          `cross` (per layer key and value `[B, S, H, D]`, computed once), `source_mask`.
        """
        config = self.config
        rows, heads = encoded.shape[0] * num_beams, config.num_heads
        shape = (rows, max_decode_len, heads, config.resolved_head_dim)
        empty = jnp.zeros(shape, compute_dtype(config))
        cross = []
        for layer in self.decoder_layers:
            key, value = layer.cross_attention.project_source(encoded)
            cross.append({"key": key, "value": value})
        return {
            "index": jnp.zeros((), jnp.int32),
            "self": [{"key": empty, "value": empty} for _ in self.decoder_layers],
            "cross": cross,
            "source_mask": source_mask,
        }

    def decode_step(self, cache: Cache, tokens: jax.Array) -> tuple[jax.Array, Cache]:
        """Logits `[N, V]` after `tokens` `[N]`, the last of each hypothesis, and the new cache."""
        index = cache["index"]
        x = self.embed_target(self.target_table, tokens[:, None], index[None, None], True)
        layers = zip(self.decoder_layers, cache["self"], cache["cross"], strict=True)
        written = []
        for layer, self_cache, cross_cache in layers:
            x, self_cache = layer.decode_step(
                x, self_cache, cross_cache, cache["source_mask"], index
            )
            written.append(self_cache)
        if self.config.norm_position == "pre":
            x = self.decoder_norm(x)
        return self.logits(x[:, 0]), {**cache, "index": index + 1, "self": written}


def init_params(config: ModelConfig, rng: jax.Array) -> dict[str, Any]:
    """Fresh parameters; trace it with `jax.eval_shape` for shapes alone."""
    tokens = jnp.ones((1, 2), jnp.int32)
    names = ["decoder_inputs"]
    for side in ("inputs", "targets"):
        names += [side, f"{side}_positions", f"{side}_segment_ids"]
    batch = dict.fromkeys(names, tokens)
    return Transformer(config).init({"params": rng}, batch)["params"]
