"""Bucketing: one sentence a row; sentences of similar length share a batch of one of few shapes."""

import numpy as np

from transformer_jax.data.plans.batch_shapes import (
    BatchLayout,
    BatchShape,
    even_rows,
    spread_evenly,
)
from transformer_jax.data.plans.pair_selection import CorpusSelection, LengthClasses
from transformer_jax.data.plans.permutation import make_key, permute

# Tags that keep the keys of different permutations apart.
_SENTENCES, _BATCHES = 1, 2


class BucketPlan:
    """One sentence a row; rows of similar length share a batch of one of a few shapes.

    Each epoch permutes the sentences within every bucket, and the order of all batches. The last
    batch of a bucket may have a few empty rows.

    Args:
      selection: from `select_pairs`.
      batch_tokens: positions in a batch, of its longer side.
      num_buckets: the largest number of shapes.
      seed: of the permutations.
      batch_sentences: rows in a batch; 0: as many as `batch_tokens` allows.
      version: `config.data.plan_version`; 1 counts target positions only, and may choose any number
        of rows.
    """

    def __init__(
        self,
        selection: CorpusSelection,
        batch_tokens: int,
        num_buckets: int,
        seed: int,
        batch_sentences: int = 0,
        version: int = 2,
    ):
        self._selection, self._seed = selection, seed
        classes = LengthClasses(selection)
        buckets = split_classes(classes.source_len, classes.target_len, classes.sizes, num_buckets)
        # Batches are numbered in this order.
        buckets.sort(key=lambda b: (-classes.target_len[b].max(), -classes.source_len[b].max()))
        self._shapes: list[BatchShape] = []
        self._members: list[np.ndarray] = []  # of each bucket: indices into the selection
        for bucket in buckets:
            source_len = int(classes.source_len[bucket].max())
            target_len = int(classes.target_len[bucket].max())
            longer = target_len if version == 1 else max(source_len, target_len)
            max_rows = batch_sentences or batch_tokens // longer
            size = int(classes.sizes[bucket].sum())
            choose_rows = even_rows if version > 1 and not batch_sentences else spread_evenly
            self._shapes.append(BatchShape(choose_rows(size, max_rows), source_len, target_len))
            spans = [
                classes.order[classes.starts[c] : classes.starts[c] + classes.sizes[c]]
                for c in bucket
            ]
            self._members.append(np.concatenate(spans))
        batches = [-(-len(m) // s.rows) for m, s in zip(self._members, self._shapes, strict=True)]
        self._first_batch = np.concatenate([[0], np.cumsum(batches)])  # [buckets + 1]

    @property
    def shapes(self) -> list[BatchShape]:
        # The trainer compiles in this order, so that it runs out of memory first, if at all.
        return sorted(self._shapes, key=lambda shape: -shape.cost)

    @property
    def batches_per_epoch(self) -> int:
        return int(self._first_batch[-1])

    def positions_per_epoch(self, row_multiple: int = 1) -> int:
        return sum(
            int(n) * s.padded(row_multiple).rows * (s.source_len + s.target_len)
            for n, s in zip(np.diff(self._first_batch), self._shapes, strict=True)
        )

    def layout(self, t: int) -> BatchLayout:
        epoch, index = divmod(t, self.batches_per_epoch)
        order_key = make_key(self._seed, epoch, _BATCHES)
        number = int(permute(np.asarray(index), self.batches_per_epoch, order_key))
        bucket = int(np.searchsorted(self._first_batch, number, side="right")) - 1
        shape, members = self._shapes[bucket], self._members[bucket]
        first = (number - int(self._first_batch[bucket])) * shape.rows
        ranks = np.arange(first, min(first + shape.rows, len(members)))
        key = make_key(self._seed, epoch, _SENTENCES, bucket)
        chosen = members[permute(ranks, len(members), key)]
        zeros = np.zeros(len(chosen), np.int64)
        return BatchLayout(
            shape=shape,
            pairs=self._selection.pairs[chosen],
            rows=np.arange(len(chosen)),
            source_starts=zeros,
            target_starts=zeros,
            segments=zeros + 1,
        )


def split_classes(
    source_len: np.ndarray, target_len: np.ndarray, sizes: np.ndarray, num_buckets: int
) -> list[np.ndarray]:
    """Splits the (source, target) length plane into rectangles, at most `num_buckets`.

    Cuts repeatedly: always the rectangle, axis and length that save the most positions.

    Args:
      source_len, target_len, sizes: `[classes]`, as in `LengthClasses`.
      num_buckets: the largest number of rectangles.

    Returns:
      For each bucket, the indices of its classes.
    """
    lens = np.stack([source_len, target_len])  # [2, classes]
    buckets = [np.arange(len(sizes))]
    cuts = [_best_cut(lens, sizes)]
    while len(buckets) < num_buckets:
        i = int(np.argmax([gain for gain, _, _ in cuts]))
        gain, axis, limit = cuts.pop(i)
        bucket = buckets.pop(i)
        if gain <= 0:
            buckets.append(bucket)
            break
        low = lens[axis, bucket] <= limit
        for half in (bucket[low], bucket[~low]):
            buckets.append(half)
            cuts.append(_best_cut(lens[:, half], sizes[half]))
    return buckets


def _best_cut(lens: np.ndarray, sizes: np.ndarray) -> tuple[int, int, int]:
    """Positions saved, axis and length of a rectangle's best cut; (0, 0, 0) if none saves any.

    Args:
      lens: `[2, classes]` source and target lengths.
      sizes: `[classes]` pairs of each class.
    """
    best = (0, 0, 0)
    uncut_cost = int(sizes.sum() * lens.max(axis=1).sum())
    for axis in (0, 1):
        order = np.argsort(lens[axis], kind="stable")
        ordered, counts = lens[:, order], np.cumsum(sizes[order])
        # Positions of a row if all classes up to (from) here share a shape.
        below = np.maximum.accumulate(ordered, axis=1).sum(axis=0)
        above = np.maximum.accumulate(ordered[:, ::-1], axis=1)[:, ::-1].sum(axis=0)
        cuts = np.flatnonzero(np.diff(ordered[axis]))
        if not len(cuts):
            continue
        cost = counts[cuts] * below[cuts] + (counts[-1] - counts[cuts]) * above[cuts + 1]
        i = int(np.argmin(cost))
        if uncut_cost - int(cost[i]) > best[0]:
            best = (uncut_cost - int(cost[i]), axis, int(ordered[axis, cuts[i]]))
    return best
