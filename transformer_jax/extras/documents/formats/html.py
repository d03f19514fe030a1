"""HTML as a document: its markup is kept byte for byte, and tags within paragraphs follow words."""

import html
import re
from collections.abc import Iterator

from transformer_jax.extras.documents import html_tags, tagged_text
from transformer_jax.extras.documents.document import Document, Reading
from transformer_jax.extras.documents.html_tags import TAG, VOID, inline_part
from transformer_jax.extras.documents.sentences import NO_LINES, NO_SPLIT, SENTENCES
from transformer_jax.extras.documents.tagged_text import Item, Kept, Tag, Words

_HEAD = 2000  # characters in which a page says that it is XML
_XML = re.compile(r"\A\ufeff?\s*+<\?xml|<html\s[^<>]*?\bxmlns=", re.IGNORECASE)
_BEGINNING = re.compile(r"<(?=[a-zA-Z/!?])")
_RAW = {"script", "style"}  # tags inside are text
# fmt: off
# Tags that divide texts, with those of `_ENDS_PARAGRAPH`. All other tags are parts of a paragraph,
# unknown ones too, such as web components.
# https://html.spec.whatwg.org/multipage/indices.html#elements-3
_DIVIDING = {
    "area", "audio", "base", "body", "br", "button", "canvas", "caption", "center", "col",
    "colgroup", "datalist", "dd", "dir", "dt", "embed", "figcaption", "frame", "frameset", "head",
    "html", "iframe", "legend", "li", "link", "map", "marquee", "meta", "meter", "noembed",
    "noframes", "noscript", "object", "optgroup", "option", "output", "param", "picture",
    "progress", "script", "select", "slot", "source", "style", "summary", "table", "tbody", "td",
    "template", "textarea", "tfoot", "th", "thead", "title", "tr", "track", "video",
    # Of DocBook: https://docbook.org/
    "chapter", "entry", "example", "informaltable", "itemizedlist", "listitem", "orderedlist",
    "para", "programlisting", "row", "screen", "simpara", "variablelist", "varlistentry",
}
# Elements that end where another begins: https://html.spec.whatwg.org/#optional-tags
_CELL, _ITEM = {"td", "th"}, {"dt", "dd"}
_ENDS_PARAGRAPH = {
    "address", "article", "aside", "blockquote", "details", "dialog", "div", "dl", "fieldset",
    "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header",
    "hgroup", "hr", "main", "menu", "nav", "ol", "p", "pre", "search", "section", "table", "ul",
}
# fmt: on
_DIVIDING |= _ENDS_PARAGRAPH
_ENDED_BY = {
    "p": _ENDS_PARAGRAPH,
    "li": {"li"},
    **dict.fromkeys(_ITEM, _ITEM),
    **dict.fromkeys(_CELL, _CELL | {"tr"}),
    "option": {"option", "optgroup"},
    "optgroup": {"optgroup"},
    "tr": {"tr"},
}
_SEARCHED = 65  # open tags among which that of a closing tag is searched


def read(text: str, reading: Reading, has_escapes: bool = True) -> Document:
    """The document of a page, or of a part of one; lines end sentences only in `<pre>`.

    Args:
      text: of the page.
      reading: how it is read.
      has_escapes: whether `&` and `<` of a translation are written as `&amp;` and `&lt;`.
    """
    escape = _escape if has_escapes else str
    return Document(_Reader(text, reading).parts(), text, reading, escape)


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


def _divides(tag: re.Match) -> bool:
    """Whether a tag is between texts, and not within one."""
    return tag[2].lower() in _DIVIDING


