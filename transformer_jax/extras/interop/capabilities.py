"""Which models each export format can express, as data.

Limits that relate several settings, parameters or the tokenizer are checked by the writer of the
format.
"""

import dataclasses

from transformer_jax.config import ModelConfig
from transformer_jax.errors import UserError

ANY = None  # every value
T5 = "marian, as a T5"

_SIZES = (
    "num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "head_dim", "d_ff",
    "num_decoder_heads", "decoder_d_ff", "max_len", "source_vocab_size", "target_vocab_size",
)  # fmt: skip
_TRAINING_ONLY = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
_COMPUTATION_ONLY = ("dtype", "attention")
_EVERYWHERE = dict.fromkeys(
    (*_SIZES, *_TRAINING_ONLY, *_COMPUTATION_ONLY, "norm_epsilon", "positional_base",
     "position_offset", "scale_embeddings", "output_bias", "decoder_start_id"),
    ANY,
)  # fmt: skip

# Format -> field of ModelConfig -> values it can express. A field that a format does not name must
# have its default value, so a new field is refused until its format names it.
EXPRESSIBLE: dict[str, dict[str, tuple[object, ...] | None]] = {
    "marian": {
        **_EVERYWHERE,
        "norm_position": ("post", "pre"),
        "activation": ("relu", "gelu", "gelu_tanh", "silu"),
        "positional": ("interleaved", "halves", "tensor2tensor", "learned", "none"),
        "tie_embeddings": ("all", "decoder", "none"),
        "embedding_norm": (False, True),
    },
    # What `format=marian` writes as a T5.
    T5: {
        **_EVERYWHERE,
        "num_decoder_heads": (None,),
        "decoder_d_ff": (None,),
        "norm_position": ("pre",),
        "norm": ("rms",),
        "use_bias": (False,),
        "feed_forward": ("plain", "gated"),
        "activation": ("relu", "gelu_tanh", "silu"),
        "positional": ("relative",),
        "relative_buckets": ANY,
        "relative_max_distance": ANY,
        "attention_scale": (1.0,),
        "logit_scale": ANY,
        "scale_embeddings": (False,),
        "output_bias": (False,),
        "tie_embeddings": ("all", "inputs"),
    },
    "ctranslate2": {
        **_EVERYWHERE,
        "norm_position": ("post", "pre"),
        "activation": ("relu", "gelu", "gelu_tanh", "silu"),
        "positional": (
            "interleaved",
            "halves",
            "tensor2tensor",
            "learned",
            "rotary",
            "relative",
            "none",
        ),
        "tie_embeddings": ("all", "decoder", "inputs", "none"),
        "norm": ("layer", "rms"),
        "embedding_norm": (False, True),
        "use_bias": (True, False),
        "feed_forward": ("plain", "gated"),
        "relative_buckets": ANY,
        "relative_max_distance": ANY,
        "relative_per_layer": (False, True),
        "attention_scale": ANY,
        "logit_scale": ANY,
        "num_kv_heads": ANY,
    },
    # The export runs our own functions.
    "stablehlo": dict.fromkeys((field.name for field in dataclasses.fields(ModelConfig)), ANY),
}


def check(format_name: str, model: ModelConfig) -> None:
    """Refuses a model that a format cannot express.

    Raises:
      UserError: naming the first field of `model`, its value, and the values that are possible.
    """
    for field in dataclasses.fields(ModelConfig):
        allowed = EXPRESSIBLE[format_name].get(field.name, (field.default,))
        value = getattr(model, field.name)
        if allowed is not ANY and value not in allowed:
            raise UserError(
                f"`format={format_name}` cannot express config.model.{field.name}={value}, only "
                f"{', '.join(map(str, allowed))}."
            )
