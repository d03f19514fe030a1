"""Batches of rows that come from the streams of several corpora, by shares.

In: the planned shards of each corpus, and the weights of the corpora. Out: a `StreamPlan`. Packed
rows all have one shape. In a bucketed plan each bucket has a shape, and batches of the buckets
follow each other as a `Mixture`; the rows of each bucket are a mixture of the corpora.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.plans.batch_shapes import BatchLayout, BatchShape
from transformer_jax.data.plans.mixture import Mixture
from transformer_jax.data.plans.packing import starts_in_rows
from transformer_jax.data.plans.pair_selection import SelectionCounts
from transformer_jax.data.plans.row_stream import PlannedShards, RowPairs, RowStream

_KINDS, _CORPORA = range(2)  # names of mixtures


@dataclasses.dataclass(frozen=True)
class PlannedCorpus:
    """The rows of one corpus.

    Attributes:
      shards: of the corpus.
      rows: `[kinds, shards]` rows of each shape in each shard; a packed plan has one kind.
      counts: of its pairs.
      positions: source and target positions of all its selected pairs, end symbols included.
    """

    shards: PlannedShards
    rows: np.ndarray
    counts: SelectionCounts
    positions: tuple[int, int]


class StreamPlan:
    """The batches of all steps; see the module.

    Args:
      corpora: of the run.
      stages: the first step of each stage, from 0 and ascending, with the share of each corpus in
        the pairs from there on; shares are at least 0.
      shapes: of each kind of rows.
      is_packed: whether rows have several sentences; then there is one shape.
      seed: of the permutations.
    """

    def __init__(
        self,
        corpora: Sequence[PlannedCorpus],
        stages: Sequence[tuple[int, Sequence[float]]],
        shapes: Sequence[BatchShape],
        is_packed: bool,
        seed: int,
    ):
        self._corpora, self._shapes = list(corpora), list(shapes)
        self._steps = [step for step, _ in stages]
        # Rows of each kind per pair, if all pairs together are one: [stages, kinds, corpora].
        pairs = np.asarray([corpus.counts.num_selected for corpus in corpora], np.float64)
        rows = np.stack([corpus.rows.sum(axis=1) for corpus in corpora], axis=1) / pairs
        weights = np.asarray([shares for _, shares in stages], np.float64)
        weights /= weights.sum(axis=1, keepdims=True)
        self._rows_per_pair = rows[None] * weights[:, None]
        self._pairs_per_epoch = _pairs_per_epoch(pairs, weights[0])
        positions = np.asarray([sum(corpus.positions) for corpus in corpora])
        self._real_positions = float(weights[0] @ (positions / pairs))  # of a pair
        kind_stages = list(zip(self._steps, self._batch_shares(), strict=True))
        self._kinds = Mixture(kind_stages, seed, _KINDS)
        self._mixtures = [self._corpus_mixture(kind, seed) for kind in range(len(shapes))]
        self._streams = [
            [
                RowStream(corpus.shards, corpus.rows[kind], seed, i, None if is_packed else kind)
                for i, corpus in enumerate(corpora)
            ]
            for kind in range(len(shapes))
        ]

    def _batch_shares(self) -> np.ndarray:
        """Batches of each kind per pair, `[stages, kinds]`."""
        rows = np.asarray([shape.rows for shape in self._shapes])
        return self._rows_per_pair.sum(axis=2) / rows

    def _corpus_mixture(self, kind: int, seed: int) -> Mixture:
        """Which corpus each row of a kind is of."""
        shares = self._rows_per_pair[:, kind].copy()
        # A kind without rows in a stage has no batches there; its shares are never used.
        shares[shares.sum(axis=1) == 0] = 1.0
        batches = [int(self._kinds.counts(step)[kind]) for step in self._steps]
        first_rows = [count * self._shapes[kind].rows for count in batches]
        stages = list(zip(first_rows, shares, strict=True))
        return Mixture(stages, seed, _CORPORA + kind)

    @property
    def shapes(self) -> list[BatchShape]:
        return sorted(set(self._shapes), key=lambda shape: -shape.cost)

    @property
    def num_corpora(self) -> int:
        """Corpora that are mixed."""
        return len(self._corpora)

    @property
    def counts(self) -> SelectionCounts:
        """How many pairs the corpora have, and how many are left out."""
        return sum((corpus.counts for corpus in self._corpora), SelectionCounts())

    @property
    def batches_per_epoch(self) -> float:
        """Batches until each corpus has been seen at least once, by the shares of step 0."""
        return float(self._pairs_per_epoch * self._batch_shares()[0].sum())

    @property
    def real_positions_per_epoch(self) -> float:
        """Positions of `positions_per_epoch` that hold a token."""
        return self._pairs_per_epoch * self._real_positions

    def positions_per_epoch(self, row_multiple: int = 1) -> float:
        batches = self._pairs_per_epoch * self._batch_shares()[0]
        shapes = [shape.padded(row_multiple) for shape in self._shapes]
        positions = [shape.rows * (shape.source_len + shape.target_len) for shape in shapes]
        return float(batches @ np.asarray(positions))

    def pairs_before(self, step: int) -> np.ndarray:
        """Pairs of each corpus in the batches before `step`, `[corpora]`.

        Rows are counted exactly, and each with the mean number of pairs of its corpus.
        """
        batches = self._kinds.counts(step)
        pairs = np.zeros(len(self._corpora))
        for kind, shape in enumerate(self._shapes):
            rows = self._mixtures[kind].counts(int(batches[kind]) * shape.rows)
            for i, corpus in enumerate(self._corpora):
                of_kind = corpus.rows[kind].sum()
                per_row = 1.0 if len(self._shapes) > 1 else corpus.counts.num_selected / of_kind
                pairs[i] += rows[i] * per_row
        return pairs

    def layout(self, t: int) -> BatchLayout:
        kinds, batches = self._kinds.locate(np.asarray([t]))
        kind, shape = int(kinds[0]), self._shapes[int(kinds[0])]
        numbers = int(batches[0]) * shape.rows + np.arange(shape.rows, dtype=np.int64)
        corpora, ranks = self._mixtures[kind].locate(numbers)
        parts = []
        for corpus in np.unique(corpora).tolist():
            rows = np.flatnonzero(corpora == corpus)
            part = self._streams[kind][corpus].pairs(ranks[rows])
            parts.append(dataclasses.replace(part, owners=rows[part.owners]))
        return _layout(shape, RowPairs.concatenate(parts))


def _pairs_per_epoch(pairs: np.ndarray, shares: np.ndarray) -> float:
    """Pairs of all corpora until the one that is largest for its share has been seen once."""
    used = shares > 0
    return float((pairs[used] / shares[used]).max())


def _layout(shape: BatchShape, content: RowPairs) -> BatchLayout:
    """The layout of a batch; the pairs of a row follow one another in it."""
    order = np.argsort(content.owners, kind="stable")
    rows = content.owners[order]
    first_pairs = np.searchsorted(rows, rows)  # of the same row, for each pair
    return BatchLayout(
        shape=shape,
        pairs=content.pairs[order],
        rows=rows,
        source_starts=starts_in_rows(content.source_lengths[order], first_pairs),
        target_starts=starts_in_rows(content.target_lengths[order], first_pairs),
        segments=np.arange(len(rows)) - first_pairs + 1,
    )
