"""Shapes of batches, and where the pairs of one stand; what every plan of batches offers."""

import dataclasses
from typing import Protocol

import numpy as np


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """Static shape of a batch: rows, source positions, target positions."""

    rows: int
    source_len: int
    target_len: int

    @property
    def cost(self) -> float:
        """Work of a training step on this shape, relative to that on other shapes.

        That of the base model of "Attention Is All You Need" with 32,000 tokens: products of
        width 512 by position, those of the vocabulary by target position, and attention.
        """
        source, target = self.source_len, self.target_len
        products = 512 * (7 * source + 12 * target)
        return self.rows * (products + source**2 + target**2 + source * target)

    def padded(self, row_multiple: int) -> "BatchShape":
        """With as many rows more as make them a multiple; those stay empty."""
        rows = -(-self.rows // row_multiple) * row_multiple
        return dataclasses.replace(self, rows=rows)


def divisible_rows(rows: int) -> int:
    """The number of rows, at most `rows`, that devices and accumulated parts are likely to divide.

    A multiple of the largest power of two, up to 32 or a 32nd of the rows, that leaves 15 of 16:
    97 -> 96, 90 -> 88, 11 -> 11.
    """
    return next(n for n in (rows // p * p for p in _powers(rows)) if 16 * n >= 15 * rows)


def even_rows(count: int, most: int) -> int:
    """The number of rows, at most `most`, of each of the batches that `count` sentences fill.

    A multiple of a power of two as of `divisible_rows`, if it leaves no more than a 64th of the
    rows empty; else as many batches as full ones would be, equally full.
    """
    for power in _powers(min(count, most)):
        rows = np.arange(most // power * power, 15 * min(count, most) // 16, -power)
        fitting = np.flatnonzero(64 * (-count % rows) <= count)
        if len(fitting):
            return int(rows[fitting[0]])
    return -(-count // -(-count // most))


def _powers(rows: int) -> list[int]:
    largest = max(32, rows // 32)
    return [1 << i for i in reversed(range(largest.bit_length()))]


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """Where the pairs of one batch stand; all arrays are `[pairs]`."""

    shape: BatchShape
    pairs: np.ndarray  # index into the corpus
    rows: np.ndarray
    source_starts: np.ndarray
    target_starts: np.ndarray
    segments: np.ndarray  # 1, 2, … within a row

    def select_rows(self, rows: np.ndarray) -> "BatchLayout":
        """The part that stands in some of the rows, which are numbered anew."""
        numbers = np.full(self.shape.rows, -1)
        numbers[rows] = np.arange(len(rows))
        own = numbers[self.rows] >= 0
        return BatchLayout(
            dataclasses.replace(self.shape, rows=len(rows)), self.pairs[own],
            numbers[self.rows][own], self.source_starts[own], self.target_starts[own],
            self.segments[own],
        )  # fmt: skip


class BatchPlan(Protocol):
    """Any plan: its shapes, the number of batches in an epoch, and batch `t`."""

    @property
    def shapes(self) -> list[BatchShape]: ...  # the one that costs most first

    @property
    def batches_per_epoch(self) -> float: ...

    def positions_per_epoch(self, row_multiple: int = 1) -> float:
        """Of source and target, padding included, in batches of a multiple of so many rows."""
        ...

    def layout(self, t: int) -> BatchLayout: ...
