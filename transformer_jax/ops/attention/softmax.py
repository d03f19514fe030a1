"""Softmax that lets a row have nothing to choose from.

What may not be chosen is hidden by adding a large negative number, not by selecting: XLA's CPU
compiler keeps an addition in one token with the product before it and the exponential after it.
"""

import jax
import jax.numpy as jnp

# Added to a score that is hidden. Far below any score, and finite, so that no difference is NaN.
HIDDEN = -1e30


def hiding(mask: jax.Array | None, bias: jax.Array | None = None) -> jax.Array | None:
    """What to add to scores, float32: `bias`, and `HIDDEN` where `mask` is False."""
    if bias is not None:
        bias = jnp.maximum(bias.astype(jnp.float32), HIDDEN)
    if mask is None:
        return bias
    hidden = jnp.where(mask, 0.0, HIDDEN)
    return hidden if bias is None else hidden + bias


def hides_all(added: jax.Array) -> jax.Array:
    """Whether `added` hides everything of a row, `[..., 1]`."""
    return jnp.max(added, axis=-1, keepdims=True) < HIDDEN / 2


def exponentials(
    scores: jax.Array, added: jax.Array | None, may_be_empty: bool = True
) -> tuple[jax.Array, jax.Array]:
    """Softmax of `scores + added` over the last axis as numerator and denominator `[..., 1]`.

    The denominator of a row that has everything hidden is infinite, its softmax therefore zero;
    `may_be_empty=False` says that there is none.
    """
    if added is not None:
        scores = scores + added
    # Read by nothing else, it stays inside the compiled product.
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    exps = jnp.exp(scores - top)
    total = jnp.sum(exps, axis=-1, keepdims=True)
    if added is not None and may_be_empty:
        total = jnp.where(hides_all(added), jnp.inf, total)
    return exps, total
