"""Shapes of batches, the layout of pairs within a batch, and the interface of batch plans."""

import dataclasses
from typing import Protocol

import numpy as np


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """Static shape of a batch: rows, source positions of a row, target positions of a row."""

    rows: int
    source_len: int
    target_len: int

    @property
    def cost(self) -> float:
        """Work of a training step on this shape, relative to that on other shapes.

        Counts the operations of the base model of "Attention Is All You Need" with 32,000 tokens:
        products of width 512 by position, those of the vocabulary by target position, and
        attention.
        """
        source, target = self.source_len, self.target_len
        products = 512 * (7 * source + 12 * target)
        return self.rows * (products + source**2 + target**2 + source * target)

    def padded(self, row_multiple: int) -> "BatchShape":
        """The same shape with empty rows added, up to a multiple of `row_multiple`."""
        rows = -(-self.rows // row_multiple) * row_multiple
        return dataclasses.replace(self, rows=rows)


def divisible_rows(rows: int) -> int:
    """The number of rows, at most `rows`, that devices and micro-batches are likely to divide.

    A multiple of the largest power of two, up to 32 or a 32nd of the rows, that keeps 15 of 16
    rows: 97 -> 96, 90 -> 88, 11 -> 11.
    """
    return next(n for n in (rows // p * p for p in _powers(rows)) if 16 * n >= 15 * rows)


def even_rows(count: int, max_rows: int) -> int:
    """Rows of each batch of a bucket with `count` sentences, at most `max_rows`.

    A multiple of a power of two, as in `divisible_rows`, if at most a 64th of all rows stays empty.
    Otherwise the sentences are spread evenly over the smallest possible number of batches.
    """
    for power in _powers(min(count, max_rows)):
        rows = np.arange(max_rows // power * power, 15 * min(count, max_rows) // 16, -power)
        fitting = np.flatnonzero(64 * (-count % rows) <= count)
        if len(fitting):
            return int(rows[fitting[0]])
    return spread_evenly(count, max_rows)


def spread_evenly(count: int, max_rows: int) -> int:
    """Rows of a batch if `count` sentences fill the fewest batches of `max_rows`, equally full."""
    num_batches = -(-count // max_rows)
    return -(-count // num_batches)


def _powers(rows: int) -> list[int]:
    largest = max(32, rows // 32)
    return [1 << i for i in reversed(range(largest.bit_length()))]


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """The pairs of one batch, and the row and position where each starts; arrays are `[pairs]`."""

    shape: BatchShape
    pairs: np.ndarray  # indices into the corpus
    rows: np.ndarray
    source_starts: np.ndarray
    target_starts: np.ndarray
    segments: np.ndarray  # number of the pair within its row: 1, 2, …

    def select_rows(self, rows: np.ndarray) -> "BatchLayout":
        """The layout of a batch that consists of these rows only, in this order."""
        new_rows = np.full(self.shape.rows, -1)
        new_rows[rows] = np.arange(len(rows))
        kept = new_rows[self.rows] >= 0
        return BatchLayout(
            shape=dataclasses.replace(self.shape, rows=len(rows)),
            pairs=self.pairs[kept],
            rows=new_rows[self.rows][kept],
            source_starts=self.source_starts[kept],
            target_starts=self.target_starts[kept],
            segments=self.segments[kept],
        )


class BatchPlan(Protocol):
    """The batches of all epochs: their shapes, their number, and the layout of batch `t`."""

    @property
    def shapes(self) -> list[BatchShape]:
        """Every shape that occurs, the most expensive one first."""
        ...

    @property
    def batches_per_epoch(self) -> float: ...

    def positions_per_epoch(self, row_multiple: int = 1) -> float:
        """Source and target positions of an epoch, padding included.

        Args:
          row_multiple: batches get empty rows up to a multiple of this number.
        """
        ...

    def layout(self, t: int) -> BatchLayout: ...


def ranges(lengths: np.ndarray) -> np.ndarray:
    """0 .. n-1 for each n of `lengths`, concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
