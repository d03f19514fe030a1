"""Arguments of ICU messages that have texts, such as `{n, plural, one {a day} other {# days}}`.

The format: https://unicode-org.github.io/icu/userguide/format_parse/messages/
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from transformer_jax.extras.documents import tagged_text
from transformer_jax.extras.documents.tagged_text import Element, Item, Words

_BEGINNING = re.compile(
    r"\{\s*+[\w.-]++\s*+,\s*+(plural|select|selectordinal)\s*+,\s*+(?:offset\s*+:\s*+\d++\s*+)?+"
)
_SELECTOR = re.compile(r"\s*+(?:=\s*+\d++|[\w-]++)\s*+(?=\{)")
_END = re.compile(r"\s*+\}")
_QUOTED = re.compile(r"'(?=[{}])[^']*+'")
_OTHER_ITEM = "\ufffc"
NUMBER = "#"  # that of a plural, in its texts


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument that has texts.

    Attributes:
      parts: what stays as it is, and texts, in order.
      is_plural: whether `#` is a number in its texts.
    """

    parts: tuple[str | Sequence[Item], ...]
    is_plural: bool


def extracted(
    items: Sequence[Item], escape: Callable[[str], str], marked: Callable[[str, Argument], str]
) -> list[Item]:
    """Items with a mark in the place of each argument that has texts.

    Args:
      items: of a paragraph.
      escape: writes text into the document.
      marked: gives the mark of an argument as it is in the text; "": none is left.
    """
    flat = _Flat(items, escape)
    done: list[Item] = []
    position = 0
    for start, end, argument in flat.arguments():
        mark = marked(flat.text[start:end], argument)
        if mark:
            done += [*flat.cut(position, start), Words(mark, mark)]
            position = end
    return [
        dataclasses.replace(item, items=tuple(extracted(item.items, escape, marked)))
        if isinstance(item, Element)
        else item
        for item in [*done, *flat.cut(position, len(flat.text))]
    ]


class _Flat:
    """Items as one text, in which each that is no text is one character."""

    def __init__(self, items: Sequence[Item], escape: Callable[[str], str]):
        self._items = items
        self._runs = {
            number: tagged_text.Run([item], escape)
            for number, item in enumerate(items)
            if isinstance(item, Words)
        }
        texts = [item.plain if isinstance(item, Words) else _OTHER_ITEM for item in items]
        self._starts = [0, *itertools.accumulate(map(len, texts))]
        self.text = "".join(texts)

    def cut(self, start: int, end: int) -> list[Item]:
        """The items from character `start` to `end`."""
        parts: list[Item] = []
        number = max(0, bisect.bisect_right(self._starts, start) - 1)
        while number < len(self._items) and self._starts[number] < end:
            item, begin = self._items[number], self._starts[number]
            if isinstance(item, Words):
                last = min(len(item.plain), end - begin)
                parts += self._runs[number].cut(max(0, start - begin), last)
            else:
                parts.append(item)
            number += 1
        return parts

    def arguments(self) -> Iterator[tuple[int, int, Argument]]:
        """(first character, end, argument) of each that is in no other."""
        visible = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), self.text)
        ends, done = _partners(visible), 0
        for beginning in _BEGINNING.finditer(visible):
            if beginning.start() < done:
                continue
            argument = self._argument(visible, beginning, ends)
            if argument:
                done = argument[0]
                yield beginning.start(), *argument

    def _argument(
        self, visible: str, beginning: re.Match[str], ends: dict[int, int]
    ) -> tuple[int, Argument] | None:
        """The end of an argument, and what it is; None: it is none."""
        parts: list[str | Sequence[Item]] = []
        kept, place = beginning.start(), beginning.end()
        while selector := _SELECTOR.match(visible, place):
            end = ends.get(selector.end())
            if end is None:
                return None
            begin = selector.end() + 1
            parts += [self.text[kept:begin], self.cut(begin, end)]
            kept, place = end, end + 1
        last = _END.match(visible, place)
        if last is None or not parts:
            return None
        parts.append(self.text[kept : last.end()])
        return last.end(), Argument(tuple(parts), beginning[1] != "select")


def _partners(text: str) -> dict[int, int]:
    """Place of each opening brace -> that of the closing one."""
    partners, waiting = {}, list[int]()
    for brace in re.finditer("[{}]", text):
        if brace[0] == "{":
            waiting.append(brace.start())
        elif waiting:
            partners[waiting.pop()] = brace.start()
    return partners
