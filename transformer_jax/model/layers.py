"""Layers of the encoder-decoder ("Attention Is All You Need", sections 3.1 to 3.3).

A residual branch is `norm(x + dropout(branch(x)))` in a post-norm model, as in the paper, and
`x + dropout(branch(norm(x)))` in a pre-norm model. The norm's `before` and `after` normalize in one
of the two places.

Letters of shapes: B batch, T target or query length, S source or key length, H heads, D head_dim,
M d_model, F d_ff, V vocabulary.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model.primitives import Dense, Dropout, Norm
from transformer_jax.ops.activations import ACTIVATIONS
from transformer_jax.ops.attention import attention_weights, dot_product_attention
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
        self, x: jax.Array, positions: jax.Array, segment_ids: jax.Array, deterministic: bool
    ) -> jax.Array:
        """Output `[B, S, M]` of the layer.

        Args:
          x: `[B, S, M]`.
          positions: `[B, S]` or `[1, S]` integers.
          segment_ids: `[B, S]` integers; 0 is padding.
          deterministic: no dropout.
        """
        h = self.self_attention_norm.before(x)
        h = self.self_attention(h, positions, segment_ids, deterministic)
        x = self.self_attention_norm.after(x + self.dropout(h, deterministic))

        h = self.feed_forward_norm.before(x)
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
        encoded: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        source_segment_ids: jax.Array,
        deterministic: bool,
    ) -> jax.Array:
        """Output `[B, T, M]` of the layer.

        Args:
          x: `[B, T, M]`.
          encoded: `[B, S, M]`, output of the encoder.
          positions: `[B, T]` or `[1, T]` integers.
          segment_ids: `[B, T]` integers; 0 is padding.
          source_segment_ids: `[B, S]` integers; 0 is padding.
          deterministic: no dropout.
        """
        h = self.self_attention_norm.before(x)
        h = self.self_attention(h, positions, segment_ids, deterministic)
        x = self.self_attention_norm.after(x + self.dropout(h, deterministic))

        h = self.cross_attention_norm.before(x)
        h = self.cross_attention(h, encoded, segment_ids, source_segment_ids, deterministic)
        x = self.cross_attention_norm.after(x + self.dropout(h, deterministic))

        h = self.feed_forward_norm.before(x)
        h = self.feed_forward(h, deterministic)
        return self.feed_forward_norm.after(x + self.dropout(h, deterministic))


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2): the projections, and attention between them.

    The size of a head, D, is independent of `d_model / num_heads` (`config.head_dim`).
    """

    config: ModelConfig

    def setup(self) -> None:
        embed = (("embed", self.config.d_model),)
        heads = ("heads", self.config.num_heads), ("kv", self.config.resolved_head_dim)
        self.query = Dense(embed, heads)
        self.key = Dense(embed, heads)
        self.value = Dense(embed, heads)
        self.out = Dense(heads, embed)

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        query_segment_ids: jax.Array,
        key_segment_ids: jax.Array,
        deterministic: bool,
        causal: bool,
    ) -> jax.Array:
        """Attention within each segment, projected to `[B, T, M]`.

        Args:
          query: `[B, T, H, D]`.
          key: `[B, S, H, D]`.
          value: `[B, S, H, D]`.
          query_segment_ids: `[B, T]` integers; 0 is padding.
          key_segment_ids: `[B, S]` integers; 0 is padding.
          deterministic: no dropout.
          causal: position t attends to positions 0 .. t only.
        """
        capture_attention(self, query, key, value, query_segment_ids, key_segment_ids, causal)
        dropout_rate = 0.0 if deterministic else self.config.attention_dropout_rate
        out = dot_product_attention(
            query,
            key,
            value,
            causal=causal,
            query_segment_ids=query_segment_ids,
            key_segment_ids=key_segment_ids,
            dropout_rate=dropout_rate,
            rng=self.make_rng("dropout") if dropout_rate else None,
            implementation=self.config.attention,
        )  # --> [B, T, H, D]
        return self.out(out)


