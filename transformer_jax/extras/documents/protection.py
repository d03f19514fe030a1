"""Parts of a text that no translation may change, such as addresses and names of variables.

While a text is translated, each of them is one character that no text has (a *mark*): one word of
its sentence, which tags and sentences treat as such. The model sees a short word in the place of a
mark (`copying`). What is no part of a sentence's grammar, such as an emoji, it does not see.
"""

import dataclasses
import heapq
import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from transformer_jax.data.writing_systems import separates_words
from transformer_jax.errors import UserError, UserTypeError
from transformer_jax.extras.documents import html_tags, placeholders, tagged_text
from transformer_jax.extras.documents.tagged_text import Element, Item, Kept, Words
from transformer_jax.translator.requests import described
from transformer_jax.translator.words import FIRST_MARK, LAST_MARK

_UNITS = (
    "km²|km/h|km|cm|mm|µm|nm|m²|m³|m|kg|mg|µg|g|ml|cl|dl|l|kHz|MHz|GHz|Hz|kWh|kW|MW|mAh|"
    "kB|KB|MB|GB|TB|PB|dpi|px|rem|ms|µs|ns|s|min|h|°C|°F|°|%%|%|‰|€|£|\\$|¥|EUR|USD|GBP|CHF"
)
# Patterns never try the same characters again (`++`), and no number begins inside of another:
# clients choose the text, and the time for it has to grow with its length only.
_NUMBER = r"(?<![\d.,])(?<!\d['’\u00a0\u202f])\d++(?:[.,'’\u00a0\u202f]\d++)*+"
# Of an address: its characters with names in braces, and what it may end with.
_ADDRESS = r"(?:\{[^{}\s]*\}|[^\s<>\"'{}])"
_LAST = r"(?:\{[^{}\s]*\}|[^\s<>\"'{}.,;:!?)\]…])"
# Name -> regular expression. Of two that match at a place, the first is taken.
USUAL = {
    "address": rf"(?:https?|ftp|mailto):{_ADDRESS}*{_LAST}|www\.{_ADDRESS}*{_LAST}",
    "e-mail": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+",
    **placeholders.USUAL,
    "option": r"(?<![\w-])--[a-zA-Z][\w-]*+(?:=[\w-]++)?|(?<![\w-])-[a-zA-Z](?![\w-])",
    "entity": r"&(?:#\d+|#x[\da-fA-F]+|[a-zA-Z]\w*);",
    "mention": r"(?<!\w)[@#][a-zA-Z_]\w+",
    "number": rf"[$€£¥]\s?{_NUMBER}|{_NUMBER}\s?(?:{_UNITS})(?![\w²³/])",
}
# What is not shown to the model. Emoji: https://unicode.org/reports/tr51/, as sequences.
HIDDEN = {
    "tag": r"</?[a-zA-Z][^<>\n]*>",
    "emoji": "(?:[\U0001f1e6-\U0001f1ff]{2}|[0-9#*]\ufe0f?\u20e3|"
    "[\u2194-\u21aa\u231a-\u23ff\u25aa-\u27bf\u2934-\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff][\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
    "(?:\u200d[\u2640-\u27bf\U0001f300-\U0001faff]\ufe0f?[\U0001f3fb-\U0001f3ff]?)*)",
}


class Marks:
    """Marks of a document, and what they are.

    Args:
      text: of the document; its own characters are no marks.
    """

    def __init__(self, text: str = ""):
        self._in_text = {char for char in text + html.unescape(text) if is_mark(char)}
        self._next = ord(FIRST_MARK)
        self._plain: dict[int, str] = {}
        self._raw: dict[int, str] = {}

    def add(self, plain: str, raw: str) -> str:
        """A new mark; "" where there is none left.

        Args:
          plain: what it is.
          raw: the same as it is in the document.
        """
        while chr(self._next) in self._in_text:
            self._next += 1
        if self._next > ord(LAST_MARK):
            return ""
        self._plain[self._next], self._raw[self._next] = plain, raw
        self._next += 1
        return chr(self._next - 1)

    def write(self, mark: str, raw: str) -> None:
        """Sets what a mark is in the document."""
        self._raw[ord(mark)] = raw

    def plain(self, text: str) -> str:
        """A text with what its marks are."""
        return text.translate(self._plain) if self._plain else text

    def raw(self, text: str) -> str:
        """A text with what its marks are, as it is in the document."""
        return text.translate(self._raw) if self._raw else text


def is_mark(char: str) -> bool:
    """Whether a character may be a mark."""
    return FIRST_MARK <= char <= LAST_MARK


