"""Beam search with phrases that the output has to contain.

Dynamic beam allocation (Post and Vilar, 2018): hypotheses that contain equally many tokens of the
phrases share a bank, and each bank gets its share of the beams.

A phrase may have several forms, of which one is enough.

Letters of shapes are those of `beam`, and C phrases, each of F forms of at most L tokens.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.ops.top_k import NEVER
from transformer_jax.search.beam import Finished
from transformer_jax.search.candidates import (
    NO_TOKEN,
    Candidates,
    Selection,
    append_tokens,
    best_candidates,
    find_ends,
    force_tokens,
    total_log_probs,
)
from transformer_jax.search.hypotheses import gather_beams
from transformer_jax.search.processors import NextLogProbs, Prefixes
from transformer_jax.search.search_settings import PhraseArrays


@flax.struct.dataclass
class Progress:
    """How much of each phrase hypotheses contain: R rows, N hypotheses, C phrases, F forms."""

    # [R, N, C] the hypothesis contains a form, and not only as the start of a longer word.
    met: jax.Array
    # [R, N, C, F] how many first tokens of the form the hypothesis ends with.
    num_matched: jax.Array
    # [R, N, C] met by the last tokens alone, so a longer word would undo it.
    at_end: jax.Array


@dataclasses.dataclass(frozen=True)
class SelectWithPhrases:
    """Gives each bank of hypotheses its share of the candidates and of the new beams.

    Args:
      eos_id: the end symbol.
      at_limit: `config.decode.at_limit`.
      starts_word: `[V]` boolean, True for tokens that start a new word; after a phrase that has to
        end where a word ends, only these may follow. None: all may.
    """

    eos_id: int
    at_limit: str
    starts_word: jax.Array | None = None

    def select(
        self, prefixes: Prefixes, beam_log_probs: jax.Array, next_log_probs: NextLogProbs
    ) -> Selection:
        """See `Selector`.

        An end is accepted if its candidate would be allotted a beam. One that lacks a phrase is
        accepted only as the best of its bank; it is the result where there is no better one.
        """
        phrases, beams = prefixes.constraints.phrases, beam_log_probs.shape[1]
        assert phrases is not None
        progress = phrase_progress(prefixes.tokens, prefixes.index, phrases, self.starts_word)
        if self.starts_word is not None:
            log_probs = forbid_longer_words(
                next_log_probs.log_probs, progress, phrases, self.starts_word
            )
            next_log_probs = dataclasses.replace(next_log_probs, log_probs=log_probs)
        candidates = best_candidates(next_log_probs, beam_log_probs)
        following = next_tokens(progress, phrases, ~progress.met)
        candidates = self._add_phrase_candidates(
            candidates, next_log_probs.log_probs, beam_log_probs, following
        )
        candidates = force_tokens(candidates, next_log_probs, beam_log_probs)

        tokens = append_tokens(prefixes.tokens, candidates, prefixes.index)  # [R, N, T]
        progress = phrase_progress(tokens, prefixes.index + 1, phrases, self.starts_word)
        num_missing = jnp.sum(~progress.met, axis=-1)  # [R, N]
        bank = bank_of(progress, phrases)  # [R, N]
        is_end = find_ends(candidates, prefixes, self.eos_id, self.at_limit)  # [R, N]
        is_incomplete_end = is_end & (num_missing > 0)
        is_best_of_bank = rank_in_bank(candidates.ranking, bank) == 0
        complete_ranking = jnp.where(is_incomplete_end, NEVER, candidates.ranking)
        chosen = allot(complete_ranking, bank, beams)  # [R, k]
        is_chosen = jnp.any(chosen[..., None] == jnp.arange(is_end.shape[1]), axis=1)  # --> [R, N]
        ranks_high_enough = jnp.where(is_incomplete_end, is_best_of_bank, is_chosen)
        return Selection(
            candidates,
            is_end=is_end,
            is_accepted=is_end & (candidates.ranking > NEVER) & ranks_high_enough,
            num_missing=num_missing,
            survivors=allot(jnp.where(is_end, NEVER, candidates.ranking), bank, beams),
        )

    def best_finished(self, finished: Finished, count: int) -> Finished:
        """See `best_complete`."""
        return best_complete(finished, count)

    def _add_phrase_candidates(
        self,
        candidates: Candidates,
        log_probs: jax.Array,
        beam_log_probs: jax.Array,
        following: jax.Array,
    ) -> Candidates:
        """Adds for each beam its best token, its end, and `following` `[R, k, C, F]`."""
        rows, beams = beam_log_probs.shape
        best = jnp.argmax(log_probs, axis=0)[..., None]  # [R, k, 1]
        end = jnp.full_like(best, self.eos_id)
        following = following.reshape(rows, beams, -1)  # --> [R, k, C * F]
        tokens = jnp.concatenate([best, end, following], axis=-1)  # [R, k, C * F + 2]
        parents = jnp.broadcast_to(jnp.arange(beams)[:, None], tokens.shape)
        # --> [R, k * (C * F + 2)]
        tokens, parents = tokens.reshape(rows, -1), parents.reshape(rows, -1)
        totals = total_log_probs(log_probs, beam_log_probs, parents, tokens)
        added = Candidates(ranking=totals, log_probs=totals, parents=parents, tokens=tokens)
        all_candidates = jax.tree.map(
            lambda *x: jnp.concatenate(x, axis=1), candidates, added
        )  # --> [R, N]
        ranking = drop_repeated(
            all_candidates.ranking, all_candidates.parents, all_candidates.tokens
        )
        return dataclasses.replace(all_candidates, ranking=ranking)


def phrase_progress(
    tokens: jax.Array,
    index: jax.Array,
    phrases: PhraseArrays,
    starts_word: jax.Array | None = None,
) -> Progress:
    """How much of each phrase the hypotheses `tokens` contain.

    Args:
      tokens: `[R, N, T]`.
      index: number of tokens that count.
      phrases: of each row.
      starts_word: `[V]` boolean, True for tokens that start a new word; after a phrase that has to
        end where a word ends, only these may follow. None: all may.
    """
    length, width = tokens.shape[-1], phrases.ids.shape[-1]
    sizes = _sizes(phrases)  # [R, 1, C, F]
    wanted = phrases.ids[:, None]  # --> [R, 1, C, F, L]
    ends_word = phrases.ends_word[:, None]  # --> [R, 1, C, F]
    starts = jnp.arange(length)
    stops = starts + sizes[..., None]  # --> [R, 1, C, F, T]
    matches = stops <= index  # --> [R, N, C, F, T]: the form starts here
    separates = None if starts_word is None else starts_word[tokens]  # --> [R, N, T]
    for i in range(width + 1):
        position = jnp.minimum(starts + i, length - 1)
        if i < width:
            token = jnp.take(tokens, position, axis=2)[:, :, None, None]
            matches = matches & ((token == wanted[..., i, None]) | (sizes[..., None] <= i))
        if separates is not None:
            after = jnp.take(separates, position, axis=2)[:, :, None, None]
            unlimited = ~ends_word[..., None] | (sizes[..., None] != i) | (stops >= index)
            matches = matches & (after | unlimited)
    form_met_before = jnp.any(matches & (stops < index), axis=-1) & (sizes > 0)
    num_matched = jnp.zeros(form_met_before.shape, jnp.int32)
    for size in range(1, width + 1):
        last = jnp.take(tokens, index - size + jnp.arange(size), axis=2, mode="clip")
        equal = jnp.all(last[:, :, None, None] == wanted[..., :size], axis=-1) & (index >= size)
        num_matched = jnp.where(equal & (size <= sizes), size, num_matched)
    complete = (num_matched == sizes) & (sizes > 0)
    # Phrases that only pad a row have no form, and are met.
    met_before = jnp.any(form_met_before, axis=-1) | jnp.all(sizes == 0, axis=-1)
    # A form that may continue stays met whatever follows.
    is_safe = jnp.any(complete & ~ends_word, axis=-1)
    at_end = jnp.any(complete, axis=-1) & ~met_before & ~is_safe
    return Progress(met_before | jnp.any(complete, axis=-1), num_matched, at_end)


def _sizes(phrases: PhraseArrays) -> jax.Array:
    """Number of tokens of each form, `[R, 1, C, F]`."""
    return jnp.sum(phrases.ids >= 0, axis=-1)[:, None]


def bank_of(progress: Progress, phrases: PhraseArrays) -> jax.Array:
    """How many tokens of the phrases each hypothesis contains, `[R, N]`.

    A phrase that is met counts as its longest form, so that it counts more than a part of that.
    """
    longest = jnp.max(_sizes(phrases), axis=-1)
    num_tokens = jnp.where(progress.met, longest, jnp.max(progress.num_matched, axis=-1))
    return jnp.sum(num_tokens, axis=-1)


def next_tokens(progress: Progress, phrases: PhraseArrays, is_open: jax.Array) -> jax.Array:
    """The token that continues each form, `[R, N, C, F]`; `NO_TOKEN` where there is none.

    Args:
      progress: of the hypotheses.
      phrases: of each row.
      is_open: `[R, N, C]` phrases that are to be continued.
    """
    position = jnp.minimum(progress.num_matched, phrases.ids.shape[-1] - 1)
    tokens = jnp.take_along_axis(phrases.ids[:, None], position[..., None], axis=-1)[..., 0]
    is_complete = progress.num_matched == _sizes(phrases)
    return jnp.where(is_open[..., None] & ~is_complete, tokens, NO_TOKEN)


def forbid_longer_words(
    log_probs: jax.Array, progress: Progress, phrases: PhraseArrays, starts_word: jax.Array
) -> jax.Array:
    """Forbids tokens that would make a phrase at the end part of a longer word.

    A token that continues another phrase or form, which the prefix contains in part, stays allowed.

    Args:
      log_probs: `[V, R, k]`.
      progress: of the k beams.
      phrases: of each row.
      starts_word: `[V]` boolean.
    """
    vocab, rows, beams = log_probs.shape
    allowed = starts_word[:, None, None] | ~jnp.any(progress.at_end, axis=-1)
    is_open = ~progress.met | progress.at_end
    following = next_tokens(progress, phrases, is_open)
    following = jnp.where(progress.num_matched > 0, following, NO_TOKEN)
    following = jnp.where(following == NO_TOKEN, vocab, following)  # out of range: dropped
    following = following.reshape(rows, beams, -1)  # --> [R, k, C * F]
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[:, None]
    allowed = allowed.at[following, row, beam].set(True, mode="drop")
    return jnp.where(allowed, log_probs, NEVER)


def rank_in_bank(ranking: jax.Array, bank: jax.Array) -> jax.Array:
    """How many candidates of the same bank are better, `[R, N]`; of equal ones the first is."""
    number = jnp.arange(ranking.shape[1])
    is_better = (ranking[:, None] > ranking[..., None]) | (
        (ranking[:, None] == ranking[..., None]) & (number[None] < number[:, None])
    )
    return jnp.sum(is_better & (bank[:, None] == bank[..., None]), axis=-1)


def allot(ranking: jax.Array, bank: jax.Array, count: int) -> jax.Array:
    """Selects candidates: each bank's best, fullest bank first, then each bank's second best…

    Args:
      ranking: `[R, N]`; `NEVER` for what cannot be selected.
      bank: `[R, N]`.
      count: at most N.

    Returns:
      `[R, count]` numbers of candidates.
    """
    rank = rank_in_bank(ranking, bank)
    num_banks = jnp.max(bank, axis=-1, keepdims=True) + 1
    order = rank * num_banks + (num_banks - 1 - bank)  # lower is better
    order = jnp.where(ranking > NEVER, order, jnp.iinfo(jnp.int32).max)
    return jax.lax.top_k(-order, count)[1]


def drop_repeated(ranking: jax.Array, parents: jax.Array, tokens: jax.Array) -> jax.Array:
    """`ranking` `[R, N]` with `NEVER` where an earlier candidate is the same."""
    same = (parents[:, None] == parents[..., None]) & (tokens[:, None] == tokens[..., None])
    number = jnp.arange(ranking.shape[1])
    is_earlier = number[None] < number[:, None]
    return jnp.where(jnp.any(same & is_earlier, axis=-1), NEVER, ranking)


def best_complete(finished: Finished, count: int) -> Finished:
    """The best `count`: fewest phrases missing, then the highest score, then the first."""
    num_missing = jnp.where(finished.scores > NEVER, finished.num_missing, jnp.iinfo(jnp.int32).max)
    order = jnp.lexsort((-finished.scores, num_missing), axis=1)[:, :count]
    return gather_beams(finished, order)