class SelfAttention(MultiHeadAttention):
    """Attention of a sequence to itself."""

    causal: bool

    def __call__(
        self, x: jax.Array, positions: jax.Array, segment_ids: jax.Array, deterministic: bool
    ) -> jax.Array:
        """Attention of each position to its segment, `[B, T, M]`.

        Args:
          x: `[B, T, M]`.
          positions: `[B, T]` or `[1, T]` integers, for rotary positions.
          segment_ids: `[B, T]` integers; 0 is padding.
          deterministic: no dropout.
        """
        query, key, value = project_heads(x, self.query, self.key, self.value)
        if self.config.positional == "rotary":
            query = apply_rotary(query, positions, self.config.positional_base)
            key = apply_rotary(key, positions, self.config.positional_base)
        return self.attend(
            query, key, value, segment_ids, segment_ids, deterministic, causal=self.causal
        )


class CrossAttention(MultiHeadAttention):
    """Attention of the decoder to the encoder's output."""

    def __call__(
        self,
        x: jax.Array,
        encoded: jax.Array,
        segment_ids: jax.Array,
        source_segment_ids: jax.Array,
        deterministic: bool,
    ) -> jax.Array:
        """Attention of each target position to the source of its segment, `[B, T, M]`.

        Args:
          x: `[B, T, M]`.
          encoded: `[B, S, M]`, output of the encoder.
          segment_ids: `[B, T]` integers; 0 is padding.
          source_segment_ids: `[B, S]` integers; 0 is padding.
          deterministic: no dropout.
        """
        (query,) = project_heads(x, self.query)
        key, value = project_heads(encoded, self.key, self.value)
        return self.attend(
            query, key, value, segment_ids, source_segment_ids, deterministic, causal=False
        )


def project_heads(x: jax.Array, *projections: Dense) -> list[jax.Array]:
    """Projects `x` `[B, T, M]` to one array `[B, T, H, D]` for each projection, by one product."""
    # Stacked after the heads, as `dense` requires: only the first merged axis may be sharded.
    kernel = jnp.stack([p.kernel for p in projections], axis=2)  # --> [M, H, n, D]
    bias = jnp.stack([p.bias for p in projections], axis=1)  # --> [H, n, D]
    out = dense(x, kernel, bias)  # --> [B, T, H, n, D]
    return [out[..., i, :] for i in range(len(projections))]


class FeedForward(nn.Module):
    """Two dense layers with an activation between them (section 3.3)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Maps each position of `x` `[B, T, M]` by itself, `[B, T, M]`."""
        embed, mlp = (("embed", self.config.d_model),), (("mlp", self.config.d_ff),)
        x = Dense(embed, mlp, name="up")(x)  # --> [B, T, F]
        x = ACTIVATIONS[self.config.activation](x)
        x = Dropout(self.config.activation_dropout_rate)(x, deterministic)
        return Dense(mlp, embed, name="down")(x)  # --> [B, T, M]


def capture_attention(
    module: nn.Module,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    query_segment_ids: jax.Array,
    key_segment_ids: jax.Array,
    causal: bool,
) -> None:
    """Stores what the heads compute in the collection `intermediates`, where it is mutable.

    Names are `queries` `[B, T, H, D]`, `keys` and `values` `[B, S, H, D]`, and `weights`
    `[B, H, T, S]`. XLA removes the arrays that a compiled function does not return.
    """
    if not module.is_mutable_collection("intermediates"):
        return
    mask = make_segment_mask(query_segment_ids, key_segment_ids)
    if causal:
        mask = mask & make_causal_mask(query.shape[1], key.shape[1])
    weights = attention_weights(query, key, mask=mask)
    for name, x in {"queries": query, "keys": key, "values": value, "weights": weights}.items():
        module.sow("intermediates", name, x)
