"""Beam search as one jitted loop; with one beam it is greedy search.

Letters of shapes:

    R  rows. A row is one independent search: a sentence, or one beam group of it (`beam_groups`)
    k  beams of a row
    N  candidates of a row: 2k, or 1 if k = 1; more with phrases
    V  tokens of the vocabulary
    T  tokens of the longest output
    S  tokens of the longest source

The life of a hypothesis: each *beam* is extended by one token into *candidates*. A candidate that
ends is *finished* if it ranks high enough, and dropped otherwise. The best k that do not end
*survive* as the new beams. A finished hypothesis is *complete* if it lacks no phrase. A row is
*done* when its finished hypotheses change no more; its beams are still computed.

`NEVER` is the log-probability of what is impossible: far below all others, but finite, so that
sums with it are never NaN. A row has less than k beams where the log-probability of some is NEVER.

`LogitsProcessors` force a hypothesis that reaches its length limit to end there, unless `at_limit`
says otherwise. So its score includes the end symbol, and force-decoding gives the same.
"""

import dataclasses
from typing import Protocol

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.ops.top_k import NEVER
from transformer_jax.search.candidates import (
    Candidates,
    Selection,
    append_tokens,
    best_candidates,
    find_ends,
    force_tokens,
)
from transformer_jax.search.decoder import Cache, Decoder, decode_loop
from transformer_jax.search.hypotheses import coverage_penalty, gather_beams, length_penalty
from transformer_jax.search.processors import LogitsProcessors, NextLogProbs, Prefixes
from transformer_jax.search.search_settings import SearchConstraints, SearchStructure


@flax.struct.dataclass
class Finished:
    """The best k finished hypotheses of each row: fewest missing phrases, then highest score."""

    tokens: jax.Array  # [R, k, T], without the start symbol
    log_probs: jax.Array  # [R, k]
    scores: jax.Array  # [R, k]; NEVER where there is none
    lengths: jax.Array  # [R, k] number of tokens, with the end symbol unless cut at the limit
    num_missing: jax.Array  # [R, k] phrases that it does not contain