class _Reader:
    """Reads a page from its beginning to its end."""

    def __init__(self, text: str, reading: Reading):
        self._text, self._splitting = text, reading.splitting
        self._ignored = reading.ignored_tags
        # Names, and whether what they enclose is translated.
        self._open: list[tuple[str, bool]] = []
        self._stream: list[Words | Kept | Tag] = []  # of a paragraph
        self._num_pre = 0

    def parts(self) -> Iterator[str | tuple[list[Item], str]]:
        """The markup between paragraphs, and the trees of the paragraphs."""
        kept, is_inline = "", True  # what is not translated, up to here
        for raw, tag in _tokens(self._text):
            was_translated, in_pre = self._is_translated, self._num_pre > 0
            if tag:
                self._enter(tag)
            if not (was_translated and self._is_translated):
                kept += raw
                is_inline = is_inline and (tag is None or not _divides(tag))
                if not self._is_translated:
                    continue
                raw, tag = "", None
            if kept:
                if is_inline:
                    self._stream.append(self._ignored_part(kept) or Kept(kept))
                else:
                    yield from self._paragraph(in_pre)
                    yield kept
                kept, is_inline = "", True
            if raw and not self._add(raw, tag):
                yield from self._paragraph(in_pre)
                yield raw
        yield from self._paragraph(self._num_pre > 0)
        yield kept

    @property
    def _is_translated(self) -> bool:
        return not self._open or self._open[-1][1]

    def _add(self, raw: str, tag: re.Match | None) -> bool:
        """Adds to the paragraph; False where this ends it."""
        if tag:
            if _divides(tag):
                return False
            self._stream.append(self._ignored_part(raw) or inline_part(raw))
        elif _BEGINNING.match(raw):
            if not raw.startswith("<!--"):
                return False
            self._stream.append(Kept(raw))
        else:
            self._stream += html_tags.texts(raw)
        return True

    def _ignored_part(self, raw: str) -> Words | None:
        """An element that a reading ignores, which is a word of its sentence."""
        tag = TAG.match(raw)
        is_ignored = tag is not None and tag[2].lower() in self._ignored
        return Words(raw, raw, True) if is_ignored else None

    def _paragraph(self, in_pre: bool) -> Iterator[str | tuple[list[Item], str]]:
        splitting = self._splitting or (SENTENCES if in_pre else NO_LINES)
        assert splitting in (NO_SPLIT, SENTENCES, NO_LINES)
        stream = html_tags.with_formulas(list(html_tags.without_notes(self._stream)))
        for part in tagged_text.trees(stream):
            yield part if isinstance(part, str) else (part, splitting)
        self._stream = []

    def _enter(self, tag: re.Match) -> None:
        """Notes that a tag begins or ends."""
        name = tag[2].lower()
        if not tag[1]:
            while self._open and name in _ENDED_BY.get(self._open[-1][0], ()):
                self._open.pop()
            if name in VOID or html_tags.ends_itself(tag):
                return
            is_translated = html_tags.is_translated(tag, self._is_translated)
            self._open.append((name, is_translated and name not in self._ignored))
            self._num_pre += name == "pre"
            return
        for index in range(len(self._open) - 1, max(-1, len(self._open) - _SEARCHED), -1):
            if self._open[index][0] == name:
                self._num_pre -= sum(other == "pre" for other, _ in self._open[index:])
                del self._open[index:]
                return


def _tokens(text: str) -> Iterator[tuple[str, re.Match | None]]:
    """Markup and texts, tags with their match of `TAG`."""
    position = 0
    is_xml = bool(_XML.search(text, 0, _HEAD))  # where `<script/>` ends itself
    while position < len(text):
        beginning = _BEGINNING.search(text, position)
        end = beginning.start() if beginning else len(text)
        if position < end:
            yield text[position:end], None
        if not beginning:
            return
        position = _end_of_markup(text, end)
        tag = TAG.fullmatch(text, end, position)
        yield text[end:position], tag
        if not tag or tag[2].lower() not in _RAW or tag[1]:
            continue
        if not (is_xml and html_tags.ends_itself(tag)):
            closing = re.compile(rf"</{tag[2]}(?![a-zA-Z0-9])", re.IGNORECASE)
            last = closing.search(text, position)
            start, position = position, last.start() if last else len(text)
            if start < position:
                yield text[start:position], None


def _end_of_markup(text: str, start: int) -> int:
    """Where a tag, comment or declaration ends; the end of the text where it is not closed."""
    if text.startswith("<!--", start):
        end, length = text.find("-->", start + 4), 3
    elif tag := TAG.match(text, start):
        return tag.end()
    elif text.startswith(("<!", "<?", "</"), start):
        end, length = text.find(">", start), 1
    else:
        end, length = -1, 0
    return len(text) if end < 0 else end + length