@dataclasses.dataclass(frozen=True)
class Protection:
    """What no translation may change.

    Attributes:
      shown: regular expressions of what the model sees as a word.
      hidden: the same of what it does not see.
    """

    shown: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    def find(self, text: str) -> Iterator[tuple[int, int, bool]]:
        """(first character, end, whether it is shown) of each part, in order."""
        parts: list[tuple[int, int, bool]] = []
        for start, end, number in _matches((*self.hidden, *self.shown), text):
            is_shown = number >= len(self.hidden)
            if is_shown:
                start, end = _with_letters_around(text, start, end)
            if parts and start <= parts[-1][1] and is_shown and parts[-1][2]:
                start = parts.pop()[0]  # parts that touch are one word
            elif parts:
                start = max(start, parts[-1][1])
            if start < end:
                parts.append((start, end, is_shown))
        return iter(parts)

    def apply(
        self, items: Sequence[Item], escape: Callable[[str], str], marks: Marks
    ) -> list[Item]:
        """Items with marks in their texts, and with what is hidden as items of their own.

        Args:
          items: of a paragraph.
          escape: writes text into the document.
          marks: of the document; this adds to them.
        """
        protected: list[Item] = []
        for is_text, some in itertools.groupby(items, lambda item: isinstance(item, Words)):
            if is_text:
                some = (_as_mark(item, marks) for item in some)
                texts = tagged_text.texts_of(some)
                protected += self._protected(tagged_text.Run(texts, escape), marks)
                continue
            for item in some:
                if isinstance(item, Element):
                    inner = tuple(self.apply(item.items, escape, marks))
                    item = dataclasses.replace(item, items=inner)
                protected.append(item)
        return protected

    def _protected(self, run: tagged_text.Run, marks: Marks) -> Iterator[Item]:
        done = 0
        stream: list[Words | Kept | tagged_text.Tag] = []
        for start, end, is_shown in self.find(run.plain):
            stream += run.cut(done, start)
            part, raw, done = run.plain[start:end], run.raw(start, end), end
            if is_shown:
                stream.append(Words(raw, marks.add(part, raw) or part))
            else:
                stream.append(dataclasses.replace(html_tags.inline_part(part), raw=raw))
        for tree in tagged_text.trees([*stream, *run.cut(done, len(run.plain))]):
            yield from [Kept(tree)] if isinstance(tree, str) else tree


def _as_mark(item: Item, marks: Marks) -> Item:
    """The item, with a mark as its text if it is protected."""
    if not (isinstance(item, Words) and item.is_protected):
        return item
    return Words(item.raw, marks.add(item.plain, item.raw) or item.plain)


def _matches(patterns: Sequence[str], text: str) -> Iterator[tuple[int, int, int]]:
    """(first character, end, number of the pattern) of what matches, in order.

    Of several that match at a place, the first does. Each is a regular expression of its own, so
    that groups and flags of one do not concern the others.
    """
    compiled = [re.compile(pattern) for pattern in patterns]
    waiting: list[tuple[int, int, int]] = []

    def search(number: int, begin: int) -> None:
        match = compiled[number].search(text, begin)
        if match and match.end() > match.start():
            heapq.heappush(waiting, (match.start(), number, match.end()))

    for number in range(len(compiled)):
        search(number, 0)
    done = 0
    while waiting:
        start, number, end = heapq.heappop(waiting)
        if start >= done:
            yield start, end, number
            done = end
        search(number, done)


NO_PROTECTION = Protection()


def of(patterns: Sequence[str] = (), usual: bool = True) -> Protection:
    """What a caller wants to be protected.

    Args:
      patterns: regular expressions; they come before the usual ones.
      usual: whether what is usual is protected too.

    Raises:
      UserError: one is no regular expression, or matches an empty text.
    """
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise UserTypeError(f"`protect` is {described(patterns)}, not a list of expressions.")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise UserTypeError(f"`protect` has {described(pattern)}, not only strings.")
        try:
            is_empty = re.compile(pattern).match("") is not None
        except re.error as error:
            raise UserError(f"`protect={pattern}` is no regular expression: {error}.") from error
        if is_empty:
            raise UserError(f"`protect={pattern}` matches an empty text; it would protect nothing.")
    if not usual:
        return Protection(tuple(patterns))
    return Protection((*patterns, *USUAL.values()), tuple(HIDDEN.values()))


def _with_letters_around(text: str, start: int, end: int) -> tuple[int, int]:
    """A part with the letters and digits that it is one word with, as in `v{version}`."""

    def is_of_word(char: str) -> bool:
        return (char.isalnum() or char == "_") and separates_words(char)

    if is_of_word(text[end - 1]) or not text[end - 1].isspace():
        while end < len(text) and is_of_word(text[end]):
            end += 1
    while start and is_of_word(text[start - 1]):
        start -= 1
    return start, end
