"""Beam search as one jitted loop; with one beam it is greedy search.

Arrays have R rows of k beams. A row is one search: a sentence, or one beam group of it
(`beam_groups`). Phrases that the output has to contain change the selection (`phrase_selection`).

Unless `at_limit` says otherwise, a hypothesis that reaches its length limit is forced to end there.
So every hypothesis ends with the end symbol, and its score is that of force-decoding it.
"""

import dataclasses
from typing import Protocol

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.decoding.candidates import (
    Selection,
    append,
    best_candidates,
    ends,
    force_tokens,
)
from transformer_jax.decoding.decoder import Cache, Decoder, decode_loop
from transformer_jax.decoding.hypotheses import coverage_penalty, gather_beams, length_penalty
from transformer_jax.decoding.processors import LogitsProcessors, NextLogProbs, Prefixes
from transformer_jax.decoding.search_settings import SearchConstraints, SearchStructure
from transformer_jax.ops.top_k import NEVER


@flax.struct.dataclass
class Finished:
    """The best k hypotheses of each row that have ended, best first."""

    tokens: jax.Array  # [R, k, T]
    log_probs: jax.Array  # [R, k]
    scores: jax.Array  # [R, k]; NEVER where there is none
    lengths: jax.Array  # [R, k]
    num_missing: jax.Array  # [R, k] phrases that it lacks


@flax.struct.dataclass
class BeamState:
    """A search in progress."""

    index: jax.Array  # position of the next token
    cache: Cache
    tokens: jax.Array  # [R, k, T] of the beams, the hypotheses that have not ended
    log_probs: jax.Array  # [R, k] of the beams
    finished: Finished
    num_finished: jax.Array  # [R] hypotheses that have ever finished
    done: jax.Array  # [R]
    finite: jax.Array  # [R] whether all logits were


class Selector(Protocol):
    """Chooses among the continuations of the beams."""

    def select(
        self,
        prefixes: Prefixes,
        beam_log_probs: jax.Array,
        next_log_probs: NextLogProbs,
        cost: jax.Array | None = None,
    ) -> Selection:
        """Candidates, those that finish, and those that become the new beams."""

    def best_finished(self, finished: Finished, count: int) -> Finished:
        """The best `count` of `finished`."""


