"""What a search gives, and how its results are scored."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Hypotheses:
    """Result of a search, best first."""

    tokens: jax.Array  # [B, K, T], from the first token to the end symbol, then padding
    scores: jax.Array  # [B, K], see `score`; NEVER where there is none
    log_probs: jax.Array  # [B, K], natural log-probability of all tokens and the end symbol
    lengths: jax.Array  # [B, K], tokens in `tokens`, the end symbol included
    steps: jax.Array  # [] decoder steps taken
    finite: jax.Array  # [B] whether all logits were


def length_penalty(length: jax.Array, alpha: float | jax.Array, kind: str) -> jax.Array:
    """What a log-probability is divided by.

    Args:
      length: tokens, the end symbol included.
      alpha: exponent, or one of each row; 0 divides by 1.
      kind: `gnmt`, ((5 + length) / 6)^alpha (Wu et al., 2016, equation 14), or `power`,
        length^alpha. One alpha does not mean the same in both.
    """
    length = jnp.asarray(length, jnp.float32)
    return ((5.0 + length) / 6.0 if kind == "gnmt" else length) ** alpha


def coverage_penalty(coverage: jax.Array, beta: float | jax.Array) -> jax.Array:
    """`beta` times the sum over source positions of log(min(attention it had, 1)).

    Wu et al., 2016, equation 14; never above 0.

    Args:
      coverage: `[..., S]` attention summed over the output.
      beta: weight, broadcast to `coverage` without its last axis.
    """
    return beta * jnp.sum(jnp.log(jnp.clip(coverage, 1e-9, 1.0)), axis=-1)


def gather_beams(tree: Any, beams: jax.Array) -> Any:
    """Picks `beams` `[R, J]` along the beam axis of leaves `[R, K, ...]`."""

    def pick(x):
        return jnp.take_along_axis(x, beams.reshape(beams.shape + (1,) * (x.ndim - 2)), axis=1)

    return jax.tree.map(pick, tree)
