"""Differences between Hugging Face's encoder-decoder classes, as data.

They share BART's tensor names; Marian is post-norm, M2M-100 (also NLLB) and Pegasus are pre-norm.
Read from transformers 5.23.
"""

import dataclasses
from typing import Any

from transformer_jax.config.fields import Activation, NormPosition, Positional, Stopping

NORM_EPSILON = 1e-5  # torch's default; no config of these classes can change it


@dataclasses.dataclass(frozen=True)
class Family:
    """One model class."""

    model_type: str
    architecture: str
    norm_position: NormPosition
    positional: Positional  # sinusoids that the class computes
    counts_from_pad: bool  # the first position is the padding id plus one, not 0
    stores_positions: bool  # a table in the weights replaces them
    has_output_bias: bool
    one_vocabulary: bool  # source and target share their table
    defaults: dict[str, Any]  # of keys that config.json lacks


MARIAN = Family(
    model_type="marian",
    architecture="MarianMTModel",
    norm_position="post",
    positional="halves",
    counts_from_pad=False,
    stores_positions=True,
    has_output_bias=True,
    one_vocabulary=False,
    defaults={
        "activation_function": "gelu",
        "scale_embedding": False,
        "forced_eos_token_id": 0,
        "share_encoder_decoder_embeddings": True,
        "max_position_embeddings": 1024,
    },
)
M2M_100 = Family(
    model_type="m2m_100",
    architecture="M2M100ForConditionalGeneration",
    norm_position="pre",
    positional="tensor2tensor",
    counts_from_pad=True,
    stores_positions=False,
    has_output_bias=False,
    one_vocabulary=True,
    defaults={
        "activation_function": "relu",
        "scale_embedding": True,
        "forced_eos_token_id": None,
        "share_encoder_decoder_embeddings": True,
        "max_position_embeddings": 1024,
    },
)
PEGASUS = Family(
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    norm_position="pre",
    positional="halves",
    counts_from_pad=False,
    stores_positions=True,
    has_output_bias=True,
    one_vocabulary=True,
    defaults={
        "activation_function": "gelu",
        "scale_embedding": False,
        "forced_eos_token_id": 1,
        "share_encoder_decoder_embeddings": True,
        "max_position_embeddings": 1024,
    },
)
FAMILIES = {family.model_type: family for family in (MARIAN, M2M_100, PEGASUS)}

# Hugging Face's name -> ours. Exports write the first name of each.
ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "silu",
    "silu": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
EARLY_STOPPING: dict[bool | str | None, Stopping] = {
    False: "hf_default",
    None: "hf_default",
    True: "first_k",
    "never": "exact",
}
