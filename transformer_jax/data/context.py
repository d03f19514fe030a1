"""Sentences before a source, which a model of documents reads too.

A source is the token ids of up to `data.context_sentences` sentences before it, each followed by a
separator, and then its own (Tiedemann and Scherrer, 2017). Its target is of the sentence alone.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError

T = TypeVar("T")


def num_sentences(config: DataConfig, tokenizers: TokenizerPair, asked: int | None = None) -> int:
    """Sentences before a text that a model reads.

    Args:
      config: of the model.
      tokenizers: of the model.
      asked: most that it is to read; None: as many as it was trained with.

    Raises:
      UserError: it reads none, or the number is negative.
    """
    if asked is None:
        return config.context_sentences
    if asked < 0:
        raise UserError(f"context_sentences={asked} is negative; 0 is none.")
    if asked:
        tokenizers.context_separator()  # raises where there is none
    return asked


class Previous(Generic[T]):
    """The last items of a document.

    Args:
      count: most of them.
    """

    def __init__(self, count: int):
        self._items: collections.deque[T] = collections.deque(maxlen=count)

    @property
    def items(self) -> tuple[T, ...]:
        """The items, in order."""
        return tuple(self._items)

    def add(self, item: T) -> None:
        """Adds the next item; an empty one ends the document."""
        if item:
            self._items.append(item)
        else:
            self._items.clear()


def previous(items: Iterable[T], count: int) -> Iterator[tuple[T, ...]]:
    """For each item, up to `count` of those before it; an empty item ends a document."""
    before = Previous[T](count)
    for item in items:
        yield before.items
        before.add(item)


class ContextAdder:
    """Finds the sentences before each source of a corpus, which is read chunk by chunk.

    Args:
      count: most sentences before a source.
      separator: id that follows each.
      limit: most tokens of a source, with its tags and what is before it.
    """

    def __init__(self, count: int, separator: int, limit: int):
        self._count, self._separator, self._limit = count, separator, limit
        self._last: list[list[int]] = []  # of the chunk before

    def __call__(self, sources: list[list[int]], tags: list[int]) -> Iterator[list[int]]:
        """The sources of the next chunk, with tags and with what is before them.

        An empty source stays empty: with tags it would look like one with content.

        Args:
          sources: ids of each.
          tags: ids that each begins with.
        """
        known = len(self._last)
        before = previous([*self._last, *sources], self._count)
        self._last = sources[-self._count :] if self._count else []
        for ids, context in zip(sources, itertools.islice(before, known, None), strict=True):
            num_own = len(tags) + len(ids)
            added = joined_ids(context, self._separator, num_own, self._limit)
            yield [*tags, *added, *ids] if ids else []


def num_before(ids: np.ndarray, separator: int) -> int:
    """Tokens of a source up to its last separator, with it."""
    places = np.flatnonzero(ids == separator)
    return int(places[-1]) + 1 if len(places) else 0


def joined_ids(
    context: Sequence[Sequence[int]], separator: int, num_own: int, limit: int
) -> list[int]:
    """Ids of the sentences before a source, without those for which there is no room.

    Args:
      context: ids of each sentence, the last one directly before the source.
      separator: id that follows each.
      num_own: tokens of the source, with its tags.
      limit: most tokens of all.
    """
    kept: list[list[int]] = []
    room = limit - num_own
    for ids in reversed(context):
        room -= len(ids) + 1
        if room < 0:
            break
        kept.append([*ids, separator])
    return list(itertools.chain.from_iterable(reversed(kept)))
