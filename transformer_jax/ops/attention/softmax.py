"""Softmax over rows that may have everything masked.

Masked scores get a large negative number added. XLA for CPU fuses an addition with the product
before it and the exponential after it, which it does not do with a selection.
"""

import jax
import jax.numpy as jnp

from transformer_jax.ops.dense import broadcastable

# Added to masked scores. Far below any score, and finite, so that no difference is NaN.
HIDDEN = -1e30


def additive_mask(mask: jax.Array | None, bias: jax.Array | None = None) -> jax.Array | None:
    """The array to add to scores, float32: `bias`, and `HIDDEN` where `mask` is False.

    Args:
      mask: boolean, True = may attend; None: everything may.
      bias: broadcastable to the scores, as `mask` is.

    Returns:
      None where there is nothing to add.
    """
    if bias is not None:
        bias = jnp.maximum(bias.astype(jnp.float32), HIDDEN)
    if mask is None:
        return bias
    hidden = jnp.where(mask, 0.0, HIDDEN)
    if bias is None:
        return hidden
    return broadcastable(hidden, bias) + broadcastable(bias, hidden)


def exponentials(
    scores: jax.Array, added: jax.Array | None, may_be_empty: bool = True
) -> tuple[jax.Array, jax.Array]:
    """Numerator and denominator of the softmax of `scores + added` over the last axis.

    Args:
      scores: `[..., S]` float32.
      added: from `additive_mask`, broadcastable to `scores`; None: nothing.
      may_be_empty: some row may have everything masked. Its denominator is infinite, so its softmax
        is zero.

    Returns:
      `[..., S]` and `[..., 1]`.
    """
    if added is not None:
        scores = scores + broadcastable(added, scores)
    # Its only use is the next line, so XLA keeps it inside the fused product.
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    exps = jnp.exp(scores - top)
    total = jnp.sum(exps, axis=-1, keepdims=True)
    if added is not None and may_be_empty:
        is_empty = jnp.max(added, axis=-1, keepdims=True) < HIDDEN / 2
        total = jnp.where(is_empty, jnp.inf, total)
    return exps, total
