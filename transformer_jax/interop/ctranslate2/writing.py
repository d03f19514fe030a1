"""Export to a CTranslate2 directory, through `ctranslate2.specs`."""

import dataclasses
import json
from typing import Any

import numpy as np
from etils import epath
from jax.typing import ArrayLike

from transformer_jax.config import Config, ModelConfig
from transformer_jax.data.foreign_tokenizers import JsonTokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding import alignment
from transformer_jax.decoding.alignment import AttentionChoice
from transformer_jax.interop import capabilities, layout
from transformer_jax.interop.ctranslate2.reading import SETTINGS_FILE

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
    (folder / SETTINGS_FILE).write_text(json.dumps(state, ensure_ascii=False) + "\n")
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
    order = [attention.head, *range(attention.head)]
    order += range(len(order), np.shape(cross["out"]["kernel"])[0])
    for part in ("query", "key", "value"):  # kernels are [inputs, heads, head_dim]
        both = cross[part]
        cross[part] = {
            "kernel": np.take(both["kernel"], order, 1),
            "bias": np.take(both["bias"], order, 0),
        }
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
        head_dim=model.head_dim,
        **rotary,
        **further,
    )


def _fill(spec: Any, model: ModelConfig, params: layout.Params) -> None:
    # A rotary encoder adds a table nevertheless, a rotary decoder does not.
    zeros = np.zeros((model.max_len, model.d_model), np.float32)
    source_table, target_table = layout.position_tables(model, params) or (zeros, None)
    target = params["target_embedding"]
    tables = {"source_embedding": target, "output_embedding": target, **params}
    spec.encoder.embeddings[0].weight = _array(tables["source_embedding"])
    spec.decoder.embeddings.weight = _array(target)
    spec.decoder.projection.weight = _array(tables["output_embedding"])
    if model.output_bias:
        spec.decoder.projection.bias = _array(params["output_bias"])
    for part, table, name in (
        (spec.encoder, source_table, "encoder"),
        (spec.decoder, target_table, "decoder"),
    ):
        part.scale_embeddings = model.scale_embeddings
        if table is not None:
            part.position_encodings.encodings = table
        if model.norm_position == "pre":
            _fill_norm(part.layer_norm, params[f"{name}_norm"])
        for number, layer in enumerate(part.layer):
            _fill_layer(layer, params[f"{name}_layers_{number}"])


def _fill_layer(layer: Any, params: layout.Params) -> None:
    attention = params["self_attention"]
    _fill_linear(
        layer.self_attention.linear[0], attention["query"], attention["key"], attention["value"]
    )
    _fill_linear(layer.self_attention.linear[1], attention["out"])
    _fill_norm(layer.self_attention.layer_norm, params["self_attention_norm"])
    if "cross_attention" in params:
        attention = params["cross_attention"]
        _fill_linear(layer.attention.linear[0], attention["query"])
        _fill_linear(layer.attention.linear[1], attention["key"], attention["value"])
        _fill_linear(layer.attention.linear[2], attention["out"])
        _fill_norm(layer.attention.layer_norm, params["cross_attention_norm"])
    _fill_linear(layer.ffn.linear_0, params["feed_forward"]["up"])
    _fill_linear(layer.ffn.linear_1, params["feed_forward"]["down"])
    _fill_norm(layer.ffn.layer_norm, params["feed_forward_norm"])


def _fill_linear(spec: Any, *denses: layout.Params) -> None:
    """One product for all `denses`, whose outputs follow each other: `weight` `[out, in]`."""
    spec.weight = np.concatenate(
        [_array(d["kernel"]).reshape(-1, d["bias"].size).T for d in denses]
    )
    spec.bias = np.concatenate([_array(d["bias"]).reshape(-1) for d in denses])


def _fill_norm(spec: Any, params: layout.Params) -> None:
    spec.gamma, spec.beta = _array(params["norm"]["scale"]), _array(params["norm"]["bias"])


def _array(x: ArrayLike) -> np.ndarray:
    return np.array(x, np.float32)  # a copy: quantization works in place
