"""Phrases that an output must hold, in a beam search that keeps room for them.

After dynamic beam allocation (Post and Vilar, 2018): hypotheses that hold as much of the phrases
share a bank, and each bank gets its share of the beam.
"""

import jax
import jax.numpy as jnp

from transformer_jax.ops.top_k import NEVER


def progress(tokens: jax.Array, index: jax.Array, phrases: jax.Array) -> tuple[jax.Array, ...]:
    """How far hypotheses are with their phrases.

    Args:
      tokens: `[R, N, T]`.
      index: pieces written.
      phrases: `[R, C, L]`, -1 behind a phrase.

    Returns:
      `[R, N, C]` whether the phrase stands somewhere, and `[R, N, C]` how many of its first pieces
      the hypothesis ends with.
    """
    length, width = tokens.shape[-1], phrases.shape[-1]
    sizes = jnp.sum(phrases >= 0, axis=-1)[:, None]  # --> [R, 1, C]
    wanted = phrases[:, None]  # --> [R, 1, C, L]
    starts = jnp.arange(length)
    same = starts + sizes[..., None] <= index  # --> [R, 1, C, T]
    for i in range(width):
        there = jnp.take(tokens, jnp.minimum(starts + i, length - 1), axis=2)[:, :, None]
        same = same & ((there == wanted[..., i, None]) | (sizes[..., None] <= i))
    met = jnp.any(same, axis=-1) | (sizes == 0)
    held = jnp.zeros(met.shape, jnp.int32)
    for size in range(1, width + 1):
        last = jnp.take(tokens, index - size + jnp.arange(size), axis=2, mode="clip")
        same = jnp.all(last[:, :, None] == wanted[..., :size], axis=-1) & (index >= size)
        held = jnp.where(same & (size <= sizes), size, held)
    return met, held


def bank(met: jax.Array, held: jax.Array, phrases: jax.Array) -> jax.Array:
    """Pieces of phrases that a hypothesis holds, `[R, N]`."""
    sizes = jnp.sum(phrases >= 0, axis=-1)[:, None]
    return jnp.sum(jnp.where(met, sizes, held), axis=-1)


def just_ended(held: jax.Array, phrases: jax.Array) -> jax.Array:
    """Whether the last piece of a hypothesis ends one of the phrases, `[R, N]`."""
    sizes = jnp.sum(phrases >= 0, axis=-1)[:, None]
    return jnp.any((held == sizes) & (sizes > 0), axis=-1)


def next_pieces(met: jax.Array, held: jax.Array, phrases: jax.Array) -> jax.Array:
    """Piece that brings each phrase on, `[R, N, C]`; -1 where it stands already."""
    width = phrases.shape[-1]
    place = jnp.minimum(held, width - 1)
    following = jnp.take_along_axis(phrases[:, None], place[..., None], axis=-1)[..., 0]
    return jnp.where(met, -1, following)


def allot(scores: jax.Array, banks: jax.Array, count: int) -> jax.Array:
    """Which `count` candidates go on: each bank's best, fullest bank first, then the second best…

    Args:
      scores: `[R, N]`, `NEVER` for what cannot go on.
      banks: `[R, N]`.
      count: at most N.

    Returns:
      `[R, count]` numbers of candidates.
    """
    number = jnp.arange(scores.shape[1])
    ahead = (scores[:, None] > scores[..., None]) | (
        (scores[:, None] == scores[..., None]) & (number[None] < number[:, None])
    )
    rank = jnp.sum(ahead & (banks[:, None] == banks[..., None]), axis=-1)
    # Lower is better; a bank holds no more than `most` pieces.
    most = jnp.max(banks, axis=-1, keepdims=True) + 1
    order = rank * most + (most - 1 - banks)
    order = jnp.where(scores > NEVER, order, jnp.iinfo(jnp.int32).max)
    return jax.lax.top_k(-order, count)[1]


def drop_repeated(scores: jax.Array, parents: jax.Array, pieces: jax.Array) -> jax.Array:
    """`scores` `[R, N]` with `NEVER` where an earlier candidate is the same."""
    same = (parents[:, None] == parents[..., None]) & (pieces[:, None] == pieces[..., None])
    number = jnp.arange(scores.shape[1])
    earlier = number[None] < number[:, None]
    return jnp.where(jnp.any(same & earlier, axis=-1), NEVER, scores)
