"""A sequence whose items are loaded when they are used."""

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar, overload

Item = TypeVar("Item")
KEPT = 64  # items that stay in memory; a file that is mapped stays open


class LazySequence(Sequence[Item]):
    """A sequence whose items are loaded when they are used; those used last are kept.

    Args:
      load: returns item `i`.
      length: number of items.
      kept: items that stay in memory.
    """

    def __init__(self, load: Callable[[int], Item], length: int, kept: int = KEPT):
        self._load, self._length = functools.lru_cache(maxsize=kept)(load), length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> "LazySequence[Item]": ...
    def __getitem__(self, index: "int | slice") -> "Item | LazySequence[Item]":
        if isinstance(index, slice):
            chosen = range(self._length)[index]
            return LazySequence(lambda i: self._load(chosen[i]), len(chosen))
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._load(index % self._length)
