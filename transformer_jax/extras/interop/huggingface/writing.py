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
from transformer_jax.extras.interop import capabilities, layout
from transformer_jax.extras.interop.huggingface import families, names
from transformer_jax.extras.interop.huggingface.families import Family
from transformer_jax.extras.interop.huggingface.settings import OWN_KEY, write_json
from transformer_jax.extras.interop.huggingface.tokenizer_writing import write_tokenizers

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
    is_t5 = model.positional == "relative"
    capabilities.check(capabilities.T5 if is_t5 else "marian", model)
    refusals = _t5_refusals(model, tokenizers) if is_t5 else _refusals(model, tokenizers, params)
    for reason in refusals:
        raise UserError(f"`format=marian` cannot express {reason}.")
    if is_t5:
        notes = (f"written as {families.T5.architecture}",)
        return Plan(families.T5, permuted=False, stores_positions=False, notes=notes)
    family = _bart_family(model, tokenizers)
    usual_sinusoids = model.positional_base == 10_000.0 and model.position_offset == 0
    permuted = (
        model.positional == "interleaved" and usual_sinusoids and family.positional != "learned"
    )
    computed = family is families.M2M_100 or (
        model.positional == family.positional and usual_sinusoids
    )
    stored = family in (families.PEGASUS, families.BART, families.MBART)
    stored = stored or not (computed or permuted)
    return Plan(family, permuted, stored, tuple(_notes(config, family, permuted, computed)))


def _bart_family(model: ModelConfig, tokenizers: TokenizerPair) -> Family:
    """The class of BART's kind that expresses a model."""
    if model.embedding_norm:
        return families.MBART if model.norm_position == "pre" else families.BART
    if model.norm_position == "post":
        return families.MARIAN
    return families.M2M_100 if _is_m2m_100(model, tokenizers) else families.PEGASUS


def _t5_refusals(model: ModelConfig, tokenizers: TokenizerPair) -> Iterator[str]:
    """Yields what T5's class cannot express; `capabilities` has the limits of single settings."""
    if model.logit_scale not in (1.0, model.d_model**-0.5):
        yield f"config.model.logit_scale={model.logit_scale:g}, only 1 or d_model^-0.5 of a T5"
    if model.position_offset:
        yield f"config.model.position_offset={model.position_offset} of a T5"
    if type(tokenizers.source) is Tokenizer:
        yield "a T5 with a tokenizer that was trained here; those that were imported are written"


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
    if model.embedding_norm and (model.tie_embeddings != "all" or is_ours):
        yield (
            "config.model.embedding_norm=True without the tokenizer and the one table of an "
            "imported BART or mBART"
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
    write_tokenizers(folder, config, tokenizers, plan.family)


def make_tensors(model: ModelConfig, params: layout.Params, plan: Plan) -> dict[str, np.ndarray]:
    """The model's parameters by Hugging Face's names, float32."""
    tables = layout.position_tables(model, params)
    if plan.permuted:
        params = layout.permute_model(params, layout.interleaved_to_halves(model.d_model))
        tables = None
    leaves = layout.flatten(params)
    tensors = {}
    their_names = _names(model, plan)
    for path, name, _ in names.layer_tensors(their_names, model):
        tensors[name] = names.to_torch(path, leaves[path])
    for side in names.TABLES[model.tie_embeddings]:
        is_shared = side == "target" and model.tie_embeddings in ("all", "inputs")
        name = their_names.shared if is_shared else their_names.tables[side]
        tensors[name] = np.asarray(leaves[(f"{side}_embedding",)], np.float32)
    if plan.family.one_vocabulary and their_names.shared not in tensors:
        tensors[their_names.shared] = tensors[their_names.tables["target"]]
    if plan.family.has_output_bias:
        bias = leaves.get(("output_bias",), np.zeros(model.target_vocab_size, np.float32))
        tensors[names.OUTPUT_BIAS] = np.asarray(bias, np.float32)[None]
    if plan.stores_positions:
        if tables is None:
            halves = dataclasses.replace(model, positional="halves")
            tables = layout.position_tables(halves, params)
        unused = ((plan.family.unused_positions, 0), (0, 0))
        padded = [np.pad(table, unused) for table in tables or ()]
        tensors |= dict(zip(their_names.positions, padded, strict=True))
    return tensors


def _names(model: ModelConfig, plan: Plan) -> names.Names:
    """The names of the tensors of a class."""
    if not plan.family.is_t5:
        return names.BART
    return names.T5_GATED if model.feed_forward == "gated" else names.T5_PLAIN


def _activation(model: ModelConfig) -> str:
    """Hugging Face's name of the activation."""
    return next(theirs for theirs, ours in families.ACTIVATIONS.items() if ours == model.activation)


def _t5_settings(model: ModelConfig, tokenizers: TokenizerPair) -> dict[str, Any]:
    is_gated = model.feed_forward == "gated"
    # What its class calls tied embeddings: the factor of the decoder's output.
    is_scaled = model.logit_scale != 1.0
    activation = {"gelu_new": "gelu"}.get(_activation(model), _activation(model))
    return {
        "model_type": families.T5.model_type,
        "architectures": [families.T5.architecture],
        "is_encoder_decoder": True,
        "dtype": "float32",
        "vocab_size": model.source_vocab_size,
        "d_model": model.d_model,
        "d_kv": model.resolved_head_dim,
        "d_ff": model.d_ff,
        "num_layers": model.num_encoder_layers,
        "num_decoder_layers": model.num_decoder_layers,
        "num_heads": model.num_heads,
        "relative_attention_num_buckets": model.relative_buckets,
        "relative_attention_max_distance": model.relative_max_distance,
        "dropout_rate": model.dropout_rate,
        "layer_norm_epsilon": model.norm_epsilon,
        "feed_forward_proj": f"gated-{activation}" if is_gated else _activation(model),
        "max_position_embeddings": model.max_len,
        "tie_word_embeddings": is_scaled,
        **_special_ids(model, tokenizers),
    }


def _model_settings(model: ModelConfig, tokenizers: TokenizerPair, plan: Plan) -> dict[str, Any]:
    if plan.family.is_t5:
        return {**_t5_settings(model, tokenizers), OWN_KEY: {}}
    decoder = model.for_decoder()
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
        "activation_function": _activation(model),
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
    data = config.data
    if data.target_language_tags and (data.target_lang or "{}" not in tokenizers.tags.template):
        _, first = tokenizers.language_tags(data.source_lang, data.target_lang)
        if first:
            settings["forced_bos_token_id"] = first[0]
    if decode.suppressed_ids:
        settings["bad_words_ids"] = [[i] for i in decode.suppressed_ids]
    return settings
