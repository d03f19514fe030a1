"""Packing: several sentences a row, with segment ids and positions that restart.

*Classes* of equal (source, target) length are packed into row templates once. Each epoch then
permutes the sentences within every class, and the rows.
"""

import numpy as np

from transformer_jax.data.plans.batch_shapes import BatchLayout, BatchShape
from transformer_jax.data.plans.pair_selection import CorpusSelection, LengthClasses
from transformer_jax.data.plans.permutation import make_key, permute

# Tags that keep the keys of different permutations apart.
_ROWS, _SENTENCES = range(2)


class PackPlan:
    """Several sentences a row; every batch has the same shape.

    Rows form an endless stream, epoch after epoch, cut into batches of equal size. A batch may hold
    the end of one epoch and the start of the next, and no row is ever empty.

    Args:
      selection: from `select_pairs`.
      rows: of each batch.
      target_len: target positions of a row.
      seed: of the permutations.
      source_len: source positions of a row; None: the length that fills both sides equally.
    """

    def __init__(
        self,
        selection: CorpusSelection,
        rows: int,
        target_len: int,
        seed: int,
        source_len: int | None = None,
    ):
        self._selection, self._seed = selection, seed
        classes = self._classes = LengthClasses(selection)
        if source_len is None:
            source_len = balanced_source_len(selection, target_len)
        self._shape = BatchShape(rows, source_len, target_len)
        templates = pack_classes(
            classes.source_len, classes.target_len, classes.sizes, (source_len, target_len)
        )
        self._row_starts, self._slot_class, self._slot_rank = unroll(templates, len(classes))
        self.num_rows = len(self._row_starts) - 1  # of an epoch

    @property
    def shapes(self) -> list[BatchShape]:
        return [self._shape]

    @property
    def batches_per_epoch(self) -> float:
        return self.num_rows / self._shape.rows

    def positions_per_epoch(self, row_multiple: int = 1) -> float:
        shape = self._shape.padded(row_multiple)
        return self.batches_per_epoch * shape.rows * (shape.source_len + shape.target_len)

    def layout(self, t: int) -> BatchLayout:
        # Rows of the batch, in the numbering of the templates: [rows].
        stream = np.arange(self._shape.rows, dtype=np.int64) + t * self._shape.rows
        epoch, index = np.divmod(stream, self.num_rows)
        template_row = permute(index, self.num_rows, make_key(self._seed, epoch, _ROWS))
        # Slots of these rows, one for each pair of the batch: [pairs].
        counts = self._row_starts[template_row + 1] - self._row_starts[template_row]
        rows = np.repeat(np.arange(len(template_row)), counts)
        first_pairs = np.cumsum(counts) - counts  # [rows]
        segments = np.arange(len(rows)) - first_pairs[rows]
        slots = self._row_starts[template_row][rows] + segments
        # The sentence of each slot: another one of the same class in each epoch.
        class_ids = self._slot_class[slots]
        key = make_key(self._seed, epoch[rows], _SENTENCES, class_ids)
        rank = permute(self._slot_rank[slots], self._classes.sizes[class_ids], key)
        chosen = self._classes.order[self._classes.starts[class_ids] + rank]
        return BatchLayout(
            shape=self._shape,
            pairs=self._selection.pairs[chosen],
            rows=rows,
            source_starts=starts_in_rows(self._selection.source_lengths[chosen], first_pairs[rows]),
            target_starts=starts_in_rows(self._selection.target_lengths[chosen], first_pairs[rows]),
            segments=segments + 1,
        )


def unroll(
    templates: list[tuple[np.ndarray, int]], num_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Repeats each template as often as it is used.

    Returns:
      `[rows + 1]` the slot that each row starts with, `[slots]` the class of each slot, and
      `[slots]` its rank among the slots of that class.
    """
    sizes = np.concatenate([np.full(n, len(classes)) for classes, n in templates])
    row_starts = np.concatenate([[0], np.cumsum(sizes)])
    slot_class = np.concatenate([np.tile(classes, n) for classes, n in templates])
    order = np.argsort(slot_class, kind="stable")
    sizes = np.bincount(slot_class, minlength=num_classes)
    rank = np.empty(len(slot_class), np.int32)
    rank[order] = np.arange(len(slot_class)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return row_starts, slot_class.astype(np.int32), rank


def starts_in_rows(lengths: np.ndarray, first_pairs: np.ndarray) -> np.ndarray:
    """Position where each pair starts in its row, `[pairs]`; pairs of a row follow one another.

    Args:
      lengths: `[pairs]` positions.
      first_pairs: `[pairs]` index of the first pair in the same row.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return ends[:-1] - ends[first_pairs]


def pack_classes(
    source_len: np.ndarray, target_len: np.ndarray, sizes: np.ndarray, row: tuple[int, int]
) -> list[tuple[np.ndarray, int]]:
    """Packs all sentences of all classes into rows of `row` (source, target) positions.

    A template starts with the longest class that has sentences left. As long as anything fits, it
    takes the class that leaves the smallest and most balanced rest. It is repeated until one of its
    classes runs out.

    Args:
      source_len, target_len, sizes: `[classes]`, as in `LengthClasses`.
      row: positions of a row.

    Returns:
      Templates: the classes in a row, and the number of rows with these classes.
    """
    scale = np.asarray(row, np.float64)
    ids = np.argsort(-(source_len / scale[0] + target_len / scale[1]), kind="stable")
    lens = np.stack([source_len, target_len])[:, ids]  # [2, classes]
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
        # A class that does not fit now never fits again in this row.
        fitting = np.flatnonzero((spare > 0) & (lens[0] <= rest[0]) & (lens[1] <= rest[1]))
        while len(fitting):
            over = (rest / scale)[:, None] - fill[:, fitting]
            # The rest, plus four times its imbalance: the best of the weights tried on real text.
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


def balanced_source_len(selection: CorpusSelection, target_len: int) -> int:
    """The number of source positions in a row that fills both sides equally."""
    ratio = selection.source_lengths.sum() / selection.target_lengths.sum()
    return max(round(target_len * ratio), int(selection.source_lengths.max()))