@flax.struct.dataclass
class BeamState:
    """A search in progress."""

    index: jax.Array  # position of the next token: the length of the beams
    cache: Cache | None  # None once `decode_loop` has ended
    tokens: jax.Array  # [R, k, T] of the beams, without the start symbol
    log_probs: jax.Array  # [R, k] of the beams
    finished: Finished
    num_complete: jax.Array  # [R] hypotheses that ever finished with all their phrases
    done: jax.Array  # [R]
    finite: jax.Array  # [R] False once a logit was NaN


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The best continuations of the start symbol in each row.

    Stopping rules, for each row:

    - `first_k`: k hypotheses have finished (CTranslate2 with patience 1, Hugging Face with
      `early_stopping=True`).
    - `hf_default`: the worst of k finished hypotheses beats the best beam at its present length.
    - `exact`: the worst of the hypotheses asked for beats what any beam could still reach.

    Args:
      decoder: gives logits, and reorders its cache.
      processors: turn logits into log-probabilities of the next token.
      selector: chooses among the candidates.
      constraints: of each row.
      ids: start, end and padding.
      structure: the static part of the settings, for which the search is compiled. The numbers of
        the settings are arrays in `constraints.values`.
      beams: k.
      max_decode_len: T.
    """

    decoder: Decoder
    processors: LogitsProcessors
    selector: "Selector"
    constraints: SearchConstraints
    ids: SpecialIds
    structure: SearchStructure
    beams: int
    max_decode_len: int

    def run(self, cache: Cache) -> BeamState:
        """Searches from a fresh cache; returns the last state."""
        return decode_loop(
            self._step,
            lambda state: ~jnp.all(state.done),
            self._init_state(cache),
            self.decoder,
            self.max_decode_len,
        )

    def _init_state(self, cache: Cache) -> BeamState:
        rows = self.constraints.max_lens.shape[0]
        shape = rows, self.beams
        tokens = jnp.full((*shape, self.max_decode_len), self.ids.target_pad, jnp.int32)
        never = jnp.full(shape, NEVER, jnp.float32)
        zeros = jnp.zeros(shape, jnp.int32)
        return BeamState(
            index=jnp.zeros((), jnp.int32),
            cache=cache,
            tokens=tokens,
            # All beams start alike: only the first may grow.
            log_probs=never.at[:, 0].set(0.0),
            finished=Finished(tokens, never, never, lengths=zeros, num_missing=zeros),
            num_complete=jnp.zeros((rows,), jnp.int32),
            done=self.constraints.max_lens <= 0,  # rows that only fill up the batch
            finite=jnp.ones((rows,), bool),
        )

    def _step(self, state: BeamState) -> BeamState:
        """Extends every beam by one token."""
        # 1. Log-probabilities of the next token of every beam.
        last = jnp.take(state.tokens, jnp.maximum(state.index - 1, 0), axis=2)  # --> [R, k]
        previous_tokens = jnp.where(state.index == 0, self.ids.decoder_start, last)
        logits, cache = self.decoder.step(
            state.cache, previous_tokens.reshape(-1)
        )  # [R * k] --> [V, R * k]
        prefixes = Prefixes(state.tokens, state.index, self.constraints)
        next_log_probs = self.processors(logits, prefixes)  # NextLogProbs of [V, R, k]

        # 2. Candidates, those of them that finish, and those that survive.
        selection = self.selector.select(prefixes, state.log_probs, next_log_probs)
        candidates, survivors = selection.candidates, selection.survivors  # [R, N], [R, k]
        candidate_tokens = append_tokens(state.tokens, candidates, state.index)  # [R, N, T]

        # 3. The finished ones join those of earlier steps, of which the best k are kept.
        scores = self._scores(candidates, state.index + 1, cache)  # [R, N]
        finished, num_complete = self._add_finished(state, selection, candidate_tokens, scores)

        # 4. The survivors are the new beams, with the cache of their parents.
        if self.beams > 1:
            cache = self.decoder.reorder(cache, gather_beams(candidates.parents, survivors))
        # If fewer than k candidates do not end, some survivors do: these beams are impossible.
        beam_log_probs = jnp.where(selection.is_end, NEVER, candidates.log_probs)  # [R, N]
        next_state = BeamState(
            index=state.index + 1,
            cache=cache,
            tokens=gather_beams(candidate_tokens, survivors),  # --> [R, k, T]
            log_probs=gather_beams(beam_log_probs, survivors),  # --> [R, k]
            finished=finished,
            num_complete=num_complete,
            done=state.done,
            finite=state.finite & jnp.all(next_log_probs.finite, axis=1),
        )
        return dataclasses.replace(next_state, done=state.done | self._is_done(next_state))

    def _scores(self, candidates: Candidates, length: jax.Array, cache: Cache) -> jax.Array:
        """Scores of candidates of `length` tokens, `[R, N]`; the cache is not yet reordered."""
        scores = candidates.log_probs / self._length_penalty(length)[:, None]
        if self.structure.has_coverage_penalty:
            beta = self.constraints.values.coverage_penalty[:, None]
            coverage = self.decoder.coverage(cache)  # [R, k, S]
            penalty = coverage_penalty(coverage, beta)  # --> [R, k]
            scores = scores + gather_beams(penalty, candidates.parents)  # --> [R, N]
        return scores

    def _length_penalty(self, length: jax.Array) -> jax.Array:
        """The divisor of each row's log-probabilities, `[R]`."""
        alpha = self.constraints.values.length_penalty
        return length_penalty(length, alpha, self.structure.length_penalty_kind)

    def _add_finished(
        self, state: BeamState, selection: Selection, tokens: jax.Array, scores: jax.Array
    ) -> tuple[Finished, jax.Array]:
        """The best k finished hypotheses, old and new, and the new `num_complete`.

        Args:
          state: before the step.
          selection: of the step.
          tokens: `[R, N, T]` of the candidates.
          scores: `[R, N]` of the candidates.
        """
        is_new = selection.is_accepted & ~state.done[:, None]  # [R, N]
        new = Finished(
            tokens=tokens,
            log_probs=selection.candidates.log_probs,
            scores=jnp.where(is_new, scores, NEVER),
            lengths=jnp.full(scores.shape, state.index + 1, jnp.int32),
            num_missing=selection.num_missing,
        )
        old_and_new = jax.tree.map(
            lambda *x: jnp.concatenate(x, axis=1), state.finished, new
        )  # --> [R, k + N, ...]
        num_new = jnp.sum(is_new & (selection.num_missing == 0), axis=1, dtype=jnp.int32)
        return self.selector.best_finished(old_and_new, self.beams), state.num_complete + num_new

    def _is_done(self, state: BeamState) -> jax.Array:
        """Whether each row stops after this step, `[R]`, by the rule `structure.stopping`."""
        best_beam = jnp.max(state.log_probs, axis=1)
        # `Finished` has complete ones first, so the masked scores still fall from left to right.
        scores = jnp.where(state.finished.num_missing > 0, NEVER, state.finished.scores)
        if self.structure.stopping == "first_k":
            enough = state.num_complete >= self.beams
        elif self.structure.stopping == "hf_default":
            enough = scores[:, -1] >= best_beam / self._length_penalty(state.index)
        elif self.structure.stopping == "exact":
            # No beam's final score is above this bound: log-probabilities never rise, the coverage
            # penalty is at most 0, and the divisor is largest at the limit. (`validate` refuses a
            # negative alpha or beta.)
            longest = jnp.maximum(self.constraints.max_lens, 1)
            bound = best_beam / self._length_penalty(longest)
            needed = jnp.minimum(self.constraints.num_hypotheses, self.beams)[:, None]
            enough = jnp.take_along_axis(scores, needed - 1, axis=1)[:, 0] >= bound
        else:
            raise ValueError(f"unknown stopping rule {self.structure.stopping!r}")
        # No beam is left where all have ended, as at the length limit.
        return enough | (best_beam <= NEVER)


