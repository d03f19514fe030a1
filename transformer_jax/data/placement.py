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


class BatchPlan(Protocol):
    """Any plan: its shapes, the number of batches in an epoch, and batch `t`."""

    @property
    def shapes(self) -> list[BatchShape]: ...  # largest first

    @property
    def batches_per_epoch(self) -> float: ...

    @property
    def positions_per_epoch(self) -> float: ...  # source and target, padding included

    def placement(self, t: int) -> Placement: ...
