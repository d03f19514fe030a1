"""The result of a search, and how its hypotheses are scored."""

from typing import TypeVar

import flax.struct
import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


@flax.struct.dataclass
class Hypotheses:
    """Outputs of B sentences, K of each, best first."""

    tokens: jax.Array  # [B, K, T], with the end symbol unless cut at the limit, then padding
    # [B, K], log-probability over length penalty, plus coverage penalty; NEVER where there is none.
    scores: jax.Array
    log_probs: jax.Array  # [B, K], natural log-probability of all these tokens, by the processors
    lengths: jax.Array  # [B, K], number of these tokens
    steps: jax.Array  # [] decoder steps taken
    finite: jax.Array  # [B] False once a logit was NaN


def length_penalty(length: jax.Array, alpha: float | jax.Array, kind: str) -> jax.Array:
    """Normaliser of scores by length: a log-probability is divided by it.

    Args:
      length: number of tokens, the end symbol included.
      alpha: exponent, or one for each row; 0 divides by 1.
      kind: `gnmt`, ((5 + length) / 6)^alpha (Wu et al., 2016, equation 14), or `power`,
        length^alpha. The same alpha has a different effect in each.
    """
    if kind == "gnmt":
        return ((5.0 + length) / 6.0) ** alpha
    if kind == "power":
        return length**alpha
    raise ValueError(f"unknown kind of length penalty {kind!r}")


def coverage_penalty(coverage: jax.Array, beta: float | jax.Array) -> jax.Array:
    """`beta` times the sum over source positions of log(min(coverage, 1)).

    Wu et al., 2016, equation 14; never above 0.

    Args:
      coverage: `[..., S]` attention to each source position, summed over the output; 1 at padding.
      beta: weight, broadcast to `coverage` without its last axis.
    """
    return beta * jnp.sum(jnp.log(jnp.clip(coverage, 1e-9, 1.0)), axis=-1)


def gather_beams(tree: Tree, indices: jax.Array) -> Tree:
    """Picks beams or candidates: arrays `[R, N, ...]` indexed by `[R, J]` --> `[R, J, ...]`."""

    def pick(x: jax.Array) -> jax.Array:
        expanded = indices.reshape(indices.shape + (1,) * (x.ndim - 2))  # --> [R, J, 1, ...]
        return jnp.take_along_axis(x, expanded, axis=1)

    return jax.tree.map(pick, tree)
