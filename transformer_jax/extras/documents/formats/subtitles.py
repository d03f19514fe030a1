"""Subtitles (SubRip, WebVTT) as documents: cues are translated, and times are kept.

WebVTT: https://www.w3.org/TR/webvtt1/
"""

import bisect
import functools
import html
import re
from collections.abc import Iterator

from transformer_jax.errors import UserError
from transformer_jax.extras.documents import html_tags, tagged_text
from transformer_jax.extras.documents.document import Document, Embedded, Reading
from transformer_jax.extras.documents.sentences import NO_LINES, SENTENCES
from transformer_jax.extras.documents.tagged_text import Kept, Tag, Words

_TIME = r"-?(?:\d+:)?\d+:\d+[.,]\d+"
_TIMES = rf"[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}"
# A line that is not that of the next times, or the number before it.
_LINE = rf"(?!(?:[ \t]*\d+[ \t]*\n)?{_TIMES})"
# The lines after one of times: in WebVTT up to an empty one; in SubRip, cues may have such lines.
_VTT_CUE = re.compile(rf"^{_TIMES}.*\n((?:{_LINE}[ \t]*\S.*(?:\n|$))+)", re.MULTILINE)
_SRT_CUE = re.compile(rf"^{_TIMES}.*\n((?:{_LINE}(?:.*\n|.+$))+)", re.MULTILINE)
_PARAGRAPH = re.compile(r"(?:^[^\S\n]*+\S.*(?:\n|$))+", re.MULTILINE)
_MARKUP = re.compile(r"<(/?)([a-zA-Z]++)?+[^<>]*+>|\{[^{}]*+\}")
_WITHOUT_END = {None, "v"}  # times within a cue, and who speaks
_TAG_OR_SPACE = re.compile(r"<[^<>]*+>| ")


def read_srt(text: str, reading: Reading) -> Document:
    """The document of a SubRip file, whose text has no escapes.

    Args:
      text: of the file.
      reading: how its cues are read; lines end sentences only where each begins with "-".

    Raises:
      UserError: there is no cue.
    """
    return Document(_parts(text, reading, has_escapes=False), text, reading)


def read_vtt(text: str, reading: Reading) -> Document:
    """The document of a WebVTT file; see `read_srt`."""
    return Document(_parts(text, reading, has_escapes=True), text, reading)


def _parts(text: str, reading: Reading, has_escapes: bool) -> Iterator[str | Embedded]:
    """The texts of the cues, and what is between them."""
    done = 0
    # Of the same length as `text`, so the places are the same.
    lines = text.replace("\r\n", " \n").replace("\r", "\n")
    for cue in (_VTT_CUE if has_escapes else _SRT_CUE).finditer(lines):
        for paragraph in _PARAGRAPH.finditer(lines, *cue.span(1)):
            start, end = paragraph.span()
            raw = text[start:end].rstrip()
            yield text[done:start]
            yield _cue(raw, reading, has_escapes)
            done = start + len(raw)
    if not done and text.strip().removeprefix("WEBVTT"):
        raise UserError("there is no cue: expected lines such as 00:00:01,000 --> 00:00:02,000.")
    yield text[done:]


def _cue(raw: str, reading: Reading, has_escapes: bool) -> Embedded:
    """The text of a cue."""
    lines = raw.splitlines()
    is_dialogue = len(lines) > 1 and all(line.lstrip().startswith("-") for line in lines)
    kind = reading.splitting or (SENTENCES if is_dialogue else NO_LINES)
    trees = tagged_text.trees(_stream(raw, has_escapes))
    parts = [part if isinstance(part, str) else (part, kind) for part in trees]
    escape = functools.partial(html.escape, quote=False) if has_escapes else str
    line_end = next((one for one in ("\r\n", "\r") if one in raw), "\n")
    write = functools.partial(_in_lines, count=len(lines), line_end=line_end)
    return Embedded(raw, raw, Document(parts, raw, reading, escape), write)


def _stream(raw: str, has_escapes: bool) -> list[Words | Kept | Tag]:
    """Text and tags of a cue."""
    stream: list[Words | Kept | Tag] = []
    done = 0
    for markup in _MARKUP.finditer(raw):
        stream.append(_words(raw[done : markup.start()], has_escapes))
        if markup[2] in _WITHOUT_END:
            stream.append(Kept(markup[0]))
        else:
            stream.append(Tag(markup[0], markup[2], bool(markup[1])))
        done = markup.end()
    stream.append(_words(raw[done:], has_escapes))
    return list(html_tags.with_untranslated_kept([part for part in stream if part.raw]))


def _words(raw: str, has_escapes: bool) -> Words:
    return Words(raw, html.unescape(raw) if has_escapes else raw)


def _in_lines(text: str, count: int, line_end: str) -> str:
    """A cue in `count` lines of about the same length; as it is where it has lines already."""
    if count == 1 or re.search(r"[\r\n]", text):
        return text
    places = [one.start() for one in _TAG_OR_SPACE.finditer(text) if one[0] == " "]
    lines, start = [], 0
    for number in range(1, count):
        wanted = len(text) * number / count
        first = bisect.bisect_left(places, start + 1)
        if first == len(places):
            break
        later = bisect.bisect_left(places, wanted, first)
        nearest = places[max(first, later - 1) : later + 1]
        place = min(nearest, key=lambda place: abs(place - wanted))
        lines.append(text[start:place])
        start = place + 1
    return line_end.join([*lines, text[start:]])
