"""Phrases that an output must hold, in a beam search that keeps room for them.

After dynamic beam allocation (Post and Vilar, 2018): hypotheses that hold as much of the phrases
share a bank, and each bank gets its share of the beam.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.ops.top_k import NEVER


@flax.struct.dataclass
class Progress:
    """How far hypotheses are with their phrases; R rows, N hypotheses, C phrases."""

    met: jax.Array  # [R, N, C] the prefix has the phrase, and no longer word that begins with it
    held: jax.Array  # [R, N, C] first tokens of the phrase that the prefix ends with
    at_end: jax.Array  # [R, N, C] met by the last tokens alone: a longer word would undo it


def progress(
    tokens: jax.Array,
    index: jax.Array,
    phrases: jax.Array,
    word_ends: jax.Array | None = None,
    may_follow: Any = None,
) -> Progress:
    """How far hypotheses are with their phrases.

    Args:
      tokens: `[R, N, T]`.
      index: tokens decoded so far.
      phrases: `[R, C, L]`, padded with -1.
      word_ends: `[R, C]` boolean, whether the phrase must end where a word ends.
      may_follow: `[V]` boolean, tokens that may follow such a phrase; None: all.
    """
    length, width = tokens.shape[-1], phrases.shape[-1]
    sizes = jnp.sum(phrases >= 0, axis=-1)[:, None]  # --> [R, 1, C]
    wanted = phrases[:, None]  # --> [R, 1, C, L]
    starts = jnp.arange(length)
    ends = starts + sizes[..., None]  # --> [R, 1, C, T]
    same = ends <= index
    restricted = word_ends is not None and may_follow is not None
    follows = jnp.asarray(may_follow)[tokens] if restricted else None  # --> [R, N, T]
    for i in range(width + 1):
        place = jnp.minimum(starts + i, length - 1)
        if i < width:
            there = jnp.take(tokens, place, axis=2)[:, :, None]
            same = same & ((there == wanted[..., i, None]) | (sizes[..., None] <= i))
        if follows is not None and word_ends is not None:
            after = jnp.take(follows, place, axis=2)[:, :, None]
            free = ~word_ends[:, None, :, None] | (sizes[..., None] != i) | (ends >= index)
            same = same & (after | free)
    before = jnp.any(same & (ends < index), axis=-1) | (sizes == 0)
    held = jnp.zeros(before.shape, jnp.int32)
    for size in range(1, width + 1):
        last = jnp.take(tokens, index - size + jnp.arange(size), axis=2, mode="clip")
        equal = jnp.all(last[:, :, None] == wanted[..., :size], axis=-1) & (index >= size)
        held = jnp.where(equal & (size <= sizes), size, held)
    complete = (held == sizes) & (sizes > 0)
    at_end = complete & ~before
    if word_ends is not None:
        at_end = at_end & word_ends[:, None]
    return Progress(before | complete, held, at_end)


def bank(found: Progress, phrases: jax.Array) -> jax.Array:
    """Tokens of phrases that a hypothesis holds, `[R, N]`."""
    sizes = jnp.sum(phrases >= 0, axis=-1)[:, None]
    return jnp.sum(jnp.where(found.met, sizes, found.held), axis=-1)


def next_tokens(found: Progress, phrases: jax.Array) -> jax.Array:
    """Token that continues each phrase, `[R, N, C]`; -1 where it is met already."""
    width = phrases.shape[-1]
    place = jnp.minimum(found.held, width - 1)
    following = jnp.take_along_axis(phrases[:, None], place[..., None], axis=-1)[..., 0]
    return jnp.where(found.met, -1, following)


def forbid_longer_words(
    log_probs: jax.Array, found: Progress, phrases: jax.Array, may_follow: Any
) -> jax.Array:
    """Forbids tokens that would make a phrase at the end part of a longer word.

    A token that continues another phrase, which the prefix holds in part, stays allowed.

    Args:
      log_probs: `[V, R, N]`.
      found: of the prefixes.
      phrases: `[R, C, L]`.
      may_follow: `[V]` boolean.
    """
    vocab, rows, beams = log_probs.shape
    allowed = jnp.asarray(may_follow)[:, None, None] | ~jnp.any(found.at_end, axis=-1)
    following = jnp.where(found.held > 0, next_tokens(found, phrases), -1)
    following = jnp.where(following < 0, vocab, following)  # out of range: dropped
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[:, None]
    allowed = allowed.at[following, row, beam].set(True, mode="drop")
    return jnp.where(allowed, log_probs, NEVER)


def rank_in_bank(scores: jax.Array, banks: jax.Array) -> jax.Array:
    """Better candidates of the same bank, `[R, N]`; of equal ones the first is better."""
    number = jnp.arange(scores.shape[1])
    ahead = (scores[:, None] > scores[..., None]) | (
        (scores[:, None] == scores[..., None]) & (number[None] < number[:, None])
    )
    return jnp.sum(ahead & (banks[:, None] == banks[..., None]), axis=-1)


def allot(scores: jax.Array, banks: jax.Array, count: int) -> jax.Array:
    """Which `count` candidates go on: each bank's best, fullest bank first, then the second best…

    Args:
      scores: `[R, N]`, `NEVER` for what cannot go on.
      banks: `[R, N]`.
      count: at most N.

    Returns:
      `[R, count]` numbers of candidates.
    """
    rank = rank_in_bank(scores, banks)
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