class Selector(Protocol):
    """Chooses among the candidates: `SelectBest`, in groups, or with phrases."""

    def select(
        self, prefixes: Prefixes, beam_log_probs: jax.Array, next_log_probs: NextLogProbs
    ) -> Selection:
        """Ranks the continuations, and chooses which finish and which survive.

        Args:
          prefixes: the beams.
          beam_log_probs: `[R, k]` of the beams.
          next_log_probs: of their next token.
        """

    def best_finished(self, finished: Finished, count: int) -> Finished:
        """The best `count` of `finished`, in the order that `Finished` documents."""


@dataclasses.dataclass(frozen=True)
class SelectBest:
    """The k best candidates that do not end survive.

    Args:
      eos_id: the end symbol.
      at_limit: `config.decode.at_limit`.
    """

    eos_id: int
    at_limit: str

    def select(
        self, prefixes: Prefixes, beam_log_probs: jax.Array, next_log_probs: NextLogProbs
    ) -> Selection:
        """See `Selector`.

        An end is accepted only if it is among the k best candidates, as in a search that keeps no
        more than k hypotheses. The other candidates are there so that k survive.
        """
        beams = beam_log_probs.shape[1]
        candidates = best_candidates(next_log_probs, beam_log_probs)
        candidates = force_tokens(candidates, next_log_probs, beam_log_probs)
        is_end = find_ends(candidates, prefixes, self.eos_id, self.at_limit)  # [R, N]
        is_among_best = jnp.arange(is_end.shape[1]) < beams  # [N], as the best come first
        _, survivors = jax.lax.top_k(jnp.where(is_end, NEVER, candidates.ranking), beams)
        return Selection(
            candidates,
            is_end=is_end,
            is_accepted=is_end & (candidates.ranking > NEVER) & is_among_best,
            num_missing=jnp.zeros(is_end.shape, jnp.int32),
            survivors=survivors,
        )

    def best_finished(self, finished: Finished, count: int) -> Finished:
        """See `Selector`. No hypothesis has missing phrases; of equal scores the first is kept."""
        return gather_beams(finished, jax.lax.top_k(finished.scores, count)[1])
