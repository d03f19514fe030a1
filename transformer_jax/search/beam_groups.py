"""Diverse beam search: beam groups that avoid each other's tokens (Vijayakumar et al., 2018).

Each of the G groups of a sentence is a row of its own in `BeamSearch`, so R = B·G rows of k beams.
Rows of a sentence follow each other. Two things join them: a token costs `diversity_penalty` for
each beam of an earlier group that has just chosen it (Hamming diversity), and they share a cache.
"""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp

from transformer_jax.search.beam import Finished, Selector
from transformer_jax.search.candidates import Selection
from transformer_jax.search.decoder import Cache, Decoder
from transformer_jax.search.hypotheses import gather_beams
from transformer_jax.search.phrase_selection import best_complete
from transformer_jax.search.processors import NextLogProbs, Prefixes
from transformer_jax.search.search_settings import SearchConstraints

Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class SelectInGroups:
    """Lets the groups of each sentence select one after the other.

    Args:
      selector: of one group.
      num_groups: G.
    """

    selector: Selector
    num_groups: int

    def select(
        self, prefixes: Prefixes, beam_log_probs: jax.Array, next_log_probs: NextLogProbs
    ) -> Selection:
        """See `Selector`; the diversity penalty counts in the ranking only."""
        vocab, rows, beams = next_log_probs.log_probs.shape
        batch = rows // self.num_groups
        by_group = next_log_probs.log_probs.reshape(
            vocab, batch, self.num_groups, beams
        )  # [V, R, k] --> [V, B, G, k]
        sentence = jnp.arange(batch)[:, None]
        cost = jnp.zeros((vocab, batch, 1), jnp.float32)
        selections = []
        for g in range(self.num_groups):
            constraints = self._group(prefixes.constraints, g)
            selection = self.selector.select(
                Prefixes(self._group(prefixes.tokens, g), prefixes.index, constraints),
                self._group(beam_log_probs, g),
                NextLogProbs(
                    by_group[:, :, g],
                    self._group(next_log_probs.forced_tokens, g),
                    self._group(next_log_probs.forced_log_probs, g),
                    self._group(next_log_probs.finite, g),
                    ranking_cost=cost,
                ),
            )
            tokens = gather_beams(selection.candidates.tokens, selection.survivors)  # --> [B, k]
            penalty = constraints.values.diversity_penalty[:, None]
            cost = cost.at[tokens, sentence, 0].add(penalty)
            selections.append(selection)
        return jax.tree.map(
            lambda *x: jnp.stack(x, axis=1).reshape(rows, *x[0].shape[1:]), *selections
        )  # G times [B, ...] --> [R, ...]

    def best_finished(self, finished: Finished, count: int) -> Finished:
        """The best of each group."""
        return self.selector.best_finished(finished, count)

    def _group(self, tree: Tree, number: int) -> Tree:
        """Rows of one group, `[B, ...]`, of arrays `[R, ...]`."""
        return jax.tree.map(lambda x: x.reshape(-1, self.num_groups, *x.shape[1:])[:, number], tree)


@dataclasses.dataclass(frozen=True)
class GroupedDecoder:
    """A decoder whose B sentences of K beams are R rows of k beams.

    Args:
      decoder: of sentences.
      num_groups: G = R / B = K / k.
    """

    decoder: Decoder
    num_groups: int

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    def step(self, cache: Cache, tokens: jax.Array) -> tuple[jax.Array, Cache]:
        return self.decoder.step(cache, tokens)  # B·K = R·k, in the same order

    def reorder(self, cache: Cache, parents: jax.Array) -> Cache:
        rows, beams = parents.shape
        first = (jnp.arange(rows) % self.num_groups * beams)[:, None]  # beam of its group
        return self.decoder.reorder(cache, (parents + first).reshape(-1, self.num_groups * beams))

    def grow(self, cache: Cache, size: int) -> Cache:
        return self.decoder.grow(cache, size)

    def coverage(self, cache: Cache) -> jax.Array:
        coverage = self.decoder.coverage(cache)  # [B, K, S]
        batch, beams, length = coverage.shape
        return coverage.reshape(
            batch * self.num_groups, beams // self.num_groups, length
        )  # --> [R, k, S]


def repeat_constraints(constraints: SearchConstraints, num_groups: int) -> SearchConstraints:
    """Constraints of sentences `[B, ...]` as those of rows `[R, ...]`."""
    return jax.tree.map(lambda x: jnp.repeat(x, num_groups, axis=0), constraints)


def merge_groups(finished: Finished, num_groups: int) -> Finished:
    """The hypotheses of each sentence's groups, best first: `[R, k, ...]` --> `[B, K, ...]`."""
    if num_groups == 1:
        return finished
    merged = jax.tree.map(lambda x: x.reshape(x.shape[0] // num_groups, -1, *x.shape[2:]), finished)
    return best_complete(merged, merged.scores.shape[1])
