"""Tags of HTML."""

import collections
import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from transformer_jax.extras.documents.tagged_text import Kept, Tag, Words

_ATTRIBUTE = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)?+"""
# No part gives back what it has matched, so the time is linear.
TAG = re.compile(rf"<(/?)([a-zA-Z][^\s/>]*+)((?:[\s/]++|{_ATTRIBUTE})*+)>")
# fmt: off
VOID = {
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track",
    "wbr",
}
UNTRANSLATED = {
    "script", "style", "code", "kbd", "samp", "var", "textarea", "math", "svg", "rt", "rp",
}
# fmt: on
# A slash at the end, which is not of an attribute's value: `<a href=x/>` has none.
_SLASH = re.compile(rf"(?:[\s/]*+{_ATTRIBUTE})*+[\s/]*?/\s*")
_NAME_AND_VALUE = re.compile(
    r"""([^\s/>=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"'][^\s>]*)))?"""
)
_LONGEST_NOTE = 30  # texts and tags
_REFERENCE = re.compile(r"(&#?\w+;)")


def has_tags(text: str) -> bool:
    """Whether there is a tag of HTML."""
    return TAG.search(text) is not None


def ends_itself(tag: re.Match[str]) -> bool:
    """Whether a match of `TAG` is an element without content, such as `<x/>`."""
    return _SLASH.fullmatch(tag[3]) is not None


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
    """A stream whose superscripts without letters, or with links, such as notes, are kept.

    The model would read them as a part of the word before.
    """
    return _with_kept(stream, _is_note)


def with_untranslated_kept(stream: Sequence[Words | Kept | Tag]) -> Iterator[Words | Kept | Tag]:
    """A stream whose elements that are not translated, such as `<code>`, are kept whole."""
    return _with_kept(stream, _is_untranslated)


def with_formulas(stream: Sequence[Words | Kept | Tag]) -> list[Words | Kept | Tag]:
    """A stream in which words with subscripts without letters, such as `H2O`, are protected."""
    parts: list[Words | Kept | Tag] = []
    ends = _ends(stream)
    number = 0
    while number < len(stream):
        part, last = stream[number], parts[-1] if parts else None
        end = ends.get(number, number + 1)
        inner = stream[number + 1 : end - 1]
        if isinstance(last, Words) and _is_subscript(part, inner):
            before, word = _cut(last, len(last.raw) - _num_letters(reversed(last.raw)))
            if last.is_protected:
                before, word = Words("", ""), last
            if word.raw:
                raw = word.raw + "".join(one.raw for one in stream[number:end])
                parts[-1:] = [before] if before.raw else []
                parts.append(Words(raw, word.plain + _plain(inner), True))
                number = end
                continue
        size = _num_letters(part.raw) if isinstance(part, Words) else 0
        if isinstance(part, Words) and isinstance(last, Words) and last.is_protected and size:
            word, part = _cut(part, size)
            parts[-1] = Words(last.raw + word.raw, last.plain + word.plain, True)
        if part.raw:
            parts.append(part)
        number += 1
    return parts


def _cut(words: Words, place: int) -> tuple[Words, Words]:
    """A text in two parts. A reference to a character is a text by itself, so none is cut."""
    before, after = words.raw[:place], words.raw[place:]
    return Words(before, html.unescape(before)), Words(after, html.unescape(after))


def _with_kept(
    stream: Sequence[Words | Kept | Tag],
    is_kept: Callable[[Tag, Sequence[Words | Kept | Tag]], bool],
) -> Iterator[Words | Kept | Tag]:
    """A stream with those elements kept whole for which `is_kept(tag, what it encloses)`."""
    ends = _ends(stream)
    number = 0
    while number < len(stream):
        part, end = stream[number], ends.get(number, 0)
        if end and isinstance(part, Tag) and is_kept(part, stream[number + 1 : end - 1]):
            yield Kept("".join(one.raw for one in stream[number:end]))
        else:
            yield part
            end = number + 1
        number = end


def _ends(stream: Sequence[Words | Kept | Tag]) -> dict[int, int]:
    """Number of each opening tag that has a closing one -> the number after that."""
    ends: dict[int, int] = {}
    waiting: dict[str, list[int]] = collections.defaultdict(list)
    for number, part in enumerate(stream):
        if isinstance(part, Tag) and not part.is_closing:
            waiting[part.name].append(number)
        elif isinstance(part, Tag) and waiting[part.name]:
            ends[waiting[part.name].pop()] = number + 1
    return ends


def _is_untranslated(opening: Tag, inner: Sequence[Words | Kept | Tag]) -> bool:
    tag = TAG.fullmatch(opening.raw)
    return tag is not None and not is_translated(tag, True)


def _is_note(opening: Tag, inner: Sequence[Words | Kept | Tag]) -> bool:
    if opening.name != "sup" or len(inner) > _LONGEST_NOTE:
        return False
    has_link = any(isinstance(part, Tag) and part.name == "a" for part in inner)
    return has_link or not any(map(str.isalpha, _plain(inner)))


def _is_subscript(part: Words | Kept | Tag, inner: Sequence[Words | Kept | Tag]) -> bool:
    """Whether this is one without letters, such as the number of a formula."""
    is_sub = isinstance(part, Tag) and part.name == "sub"
    return is_sub and len(inner) == 1 and not any(map(str.isalpha, _plain(inner)))


def _plain(stream: Sequence[Words | Kept | Tag]) -> str:
    return "".join(part.plain for part in stream if isinstance(part, Words))


def _num_letters(text: Iterable[str]) -> int:
    """How many letters and digits it begins with."""
    return len(list(itertools.takewhile(str.isalnum, text)))


def inline_part(markup: str) -> Kept | Tag:
    """A tag, comment or declaration within a paragraph."""
    tag = TAG.fullmatch(markup)
    if tag is None or tag[2].lower() in VOID or ends_itself(tag):
        return Kept(markup)
    return Tag(markup, tag[2].lower(), bool(tag[1]))
