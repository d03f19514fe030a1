"""The encoder-decoder of "Attention Is All You Need" as a Flax linen module.

It processes entire sequences. `model.incremental` is the same decoder with a cache, one position
per call. Change both together: `tests/test_model.py` compares them with one oracle.

Parameters are float32. `Embedding` returns the compute type (`choices.compute_dtype`), and layers
keep it: `Dense` casts its parameters to the type of its input. Norms, softmax and logits are
computed in float32.

Letters of shapes: B batch, S source length, T target length, L any length, M d_model, V vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.model.choices import compute_dtype, embed_tokens, sinusoid_table
from transformer_jax.model.layers import DecoderLayer, EncoderLayer
from transformer_jax.model.primitives import Dropout, Norm, PositionBias, with_axes
from transformer_jax.ops.dense import projected_logits
from transformer_jax.ops.positional import SINUSOIDS

Params = dict[str, Any]  # nested by module name; the leaves are arrays
Remat = Literal["none", "dots", "full"]

# Activations that the backward pass does not recompute. `dots`: the results of products with
# parameters. Attention's products have batch axes, and are recomputed: scores are large.
_SAVED: dict[str, Callable[..., bool] | None] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": None,
}


def with_remat(layer_class: type[nn.Module], remat: Remat) -> type[nn.Module]:
    """`layer_class` whose activations are recomputed in the backward pass."""
    if remat == "none":
        return layer_class
    # `deterministic` selects Python branches, so it is static. `nn.remat` names static arguments by
    # position: 0 is `self`, 1 is `x`.
    return nn.remat(layer_class, static_argnums=2, policy=_SAVED[remat])


def scan_layers(
    layers: Sequence[nn.Module],
    x: jax.Array,
    deterministic: bool,
    *,
    rng: jax.Array | None,
    remat: Remat,
    gather: Callable[[Params], Params],
    **inputs: jax.Array | None,
) -> jax.Array:
    """Applies the layers as the body of one loop, which is compiled once.

    Their parameters stay separate, so a checkpoint does not show whether it was trained this way.

    Args:
      layers: of one class and config, bound to their parameters.
      x: input of the first layer, `[B, L, M]`.
      deterministic: True disables dropout.
      rng: key of the dropout; None: there is none.
      remat: what the backward pass recomputes.
      gather: makes the parameters of a layer from what this device has of them. With remat the
        backward pass calls it again, so a device holds the parameters of one layer at a time.
      inputs: the same for all layers.
    """
    stacked = jax.tree.map(
        lambda *x: jnp.stack(x), *(layer.variables["params"] for layer in layers)
    )
    keys = None if rng is None else jax.random.split(rng, len(layers))
    layer = layers[0].clone(parent=None)  # which takes its parameters as an argument

    apply_layer: Callable[..., Any] = layer.apply

    def apply(x: jax.Array, params_and_key: tuple[Params, jax.Array | None]):
        params, key = params_and_key
        rngs = None if key is None else {"dropout": key}
        return apply_layer({"params": gather(params)}, x, deterministic, rngs=rngs, **inputs), None

    if remat != "none":
        apply = jax.checkpoint(apply, policy=_SAVED[remat], prevent_cse=False)
    return jax.lax.scan(apply, x, (stacked, keys))[0]


class Embedding(nn.Module):
    """`dropout(norm(token_table[tokens] · sqrt(M) + position_table[positions]))`.

    Sections 3.4, 3.5 and 5.4 of the paper. The factor is omitted without `scale_embeddings`, the
    norm without `embedding_norm`.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        # `rotary`, `relative` and `alibi` are applied in attention, and `none` adds nothing.
        self.position_table: jax.Array | None = None
        if config.positional in SINUSOIDS:
            self.position_table = jnp.asarray(sinusoid_table(config))
        elif config.positional == "learned":
            init = with_axes(nn.initializers.normal(0.02), "positions", "embed")
            self.position_table = self.param("positions", init, (config.max_len, config.d_model))
        self.norm = Norm(config) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout_rate)

    def __call__(
        self, token_table: jax.Array, tokens: jax.Array, positions: jax.Array, deterministic: bool
    ) -> jax.Array:
        """Vectors `[B, L, M]` in the compute type.

        Args:
          token_table: `[V, M]`, an argument because source and target may share it.
          tokens: `[B, L]` integers.
          positions: `[B, L]` or `[1, L]` integers below max_len.
          deterministic: True disables dropout.
        """
        dtype = compute_dtype(self.config)
        x = embed_tokens(self.config, token_table, self.position_table, tokens, positions, dtype)
        x = x if self.norm is None else self.norm(x)
        return self.dropout(x, deterministic)


