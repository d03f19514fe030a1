"""Layers of the encoder-decoder ("Attention Is All You Need", sections 3.1 to 3.3).

A residual branch is `norm(x + dropout(branch(x)))` in a post-norm model, as in the paper, and
`x + dropout(branch(norm(x)))` in a pre-norm model. `norm.before(x)` returns the residual and the
input of the branch: `x, norm(x)` in a pre-norm model, `x, x` in a post-norm model. `norm.after(x)`
returns `norm(x)` in a post-norm model, `x` in a pre-norm model.

Letters of shapes: B batch, L any length, S source or key length, T target or query length,
H heads, D head_dim, M d_model, F d_ff. In self-attention, S = T = L.

These arguments have one meaning in all layers:

  deterministic: True disables dropout. Positional, because `nn.remat` needs its number.
  encoded: `[B, S, M]`, output of the encoder.
  positions: `[B, L]` or `[1, L]` integers; only rotary positions read them here.
  position_bias: `[H, 2 L - 1]`, added to the scores of self-attention by the distance between
    query and key, from 1 - L on; None: nothing.
  segment_ids: `[B, L]` integers, of the sequence `x`. A token attends only to tokens of its
    segment, so a row may pack several sentences. Segment 0 is padding: no token attends to it, and
    the context vector of padding is zero, whatever implements attention.
  source_segment_ids: `[B, S]` integers, of `encoded`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model.primitives import Dense, Dropout, HeadNorm, Norm, PositionBias
from transformer_jax.ops.activations import ACTIVATIONS
from transformer_jax.ops.attention import attention_weights, by_distance, dot_product_attention
from transformer_jax.ops.dense import dense
from transformer_jax.ops.masks import make_causal_mask, make_segment_mask
from transformer_jax.ops.positional import apply_rotary


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = SelfAttention(self.config, causal=False)
        self.feed_forward = FeedForward(self.config)
        self.self_attention_norm = Norm(self.config)
        self.feed_forward_norm = Norm(self.config)
        self.dropout = Dropout(self.config.dropout_rate)

    def __call__(
        self,
        x: jax.Array,
        deterministic: bool,
        *,
        positions: jax.Array,
        segment_ids: jax.Array,
        position_bias: jax.Array | None = None,
    ) -> jax.Array:
        """Maps `x` `[B, S, M]` to `[B, S, M]`."""
        x, h = self.self_attention_norm.before(x)
        h = self.self_attention(
            h,
            deterministic,
            positions=positions,
            position_bias=position_bias,
            segment_ids=segment_ids,
        )
        x = self.self_attention_norm.after(x + self.dropout(h, deterministic))

        x, h = self.feed_forward_norm.before(x)
        h = self.feed_forward(h, deterministic)
        return self.feed_forward_norm.after(x + self.dropout(h, deterministic))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, then feed-forward."""

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = SelfAttention(self.config, causal=True)
        self.cross_attention = CrossAttention(self.config)
        self.feed_forward = FeedForward(self.config)
        self.self_attention_norm = Norm(self.config)
        self.cross_attention_norm = Norm(self.config)
        self.feed_forward_norm = Norm(self.config)
        self.dropout = Dropout(self.config.dropout_rate)

    def __call__(
        self,
        x: jax.Array,
        deterministic: bool,
        *,
        encoded: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        source_segment_ids: jax.Array,
        position_bias: jax.Array | None = None,
    ) -> jax.Array:
        """Maps `x` `[B, T, M]` to `[B, T, M]`."""
        x, h = self.self_attention_norm.before(x)
        h = self.self_attention(
            h,
            deterministic,
            positions=positions,
            position_bias=position_bias,
            segment_ids=segment_ids,
        )
        x = self.self_attention_norm.after(x + self.dropout(h, deterministic))

        x, h = self.cross_attention_norm.before(x)
        h = self.cross_attention(
            h,
            deterministic,
            encoded=encoded,
            segment_ids=segment_ids,
            source_segment_ids=source_segment_ids,
        )
        x = self.cross_attention_norm.after(x + self.dropout(h, deterministic))

        x, h = self.feed_forward_norm.before(x)
        h = self.feed_forward(h, deterministic)
        return self.feed_forward_norm.after(x + self.dropout(h, deterministic))


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2): the projections, and attention between them.

    D is `config.head_dim`, by default `d_model / num_heads`.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        # Axes are pairs of a logical name and a size.
        embed = (("embed", config.d_model),)
        heads = (("heads", config.num_heads), ("kv", config.resolved_head_dim))
        kv_heads = (("heads", config.resolved_kv_heads), ("kv", config.resolved_head_dim))
        self.query = Dense(embed, heads, config.use_bias)
        # A head's keys and values start the same whether or not other queries share them.
        uses = config.num_heads // config.resolved_kv_heads
        self.key = Dense(embed, kv_heads, config.use_bias, uses)
        self.value = Dense(embed, kv_heads, config.use_bias, uses)
        self.out = Dense(heads, embed, config.use_bias)
        self.query_norm = HeadNorm(config) if config.qk_norm else None
        self.key_norm = HeadNorm(config) if config.qk_norm else None

    def normalize(self, query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Queries `[B, T, H, D]` and keys `[B, S, G, D]` after `config.qk_norm`."""
        if self.query_norm is None or self.key_norm is None:
            return query, key
        return self.query_norm(query), self.key_norm(key)

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        deterministic: bool,
        *,
        query_segment_ids: jax.Array,
        key_segment_ids: jax.Array,
        causal: bool,
        position_bias: jax.Array | None = None,
    ) -> jax.Array:
        """Attention of all heads, projected to `[B, T, M]`.

        Args:
          query: `[B, T, H, D]`.
          key: `[B, S, G, D]`, G being H or `config.num_kv_heads`.
          value: `[B, S, G, D]`.
          deterministic: True disables dropout.
          query_segment_ids: `[B, T]`.
          key_segment_ids: `[B, S]`.
          causal: position t attends to positions 0 .. t only.
          position_bias: `[H, T + S - 1]`.
        """
        config = self.config
        dropout_rate = 0.0 if deterministic else config.attention_dropout_rate
        context = dot_product_attention(
            query,
            key,
            value,
            distance_bias=position_bias,
            causal=causal,
            query_segment_ids=query_segment_ids,
            key_segment_ids=key_segment_ids,
            dropout_rate=dropout_rate,
            rng=self.make_rng("dropout") if dropout_rate else None,
            scale=config.resolved_attention_scale,
            softcap=config.attention_softcap,
            implementation=config.attention,  # formula or fused kernel; "auto": the fastest
        )  # --> [B, T, H, D]
        if self.is_mutable_collection("intermediates"):
            mask = make_segment_mask(query_segment_ids, key_segment_ids)
            if causal:
                mask = mask & make_causal_mask(query.shape[1], key.shape[1])
            self.capture(query, key, value, mask, position_bias)
        return self.out(context)

    def capture(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array,
        position_bias: jax.Array | None,
    ) -> None:
        """Stores what the heads compute in the collection `intermediates`, if it is mutable.

        Names are `queries` `[B, T, H, D]`, `keys` and `values` `[B, S, G, D]`, all after rotary
        positions, and `weights` `[B, H, T, S]`; each is a tuple of one array. The weights are
        computed by the formula, without dropout, because fused kernels do not return theirs.
        """
        self.sow("intermediates", "queries", query)
        self.sow("intermediates", "keys", key)
        self.sow("intermediates", "values", value)
        bias = position_bias
        if bias is not None:
            bias = by_distance(bias, query.shape[1], key.shape[1])  # --> [H, T, S]
        weights = attention_weights(
            query,
            key,
            mask=mask,
            bias=bias,
            scale=self.config.resolved_attention_scale,
            softcap=self.config.attention_softcap,
        )
        self.sow("intermediates", "weights", weights)


class SelfAttention(MultiHeadAttention):
    """Attention of a sequence to itself."""

    causal: bool

    def setup(self) -> None:
        super().setup()
        config = self.config
        has_bias = config.positional == "relative" and config.relative_per_layer
        self.position_bias = PositionBias(config, self.causal) if has_bias else None

    def __call__(
        self,
        x: jax.Array,
        deterministic: bool,
        *,
        positions: jax.Array,
        segment_ids: jax.Array,
        position_bias: jax.Array | None = None,
    ) -> jax.Array:
        """Maps `x` `[B, L, M]` to `[B, L, M]`."""
        if self.config.num_kv_heads is None:
            query, key, value = project_heads(x, self.query, self.key, self.value)
        else:
            query = self.query(x)
            key, value = project_heads(x, self.key, self.value)
        query, key = self.normalize(query, key)
        if self.position_bias is not None:
            position_bias = self.position_bias(x.shape[1])
        if self.config.positional == "rotary":
            query = apply_rotary(query, positions, self.config.positional_base)
            key = apply_rotary(key, positions, self.config.positional_base)
        return self.attend(
            query,
            key,
            value,
            deterministic,
            query_segment_ids=segment_ids,
            key_segment_ids=segment_ids,
            causal=self.causal,
            position_bias=position_bias,
        )


class CrossAttention(MultiHeadAttention):
    """Attention of the decoder to the encoder's output."""

    def __call__(
        self,
        x: jax.Array,
        deterministic: bool,
        *,
        encoded: jax.Array,
        segment_ids: jax.Array,
        source_segment_ids: jax.Array,
    ) -> jax.Array:
        """Maps `x` `[B, T, M]` to `[B, T, M]`."""
        query = self.query(x)  # --> [B, T, H, D]
        key, value = project_heads(encoded, self.key, self.value)
        query, key = self.normalize(query, key)
        return self.attend(
            query,
            key,
            value,
            deterministic,
            query_segment_ids=segment_ids,
            key_segment_ids=source_segment_ids,
            causal=False,
        )


def project_heads(x: jax.Array, *projections: Dense) -> list[jax.Array]:
    """Projects `x` `[B, L, M]` to one array `[B, L, H, D]` for each of n equal projections.

    One product with the stacked kernels is faster than n products. The kernels `[M, H, D]` and
    biases `[H, D]` are separate parameters, as in published checkpoints.
    """
    # `dense` multiplies by `[M, H·n·D]`. H is the outermost of these axes, so that the heads of a
    # device are one contiguous block.
    kernel = jnp.stack([p.kernel for p in projections], axis=2)  # --> [M, H, n, D]
    biases = [p.bias for p in projections if p.bias is not None]
    bias = jnp.stack(biases, axis=1) if biases else None  # --> [H, n, D]
    out = dense(x, kernel, bias)  # --> [B, L, H, n, D]
    return [out[..., i, :] for i in range(len(projections))]


class FeedForward(nn.Module):
    """Two dense layers with an activation between them (section 3.3), or gated (Shazeer 2020)."""

    config: ModelConfig

    # Not `setup`: dropout's bits depend on its automatic name. Runs that were started with older
    # versions resume with the same bits.
    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Applies the same function to each position of `x` `[B, L, M]`, to `[B, L, M]`."""
        config = self.config
        embed = (("embed", config.d_model),)
        mlp = (("mlp", config.d_ff),)
        h = Dense(embed, mlp, config.use_bias, name="up")(x)  # --> [B, L, F]
        if config.feed_forward == "gated":
            gate = Dense(embed, mlp, config.use_bias, name="gate")(x)  # --> [B, L, F]
            h = ACTIVATIONS[config.activation](gate) * h
        else:
            h = ACTIVATIONS[config.activation](h)
        h = Dropout(config.activation_dropout_rate)(h, deterministic)
        return Dense(mlp, embed, config.use_bias, name="down")(h)  # --> [B, L, M]
