"""Arrays of a beam search in progress."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.decoding.hypotheses import gather_beams
from transformer_jax.ops.top_k import NEVER


@flax.struct.dataclass
class Finished:
    """Ended hypotheses, best first."""

    tokens: jax.Array  # [R, k, T]
    log_probs: jax.Array  # [R, k]
    scores: jax.Array  # [R, k]; NEVER where there is none
    lengths: jax.Array  # [R, k]
    unmet: jax.Array  # [R, k] phrases that are not in it


@flax.struct.dataclass
class BeamState:
    """Search in progress. R is sentences times groups, k the beams of a group."""

    index: jax.Array  # pieces written so far
    cache: Any
    tokens: jax.Array  # [R, k, T]
    log_probs: jax.Array  # [R, k]
    finished: Finished
    num_finished: jax.Array  # [R], ever found
    done: jax.Array  # [R]
    finite: jax.Array  # [B] whether all logits were


@flax.struct.dataclass
class Candidates:
    """Hypotheses one piece longer; N a row, in the order of `choice` but for those forced."""

    choice: jax.Array  # [R, N] by which they are chosen; NEVER: not to be had
    log_probs: jax.Array  # [R, N]
    parents: jax.Array  # [R, N]
    pieces: jax.Array  # [R, N]
    finishes: Any = None  # [R, N] ends, and is one of the K that would be chosen
    unmet: Any = None  # [R, N] phrases that are not in it


def pad_columns(x: jax.Array, width: int, value: float) -> jax.Array:
    """`x` `[R, k]` filled up, or cut, to `[R, width]`."""
    if x.shape[1] >= width:
        return x[:, :width]
    return jnp.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=value)


def best_finished(pool: Finished, count: int) -> Finished:
    """The best `count`: fewest phrases missing, then the score, then the order of `pool`."""
    missing = jnp.where(pool.scores > NEVER, pool.unmet, jnp.iinfo(jnp.int32).max)
    order = jnp.lexsort((-pool.scores, missing), axis=1)[:, :count]
    return gather_beams(pool, order)
