"""The encoder-decoder of "Attention Is All You Need" as a Flax linen module.

Whole sequences only: `incremental` is the decoder one position at a time.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.model.layers import (
    DecoderLayer,
    Dropout,
    EncoderLayer,
    LayerNorm,
    compute_dtype,
    with_axes,
)
from transformer_jax.ops import positional
from transformer_jax.ops.embedding import embed


def position_table(config: ModelConfig) -> np.ndarray:
    """Fixed encodings of positions 0 .. max_len - 1, `[max_len, M]` float32."""
    offset = config.position_offset
    table = positional.sinusoids(
        config.max_len + offset, config.d_model, config.positional, config.positional_base
    )
    return table[offset:]


class Embedding(nn.Module):
    """Token vectors, times sqrt(M) as a rule, plus positions, with dropout (sections 3.4, 3.5)."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        if config.positional == "learned":
            init = with_axes(nn.initializers.normal(0.02), "positions", "embed")
            self.learned = self.param("positions", init, (config.max_len, config.d_model))
        self.dropout = Dropout(config.dropout_rate)

    def __call__(self, table, tokens, positions, deterministic):
        config = self.config
        x = embed(table, tokens, compute_dtype(config))
        if config.scale_embeddings:
            x = x * jnp.asarray(config.d_model**0.5, x.dtype)
        if config.positional in positional.SINUSOIDS:
            x = x + jnp.asarray(position_table(config))[positions].astype(x.dtype)
        elif config.positional == "learned":
            x = x + embed(self.learned, positions, x.dtype)
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
        decoder = config.for_decoder()
        self.decoder_layers = [decoder_layer(decoder) for _ in range(config.num_decoder_layers)]
        if config.norm_position == "pre":
            self.encoder_norm = LayerNorm(config.norm_epsilon)
            self.decoder_norm = LayerNorm(config.norm_epsilon)
        init = with_axes(nn.initializers.normal(config.d_model**-0.5), "vocab", "embed")
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
        self.bias = None
        if config.output_bias:
            init = with_axes(nn.initializers.zeros, "vocab")
            self.bias = self.param("output_bias", init, (config.target_vocab_size,))
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

    def output_projection(self) -> tuple[jax.Array, jax.Array | None]:
        """Projection to the vocabulary: float32 `[V, M]`, and its bias `[V]` where there is one."""
        return self.output_table, self.bias

    def logits(self, hidden: jax.Array) -> jax.Array:
        """float32 `[..., V]` of hidden `[..., M]`."""
        table = self.output_table.astype(hidden.dtype)
        logits = jnp.einsum("...m,vm->...v", hidden, table, preferred_element_type=jnp.float32)
        return logits if self.bias is None else logits + self.bias

    def __call__(self, batch: dict[str, jax.Array], deterministic: bool = True) -> jax.Array:
        """Logits `[B, T, V]` of a training batch."""
        return self.logits(self.hidden(batch, deterministic))


def init_params(config: ModelConfig, rng: jax.Array) -> dict[str, Any]:
    """Fresh parameters; trace it with `jax.eval_shape` for shapes alone."""
    return nn.meta.unbox(_init(config, rng))


def param_axes(config: ModelConfig) -> dict[str, Any]:
    """For each parameter a `PartitionSpec` of the names of its axes (`layers.with_axes`)."""
    return nn.get_partition_spec(jax.eval_shape(lambda: _init(config, jax.random.key(0))))


def _init(config: ModelConfig, rng: jax.Array) -> Any:
    tokens = jnp.ones((1, 2), jnp.int32)
    names = ["decoder_inputs"]
    for side in ("inputs", "targets"):
        names += [side, f"{side}_positions", f"{side}_segment_ids"]
    batch = dict.fromkeys(names, tokens)
    return Transformer(config).init({"params": rng}, batch)["params"]
