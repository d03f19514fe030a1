"""Greedy and beam search, in groups and under constraints too, as one jitted loop.

Unless `at_limit` says otherwise, a hypothesis that reaches its limit is made to end there, so that
every hypothesis returned ends with the end symbol and its score is that of force-decoding it.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.decoding import phrase_banks
from transformer_jax.decoding.beam_state import (
    BeamState,
    Candidates,
    Finished,
    best_finished,
    pad_columns,
)
from transformer_jax.decoding.hypotheses import (
    Hypotheses,
    coverage_penalty,
    gather_beams,
    length_penalty,
)  # fmt: skip
from transformer_jax.decoding.processors import (
    Next,
    Rules,
    SearchConstraints,
    Written,
    forbidden_tokens,
)
from transformer_jax.decoding.search_settings import SearchStructure
from transformer_jax.decoding.stepping import Stepper, repeat
from transformer_jax.ops.top_k import NEVER, top_k_columns


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The best continuations of the start symbol; one beam is greedy search.

    Stopping rules: `first_k` ends a sentence once K hypotheses have finished (CTranslate2 with
    patience 1, Hugging Face with `early_stopping=True`); `hf_default` once the worst of K finished
    ones beats the best live one at its present length; `exact` once the worst of the
    number of hypotheses asked for beats what any live one could still reach.

    With `beam_groups`, every group searches by itself, but a piece costs `diversity_penalty` for
    each earlier group's hypothesis that goes on with it at the same place (Vijayakumar et al.,
    2018, Hamming diversity); the cost counts in choosing only.

    Args:
      stepper: of the model.
      constraints: of each sentence.
      ids: start, end and padding.
      structure: of the settings, whose numbers are in `constraints.values`.
      max_decode_len: pieces at most, T.
      free_prefix: first pieces of each prefix that cost nothing.
      may_follow: `[V]` boolean, tokens that may follow a phrase that ends a word, such as those
        that begin one; None: all.
    """

    stepper: Stepper
    constraints: SearchConstraints
    ids: SpecialIds
    structure: SearchStructure
    max_decode_len: int
    free_prefix: int = 0
    may_follow: Any = None

    @property
    def groups(self) -> int:
        return self.structure.beam_groups

    @property
    def beams(self) -> int:
        """Of one group."""
        return self.structure.beam_size // self.groups

    def run(self, cache: Any) -> Hypotheses:
        """Searches from a fresh cache of B sentences and `beam_size` beams."""
        rules = Rules(
            self.structure, self.ids.target_eos, self.free_prefix,
            forbidden_tokens(self.constraints.values, self.stepper.vocab_size),
        )  # fmt: skip
        end = repeat(
            lambda state: self._step(state, rules), lambda state: ~jnp.all(state.done),
            self._start(cache), self.stepper, self.max_decode_len,
        )  # fmt: skip
        rows = self.constraints.limits.shape[0]
        found = jax.tree.map(
            lambda x: x.reshape(rows, -1, *x.shape[2:]),
            end.finished,
        )  # [B*G, k] --> [B, K]
        if self.groups > 1:
            found = best_finished(found, found.scores.shape[1])
        return Hypotheses(
            found.tokens, found.scores, found.log_probs, found.lengths, end.index, end.finite
        )

    def _per_row(self, x: jax.Array) -> jax.Array:
        """`x` `[B, ...]` for each group of a sentence, `[R, ...]`."""
        return jnp.repeat(x, self.groups, axis=0) if self.groups > 1 else x

    def _start(self, cache: Any) -> BeamState:
        rows = self.constraints.limits.shape[0] * self.groups
        shape = rows, self.beams
        tokens = jnp.full((*shape, self.max_decode_len), self.ids.target_pad, jnp.int32)
        never = jnp.full(shape, NEVER, jnp.float32)
        return BeamState(
            index=jnp.zeros((), jnp.int32),
            cache=cache,
            tokens=tokens,
            # All beams start alike: only the first may grow.
            log_probs=never.at[:, 0].set(0.0),
            finished=Finished(tokens, never, never, *[jnp.zeros(shape, jnp.int32)] * 2),
            num_finished=jnp.zeros((rows,), jnp.int32),
            done=self._per_row(self.constraints.limits <= 0),
            finite=jnp.ones(self.constraints.limits.shape, bool),
        )

    def _step(self, state: BeamState, rules: Rules) -> BeamState:
        rows, total = self.constraints.limits.shape[0], self.structure.beam_size
        last = jnp.take(state.tokens, jnp.maximum(state.index - 1, 0), axis=2)
        last = jnp.where(state.index == 0, self.ids.decoder_start, last).reshape(-1)  # --> [B*K]
        logits, cache = self.stepper.step(state.cache, last)
        tokens = state.tokens.reshape(rows, total, -1)  # [R, k, T] --> [B, K, T]
        following = rules(logits, Written(tokens, state.index, self.constraints))
        candidates, kept = self._choose(state, following)
        written = gather_beams(state.tokens, candidates.parents)
        written = jax.lax.dynamic_update_index_in_dim(
            written, candidates.pieces, state.index, axis=2
        )
        ends = self._ends(candidates, state.index)
        finished, found = self._finish(state, candidates, written, cache)
        parents = gather_beams(candidates.parents, kept)
        if total > 1:
            first = (jnp.arange(rows * self.groups) % self.groups * self.beams)[:, None]
            cache = self.stepper.reorder(cache, (parents + first).reshape(rows, total))
        live = jnp.where(ends, NEVER, candidates.log_probs)
        state = BeamState(
            index=state.index + 1,
            cache=cache,
            tokens=gather_beams(written, kept),
            log_probs=gather_beams(live, kept),
            finished=finished,
            num_finished=state.num_finished + found,
            done=state.done,
            finite=state.finite & jnp.all(following.finite, axis=1),
        )
        return dataclasses.replace(state, done=state.done | self._is_done(state))

    # --- Choosing ------------------------------------------------------------------------------

    def _choose(self, state: BeamState, following: Next) -> tuple[Candidates, jax.Array]:
        """Candidates of every row, and which of them go on, `[R, k]`."""
        if self.groups == 1:
            return self._choose_rows(state.tokens, state.index, state.log_probs, following)
        rows = self.constraints.limits.shape[0]

        def groups(x):  # [R, ...] --> [B, G, ...]
            return x.reshape(rows, self.groups, *x.shape[1:])

        tokens, log_probs = groups(state.tokens), groups(state.log_probs)
        batch = jnp.arange(rows)[:, None]
        strength = jnp.asarray(self.constraints.values.diversity_penalty)[:, None]
        per_group = []
        taken = jnp.zeros((following.log_probs.shape[0], rows, 1), jnp.float32)
        for g in range(self.groups):
            beams = slice(g * self.beams, (g + 1) * self.beams)
            own = Next(
                following.log_probs[:, :, beams],
                following.forced,
                following.forced_log_probs[:, beams],
                following.finite[:, beams],
            )
            candidates, kept = self._choose_rows(
                tokens[:, g], state.index, log_probs[:, g], own, taken
            )
            pieces = gather_beams(candidates.pieces, kept)
            taken = taken.at[pieces, batch, 0].add(strength)
            per_group.append((candidates, kept))
        return jax.tree.map(
            lambda *x: jnp.stack(x, axis=1).reshape(rows * self.groups, *x[0].shape[1:]),
            *per_group,
        )  # --> [R, ...]

    def _choose_rows(
        self,
        tokens: jax.Array,
        index: jax.Array,
        live: jax.Array,
        following: Next,
        taken: jax.Array | None = None,
    ) -> tuple[Candidates, jax.Array]:
        log_probs = following.log_probs
        vocab, rows, beams = log_probs.shape
        if self.constraints.phrases is not None:
            progress = self._progress(tokens, index)
            if self.may_follow is not None:
                log_probs = phrase_banks.forbid_longer_words(
                    log_probs, progress, self.constraints.phrases, self.may_follow
                )
        count = min(2 * beams, vocab * beams) if beams > 1 else 1
        priced = log_probs if taken is None else log_probs - taken
        forced = following.forced[:, None]
        # 2k candidates hold k that go on, since each parent ends in one way only.
        choice, parents, pieces = top_k_columns(priced, live, count)
        found = Candidates(jnp.maximum(choice, NEVER), choice, parents, pieces)
        if taken is not None:
            totals = self._candidates(log_probs, live, parents, pieces).log_probs
            found = dataclasses.replace(found, log_probs=totals)
        if self.constraints.phrases is not None:
            found = self._with_phrases(found, log_probs, live, progress)
        must = jnp.maximum(live + following.forced_log_probs, NEVER)
        must = pad_columns(must, found.choice.shape[1], NEVER)
        own = pad_columns(jnp.broadcast_to(jnp.arange(beams), (rows, beams)), must.shape[1], 0)
        order = jnp.argsort(-must, axis=1)
        must, own = gather_beams((must, own), order)
        found = Candidates(
            choice=jnp.where(forced >= 0, must, found.choice),
            log_probs=jnp.where(forced >= 0, must, found.log_probs),
            parents=jnp.where(forced >= 0, own, found.parents),
            pieces=jnp.where(forced >= 0, forced, found.pieces),
        )
        if self.constraints.phrases is not None:
            return self._choose_banks(tokens, index, found)
        ends = self._ends(found, index)
        choice = jnp.where(ends, NEVER, found.choice)
        finishes = ends & (found.choice > NEVER) & (jnp.arange(ends.shape[1]) < beams)
        unmet = jnp.zeros(ends.shape, jnp.int32)
        found = dataclasses.replace(found, finishes=finishes, unmet=unmet)
        return found, jax.lax.top_k(choice, beams)[1]

    def _candidates(self, log_probs, live, parents, pieces) -> Candidates:
        """Candidates by parent and piece, `[R, N]`, chosen by log-probability."""
        row = jnp.arange(live.shape[0])[:, None]
        own = log_probs[jnp.maximum(pieces, 0), row, parents]
        totals = jnp.maximum(live[row, parents] + own, NEVER)
        totals = jnp.where(pieces < 0, NEVER, totals)
        return Candidates(totals, totals, parents, pieces)

    def _progress(self, tokens: jax.Array, index: jax.Array) -> phrase_banks.Progress:
        asked: Any = self.constraints
        return phrase_banks.progress(tokens, index, asked.phrases, asked.word_ends, self.may_follow)

    def _with_phrases(self, found: Candidates, log_probs, live, progress) -> Candidates:
        """More candidates: each hypothesis's best piece, its end, and what brings phrases on."""
        rows, beams, _ = progress.met.shape
        phrases: Any = self.constraints.phrases
        following = phrase_banks.next_tokens(progress, phrases)  # --> [R, k, C]
        best = jnp.argmax(log_probs, axis=0)[..., None]  # --> [R, k, 1]
        ending = jnp.full_like(best, self.ids.target_eos)
        pieces = jnp.concatenate([best, ending, following], axis=-1)
        parents = jnp.broadcast_to(jnp.arange(beams)[:, None], pieces.shape)
        extra = self._candidates(
            log_probs, live, parents.reshape(rows, -1), pieces.reshape(rows, -1)
        )
        merged = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), found, extra)
        choice = phrase_banks.drop_repeated(merged.choice, merged.parents, merged.pieces)
        return dataclasses.replace(merged, choice=choice)

    def _choose_banks(self, tokens, index, found: Candidates) -> tuple[Candidates, jax.Array]:
        """Candidates, and which go on; each bank of hypotheses gets its share of both.

        An end counts if it would be chosen to go on. One without all phrases counts only as the
        best of its bank, and is taken where there is no better.
        """
        written = gather_beams(tokens, found.parents)
        written = jax.lax.dynamic_update_index_in_dim(written, found.pieces, index, axis=2)
        progress = self._progress(written, index + 1)
        unmet = jnp.sum(~progress.met, axis=-1)
        bank = phrase_banks.bank(progress, self.constraints.phrases)
        beams = tokens.shape[1]
        ends, possible = self._ends(found, index), found.choice > NEVER
        incomplete = ends & (unmet > 0)
        is_best = phrase_banks.rank_in_bank(found.choice, bank) == 0
        chosen = phrase_banks.allot(jnp.where(incomplete, NEVER, found.choice), bank, beams)
        counts = jnp.any(chosen[..., None] == jnp.arange(ends.shape[1]), axis=1)  # --> [R, N]
        finishes = ends & possible & jnp.where(incomplete, is_best, counts)
        found = dataclasses.replace(found, finishes=finishes, unmet=unmet)
        return found, phrase_banks.allot(jnp.where(ends, NEVER, found.choice), bank, beams)

    # --- Ending --------------------------------------------------------------------------------

    def _ends(self, found: Candidates, index: jax.Array) -> jax.Array:
        ends = found.pieces == self.ids.target_eos
        if self.structure.at_limit == "cut":
            ends |= self._limits(found) <= index + 1
        return ends

    def _limits(self, found: Candidates) -> jax.Array:
        """`[R or B, 1]`, as the candidates' rows are."""
        limits = self.constraints.limits
        same = found.pieces.shape[0] == limits.shape[0]
        return (limits if same else self._per_row(limits))[:, None]

    def _finish(
        self, state: BeamState, found: Candidates, written: jax.Array, cache: Any
    ) -> tuple[Finished, jax.Array]:
        """Adds the ends that count to the finished hypotheses, and says how many are complete."""
        ends = found.finishes & ~state.done[:, None]
        scores = found.log_probs / self._penalty(state.index + 1)[:, None]
        if self.structure.coverage_penalty:
            coverage = self.stepper.coverage(cache)  # --> [B, K, S]
            coverage = coverage.reshape(*state.log_probs.shape, -1)  # --> [R, k, S]
            beta = self._per_row(jnp.asarray(self.constraints.values.coverage_penalty))
            cost = coverage_penalty(coverage, beta[:, None])
            scores = scores + gather_beams(cost, found.parents)
        scores = jnp.where(ends, scores, NEVER)
        length = jnp.full(scores.shape, state.index + 1, jnp.int32)
        new = Finished(written, found.log_probs, scores, length, found.unmet)
        pool = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), state.finished, new)
        complete = ends & (found.unmet == 0)
        if self.constraints.phrases is None:
            _, order = jax.lax.top_k(pool.scores, self.beams)
            kept = gather_beams(pool, order)
        else:
            kept = best_finished(pool, self.beams)
        return kept, jnp.sum(complete, axis=1, dtype=jnp.int32)

    def _penalty(self, length: jax.Array) -> jax.Array:
        """Length penalty of each row, `[R]`."""
        alpha = self._per_row(jnp.asarray(self.constraints.values.length_penalty))
        return length_penalty(length, alpha, self.structure.length_penalty_kind)

    def _is_done(self, state: BeamState) -> jax.Array:
        best_live = jnp.max(state.log_probs, axis=1)
        stopping = self.structure.stopping
        scores = jnp.where(state.finished.unmet > 0, NEVER, state.finished.scores)
        if stopping == "first_k":
            enough = state.num_finished >= self.beams
        elif stopping == "hf_default":
            enough = scores[:, -1] >= best_live / self._penalty(state.index)
        else:
            # A log-probability only falls; over a longer hypothesis's penalty it may still rise.
            limits = self._per_row(self.constraints.limits)
            asked: Any = self.constraints.num_hypotheses
            needed = jnp.minimum(self._per_row(jnp.asarray(asked)), self.beams)
            last = jnp.take_along_axis(scores, needed[:, None] - 1, axis=1)[:, 0]
            enough = last >= best_live / self._penalty(limits)
        return enough | (best_live <= NEVER)
