"""The encoder-decoder of "Attention Is All You Need" as a Flax linen module.

It reads complete sequences. `incremental` is the same decoder, one position at a time.
"""

import inspect
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model.layers import DecoderLayer, EncoderLayer
from transformer_jax.model.primitives import Dropout, Norm, with_axes
from transformer_jax.ops.embedding import embed_tokens
from transformer_jax.ops.losses import projected_logits
from transformer_jax.ops.platforms import compute_dtype
from transformer_jax.ops.positional import SINUSOIDS, position_table

Params = dict[str, Any]  # nested by module name; the leaves are arrays


class Embedding(nn.Module):
    """Scaled token vectors plus positions, with dropout (sections 3.4 and 3.5)."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.position_table = None
        if config.positional in SINUSOIDS:
            self.position_table = jnp.asarray(position_table(config))
        elif config.positional == "learned":
            init = with_axes(nn.initializers.normal(0.02), "positions", "embed")
            self.position_table = self.param("positions", init, (config.max_len, config.d_model))
        self.dropout = Dropout(config.dropout_rate)

    def __call__(
        self, table: jax.Array, tokens: jax.Array, positions: jax.Array, deterministic: bool
    ) -> jax.Array:
        """Vectors `[B, T, M]` in the type of the computation.

        Args:
          table: `[V, M]`.
          tokens: `[B, T]` integers.
          positions: `[B, T]` or `[1, T]` integers.
          deterministic: no dropout.
        """
        dtype = compute_dtype(self.config)
        x = embed_tokens(self.config, table, self.position_table, tokens, positions, dtype)
        return self.dropout(x, deterministic)


class Transformer(nn.Module):
    """Encoder and decoder with their embeddings.

    Tokens and segment ids are integers, `[B, S]` for the source and `[B, T]` for the target.
    Segment id 0 is padding. Positions default to 0, 1, 2, …; rows that pack several sentences pass
    positions that restart with each segment.
    """

    config: ModelConfig
    remat: bool = False  # recompute the layers' activations in the backward pass

    def setup(self) -> None:
        config, decoder_config = self.config, self.config.for_decoder()
        encoder_layer = recomputed(EncoderLayer) if self.remat else EncoderLayer
        decoder_layer = recomputed(DecoderLayer) if self.remat else DecoderLayer
        self.embed_source = Embedding(config)
        self.embed_target = Embedding(config)
        self.encoder_layers = [encoder_layer(config) for _ in range(config.num_encoder_layers)]
        self.decoder_layers = [
            decoder_layer(decoder_config) for _ in range(config.num_decoder_layers)
        ]
        if config.norm_position == "pre":
            self.encoder_norm = Norm(config)
            self.decoder_norm = Norm(config)

        init = with_axes(nn.initializers.normal(config.d_model**-0.5), "vocab", "embed")
        source_shape = (config.source_vocab_size, config.d_model)
        target_shape = (config.target_vocab_size, config.d_model)
        self.target_table = self.param("target_embedding", init, target_shape)
        self.source_table = self.target_table
        if config.tie_embeddings != "all":
            self.source_table = self.param("source_embedding", init, source_shape)
        self.output_table = self.target_table
        if config.tie_embeddings == "none":
            self.output_table = self.param("output_embedding", init, target_shape)
        self.output_bias = None
        if config.output_bias:
            zeros = with_axes(nn.initializers.zeros, "vocab")
            self.output_bias = self.param("output_bias", zeros, target_shape[:1])

    def encode(
        self,
        inputs: jax.Array,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Encoder output `[B, S, M]`.

        Args:
          inputs: `[B, S]` tokens.
          positions: `[B, S]` or `[1, S]`; None: 0 .. S - 1.
          segment_ids: `[B, S]`; None: one segment without padding.
          deterministic: no dropout.
        """
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
        encoded: jax.Array,
        decoder_inputs: jax.Array,
        source_segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Decoder output `[B, T, M]`, before the projection to the vocabulary.

        Args:
          encoded: `[B, S, M]` from `encode`.
          decoder_inputs: `[B, T]`, the target tokens shifted right.
          source_segment_ids: `[B, S]`; None: one segment without padding.
          positions: `[B, T]` or `[1, T]`; None: 0 .. T - 1.
          segment_ids: `[B, T]`; None: one segment without padding.
          deterministic: no dropout.
        """
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

    def output_projection(self) -> tuple[jax.Array, jax.Array | None]:
        """Projection to the vocabulary: float32 `[V, M]`, and its bias `[V]` if it has one."""
        return self.output_table, self.output_bias

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits `[B, T, V]` in float32 of the decoder's output `[B, T, M]`."""
        return projected_logits(hidden, self.output_table.astype(hidden.dtype), self.output_bias)

    def __call__(self, batch: dict[str, jax.Array], deterministic: bool = True) -> jax.Array:
        """Logits `[B, T, V]` of a training batch."""
        return self.logits(self.hidden(batch, deterministic))


def recomputed(layer: type[nn.Module]) -> type[nn.Module]:
    """`layer`, whose activations are computed again in the backward pass."""
    arguments = list(inspect.signature(layer.__call__).parameters)
    return nn.remat(layer, static_argnums=arguments.index("deterministic"))


def init_params(config: ModelConfig, rng: jax.Array) -> Params:
    """Fresh parameters; trace it with `jax.eval_shape` for shapes alone."""
    return nn.meta.unbox(_init_with_axes(config, rng))


def param_axes(config: ModelConfig) -> Params:
    """For each parameter a `PartitionSpec` of its logical axes (`primitives.with_axes`)."""
    boxed = jax.eval_shape(lambda: _init_with_axes(config, jax.random.key(0)))
    return nn.get_partition_spec(boxed)


def _init_with_axes(config: ModelConfig, rng: jax.Array) -> Params:
    """Fresh parameters, each boxed with the names of its axes."""
    tokens = jnp.ones((1, 2), jnp.int32)
    return Transformer(config).init({"params": rng}, tokens, tokens, method=_run)["params"]


def _run(model: Transformer, inputs: jax.Array, decoder_inputs: jax.Array) -> jax.Array:
    """Calls every module of the model once, so that all parameters are created."""
    return model.logits(model.decode(model.encode(inputs), decoder_inputs))
