"""Pure functions of arrays: attention, masks, embeddings, norms, dense layers, losses, dropout.

The functions below are those for callers; `dropout.dropout` and `dense.dense` have the names of
their modules.
"""

from transformer_jax.ops.attention import (
    UnsupportedAttentionError,
    attention_weights,
    dot_product_attention,
)
from transformer_jax.ops.embedding import embed
from transformer_jax.ops.losses import LossSums, cross_entropy, projected_cross_entropy
from transformer_jax.ops.masks import (
    combine_masks,
    make_causal_mask,
    make_padding_mask,
    make_segment_mask,
)
from transformer_jax.ops.norms import layer_norm, rms_norm
from transformer_jax.ops.positional import (
    alibi_slopes,
    apply_rotary,
    relative_buckets,
    sinusoids,
)

__all__ = [
    "LossSums",
    "UnsupportedAttentionError",
    "alibi_slopes",
    "apply_rotary",
    "attention_weights",
    "combine_masks",
    "cross_entropy",
    "dot_product_attention",
    "embed",
    "layer_norm",
    "make_causal_mask",
    "make_padding_mask",
    "make_segment_mask",
    "projected_cross_entropy",
    "relative_buckets",
    "rms_norm",
    "sinusoids",
]