@dataclasses.dataclass(frozen=True)
class SelectBest:
    """Keeps the k best continuations that do not end.

    Args:
      eos_id: the end symbol.
      at_limit: `config.decode.at_limit`.
    """

    eos_id: int
    at_limit: str

    def select(
        self,
        prefixes: Prefixes,
        beam_log_probs: jax.Array,
        next_log_probs: NextLogProbs,
        cost: jax.Array | None = None,
    ) -> Selection:
        """See `Selector`.

        An end counts only if it is among the k best candidates: a wider beam would choose it too.

        Args:
          prefixes: of the beams.
          beam_log_probs: `[R, k]`.
          next_log_probs: of the next token.
          cost: `[V, R, 1]`, subtracted from the ranking only.
        """
        beams = beam_log_probs.shape[1]
        candidates = best_candidates(next_log_probs.log_probs, beam_log_probs, cost)
        candidates = force_tokens(candidates, next_log_probs, beam_log_probs)
        is_end = ends(candidates, prefixes, self.eos_id, self.at_limit)  # [R, N]
        is_among_best = jnp.arange(is_end.shape[1]) < beams
        _, survivors = jax.lax.top_k(jnp.where(is_end, NEVER, candidates.ranking), beams)
        return Selection(
            candidates,
            ends=is_end,
            finishes=is_end & (candidates.ranking > NEVER) & is_among_best,
            num_missing=jnp.zeros(is_end.shape, jnp.int32),
            survivors=survivors,
        )

    def best_finished(self, finished: Finished, count: int) -> Finished:
        """The `count` of the highest scores; of equal ones the first."""
        return gather_beams(finished, jax.lax.top_k(finished.scores, count)[1])


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The best continuations of the start symbol.

    Stopping rules: `first_k` ends a row once k hypotheses have finished (CTranslate2 with
    patience 1, Hugging Face with `early_stopping=True`); `hf_default` once the worst of k finished
    ones beats the best beam at its present length; `exact` once the worst of the number of
    hypotheses asked for beats what any beam could still reach.

    Args:
      decoder: gives logits, and reorders its cache.
      processors: turn logits into log-probabilities of the next token.
      selector: chooses the new beams at each step.
      constraints: of each row.
      ids: start, end and padding.
      structure: of the settings, whose numbers are in `constraints.values`.
      beams: k, of each row.
      max_decode_len: T, most tokens of an output.
    """

    decoder: Decoder
    processors: LogitsProcessors
    selector: Selector
    constraints: SearchConstraints
    ids: SpecialIds
    structure: SearchStructure
    beams: int
    max_decode_len: int

    def run(self, cache: Cache) -> BeamState:
        """Searches from a fresh cache; returns the last state, without its cache."""
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
            num_finished=jnp.zeros((rows,), jnp.int32),
            done=self.constraints.max_lens <= 0,
            finite=jnp.ones((rows,), bool),
        )

    def _step(self, state: BeamState) -> BeamState:
        """Extends every beam by one token."""
        # 1. Log-probabilities of the next token of every beam.
        last = jnp.take(state.tokens, jnp.maximum(state.index - 1, 0), axis=2)  # --> [R, k]
        last = jnp.where(state.index == 0, self.ids.decoder_start, last)
        logits, cache = self.decoder.step(state.cache, last.reshape(-1))  # [V, R * k]
        prefixes = Prefixes(state.tokens, state.index, self.constraints)
        next_log_probs = self.processors(logits, prefixes)  # [V, R, k]

        # 2. The best candidates: some end, k others become the new beams.
        selection = self.selector.select(prefixes, state.log_probs, next_log_probs)
        candidates, survivors = selection.candidates, selection.survivors
        tokens = append(state.tokens, candidates, state.index)  # [R, N, T]

        # 3. Those that end join the finished hypotheses, of which the best k are kept.
        finished, num_new = self._add_finished(state, selection, tokens, cache)

        # 4. The survivors take over their parents' cache.
        if self.structure.beam_size > 1:
            cache = self.decoder.reorder(cache, gather_beams(candidates.parents, survivors))
        log_probs = jnp.where(selection.ends, NEVER, candidates.log_probs)
        state = BeamState(
            index=state.index + 1,
            cache=cache,
            tokens=gather_beams(tokens, survivors),
            log_probs=gather_beams(log_probs, survivors),
            finished=finished,
            num_finished=state.num_finished + num_new,
            done=state.done,
            finite=state.finite & jnp.all(next_log_probs.finite, axis=1),
        )
        return dataclasses.replace(state, done=state.done | self._is_done(state))

    def _add_finished(
        self, state: BeamState, selection: Selection, tokens: jax.Array, cache: Cache
    ) -> tuple[Finished, jax.Array]:
        """The best finished hypotheses, and how many new ones lack no phrase, `[R]`.

        Args:
          state: before the step.
          selection: of the step.
          tokens: `[R, N, T]` of the candidates.
          cache: after the step, not yet reordered.
        """
        candidates, finishes = selection.candidates, selection.finishes & ~state.done[:, None]
        length = state.index + 1
        scores = candidates.log_probs / self._length_penalty(length)[:, None]  # [R, N]
        if self.structure.coverage_penalty:
            beta = self.constraints.values.coverage_penalty[:, None]
            penalty = coverage_penalty(self.decoder.coverage(cache), beta)  # [R, k]
            scores = scores + gather_beams(penalty, candidates.parents)
        scores = jnp.where(finishes, scores, NEVER)
        lengths = jnp.full(scores.shape, length, jnp.int32)
        new = Finished(tokens, candidates.log_probs, scores, lengths, selection.num_missing)
        both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), state.finished, new)
        complete = finishes & (selection.num_missing == 0)
        return (
            self.selector.best_finished(both, self.beams),
            jnp.sum(complete, axis=1, dtype=jnp.int32),
        )

    def _length_penalty(self, length: jax.Array) -> jax.Array:
        """What the log-probabilities of each row are divided by, `[R]`."""
        alpha = self.constraints.values.length_penalty
        return length_penalty(length, alpha, self.structure.length_penalty_kind)

    def _is_done(self, state: BeamState) -> jax.Array:
        """Whether each row stops, `[R]`, by the rule that `structure.stopping` names."""
        best_beam = jnp.max(state.log_probs, axis=1)
        scores = jnp.where(state.finished.num_missing > 0, NEVER, state.finished.scores)
        if self.structure.stopping == "first_k":
            enough = state.num_finished >= self.beams
        elif self.structure.stopping == "hf_default":
            enough = scores[:, -1] >= best_beam / self._length_penalty(state.index)
        else:
            # A log-probability only falls; divided by a larger length penalty it may still rise.
            bound = best_beam / self._length_penalty(self.constraints.max_lens)
            needed = jnp.minimum(self.constraints.num_hypotheses, self.beams)
            worst_needed = jnp.take_along_axis(scores, needed[:, None] - 1, axis=1)[:, 0]
            enough = worst_needed >= bound
        return enough | (best_beam <= NEVER)
