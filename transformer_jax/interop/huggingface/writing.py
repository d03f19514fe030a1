"""Writes a model as a Hugging Face directory that `from_pretrained` reads."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from transformer_jax.config import Config, DecodeConfig, ModelConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.interop import capabilities, layout
from transformer_jax.interop.huggingface import families, names
from transformer_jax.interop.huggingface.families import Family
from transformer_jax.interop.huggingface.settings import OWN_KEY, write_json
from transformer_jax.interop.huggingface.tokenizers import write_tokenizers

TYPICAL_LENGTH = 20  # tokens at which a GNMT length penalty equals the power written for it


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a model is written."""

    family: Family
    permuted: bool  # the model dimension is permuted, from interleaved sinusoids to halves
    stores_positions: bool
    notes: tuple[str, ...]  # for the user


def plan_export(config: Config, tokenizers: TokenizerPair, params: layout.Params) -> Plan:
    """The class that can express a model, and what has to change.

    Raises:
      UserError: naming what none of Hugging Face's classes can express.
    """
    model = config.model
    capabilities.check("marian", model)
    for reason in _refusals(model, tokenizers, params):
        raise UserError(f"`format=marian` cannot express {reason}.")
    family = families.MARIAN
    if model.norm_position == "pre":
        family = families.M2M_100 if _is_m2m_100(model, tokenizers) else families.PEGASUS
    usual_sinusoids = model.positional_base == 10_000.0 and model.position_offset == 0
    permuted = model.positional == "interleaved" and usual_sinusoids
    computed = family is families.M2M_100 or (
        model.positional == family.positional and usual_sinusoids
    )
    stored = family is families.PEGASUS or not (computed or permuted)
    return Plan(family, permuted, stored, tuple(_notes(config, family, permuted, computed)))


def _notes(config: Config, family: Family, permuted: bool, computed: bool) -> Iterator[str]:
    """Yields a line for the user for everything that is not as in our model."""
    model, decode = config.model, config.decode
    yield f"written as {family.architecture} ({family.norm_position}-norm)"
    if permuted:
        yield "model dimension permuted, so that interleaved sinusoids become halves"
    elif not computed:
        yield f"positions ({model.positional}) stored as a table in embed_positions"
        if family is families.MARIAN:
            yield (
                "Hugging Face's Marian reads stored positions, but drops them when it saves the "
                "model again: keep this directory"
            )
    if model.norm_epsilon != families.NORM_EPSILON:
        yield f"LayerNorm's epsilon is {families.NORM_EPSILON:g} there, {model.norm_epsilon:g} here"
    if decode.length_penalty and decode.length_penalty_kind == "gnmt":
        yield (
            f"Hugging Face has no GNMT length penalty ({decode.length_penalty:g} here); "
            f"length_penalty={power_of_length(decode):.3g} is equal at {TYPICAL_LENGTH} tokens"
        )


def _refusals(
    model: ModelConfig, tokenizers: TokenizerPair, params: layout.Params
) -> Iterator[str]:
    """Yields what cannot be expressed; `capabilities` has the limits of single settings."""
    source, target = tokenizers.source, tokenizers.target
    is_ours = type(source) is Tokenizer  # a tokenizer that was imported is written as it was read
    for part in (model, model.for_decoder()):
        if part.resolved_head_dim * part.num_heads != model.d_model:
            yield f"config.model.head_dim={part.resolved_head_dim}, only d_model / heads"
    if model.norm_position == "pre" and not _one_table(model, params):
        yield (
            f"pre-norm with separate source and target tables (config.model.tie_embeddings="
            f"{model.tie_embeddings}); its pre-norm classes share one table"
        )
    if model.norm_position == "pre" and is_ours and source.model != target.model:
        yield "pre-norm with two vocabularies; its pre-norm classes share one"
    if source.lowercase or target.lowercase:
        yield "a tokenizer that lower-cases (config.data.lowercase=True)"
    for name in ("pad", "eos", "unk") if is_ours else ():
        source_id, target_id = getattr(source, f"{name}_id"), getattr(target, f"{name}_id")
        if source_id != target_id or source.tokens([source_id]) != target.tokens([target_id]):
            yield f"two vocabularies with different {name} tokens (ids {source_id}, {target_id})"


def _one_table(model: ModelConfig, params: layout.Params) -> bool:
    """Whether source and target embeddings are equal."""
    if model.tie_embeddings == "all":
        return True
    source, target = params["source_embedding"], params["target_embedding"]
    return source.shape == target.shape and bool(np.array_equal(source, target))


def _is_m2m_100(model: ModelConfig, tokenizers: TokenizerPair) -> bool:
    """Whether M2M-100 can express a pre-norm model.

    M2M-100 numbers positions from the padding id + 1. It computes their encodings and cannot store
    others.
    """
    return (
        model.positional == families.M2M_100.positional
        and model.positional_base == 10_000.0
        and model.position_offset == tokenizers.source.pad_id + 1
        and not model.output_bias
    )


