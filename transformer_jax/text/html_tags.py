"""Tags of HTML."""

import html
import re
from collections.abc import Iterator, Sequence

from transformer_jax.text.tagged_text import Kept, Tag, Words, plain_of

_ATTRIBUTE = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)?+"""
# No part gives back what it has matched, so the time is linear.
TAG = re.compile(rf"<(/?)([a-zA-Z][^\s/>]*+)((?:[\s/]++|{_ATTRIBUTE})*+)>")
# fmt: off
VOID = {
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track",
    "wbr",
}
# fmt: on
UNTRANSLATED = {"script", "style", "code", "kbd", "samp", "var", "textarea", "math", "svg"}
_NAME_AND_VALUE = re.compile(
    r"""([^\s/>=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"'][^\s>]*)))?"""
)
_REFERENCE = re.compile(r"(&#?\w+;)")


def has_tags(text: str) -> bool:
    """Whether there is a tag of HTML."""
    return TAG.search(text) is not None


def has_references(text: str) -> bool:
    """Whether characters are written as references, such as `&amp;`."""
    return _REFERENCE.search(text) is not None


def attributes(tag: re.Match[str]) -> dict[str, str]:
    """Those of a match of `TAG`, names in small letters; of several, the first counts."""
    known: dict[str, str] = {}
    for match in _NAME_AND_VALUE.finditer(tag[3]):
        value = next((one for one in match.groups()[1:] if one is not None), "")
        known.setdefault(match[1].lower(), html.unescape(value))
    return known


def is_translated(tag: re.Match[str], is_outside: bool) -> bool:
    """Whether what an element encloses is translated.

    Args:
      tag: the opening one, a match of `TAG`.
      is_outside: whether what is around it is.
    """
    known = attributes(tag)
    said = known.get("translate", "").lower()
    if said == "no" or "notranslate" in known.get("class", "").split():
        return False
    if tag[2].lower() in UNTRANSLATED:
        return False
    return is_outside or said == "yes"


def texts(raw: str) -> Iterator[Words | Kept]:
    """A text without tags, each reference to a character by itself."""
    for part in filter(None, _REFERENCE.split(raw)):
        yield Words(part, html.unescape(part))


def without_notes(stream: Sequence[Words | Kept | Tag]) -> Iterator[Words | Kept | Tag]:
    """A stream whose superscripts without letters, such as numbers of notes, are kept.

    The model would read them as a part of the word before.
    """
    number = 0
    while number < len(stream):
        some = stream[number : number + 3]
        if len(some) == 3 and _is_note(*some):
            yield Kept("".join(part.raw for part in some))
            number += 3
        else:
            yield stream[number]
            number += 1


def with_untranslated_kept(stream: Sequence[Words | Kept | Tag]) -> Iterator[Words | Kept | Tag]:
    """A stream whose elements that are not translated, such as `<code>`, are kept whole."""
    number = 0
    while number < len(stream):
        end = _end_of_untranslated(stream, number)
        if end:
            yield Kept("".join(part.raw for part in stream[number:end]))
        else:
            yield stream[number]
        number = end or number + 1


def _end_of_untranslated(stream: Sequence[Words | Kept | Tag], number: int) -> int:
    """The number after the closing tag of an element that is not translated; 0: it is none."""
    opening = stream[number]
    if not isinstance(opening, Tag) or opening.is_closing:
        return 0
    tag = TAG.fullmatch(opening.raw)
    if tag is None or is_translated(tag, True):
        return 0
    depth = 0
    for place in range(number, len(stream)):
        part = stream[place]
        if isinstance(part, Tag) and part.name == opening.name:
            depth += -1 if part.is_closing else 1
            if not depth:
                return place + 1
    return 0


def _is_note(
    opening: Words | Kept | Tag, text: Words | Kept | Tag, closing: Words | Kept | Tag
) -> bool:
    return (
        isinstance(opening, Tag)
        and isinstance(text, Words)
        and isinstance(closing, Tag)
        and opening.name == closing.name == "sup"
        and not opening.is_closing
        and closing.is_closing
        and not any(map(str.isalpha, plain_of([text])))
    )


def inline_part(markup: str) -> Kept | Tag:
    """A tag, comment or declaration within a paragraph."""
    tag = TAG.fullmatch(markup)
    if tag is None or tag[2].lower() in VOID or tag[3].rstrip().endswith("/"):
        return Kept(markup)
    return Tag(markup, tag[2].lower(), bool(tag[1]))
