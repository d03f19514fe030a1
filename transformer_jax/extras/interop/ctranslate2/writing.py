"""Export to a CTranslate2 directory, through `ctranslate2.specs`."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
from etils import epath

from transformer_jax.config import Config, ModelConfig
from transformer_jax.data.foreign_tokenizers import JsonTokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.extras.interop import capabilities, layout
from transformer_jax.extras.interop.ctranslate2.reading import SETTINGS_FILE
from transformer_jax.translator import alignment
from transformer_jax.translator.alignment import AttentionChoice

ALL_HEADS = 0  # as CTranslate2 writes the mean of all
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def write_directory(
    folder: epath.Path,
    config: Config,
    tokenizers: TokenizerPair,
    params: layout.Params,
    quantization: str = "float32",
    attention: AttentionChoice | None = None,
) -> None:
    """Writes `model.bin`, vocabularies, `config.json`, the tokenizers and our own settings.

    The end symbol is added to sources by CTranslate2 itself (`add_source_eos`). Our settings let
    `reading.read_directory` translate with the directory as with the run.

    Args:
      folder: created if it is missing.
      config: of the model.
      tokenizers: their tokens become the vocabularies.
      params: our parameters.
      quantization: float32, float16 or int8.
      attention: that comes with translations. CTranslate2 has the mean of the first heads of a
        layer, so that a single head becomes the first one. None: `alignment.of_model`.
    """
    from ctranslate2.specs import transformer_spec

    model = config.model
    capabilities.check("ctranslate2", model)
    attention = attention or alignment.of_model(config)
    # Only int8 needs copies, because its quantization works in place.
    make = np.array if quantization == "int8" else np.asarray
    params = jax.tree.map(lambda x: make(x, np.float32), params)
    params = _with_first_head(params, attention, model.num_decoder_layers)
    spec = transformer_spec.TransformerSpec(
        _stack(transformer_spec.TransformerEncoderSpec, model, model.num_encoder_layers),
        _stack(
            transformer_spec.TransformerDecoderSpec,
            model.for_decoder(),
            model.num_decoder_layers,
            alignment_layer=_layer_number(attention, model.num_decoder_layers),
            alignment_heads=ALL_HEADS if attention.head is None else 1,
        ),
    )
    _fill(spec, model, params)
    source, target = tokenizers.source, tokenizers.target
    spec.register_source_vocabulary(source.tokens(range(source.vocab_size)))
    tokens = target.tokens(range(target.vocab_size))
    spec.register_target_vocabulary(tokens)
    spec.config.unk_token = tokens[target.unk_id]
    spec.config.bos_token = tokens[model.decoder_start_id]
    spec.config.eos_token = tokens[target.eos_id]
    spec.config.decoder_start_token = tokens[model.decoder_start_id]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    _write_state(folder, config, tokenizers, attention)


def _write_state(
    folder: epath.Path, config: Config, tokenizers: TokenizerPair, attention: AttentionChoice
) -> None:
    """What CTranslate2 does not read: our own settings, and the tokenizers."""
    source, target = tokenizers.source, tokenizers.target
    state = {
        "config": dataclasses.asdict(config),
        "tokenizers": tokenizers.state,
        "attention_shift": attention.shift,
    }
    (folder / SETTINGS_FILE).write_text(
        json.dumps(state, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if isinstance(source, JsonTokenizer):
        (folder / "tokenizer.json").write_bytes(source.model)
        return
    (folder / "source.spm").write_bytes(source.model)
    (folder / "target.spm").write_bytes(target.model)


def _layer_number(attention: AttentionChoice, num_layers: int) -> int:
    """From 0; in a decoder of one layer, -2 is that layer."""
    return max(attention.layer + num_layers, 0) if attention.layer < 0 else attention.layer


def _with_first_head(
    params: layout.Params, attention: AttentionChoice, num_layers: int
) -> layout.Params:
    """Parameters whose heads are in another order, which changes nothing but their numbers."""
    if not attention.head:
        return params
    name = f"decoder_layers_{_layer_number(attention, num_layers)}"
    cross = dict(params[name]["cross_attention"])
    num_heads, num_keys = (np.shape(cross[part]["kernel"])[1] for part in ("query", "key"))
    # Each head of keys goes before the others together with its heads of queries.
    heads = np.arange(num_heads).reshape(num_keys, -1)
    group, row = divmod(attention.head, heads.shape[1])
    key_order = np.array([group, *np.delete(np.arange(num_keys), group)])
    heads[group] = [heads[group, row], *np.delete(heads[group], row)]
    order = heads[key_order].reshape(-1)
    orders: dict[str, np.ndarray] = {"query": order, "key": key_order, "value": key_order}
    for part, part_order in orders.items():  # kernels are [inputs, heads, head_dim]
        # The heads are the last axis but one of kernels, and the first of biases.
        cross[part] = {n: np.take(x, part_order, np.ndim(x) - 2) for n, x in cross[part].items()}
    cross["out"] = {**cross["out"], "kernel": np.take(cross["out"]["kernel"], order, 0)}
    return {**params, name: {**params[name], "cross_attention": cross}}


def _stack(spec_class: Any, model: ModelConfig, num_layers: int, **further: Any) -> Any:
    from ctranslate2.specs import common_spec

    rotary: dict[str, Any] = {}
    if model.positional == "rotary":  # all of a head, in halves
        rotary = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": model.positional_base}
    return spec_class(
        num_layers,
        model.num_heads,
        pre_norm=model.norm_position == "pre",
        activation=common_spec.Activation[ACTIVATIONS[model.activation]],
        layernorm_embedding=model.embedding_norm,
        relative_attention_bias=model.positional == "relative",
        ffn_glu=model.feed_forward == "gated",
        rms_norm=model.norm == "rms",
        num_heads_kv=model.num_kv_heads,
        head_dim=model.head_dim,
        **rotary,
        **further,
    )


def _fill(spec: Any, model: ModelConfig, params: layout.Params) -> None:
    # A rotary encoder adds a table nevertheless, stacks with relative positions have none.
    zeros = np.zeros((model.max_len, model.d_model), np.float32)
    source_table, target_table = layout.position_tables(model, params) or (zeros, None)
    target = params["target_embedding"]
    tables = {"source_embedding": target, "output_embedding": target, **params}
    spec.encoder.embeddings[0].weight = tables["source_embedding"]
    spec.decoder.embeddings.weight = target
    spec.decoder.projection.weight = tables["output_embedding"]
    if model.output_bias:
        spec.decoder.projection.bias = params["output_bias"]
    if model.logit_scale != 1.0:
        spec.decoder.scale_outputs = model.logit_scale
    for part, table, name in (
        (spec.encoder, source_table, "encoder"),
        (spec.decoder, target_table, "decoder"),
    ):
        part.scale_embeddings = model.scale_embeddings
        if table is not None and hasattr(part, "position_encodings"):
            part.position_encodings.encodings = table
        if model.norm_position == "pre":
            _fill_norm(part.layer_norm, params[f"{name}_norm"]["norm"])
        if model.embedding_norm:
            side = {"encoder": "source", "decoder": "target"}[name]
            _fill_norm(part.layernorm_embedding, params[f"embed_{side}"]["norm"]["norm"])
        shared = params.get(f"{name}_position_bias")
        for number, layer in enumerate(part.layer):
            _fill_layer(layer, model, params[f"{name}_layers_{number}"], shared)


def _fill_layer(
    layer: Any, model: ModelConfig, params: layout.Params, shared_bias: layout.Params | None
) -> None:
    attention = params["self_attention"]
    _fill_linear(
        layer.self_attention.linear[0], attention["query"], attention["key"], attention["value"]
    )
    _fill_attention(layer.self_attention, model, attention, params["self_attention_norm"])
    if model.positional == "relative":
        bias = attention.get("position_bias", shared_bias)
        layer.self_attention.relative_attention_bias = bias["table"]
        layer.self_attention.relative_attention_max_distance = np.int32(model.relative_max_distance)
    if "cross_attention" in params:
        attention = params["cross_attention"]
        _fill_linear(layer.attention.linear[0], attention["query"])
        _fill_linear(layer.attention.linear[1], attention["key"], attention["value"])
        _fill_attention(layer.attention, model, attention, params["cross_attention_norm"])
    feed_forward = params["feed_forward"]
    if "gate" in feed_forward:
        _fill_linear(layer.ffn.linear_0, feed_forward["gate"])
        _fill_linear(layer.ffn.linear_0_noact, feed_forward["up"])
    else:
        _fill_linear(layer.ffn.linear_0, feed_forward["up"])
    _fill_linear(layer.ffn.linear_1, feed_forward["down"], inputs=-1)
    _fill_norm(layer.ffn.layer_norm, params["feed_forward_norm"]["norm"])


def _fill_attention(
    spec: Any, model: ModelConfig, attention: layout.Params, norm: layout.Params
) -> None:
    """All but the products of queries, keys and values."""
    _fill_linear(spec.linear[-1], attention["out"], inputs=-1)
    _fill_norm(spec.layer_norm, norm["norm"])
    if model.attention_scale is not None:
        spec.queries_scale = model.attention_scale


def _fill_linear(spec: Any, *denses: layout.Params, inputs: int = 1) -> None:
    """One product for all `denses`, whose outputs follow each other: `weight` `[out, in]`.

    Args:
      spec: to fill.
      denses: kernels, and biases where the model has them.
      inputs: how many of a kernel's axes its input has; -1: all but the last.
    """
    weights = []
    for dense in denses:
        kernel = dense["kernel"]
        rows = int(np.prod(kernel.shape[:inputs]))
        weights.append(kernel.reshape(rows, -1).T)
    spec.weight = np.concatenate(weights) if len(weights) > 1 else weights[0]
    if "bias" in denses[0]:
        spec.bias = np.concatenate([dense["bias"].reshape(-1) for dense in denses])


def _fill_norm(spec: Any, params: layout.Params) -> None:
    spec.gamma = params["scale"]
    if "bias" in params:
        spec.beta = params["bias"]
