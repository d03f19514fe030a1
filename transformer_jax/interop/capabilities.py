"""Which models each export format can express, as data.

Limits that relate several settings, parameters or the tokenizer are checked by the writer of the
format.
"""

import dataclasses

from transformer_jax.config import ModelConfig
from transformer_jax.errors import UserError

ANY = None  # every value

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
EXPRESSIBLE: dict[str, dict[str, tuple[str, ...] | None]] = {
    "marian": {
        **_EVERYWHERE,
        "norm_position": ("post", "pre"),
        "activation": ("relu", "gelu", "gelu_tanh", "silu"),
        "positional": ("interleaved", "halves", "tensor2tensor", "learned", "none"),
        "tie_embeddings": ("all", "decoder", "none"),
    },
    "ctranslate2": {
        **_EVERYWHERE,
        "norm_position": ("post", "pre"),
        "activation": ("relu", "gelu", "gelu_tanh", "silu"),
        "positional": ("interleaved", "halves", "tensor2tensor", "learned", "rotary", "none"),
        "tie_embeddings": ("all", "decoder", "none"),
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
