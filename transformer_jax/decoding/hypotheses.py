"""The result of a search, and how its hypotheses are scored."""

from typing import TypeVar

import flax.struct
import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


@flax.struct.dataclass
class Hypotheses:
    """Outputs of B sentences, K of each, best first."""

    tokens: jax.Array  # [B, K, T], the end symbol included, then padding
    scores: jax.Array  # [B, K], log-probability over length penalty; NEVER where there is none
    log_probs: jax.Array  # [B, K], natural log-probability of all tokens and the end symbol
    lengths: jax.Array  # [B, K], number of tokens, the end symbol included
    steps: jax.Array  # [] decoder steps taken
    finite: jax.Array  # [B] whether all logits were


def length_penalty(length: jax.Array, alpha: float | jax.Array, kind: str) -> jax.Array:
    """Computes what a log-probability is divided by.

    Args:
      length: number of tokens, the end symbol included.
      alpha: exponent, or one for each row; 0 divides by 1.
      kind: `gnmt`, ((5 + length) / 6)^alpha (Wu et al., 2016, equation 14), or `power`,
        length^alpha. The same alpha has a different effect in each.
    """
    length = jnp.asarray(length, jnp.float32)
    return ((5.0 + length) / 6.0 if kind == "gnmt" else length) ** alpha


def coverage_penalty(coverage: jax.Array, beta: float | jax.Array) -> jax.Array:
    """Computes `beta` times the sum over source positions of log(min(coverage, 1)).

    Wu et al., 2016, equation 14; never above 0.

    Args:
      coverage: `[..., S]` attention to each source position, summed over the output.
      beta: weight, broadcast to `coverage` without its last axis.
    """
    return beta * jnp.sum(jnp.log(jnp.clip(coverage, 1e-9, 1.0)), axis=-1)


def gather_beams(tree: Tree, beams: jax.Array) -> Tree:
    """Picks `beams` `[R, J]` along the second axis of each array `[R, N, ...]`."""

    def pick(x: jax.Array) -> jax.Array:
        indices = beams.reshape(beams.shape + (1,) * (x.ndim - 2))  # --> [R, J, 1, ...]
        return jnp.take_along_axis(x, indices, axis=1)

    return jax.tree.map(pick, tree)
