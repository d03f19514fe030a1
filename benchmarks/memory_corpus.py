"""Tokenised sentences in memory, for benchmarks and tests that need no files."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from transformer_jax.data.plans.batch_shapes import ranges


@dataclasses.dataclass(frozen=True)
class TokenizedSide:
    """Sentences in memory: sentence `i` is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: np.ndarray  # [total] uint16 or int32
    offsets: np.ndarray  # [sentences + 1] int64

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return np.asarray(self.tokens[self.offsets[i] : self.offsets[i + 1]], np.int32)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    def take(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = self.offsets[sentences]
        lengths = self.offsets[sentences + 1] - first
        return self.tokens[np.repeat(first, lengths) + ranges(lengths)], lengths
