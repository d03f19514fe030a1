"""Text with inline tags, as a tree: what is translated, what encloses it, and what is kept."""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

# Elements may enclose each other this often; a tag of one more stands for itself.
MAX_DEPTH = 50


@dataclasses.dataclass(frozen=True)
class Words:
    """Text to translate.

    Attributes:
      raw: as it is in the document.
      plain: without escapes.
      is_protected: whether it stays as it is, like what matches a `Protection`.
    """

    raw: str
    plain: str
    is_protected: bool = False


@dataclasses.dataclass(frozen=True)
class Kept:
    """What is copied, and not shown to the model, such as a comment or an image."""

    raw: str


@dataclasses.dataclass(frozen=True)
class Tag:
    """The beginning or end of an element.

    Attributes:
      raw: as it is in the document.
      name: equal for both tags of an element.
      is_closing: whether it is the end.
    """

    raw: str
    name: str
    is_closing: bool


@dataclasses.dataclass(frozen=True)
class Element:
    """Two tags and what they enclose."""

    opening: str
    items: "tuple[Item, ...]"
    closing: str


Item = Words | Kept | Element


def raw_of(items: Iterable[Item]) -> str:
    """The items as they are in the document."""
    return "".join(
        item.opening + raw_of(item.items) + item.closing if isinstance(item, Element) else item.raw
        for item in items
    )


def plain_of(items: Iterable[Item]) -> str:
    """The text of the items that is translated."""
    return "".join(one.plain for one in texts_of(items))


class Run:
    """Texts that follow one another.

    Args:
      words: the texts.
      escape: writes text into the document.
    """

    def __init__(self, words: Iterable[Words], escape: Callable[[str], str]):
        self._words, self._escape = list(words), escape
        self._starts = [0, *itertools.accumulate(len(one.plain) for one in self._words)]
        self.plain = "".join(one.plain for one in self._words)

    def cut(self, start: int, end: int) -> list[Words]:
        """The texts from character `start` to `end` of the plain text.

        A text with escapes that is cut within is written again.
        """
        parts = []
        number = max(0, bisect.bisect_right(self._starts, start) - 1)
        while number < len(self._words) and self._starts[number] < end:
            words, begin = self._words[number], self._starts[number]
            plain = words.plain[max(0, start - begin) : end - begin]
            is_cut = len(plain) < len(words.plain)
            if not is_cut:
                parts.append(words)
            elif plain:
                raw = plain if words.raw == words.plain else self._escape(plain)
                parts.append(Words(raw, plain))
            number += 1
        return parts

    def raw(self, start: int, end: int) -> str:
        """The same as it is in the document."""
        return "".join(one.raw for one in self.cut(start, end))


def texts_of(items: Iterable[Item]) -> Iterator[Words]:
    """The texts of the items, in order."""
    for item in items:
        if isinstance(item, Words):
            yield item
        elif isinstance(item, Element):
            yield from texts_of(item.items)


def has_markup(items: Sequence[Item]) -> bool:
    """Whether there is more than text."""
    return any(not isinstance(item, Words) for item in items)


def trees(stream: Sequence[Words | Kept | Tag]) -> Iterator[list[Item] | str]:
    """The trees of a stream, divided where a tag has no other, which is given as it is.

    Args:
      stream: text and tags in the order of the document.
    """
    partners = _partners(stream)
    open_elements: list[tuple[Tag, list[Item]]] = []
    items: list[Item] = []
    for index, part in enumerate(stream):
        if isinstance(part, Words) and not part.plain:
            items.append(Kept(part.raw))  # such as a reference to no character
        elif not isinstance(part, Tag):
            items.append(part)
        elif index not in partners:
            # No element is open here: `_partners` pairs none around it.
            if items:
                yield items
            items = []
            yield part.raw
        elif not part.is_closing:
            open_elements.append((part, items))
            items = []
        else:
            opening, outer = open_elements.pop()
            outer.append(Element(opening.raw, tuple(items), part.raw))
            items = outer
    if items:
        yield items


def _partners(stream: Sequence[Words | Kept | Tag]) -> set[int]:
    """Indices of tags that are paired, so that none without a partner is between a pair."""
    pairs: list[tuple[int, int]] = []
    lone: list[int] = []
    waiting: list[int] = []
    for index, part in enumerate(stream):
        if not isinstance(part, Tag):
            continue
        if not part.is_closing:
            waiting.append(index)
            continue
        last = stream[waiting[-1]] if waiting else None
        if isinstance(last, Tag) and last.name == part.name:
            pairs.append((waiting.pop(), index))
            if len(waiting) >= MAX_DEPTH:
                lone += pairs.pop()
        else:
            lone += [*waiting, index]
            waiting.clear()
    lone += waiting
    return _without_lone(pairs, sorted(lone))


def _without_lone(pairs: Sequence[tuple[int, int]], lone: Sequence[int]) -> set[int]:
    """Indices of the pairs that enclose no lone tag."""
    before = 0  # lone tags before the opening of a pair
    kept: set[int] = set()
    counts = {}
    for index in sorted(i for pair in pairs for i in pair):
        while before < len(lone) and lone[before] < index:
            before += 1
        counts[index] = before
    for opening, closing in pairs:
        if counts[opening] == counts[closing]:
            kept |= {opening, closing}
    return kept
