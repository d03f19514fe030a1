"""Which sentence pairs make up batch `t`: a pure function of (seed, corpus, t).

Both plans work on lengths alone. `PackPlan` packs *classes* of equal (source, target) length into
row templates once; each epoch then permutes the sentences within every class, and the rows.
`BucketPlan` gives each pair a row of one of a few shapes. Permutations are keyed and evaluated
element by element, so any batch is found without the ones before it.
"""

import dataclasses
from typing import Protocol

import numpy as np

from transformer_jax.config import Config
from transformer_jax.data.permutation import make_key, permute
from transformer_jax.errors import UserError

# Tags that keep the keys of different permutations apart.
_ROWS, _SENTENCES, _BATCHES = range(3)


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """Static shape of a batch: rows, source positions, target positions."""

    rows: int
    source_len: int
    target_len: int

    def padded(self, row_multiple: int) -> "BatchShape":
        """With as many rows more as make them a multiple; those stay empty."""
        rows = -(-self.rows // row_multiple) * row_multiple
        return dataclasses.replace(self, rows=rows)


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the pairs of one batch stand; all arrays are `[pairs]`."""

    shape: BatchShape
    pairs: np.ndarray  # index into the corpus
    rows: np.ndarray
    source_starts: np.ndarray
    target_starts: np.ndarray
    segments: np.ndarray  # 1, 2, … within a row

    def only(self, rows: np.ndarray) -> "Placement":
        """The part that stands in some of the rows, which are numbered anew."""
        numbers = np.full(self.shape.rows, -1)
        numbers[rows] = np.arange(len(rows))
        own = numbers[self.rows] >= 0
        return Placement(
            dataclasses.replace(self.shape, rows=len(rows)), self.pairs[own],
            numbers[self.rows][own], self.source_starts[own], self.target_starts[own],
            self.segments[own],
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CorpusSelection:
    """What is trained on, and what is left out and why."""

    pairs: np.ndarray  # indices; one that a sampling weight repeats stands several times
    source_lengths: np.ndarray  # positions of each, the end symbol included
    target_lengths: np.ndarray
    num_pairs: int  # before anything was left out
    num_empty: int
    num_too_long: int


class BatchPlan(Protocol):
    """Any plan: its shapes, the number of batches in an epoch, and batch `t`."""

    @property
    def shapes(self) -> list[BatchShape]: ...  # largest first

    @property
    def batches_per_epoch(self) -> float: ...

    @property
    def positions_per_epoch(self) -> float: ...  # source and target, padding included

    def placement(self, t: int) -> Placement: ...


def select_pairs(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_len: int,
    corpus_sizes: tuple[int, ...] = (),
    weights: tuple[float, ...] = (),
) -> CorpusSelection:
    """Leaves out pairs with an empty or over-long side; repeats corpora according to `weights`.

    With weights, the corpus that is rarest for its weight is seen once an epoch and the others the
    more often, so that every pair is seen and the shares are those of the weights.

    Args:
      source_lengths, target_lengths: `[pairs]` pieces, end symbols not included.
      max_len: longest side in positions, its end symbol included.
      corpus_sizes: pairs of each corpus, in order.
      weights: one a corpus, or none for shares by size.

    Raises:
      UserError: where nothing is left.
    """
    lengths = np.stack([source_lengths, target_lengths]).astype(np.int64) + 1
    empty = (lengths == 1).any(axis=0)
    too_long = ~empty & (lengths > max_len).any(axis=0)
    pairs = np.flatnonzero(~empty & ~too_long)
    if not len(pairs):
        raise UserError(
            f"No sentence pair is left to train on: of {lengths.shape[1]}, {empty.sum()} have an "
            f"empty side and {too_long.sum()} exceed config.data.max_len={max_len} pieces."
        )
    if weights:
        corpus = np.repeat(np.arange(len(corpus_sizes)), corpus_sizes)[pairs]
        counts = np.bincount(corpus, minlength=len(corpus_sizes))
        if not counts.all():
            raise UserError(
                f"Corpus {int(np.argmin(counts)) + 1} of config.data.train has no usable pair."
            )
        factors = np.asarray(weights) / counts
        factors = factors / factors.min()
        parts = []
        for i, factor in enumerate(factors):
            own = pairs[corpus == i]
            ends = np.floor(np.arange(len(own) + 1) * factor + 1e-9).astype(np.int64)
            parts.append(np.repeat(own, np.diff(ends)))
        pairs = np.concatenate(parts)
    return CorpusSelection(
        pairs=pairs,
        source_lengths=lengths[0, pairs],
        target_lengths=lengths[1, pairs],
        num_pairs=lengths.shape[1],
        num_empty=int(empty.sum()),
        num_too_long=int(too_long.sum()),
    )


def make_plan(
    selection: CorpusSelection, config: Config, like: BatchPlan | None = None
) -> BatchPlan:
    """The plan that `config.data.batching` names; it knows no devices.

    Args:
      selection: from `select_pairs`.
      config: the run's, validated.
      like: a packed plan whose shape this one shall have.
    """
    data = config.data
    if data.batching == "pack":
        target_len = data.pack_len or data.max_len
        if like is not None:
            source_len = like.shapes[0].source_len
        else:
            source_len = _balanced_source_len(selection, target_len)
            if data.subword_sampling:  # a later epoch may have longer sentences
                source_len = max(source_len, data.max_len)
        rows = data.batch_tokens // target_len
        return PackPlan(selection, rows, target_len, config.seed, source_len)
    return BucketPlan(
        selection, data.batch_tokens, data.num_buckets, config.seed, data.batch_sentences
    )


def padding_report(plan: BatchPlan, selection: CorpusSelection) -> float:
    """Share of padding among all source and target positions of an epoch, in 0 .. 1."""
    real = float(selection.source_lengths.sum() + selection.target_lengths.sum())
    return 1.0 - real / plan.positions_per_epoch


class _Classes:
    """Pairs sorted by (source, target) length, equal lengths forming a class."""

    def __init__(self, selection: CorpusSelection):
        source, target = selection.source_lengths, selection.target_lengths
        code = source * (int(target.max()) + 1) + target
        # Stable, so that the order within a class, hence every batch, is the same everywhere.
        self.order = np.argsort(code, kind="stable")
        codes, self.starts, self.sizes = np.unique(
            code[self.order], return_index=True, return_counts=True
        )
        self.source_len, self.target_len = np.divmod(codes, int(target.max()) + 1)

    def __len__(self) -> int:
        return len(self.sizes)


def pack_classes(
    source_len: np.ndarray, target_len: np.ndarray, sizes: np.ndarray, row: tuple[int, int]
) -> list[tuple[np.ndarray, int]]:
    """Packs all sentences of all classes into rows that hold `row` (source, target) positions.

    A template starts with the longest class left and takes, as long as anything fits, the class
    that leaves the least and most evenly balanced rest; it is used as often as its classes last.

    Args:
      source_len, target_len, sizes: `[classes]`.
      row: positions a row holds.

    Returns:
      Templates: the classes in a row, and how many rows are alike.
    """
    scale = np.asarray(row, np.float64)
    ids = np.argsort(-(source_len / scale[0] + target_len / scale[1]), kind="stable")
    lens = np.stack([source_len, target_len])[:, ids]
    fill = lens / scale[:, None]
    left = sizes[ids].copy()
    templates: list[tuple[np.ndarray, int]] = []
    while True:
        alive = left > 0
        if not alive.any():
            return templates
        if alive.mean() < 0.8:
            ids, lens, fill, left = ids[alive], lens[:, alive], fill[:, alive], left[alive]
            alive = left > 0
        picked = [int(np.argmax(alive))]
        rest = np.asarray(row) - lens[:, picked[0]]
        spare = left.copy()
        spare[picked[0]] -= 1
        # What does not fit now never fits again in this row.
        fitting = np.flatnonzero((spare > 0) & (lens[0] <= rest[0]) & (lens[1] <= rest[1]))
        while len(fitting):
            over = (rest / scale)[:, None] - fill[:, fitting]
            # Total rest, and four times its imbalance: the best of the weights tried on real text.
            best = int(np.argmin(over[0] + over[1] + 4.0 * np.abs(over[0] - over[1])))
            pick = int(fitting[best])
            picked.append(pick)
            spare[pick] -= 1
            rest = rest - lens[:, pick]
            fits = (lens[0, fitting] <= rest[0]) & (lens[1, fitting] <= rest[1])
            fitting = fitting[fits & (spare[fitting] > 0)]
        kinds, counts = np.unique(picked, return_counts=True)
        repeats = int((left[kinds] // counts).min())
        left[kinds] -= repeats * counts
        templates.append((ids[picked], repeats))


def _balanced_source_len(selection: CorpusSelection, target_len: int) -> int:
    """As many source positions in a row as keep both sides equally full."""
    ratio = selection.source_lengths.sum() / selection.target_lengths.sum()
    return max(round(target_len * ratio), int(selection.source_lengths.max()))


class PackPlan:
    """Several sentences a row, with segment ids and restarted positions.

    Rows form an endless stream, epoch after epoch, cut into batches of equal size: a batch may hold
    the end of one epoch and the start of the next, and no row is ever empty.
    """

    def __init__(
        self,
        selection: CorpusSelection,
        rows: int,
        target_len: int,
        seed: int,
        source_len: int | None = None,  # None: as keeps both sides equally full
    ):
        self._selection, self._seed = selection, seed
        classes = self._classes = _Classes(selection)
        if source_len is None:
            source_len = _balanced_source_len(selection, target_len)
        self._shape = BatchShape(rows, source_len, target_len)
        templates = pack_classes(
            classes.source_len, classes.target_len, classes.sizes, (source_len, target_len)
        )
        self._row_starts, self._slot_class, self._slot_rank = _unroll(templates, len(classes))
        self.num_rows = len(self._row_starts) - 1

    @property
    def shapes(self) -> list[BatchShape]:
        return [self._shape]

    @property
    def batches_per_epoch(self) -> float:
        return self.num_rows / self._shape.rows

    @property
    def positions_per_epoch(self) -> float:
        return self.num_rows * (self._shape.source_len + self._shape.target_len)

    def placement(self, t: int) -> Placement:
        stream = np.arange(self._shape.rows, dtype=np.int64) + t * self._shape.rows
        epoch, index = np.divmod(stream, self.num_rows)
        row = permute(index, self.num_rows, make_key(self._seed, epoch, _ROWS))
        counts = self._row_starts[row + 1] - self._row_starts[row]
        rows = np.repeat(np.arange(len(row)), counts)
        firsts = np.cumsum(counts) - counts
        segments = np.arange(len(rows)) - firsts[rows]
        slots = self._row_starts[row][rows] + segments
        cls = self._slot_class[slots]
        key = make_key(self._seed, epoch[rows], _SENTENCES, cls)
        rank = permute(self._slot_rank[slots], self._classes.sizes[cls], key)
        chosen = self._classes.order[self._classes.starts[cls] + rank]
        return Placement(
            shape=self._shape,
            pairs=self._selection.pairs[chosen],
            rows=rows,
            source_starts=_starts(self._selection.source_lengths[chosen], firsts[rows]),
            target_starts=_starts(self._selection.target_lengths[chosen], firsts[rows]),
            segments=segments + 1,
        )


def _unroll(
    templates: list[tuple[np.ndarray, int]], num_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows written out: where each starts, and the class and rank within it of every slot."""
    sizes = np.concatenate([np.full(n, len(classes)) for classes, n in templates])
    row_starts = np.concatenate([[0], np.cumsum(sizes)])
    slot_class = np.concatenate([np.tile(classes, n) for classes, n in templates])
    order = np.argsort(slot_class, kind="stable")
    sizes = np.bincount(slot_class, minlength=num_classes)
    rank = np.empty(len(slot_class), np.int32)
    rank[order] = np.arange(len(slot_class)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return row_starts, slot_class.astype(np.int32), rank


def _starts(lengths: np.ndarray, row_firsts: np.ndarray) -> np.ndarray:
    """Start of each pair within its row, pairs of a row standing one after the other."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return ends[:-1] - ends[row_firsts]


class BucketPlan:
    """One sentence a row; rows of similar length share a batch of one of a few shapes.

    The last batch of each bucket in an epoch may have a few empty rows.
    """

    def __init__(
        self,
        selection: CorpusSelection,
        batch_tokens: int,
        num_buckets: int,
        seed: int,
        batch_sentences: int = 0,
    ):
        self._selection, self._seed = selection, seed
        classes = _Classes(selection)
        buckets = split_classes(classes.source_len, classes.target_len, classes.sizes, num_buckets)
        # Largest first: the trainer compiles in this order, so that lack of memory shows at once.
        buckets.sort(key=lambda b: (-classes.target_len[b].max(), -classes.source_len[b].max()))
        self._shapes, self._members = [], []
        for bucket in buckets:
            target_len = int(classes.target_len[bucket].max())
            rows = batch_sentences or batch_tokens // target_len
            # As many batches as full ones would take, but equally full: few rows stay empty.
            size = int(classes.sizes[bucket].sum())
            rows = -(-size // -(-size // rows))
            self._shapes.append(BatchShape(rows, int(classes.source_len[bucket].max()), target_len))
            spans = [
                classes.order[classes.starts[c] : classes.starts[c] + classes.sizes[c]]
                for c in bucket
            ]
            self._members.append(np.concatenate(spans))
        batches = [-(-len(m) // s.rows) for m, s in zip(self._members, self._shapes, strict=True)]
        self._first_batch = np.concatenate([[0], np.cumsum(batches)])

    @property
    def shapes(self) -> list[BatchShape]:
        return self._shapes

    @property
    def batches_per_epoch(self) -> int:
        return int(self._first_batch[-1])

    @property
    def positions_per_epoch(self) -> int:
        return sum(
            int(n) * s.rows * (s.source_len + s.target_len)
            for n, s in zip(np.diff(self._first_batch), self._shapes, strict=True)
        )

    def placement(self, t: int) -> Placement:
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
        return Placement(
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
