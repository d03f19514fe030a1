"""Attention ("Attention Is All You Need", section 3.2.1) as pure functions of arrays.

Arrays are `[B, T, H, D]`; masks are boolean, True = may attend, and broadcast to `[B, H, T, S]`.
"""

from transformer_jax.ops.attention.dispatch import (
    IMPLEMENTATIONS,
    UnsupportedAttentionError,
    dot_product_attention,
)
from transformer_jax.ops.attention.distances import by_distance
from transformer_jax.ops.attention.formula import attention_weights

__all__ = [
    "IMPLEMENTATIONS",
    "UnsupportedAttentionError",
    "attention_weights",
    "by_distance",
    "dot_product_attention",
]