def write_directory(
    folder: epath.Path, config: Config, tokenizers: TokenizerPair, params: layout.Params, plan: Plan
) -> None:
    """Writes weights, config, generation config and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = make_tensors(config.model, params, plan)
    data = safetensors.numpy.save(tensors, metadata={"format": "pt"})
    (folder / "model.safetensors").write_bytes(data)
    settings = _model_settings(config.model, tokenizers, plan)
    settings[OWN_KEY]["target_language_tags"] = config.data.target_language_tags
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json", _generation_settings(config, tokenizers))
    write_tokenizers(folder, config, tokenizers)


def make_tensors(model: ModelConfig, params: layout.Params, plan: Plan) -> dict[str, np.ndarray]:
    """The model's parameters by Hugging Face's names, float32."""
    tables = layout.position_tables(model, params)
    if plan.permuted:
        params = layout.permute_model(params, layout.interleaved_to_halves(model.d_model))
        tables = None
    leaves = layout.flatten(params)
    tensors = {}
    for path, name, _ in names.layer_tensors(model):
        bias = leaves.get((*path[:-1], "bias"))
        outputs = 1 if bias is None else bias.size
        tensors[name] = names.to_torch(path, leaves[path], outputs)
    for side, name in names.EMBEDDINGS[model.tie_embeddings].items():
        tensors[name] = np.asarray(leaves[(f"{side}_embedding",)], np.float32)
    if plan.family.one_vocabulary and names.SHARED not in tensors:
        tensors[names.SHARED] = tensors[names.TARGET]
    if plan.family.has_output_bias:
        bias = leaves.get(("output_bias",), np.zeros(model.target_vocab_size, np.float32))
        tensors[names.OUTPUT_BIAS] = np.asarray(bias, np.float32)[None]
    if plan.stores_positions:
        if tables is None:
            halves = dataclasses.replace(model, positional="halves")
            tables = layout.position_tables(halves, params)
        tensors |= dict(zip(names.POSITIONS, tables or (), strict=True))
    return tensors


def _model_settings(model: ModelConfig, tokenizers: TokenizerPair, plan: Plan) -> dict[str, Any]:
    decoder = model.for_decoder()
    activation = next(
        theirs for theirs, ours in families.ACTIVATIONS.items() if ours == model.activation
    )
    settings: dict[str, Any] = {
        "model_type": plan.family.model_type,
        "architectures": [plan.family.architecture],
        "is_encoder_decoder": True,
        "dtype": "float32",
        "vocab_size": model.source_vocab_size,
        "d_model": model.d_model,
        "encoder_layers": model.num_encoder_layers,
        "decoder_layers": model.num_decoder_layers,
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": decoder.num_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": decoder.d_ff,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "activation_function": activation,
        "dropout": model.dropout_rate,
        "attention_dropout": model.attention_dropout_rate,
        "activation_dropout": model.activation_dropout_rate,
        "max_position_embeddings": model.max_len,
        "scale_embedding": model.scale_embeddings,
        "tie_word_embeddings": model.tie_embeddings != "none",
        **_special_ids(model, tokenizers),
    }
    if plan.family is families.MARIAN:
        settings["decoder_vocab_size"] = model.target_vocab_size
        settings["share_encoder_decoder_embeddings"] = model.tie_embeddings == "all"
    settings[OWN_KEY] = {
        "norm_epsilon": model.norm_epsilon,
        "positional": model.positional,
        "positional_base": model.positional_base,
        "position_offset": model.position_offset,
        "permuted": plan.permuted,
        "output_bias": model.output_bias,
    }
    return settings


def _special_ids(model: ModelConfig, tokenizers: TokenizerPair) -> dict[str, int | None]:
    bos = tokenizers.target.bos_id
    return {
        "pad_token_id": tokenizers.source.pad_id,
        "bos_token_id": bos if bos >= 0 else None,
        "eos_token_id": tokenizers.target.eos_id,
        "decoder_start_token_id": model.decoder_start_id,
    }


def power_of_length(decode: DecodeConfig) -> float:
    """Exponent α of `L^α` that equals the length penalty, a GNMT one at TYPICAL_LENGTH."""
    if decode.length_penalty_kind == "power":
        return decode.length_penalty
    gnmt = np.log((5 + TYPICAL_LENGTH) / 6) / np.log(TYPICAL_LENGTH)
    return float(decode.length_penalty * gnmt)


def _generation_settings(config: Config, tokenizers: TokenizerPair) -> dict[str, Any]:
    decode, eos = config.decode, tokenizers.target.eos_id
    early = {ours: theirs for theirs, ours in families.EARLY_STOPPING.items() if theirs is not None}
    settings: dict[str, Any] = {
        **_special_ids(config.model, tokenizers),
        "num_beams": decode.beam_size,
        "length_penalty": power_of_length(decode),
        "early_stopping": early[decode.stopping],
        # Hugging Face's length counts the decoder's start symbol.
        "max_length": min(decode.max_decode_len, config.model.max_len) + 1,
        "forced_eos_token_id": None if decode.at_limit == "cut" else eos,
        "renormalize_logits": decode.renormalize,
        "min_length": decode.min_decode_len,
        "no_repeat_ngram_size": decode.no_repeat_ngram_size,
    }
    if decode.suppressed_ids:
        settings["bad_words_ids"] = [[i] for i in decode.suppressed_ids]
    return settings
