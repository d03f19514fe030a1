"""Differences between Hugging Face's encoder-decoder classes, as data.

Marian and BART are post-norm; M2M-100 (also NLLB), Pegasus and mBART are pre-norm, and so are T5
(also Flan-T5, UL2, ByT5 and MADLAD-400) and mT5. Read from transformers 5.23.
"""

import dataclasses
from typing import Any

from transformer_jax.config.decode_fields import Stopping
from transformer_jax.config.fields import Activation, NormPosition, Positional

NORM_EPSILON = 1e-5  # torch's default; no config of these classes can change it


@dataclasses.dataclass(frozen=True)
class Family:
    """One model class."""

    model_type: str
    architecture: str
    norm_position: NormPosition
    positional: Positional  # that the class computes; learned: it has only stored ones
    counts_from_pad: bool  # the first position is the padding id plus one, not 0
    stores_positions: bool  # a table in the weights replaces them
    has_output_bias: bool
    one_vocabulary: bool  # source and target share their table
    defaults: dict[str, Any]  # of keys that config.json lacks
    embedding_norm: bool = False
    unused_positions: int = 0  # first rows of a position table, which no position has
    is_t5: bool = False
    tokenizer: str = ""  # class, where a directory does not name it; "": by its files
    # BART's keys of config.json -> those of this class.
    keys: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def norm_epsilon(self) -> float:
        """Default of the norms' epsilon."""
        return 1e-6 if self.is_t5 else NORM_EPSILON


_DEFAULTS = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "max_position_embeddings": 1024,
}
MARIAN = Family(
    model_type="marian",
    architecture="MarianMTModel",
    norm_position="post",
    positional="halves",
    counts_from_pad=False,
    stores_positions=True,
    has_output_bias=True,
    one_vocabulary=False,
    defaults={**_DEFAULTS, "forced_eos_token_id": 0},
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
        **_DEFAULTS,
        "activation_function": "relu",
        "scale_embedding": True,
        "forced_eos_token_id": None,
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
    defaults={**_DEFAULTS, "forced_eos_token_id": 1},
)
BART = dataclasses.replace(
    MARIAN,
    model_type="bart",
    architecture="BartForConditionalGeneration",
    positional="learned",
    one_vocabulary=True,
    defaults={**_DEFAULTS, "forced_eos_token_id": 2},
    embedding_norm=True,
    unused_positions=2,
    tokenizer="BartTokenizer",
)
MBART = dataclasses.replace(
    BART,
    model_type="mbart",
    architecture="MBartForConditionalGeneration",
    norm_position="pre",
    tokenizer="MBart50Tokenizer",
)
T5 = Family(
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    norm_position="pre",
    positional="relative",
    counts_from_pad=False,
    stores_positions=False,
    has_output_bias=False,
    one_vocabulary=True,
    defaults={
        "feed_forward_proj": "relu",
        "forced_eos_token_id": None,
        "share_encoder_decoder_embeddings": True,
        "max_position_embeddings": 1024,  # relative positions have no limit
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.1,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
    },
    is_t5=True,
    tokenizer="T5Tokenizer",
    keys={
        "encoder_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "encoder_ffn_dim": "d_ff",
        "decoder_ffn_dim": "d_ff",
        "dropout": "dropout_rate",
        "attention_dropout": "dropout_rate",
        "activation_dropout": "dropout_rate",
    },
)
MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    defaults={**T5.defaults, "feed_forward_proj": "gated-gelu"},
)
FAMILIES = {
    family.model_type: family for family in (MARIAN, M2M_100, PEGASUS, BART, MBART, T5, MT5)
}

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