class Transformer(nn.Module):
    """Encoder and decoder with their embeddings.

    Segment ids are integers, `[B, S]` for the source and `[B, T]` for the target. A token attends
    only to tokens of its segment, and segment id 0 is padding. By default nothing is padding: pass
    segment ids if a row contains some, to `encode` and `decode` alike. Positions default to
    0, 1, 2, … and are below `config.max_len`. Rows that pack several sentences pass positions that
    restart with each sentence.

    `config.tie_embeddings` names the tables `[V, M]` that are one parameter: `all` (source, target
    and output), `decoder` (target and output), `inputs` (source and target) or `none`.
    """

    config: ModelConfig
    remat: Remat = "none"  # what the backward pass recomputes
    scan_layers: bool = False  # compile the layers of a stack once, as a loop
    # Makes the parameters of a layer, "encoder_layers" or "decoder_layers", from this device's
    # shards of them; None: devices have all parameters. Only with `scan_layers`.
    gather: Callable[[str, Params], Params] | None = None

    def setup(self) -> None:
        config = self.config
        remat: Remat = "none" if self.scan_layers else self.remat  # else it is of the loop's body
        encoder_layer_class = with_remat(EncoderLayer, remat)
        decoder_layer_class = with_remat(DecoderLayer, remat)
        # The same config, except that `num_heads` and `d_ff` are the decoder's, where they are set.
        decoder_config = config.for_decoder()
        self.embed_source = Embedding(config)
        self.embed_target = Embedding(config)
        self.encoder_layers = [
            encoder_layer_class(config) for _ in range(config.num_encoder_layers)
        ]
        self.decoder_layers = [
            decoder_layer_class(decoder_config) for _ in range(config.num_decoder_layers)
        ]
        # Layers with relative positions of each have a bias of theirs instead.
        shared = config.positional in ("relative", "alibi") and not config.relative_per_layer
        self.encoder_position_bias = PositionBias(config, causal=False) if shared else None
        self.decoder_position_bias = PositionBias(decoder_config, causal=True) if shared else None
        # Pre-norm layers do not normalize their output, so each stack ends with a norm.
        has_final_norm = config.norm_position == "pre"
        self.encoder_norm = Norm(config) if has_final_norm else None
        self.decoder_norm = Norm(config) if has_final_norm else None

        # So logits of normalized outputs have variance 1, and embeddings if they are scaled.
        init = with_axes(nn.initializers.normal(config.d_model**-0.5), "vocab", "embed")
        source_shape = (config.source_vocab_size, config.d_model)
        target_shape = (config.target_vocab_size, config.d_model)
        self.target_table = self.param("target_embedding", init, target_shape)
        if config.tie_embeddings in ("all", "inputs"):
            self.source_table = self.target_table
        else:
            self.source_table = self.param("source_embedding", init, source_shape)
        if config.tie_embeddings in ("inputs", "none"):
            self.output_table = self.param("output_embedding", init, target_shape)
        else:
            self.output_table = self.target_table
        self.output_bias = None
        if config.output_bias:
            zeros = with_axes(nn.initializers.zeros, "vocab")
            self.output_bias = self.param("output_bias", zeros, (config.target_vocab_size,))

    def encode(
        self,
        inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Encoder output `[B, S, M]`.

        Args:
          inputs: `[B, S]` source tokens.
          positions: `[B, S]` or `[1, S]`; None: 0 .. S - 1.
          segment_ids: `[B, S]`; None: one segment without padding.
          deterministic: True disables dropout.
        """
        if positions is None:
            positions = jnp.arange(inputs.shape[1])[None]
        if segment_ids is None:
            segment_ids = jnp.ones_like(inputs)
        x = self.embed_source(self.source_table, inputs, positions, deterministic)
        bias = self.encoder_position_bias
        x = self._apply_layers(
            "encoder_layers",
            x,
            deterministic,
            positions=positions,
            position_bias=None if bias is None else bias(x.shape[1]),
            segment_ids=segment_ids,
        )
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def decode(
        self,
        encoded: jax.Array,
        decoder_inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        source_segment_ids: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Decoder output `[B, T, M]`, as the projection to the vocabulary reads it.

        Args:
          encoded: `[B, S, M]` from `encode`.
          decoder_inputs: `[B, T]`, the target tokens shifted right.
          positions: `[B, T]` or `[1, T]`; None: 0 .. T - 1.
          segment_ids: `[B, T]`; None: one segment without padding.
          source_segment_ids: `[B, S]`, those given to `encode`; None: one segment without padding.
          deterministic: True disables dropout.
        """
        if positions is None:
            positions = jnp.arange(decoder_inputs.shape[1])[None]
        if segment_ids is None:
            segment_ids = jnp.ones_like(decoder_inputs)
        if source_segment_ids is None:
            source_segment_ids = jnp.ones(encoded.shape[:2], jnp.int32)
        x = self.embed_target(self.target_table, decoder_inputs, positions, deterministic)
        bias = self.decoder_position_bias
        x = self._apply_layers(
            "decoder_layers",
            x,
            deterministic,
            encoded=encoded,
            positions=positions,
            position_bias=None if bias is None else bias(x.shape[1]),
            segment_ids=segment_ids,
            source_segment_ids=source_segment_ids,
        )
        x = x if self.decoder_norm is None else self.decoder_norm(x)
        return x if self.config.logit_scale == 1.0 else x * self.config.logit_scale

    def _apply_layers(
        self, stack: str, x: jax.Array, deterministic: bool, **inputs: jax.Array | None
    ) -> jax.Array:
        """Applies the layers of a stack to `x` `[B, L, M]`."""
        layers = getattr(self, stack)
        # A loop neither creates parameters nor stores what its layers compute.
        unrolled = self.is_initializing() or self.is_mutable_collection("intermediates")
        if not self.scan_layers or unrolled or not layers:
            for layer in layers:
                x = layer(x, deterministic, **inputs)
            return x
        return scan_layers(
            layers,
            x,
            deterministic,
            rng=None if deterministic else self.make_rng("dropout"),
            remat=self.remat,
            gather=lambda params: params if self.gather is None else self.gather(stack, params),
            **inputs,
        )

    def hidden(self, batch: dict[str, jax.Array], deterministic: bool = True) -> jax.Array:
        """Decoder output `[B, T, M]` of a training batch (teacher forcing).

        Args:
          batch: `inputs`, `inputs_positions` and `inputs_segment_ids` `[B, S]`; `decoder_inputs`,
            `targets_positions` and `targets_segment_ids` `[B, T]`. Other keys are not read.
          deterministic: True disables dropout.
        """
        encoded = self.encode(
            batch["inputs"],
            positions=batch["inputs_positions"],
            segment_ids=batch["inputs_segment_ids"],
            deterministic=deterministic,
        )
        return self.decode(
            encoded,
            batch["decoder_inputs"],
            positions=batch["targets_positions"],
            segment_ids=batch["targets_segment_ids"],
            source_segment_ids=batch["inputs_segment_ids"],
            deterministic=deterministic,
        )

    def output_projection(self) -> tuple[jax.Array, jax.Array | None]:
        """Projection to the vocabulary: float32 `[V, M]`, and its bias `[V]` if it has one."""
        return self.output_table, self.output_bias

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits `[B, T, V]` in float32 of the decoder's output `[B, T, M]`."""
        softcap = self.config.logit_softcap
        return projected_logits(hidden, self.output_table, self.output_bias, softcap)

    def __call__(self, batch: dict[str, jax.Array], deterministic: bool = True) -> jax.Array:
        """Logits `[B, T, V]` of a training batch, whose keys are those of `hidden`."""
        return self.logits(self.hidden(batch, deterministic))


def alignment_head(num_decoder_layers: int) -> tuple[int, int]:
    """Layer and head of the cross-attention that `train.alignment_weight` teaches to align.

    The last layer but one, as Garg et al. (2019) chose; of a decoder of one layer, that layer.
    """
    return max(num_decoder_layers - 2, 0), 0


def init_params(config: ModelConfig, rng: jax.Array) -> Params:
    """Randomly initialised parameters."""
    return nn.meta.unbox(_init_with_axes(config, rng))


def param_shapes(config: ModelConfig) -> Params:
    """A `jax.ShapeDtypeStruct` for each parameter that `init_params` returns."""
    return nn.meta.unbox(_shapes_with_axes(config))


def check_params(config: ModelConfig, params: Params) -> None:
    """Checks that parameters have the names and shapes that the model needs.

    Raises:
      UserError: which is the first that differs, and how.
    """
    want, got = (
        {jax.tree_util.keystr(path, simple=True, separator="/"): jnp.shape(x) for path, x in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (param_shapes(config), params))
    )
    for name in sorted(want.keys() | got.keys()):
        if want.get(name) != got.get(name):
            has, needs = (
                f"{list(shapes[name])}" if name in shapes else "none" for shapes in (got, want)
            )
            raise UserError(
                f"`params` are of another model than `config`: {name} is {has}, and the config "
                f"needs {needs}."
            )


def param_axes(config: ModelConfig) -> Params:
    """For each parameter a `PartitionSpec` of its logical axes (`primitives.with_axes`)."""
    return nn.get_partition_spec(_shapes_with_axes(config))


# A start needs the shapes several times, and tracing a large model takes seconds.
@functools.lru_cache(maxsize=16)
def _shapes_with_axes(config: ModelConfig) -> Params:
    """A box with a `jax.ShapeDtypeStruct` for each parameter; callers must not change it."""
    return jax.eval_shape(lambda: _init_with_axes(config, jax.random.key(0)))


def _init_with_axes(config: ModelConfig, rng: jax.Array) -> Params:
    """Parameters, each in a box (`nn.LogicallyPartitioned`) with the names of its axes."""
    tokens = jnp.ones((1, 2), jnp.int32)  # no parameter depends on these values or this shape
    variables = Transformer(config).init({"params": rng}, tokens, tokens, method=_call_all_modules)
    return variables["params"]


def _call_all_modules(
    model: Transformer, inputs: jax.Array, decoder_inputs: jax.Array
) -> jax.Array:
    """Calls every module of the model, because Flax creates parameters in the first call."""
    return model.logits(model.decode(model.encode(inputs), decoder_inputs))
