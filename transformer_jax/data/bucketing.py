"""One sentence a row, in batches of one of a few shapes."""

import numpy as np

from transformer_jax.data.batch_shapes import BatchLayout, BatchShape, even_rows
from transformer_jax.data.pair_selection import CorpusSelection, LengthClasses
from transformer_jax.data.permutation import make_key, permute

# Tags that keep the keys of different permutations apart.
_SENTENCES, _BATCHES = 1, 2


class BucketPlan:
    """One sentence a row; rows of similar length share a batch of one of a few shapes.

    The last batch of each bucket in an epoch may have a few empty rows.

    Args:
      selection: from `select_pairs`.
      batch_tokens: positions in a batch, of its longer side.
      num_buckets: shapes at most.
      seed: of the permutations.
      batch_sentences: rows in a batch instead; 0: by batch_tokens.
      version: `config.data.plan_version`; 1 counts target positions alone, and takes any number of
        rows.
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
        self._shapes, self._members = [], []
        for bucket in buckets:
            source_len = int(classes.source_len[bucket].max())
            target_len = int(classes.target_len[bucket].max())
            longer = target_len if version == 1 else max(source_len, target_len)
            most = batch_sentences or batch_tokens // longer
            size = int(classes.sizes[bucket].sum())
            if version > 1 and not batch_sentences:
                rows = even_rows(size, most)
            else:  # as many batches as full ones would be, equally full
                rows = -(-size // -(-size // most))
            self._shapes.append(BatchShape(rows, source_len, target_len))
            spans = [
                classes.order[classes.starts[c] : classes.starts[c] + classes.sizes[c]]
                for c in bucket
            ]
            self._members.append(np.concatenate(spans))
        batches = [-(-len(m) // s.rows) for m, s in zip(self._members, self._shapes, strict=True)]
        self._first_batch = np.concatenate([[0], np.cumsum(batches)])

    @property
    def shapes(self) -> list[BatchShape]:
        # The trainer compiles in this order, so that lack of memory shows at once.
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
    """Parts the (source, target) length plane into rectangles, at most `num_buckets`.

    The rectangle that gains most positions by it is cut next, where it gains most.

    Returns:
      For each bucket, the indices of its classes.
    """
    lens = np.stack([source_len, target_len])
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
        for part in (bucket[low], bucket[~low]):
            buckets.append(part)
            cuts.append(_best_cut(lens[:, part], sizes[part]))
    return buckets


def _best_cut(lens: np.ndarray, sizes: np.ndarray) -> tuple[int, int, int]:
    """Positions saved, axis and limit of the best cut of one rectangle; (0, 0, 0) if none saves."""
    best = (0, 0, 0)
    whole = int(sizes.sum() * lens.max(axis=1).sum())
    for axis in (0, 1):
        order = np.argsort(lens[axis], kind="stable")
        ordered, counts = lens[:, order], np.cumsum(sizes[order])
        below = np.maximum.accumulate(ordered, axis=1).sum(axis=0)
        above = np.maximum.accumulate(ordered[:, ::-1], axis=1)[:, ::-1].sum(axis=0)
        cuts = np.flatnonzero(np.diff(ordered[axis]))
        if not len(cuts):
            continue
        cost = counts[cuts] * below[cuts] + (counts[-1] - counts[cuts]) * above[cuts + 1]
        i = int(np.argmin(cost))
        if whole - int(cost[i]) > best[0]:
            best = (whole - int(cost[i]), axis, int(ordered[axis, cuts[i]]))
    return best
