"""A model as a Hugging Face directory that `from_pretrained` reads."""

import dataclasses
import json
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from transformer_jax.config import Config, DecodeConfig, ModelConfig
from transformer_jax.data.foreign_tokenizers import JsonTokenizer, VocabularyTokenizer
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.interop import layout
from transformer_jax.interop.huggingface import families, names
from transformer_jax.interop.huggingface.families import Family
from transformer_jax.interop.huggingface.settings import OWN_KEY
from transformer_jax.interop.huggingface.tokenizers import LANGUAGE_CODES, MARIAN_TAGS, SPECIAL

TYPICAL_LENGTH = 20  # tokens, where a GNMT length penalty and the power written for it are equal


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a model goes out."""

    family: Family
    permuted: bool  # from interleaved to halves
    stores_positions: bool
    notes: tuple[str, ...]  # for the user


def plan_export(config: Config, tokenizers: TokenizerPair, params: layout.Params) -> Plan:
    """The class that holds the model, and what must be done to make it fit.

    Raises:
      UserError: naming what no class of Hugging Face's can hold.
    """
    model = config.model
    for sentence in _obstacles(model, tokenizers, params):
        raise UserError(f"This model has no form in Hugging Face's classes: {sentence}.")
    family = families.MARIAN
    if model.norm_position == "pre":
        family = families.M2M_100 if _is_m2m_100(model, tokenizers) else families.PEGASUS
    notes = [f"goes out as {family.architecture} ({family.norm_position}-norm)"]
    own = model.positional == family.positional and model.positional_base == 10_000.0
    own = own and (family.counts_from_pad or model.position_offset == 0)
    permuted = (model.positional, model.positional_base, model.position_offset) == (
        "interleaved", 10_000.0, 0)  # fmt: skip
    if permuted:
        notes.append("model dimension permuted, so that interleaved sinusoids become halves")
    elif not own:
        notes.append(f"positions ({model.positional}) stored as a table in embed_positions")
        if family is families.MARIAN:
            notes.append(
                "Hugging Face's Marian reads stored positions, but drops them when it saves the "
                "model again: keep this directory"
            )
    if model.norm_epsilon != families.NORM_EPSILON:
        notes.append(
            f"LayerNorm's epsilon is {families.NORM_EPSILON:g} there, {model.norm_epsilon:g} here"
        )
    decode = config.decode
    if decode.length_penalty and decode.length_penalty_kind == "gnmt":
        notes.append(
            f"the GNMT length penalty {decode.length_penalty:g} is not known there; "
            f"length_penalty={_power(decode):.3g} is the same at {TYPICAL_LENGTH} tokens"
        )
    stored = family is families.PEGASUS or not (own or permuted)
    return Plan(family, permuted, stored, tuple(notes))


def _obstacles(model: ModelConfig, tokenizers: TokenizerPair, params: layout.Params):
    """Yields a clause for each thing that cannot be expressed."""
    if model.positional == "rotary":
        yield "rotary positions (model.positional=rotary)"
    for part in (model, model.for_decoder()):
        if part.resolved_head_dim * part.num_heads != model.d_model:
            yield f"model.head_dim={part.resolved_head_dim} other than d_model / heads"
    if model.norm_position == "pre" and not _one_table(model, params):
        yield (
            f"pre-norm with separate source and target tables (tie_embeddings="
            f"{model.tie_embeddings}); its pre-norm classes share one"
        )
    if any(tokenizer.lowercase for tokenizer in (tokenizers.source, tokenizers.target)):
        yield "a tokenizer that lower-cases (data.lowercase=True)"
    for name in ("pad", "eos", "unk"):
        ids = [getattr(side, f"{name}_id") for side in (tokenizers.source, tokenizers.target)]
        tokens = [side.tokens([i]) for side, i in zip(
            (tokenizers.source, tokenizers.target), ids, strict=True)]  # fmt: skip
        # A directory that came in like this goes out as it came.
        if type(tokenizers.source) is Tokenizer and (ids[0], tokens[0]) != (ids[1], tokens[1]):
            yield f"two vocabularies whose {name} token is not the same ({ids[0]}, {ids[1]})"
    if model.norm_position == "pre" and tokenizers.source.model != tokenizers.target.model and (
        type(tokenizers.source) is Tokenizer):  # fmt: skip
        yield "pre-norm with two vocabularies; its pre-norm classes share one"


def _one_table(model: ModelConfig, params: layout.Params) -> bool:
    if model.tie_embeddings == "all":
        return True
    source, target = params["source_embedding"], params["target_embedding"]
    return source.shape == target.shape and bool(np.array_equal(source, target))


def _is_m2m_100(model: ModelConfig, tokenizers: TokenizerPair) -> bool:
    """M2M-100 computes its positions, from the padding id on, and cannot store others."""
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
    _write_json(folder / "config.json", settings)
    _write_json(folder / "generation_config.json", _generation_settings(config, tokenizers))
    _write_tokenizers(folder, config, tokenizers)


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
    embeddings = {"all": (names.SHARED,), "decoder": (names.TARGET, names.SOURCE)}.get(
        model.tie_embeddings, (names.TARGET, names.SOURCE, names.OUTPUT)
    )
    sides = ("target", "source", "output")
    for name, side in zip(embeddings, sides, strict=False):
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
    activation = next(theirs for theirs, ours in families.ACTIVATIONS.items()
                      if ours == model.activation)  # fmt: skip
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


def _power(decode: DecodeConfig) -> float:
    """Exponent of `L^α`; for a GNMT penalty the one that is equal at TYPICAL_LENGTH."""
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
        "length_penalty": _power(decode),
        "early_stopping": early[decode.stopping],
        # Their length counts the decoder's start symbol.
        "max_length": min(decode.max_decode_len, config.model.max_len) + 1,
        "forced_eos_token_id": None if decode.at_limit == "cut" else eos,
        "renormalize_logits": decode.renormalize,
        "min_length": decode.min_decode_len,
        "no_repeat_ngram_size": decode.no_repeat_ngram_size,
    }
    if decode.suppressed_ids:
        settings["bad_words_ids"] = [[i] for i in decode.suppressed_ids]
    return settings


def _write_tokenizers(folder: epath.Path, config: Config, tokenizers: TokenizerPair) -> None:
    source, target, data = tokenizers.source, tokenizers.target, config.data
    max_len = config.model.max_len
    if isinstance(source, JsonTokenizer):
        (folder / "tokenizer.json").write_bytes(source.model)
        _write_json(folder / "tokenizer_config.json", {
            "tokenizer_class": "NllbTokenizer", "src_lang": data.source_lang,
            "tgt_lang": data.target_lang or None, "model_max_length": max_len,
            **_special_tokens(source.state["special"]),
        })  # fmt: skip
        return
    if tokenizers.tags.both_sides:
        state = source.state
        kept = {p: i for p, i in state["vocabulary"].items() if p not in state["dropped"]}
        (folder / "sentencepiece.bpe.model").write_bytes(source.model)
        _write_json(folder / "vocab.json", kept)
        _write_json(folder / "tokenizer_config.json", {
            "tokenizer_class": "M2M100Tokenizer", "src_lang": data.source_lang,
            "tgt_lang": data.target_lang or None, "model_max_length": max_len,
            "language_codes": _language_codes(state["dropped"]),
            "clean_up_tokenization_spaces": state["clean_up"],
            "num_madeup_words": source.vocab_size - len(state["vocabulary"]),
            **_special_tokens(state["special"]),
        })  # fmt: skip
        return
    model = config.model
    separate = model.norm_position == "post" and model.tie_embeddings != "all"
    (folder / "source.spm").write_bytes(source.model)
    (folder / "target.spm").write_bytes(target.model)
    _write_json(folder / "vocab.json", _vocabulary(source, tokenizers))
    if separate:
        _write_json(folder / "target_vocab.json", _vocabulary(target, tokenizers))
    unk, pad, eos = source.tokens([source.unk_id, source.pad_id, source.eos_id])
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "MarianTokenizer", "source_lang": data.source_lang,
        "target_lang": data.target_lang, "separate_vocabs": separate, "unk_token": unk,
        "pad_token": pad, "eos_token": eos, "model_max_length": max_len,
        "clean_up_tokenization_spaces": bool(source.state.get("clean_up")),
    })  # fmt: skip


def _language_codes(tags: list[str]) -> str:
    """Name of the list that the tags of an M2M-100 vocabulary come from."""
    return next(name for name, codes in LANGUAGE_CODES.items()
                if len(codes.split()) == len(tags))  # fmt: skip


def _special_tokens(special: dict[str, str]) -> dict[str, str]:
    return {f"{name}_token": special.get(name) or SPECIAL[name] for name in SPECIAL}


def _vocabulary(tokenizer: Tokenizer, tokenizers: TokenizerPair) -> dict[str, int]:
    """Id of each token; our language tags under Marian's form of them."""
    if isinstance(tokenizer, VocabularyTokenizer):
        return tokenizer.state["vocabulary"]
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    before, after = tokenizers.tags.template.split("{}")
    vocabulary: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token.startswith(before) and token.endswith(after) and len(token) > len(before + after):
            token = MARIAN_TAGS.token(token[len(before) : len(token) - len(after)])
        if token in vocabulary:
            raise UserError(
                f"The tokenizer has two tokens {token!r} (ids {vocabulary[token]}, {i})."
            )
        vocabulary[token] = i
    return vocabulary


def _write_json(path: epath.Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
