"""Hugging Face's config.json as the shape of our model.

Each setting is supported or refused by name.
"""

import dataclasses
from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.config.fields import Activation, Positional, TieEmbeddings
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import families, names
from transformer_jax.extras.interop.huggingface.names import Names
from transformer_jax.extras.interop.huggingface.settings import OWN_KEY, Settings


def model_config(
    settings: Settings, positional: Positional, tie_embeddings: TieEmbeddings
) -> ModelConfig:
    """The shape of the model.

    Args:
      settings: of the directory.
      positional: our name for its positions.
      tie_embeddings: `all`, `inputs`, `decoder` or `none`.

    Raises:
      UserError: naming a setting that is not supported.
    """
    family, raw = settings.family, settings.raw
    _check_unread(settings)
    ours = raw.get(OWN_KEY) or {}
    start = settings.token_id("decoder_start_token_id")
    if family.counts_from_pad and start == settings.token_id("pad_token_id"):
        raise UserError(
            f"{settings.folder}: decoder_start_token_id={start} is the padding id, to which "
            f"{family.architecture} gives no position; this is not supported."
        )
    offset = settings.token_id("pad_token_id") + 1 if family.counts_from_pad else 0
    config = ModelConfig(
        num_encoder_layers=settings.need("encoder_layers"),
        num_decoder_layers=num_decoder_layers(settings),
        d_model=settings.need("d_model"),
        num_heads=settings.need("encoder_attention_heads"),
        d_ff=settings.need("encoder_ffn_dim"),
        num_decoder_heads=_unless_same(
            settings, "decoder_attention_heads", "encoder_attention_heads"
        ),
        decoder_d_ff=_unless_same(settings, "decoder_ffn_dim", "encoder_ffn_dim"),
        dropout_rate=float(settings.get("dropout", 0.1)),
        attention_dropout_rate=float(settings.get("attention_dropout", 0.0)),
        activation_dropout_rate=float(settings.get("activation_dropout", 0.0)),
        norm_position=family.norm_position,
        norm_epsilon=float(ours.get("norm_epsilon", family.norm_epsilon)),
        embedding_norm=family.embedding_norm,
        positional=positional,
        position_offset=offset if positional in ("halves", "tensor2tensor") else 0,
        scale_embeddings=bool(settings.get("scale_embedding")),
        tie_embeddings=tie_embeddings,
        max_len=settings.need("max_position_embeddings"),
        source_vocab_size=settings.need("vocab_size"),
        target_vocab_size=settings.decoder_vocab_size,
        decoder_start_id=start,
    )
    if family.is_t5:
        return dataclasses.replace(config, **_t5_fields(settings))
    return dataclasses.replace(
        config, activation=_activation(settings, "activation_function", None)
    )


def _check_unread(settings: Settings) -> None:
    """Refuses what Hugging Face stores but does not read, unless the class does it anyway."""
    family, raw = settings.family, settings.raw
    is_pre = family.norm_position == "pre"
    of_class = {
        "is_decoder": False,
        "normalize_before": is_pre,
        "add_final_layer_norm": is_pre,
        "normalize_embedding": family.embedding_norm,
        "static_position_embeddings": family.positional != "learned",
    }
    for name in (name for name, is_true in of_class.items() if not is_true):
        if raw.get(name):
            raise UserError(
                f"{settings.folder}/config.json: {name}={raw[name]!r} is not supported; Hugging "
                "Face itself stores this setting but does not read it."
            )


def num_decoder_layers(settings: Settings) -> int:
    """Layers of the decoder; a T5 may leave them out if they are as many as the encoder's."""
    is_given = not settings.family.is_t5 or settings.get("decoder_layers") is not None
    return settings.need("decoder_layers" if is_given else "encoder_layers")


def tensor_names(settings: Settings) -> Names:
    """Names of the tensors of a directory."""
    if not settings.family.is_t5:
        return names.BART
    return names.T5_GATED if _is_gated(settings) else names.T5_PLAIN


def _is_gated(settings: Settings) -> bool:
    return str(settings.get("feed_forward_proj")).startswith("gated-")


def _t5_fields(settings: Settings) -> dict[str, Any]:
    """What a T5 has otherwise than BART's classes."""
    d_model = settings.need("d_model")
    # T5's first version multiplied the decoder's output, which the source's table projects. Since
    # version 5, transformers saves this as another setting.
    is_scaled = settings.family is families.T5 and settings.raw.get(
        "scale_decoder_outputs", settings.raw.get("tie_word_embeddings") is not False
    )
    return {
        "head_dim": settings.need("d_kv"),
        "norm": "rms",
        "norm_epsilon": float(settings.get("layer_norm_epsilon")),
        "use_bias": False,
        "feed_forward": "gated" if _is_gated(settings) else "plain",
        "activation": _activation(settings, "feed_forward_proj", "gated-"),
        "relative_buckets": settings.need("relative_attention_num_buckets"),
        "relative_max_distance": settings.need("relative_attention_max_distance"),
        "attention_scale": 1.0,
        "logit_scale": d_model**-0.5 if is_scaled else 1.0,
        "scale_embeddings": False,
    }


def _activation(settings: Settings, key: str, prefix: str | None) -> Activation:
    """Our name of an activation; Hugging Face's may follow a prefix."""
    value = settings.get(key)
    name = str(value).removeprefix(prefix or "")
    if value == "gated-gelu":
        name = "gelu_new"  # as T5's class reads it
    if name not in families.ACTIVATIONS:
        raise UserError(
            f"{settings.folder}/config.json: {key}={value!r} is not "
            f"supported; {', '.join(families.ACTIVATIONS)} are."
        )
    return families.ACTIVATIONS[name]


def _unless_same(settings: Settings, decoder: str, encoder: str) -> int | None:
    return None if settings.need(decoder) == settings.need(encoder) else settings.need(decoder)
