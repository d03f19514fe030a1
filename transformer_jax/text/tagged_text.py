"""Text with inline tags, as a tree: what is translated, what encloses it, and what is kept."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

# Elements may enclose each other this often; a tag of one more stands for itself.
MAX_DEPTH = 50


@dataclasses.dataclass(frozen=True)
class Words:
    """Text to translate: as it is in the document, and without escapes."""

    raw: str
    plain: str


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
    parts = []
    for item in items:
        if isinstance(item, Words):
            parts.append(item.plain)
        elif isinstance(item, Element):
            parts.append(plain_of(item.items))
    return "".join(parts)


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
        if not isinstance(part, Tag):
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
