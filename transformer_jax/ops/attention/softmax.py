"""Softmax that lets a row have nothing to choose from."""

import jax
import jax.numpy as jnp


def exponentials(scores: jax.Array, mask: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Softmax over the last axis as numerator and denominator `[..., 1]`.

    Where `mask` (True = may be chosen) allows nothing they are 0 and 1.
    """
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    # A row of -inf alone has the maximum -inf; 0 instead keeps value and gradient finite.
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    exps = jnp.exp(scores - top)
    total = jnp.sum(exps, axis=-1, keepdims=True)
    return exps, jnp.where(total == 0.0, 1.0, total)


def masked_softmax(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Softmax over the last axis where `mask` allows; zeros where it allows nothing."""
    exps, total = exponentials(scores, mask)
    return exps / total
