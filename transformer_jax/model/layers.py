"""Layers of the encoder-decoder: attention, feed-forward, and what surrounds them.

Modules own parameters and call the pure functions of `transformer_jax.ops`.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.ops import attention as attention_lib
from transformer_jax.ops import platforms, positional
from transformer_jax.ops.dense import dense
from transformer_jax.ops.dropout import dropout
from transformer_jax.ops.masks import combine_masks, make_causal_mask, make_segment_mask

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
}


def compute_dtype(config: ModelConfig, platform: str | None = None) -> jnp.dtype:
    """Type of activations: bfloat16 on GPU and TPU, else float32, unless the config names one.

    Args:
      config: of the model.
      platform: that computes; None: `platforms.current()`.
    """
    if config.dtype != "auto":
        return jnp.dtype(config.dtype)
    platform = platforms.current() if platform is None else platform
    return jnp.dtype(jnp.bfloat16 if platform in platforms.HAS_BFLOAT16 else jnp.float32)


def with_axes(init: Callable[..., Any], *axes: str) -> Callable[..., Any]:
    """`init`, with a name for each axis of the parameter.

    Names are those of `training.partition.RULES`, which lay them over devices: `embed` (M), `heads`
    (H), `kv` (D), `mlp` (F), `vocab` (V), `positions`.
    """
    return nn.with_logical_partitioning(init, axes)


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
            epsilon=self.epsilon, dtype=jnp.float32, use_fast_variance=False, name="norm",
            scale_init=with_axes(nn.initializers.ones, "embed"),
            bias_init=with_axes(nn.initializers.zeros, "embed"),
        )  # fmt: skip
        return norm(x).astype(x.dtype)


Axes = tuple[tuple[str, int], ...]  # name (see `with_axes`) and size of each


class Dense(nn.Module):
    """A dense layer: `kernel` `[*inner, *outer]` and `bias` `[*outer]`, applied by `ops.dense`."""

    inner: Axes
    outer: Axes

    def setup(self) -> None:
        names, sizes = zip(*self.inner, *self.outer, strict=True)
        num_inner = len(self.inner)
        init = nn.initializers.xavier_uniform(
            in_axis=range(num_inner), out_axis=range(num_inner, len(names))
        )
        self.kernel = self.param("kernel", with_axes(init, *names), sizes)
        zeros = with_axes(nn.initializers.zeros, *names[num_inner:])
        self.bias = self.param("bias", zeros, sizes[num_inner:])

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., *outer]` of `x` `[..., *inner]`."""
        return dense(x, self.kernel, self.bias)


def project_heads(x: jax.Array, *projections: Dense) -> list[jax.Array]:
    """`x` `[B, T, M]` under each projection, `[B, T, H, D]`, by one matrix product for all."""
    # Stacked after the heads, which may be sharded over devices.
    kernel = jnp.stack([p.kernel for p in projections], axis=2)  # --> [M, H, n, D]
    bias = jnp.stack([p.bias for p in projections], axis=1)
    out = dense(x, kernel, bias)
    return [out[..., i, :] for i in range(len(projections))]


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2); `head_dim` is free of `d_model`.

    Where the collection `intermediates` is mutable, `attend` leaves there what heads work with:
    `queries` `[B, T, H, D]`, `keys` and `values` `[B, S, H, D]`, `weights` `[B, H, T, S]`.
    """

    config: ModelConfig

    def setup(self) -> None:
        embed = (("embed", self.config.d_model),)
        heads = ("heads", self.config.num_heads), ("kv", self.config.resolved_head_dim)
        self.query, self.key, self.value = (Dense(embed, heads) for _ in range(3))
        self.out = Dense(heads, embed)

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
        if self.is_mutable_collection("intermediates"):
            self._show(query, key, value, **masking)
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

    def _show(self, query, key, value, causal=False, query_segment_ids=None, key_segment_ids=None):
        mask = combine_masks(
            make_segment_mask(query_segment_ids, key_segment_ids),
            make_causal_mask(query.shape[1], key.shape[1]) if causal else None,
        )
        weights = attention_lib.attention_weights(query, key, mask=mask)
        seen = {"queries": query, "keys": key, "values": value, "weights": weights}
        for name, array in seen.items():
            self.sow("intermediates", name, array)


class FeedForward(nn.Module):
    """Two dense layers with an activation between (section 3.3)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        config = self.config
        embed, hidden = (("embed", config.d_model),), (("mlp", config.d_ff),)
        x = ACTIVATIONS[config.activation](Dense(embed, hidden, name="up")(x))
        x = Dropout(config.activation_dropout_rate)(x, deterministic)
        return Dense(hidden, embed, name="down")(x)


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
            query = self.cross_attention.project_query(h)
            key, value = self.cross_attention.project_source(encoded)
            return self.cross_attention.attend(
                query,
                key,
                value,
                deterministic,
                query_segment_ids=segment_ids,
                key_segment_ids=source_segment_ids,
            )

        x = self._residual(x, self.self_attention_norm, attend_self, self.dropout, deterministic)
        x = self._residual(x, self.cross_attention_norm, attend_source, self.dropout, deterministic)
        feed = functools.partial(self.feed_forward, deterministic=deterministic)
        return self._residual(x, self.feed_forward_norm, feed, self.dropout, deterministic)
