"""Markdown as a document: CommonMark with tables, and with what is usual besides.

Metadata at the beginning, code, images, addresses, HTML, formulas, boxes of tasks, references of
notes, lines that begin containers, and the markup of some dialects are kept. The library
`markdown-it-py` says what is markup; the places of its tokens in the text are noted as it reads.
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Literal

import markdown_it
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from transformer_jax.extras.documents import html_tags, tagged_text
from transformer_jax.extras.documents.document import Document, Reading
from transformer_jax.extras.documents.sentences import NO_LINES
from transformer_jax.extras.documents.tagged_text import Item, Kept, Tag, Words

# Lines of metadata have names, or are indented; without them `---` is a rule.
_NAMED = r"(?:#.*|[^\s:#-][^:\n]*+:(?:[ \t].*)?)\r?\n"
_METADATA = re.compile(
    rf"---[ \t]*\r?\n{_NAMED}(?:{_NAMED}|[-\]}}#].*\r?\n|[ \t].*\r?\n|\r?\n)*?"
    r"(?:---|\.\.\.)[ \t]*(?:\r?\n|$)"
    r"|\+\+\+[ \t]*\r?\n(?:.*\r?\n)*?\+\+\+[ \t]*(?:\r?\n|$)"
)
_LINE_END = re.compile(r"\r\n?|\n")
# What Markdown would read as markup: anywhere, and where a line begins.
_SPECIAL = re.compile(r"\A[#+-](?=\s|#)|[\\`*_\[\]<>|~]|&(?=#?\w+;)")
_ORDINAL = re.compile(r"\A(\d{1,9})([.)])(?=\s)")
# What is kept within a text, besides CommonMark's: formulas, notes, links of wikis, names of emoji,
# comments of MDX, and at the beginning of a line the box of a task, the kind of an alert, and a
# table of contents.
_KEPT = re.compile(
    r"\$\$[^$]+\$\$|\$(?![\s$])[^$\n]*(?<![\s$])\$(?!\d)|\[\^[^\]\s]+\]:?"
    r"|\\\((?:[^\\\n]|\\[^()\n])*+\\\)|\\\[(?:[^\\]|\\[^\[\]])*+\\\]"
    r"|!?\[\[[^\[\]\n]+\]\]|(?<!\w):[a-z+-][a-z0-9_+-]*:|\{/\*(?:[^*{]|\*(?!/))*+\*/\}"
    r"|(?:^|(?<=\n))(?:\[[ xX]\](?=\s)|\[![a-zA-Z]+\][+-]?|\[TOC\])"
)
# Lines that begin or end a container, or a definition, or that are code of MDX: they divide the
# text.
_DIVIDING = re.compile(
    r"(?:^|(?<=\n))(?::::.*|(?:!!!|\?\?\?\+?)[ ].*|:[ \t]+(?=\S)|\*\[[^\]\n]+\]:[ \t]*"
    r"|import\s(?:[^\n\"']*\sfrom\s*)?[\"'][^\"'\n]+[\"'];?[ \t]*(?=\n|$)"
    r"|export\s(?:const|let|var|default|function|class|async|\{|\*)[^\0]*)"
)
# A tag of JSX, whose attributes may be code.
_JSX = re.compile(
    r"<(/?)([A-Z][\w.]*+)(?:[^<>{}\"']|\"[^\"]*\"|'[^']*'|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})*+>"
)
_LITERAL = "literal"
_PAIRED = {"em", "strong", "s", "link"}


def read(text: str, reading: Reading) -> Document:
    """The document of a text in Markdown; lines of a paragraph do not end sentences."""
    metadata = _METADATA.match(text)
    start = metadata.end() if metadata else 0
    parts = _parts(text[start:], reading.splitting or NO_LINES)
    document = Document(parts, text, reading, _escape)
    return document.preceded_by(text[:start]) if start else document


def _escape(text: str) -> str:
    return _ORDINAL.sub(r"\1\\\2", _SPECIAL.sub(r"\\\g<0>", text))


def _parts(text: str, splitting: str) -> Iterator[str | tuple[list[Item], str]]:
    """What is between the texts of blocks, and those texts."""
    lines = [0, *(match.end() for match in _LINE_END.finditer(text))]
    parser = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.disable("text_join")  # as in `_Inline`
    parser.inline = _Inline()
    done = 0
    block_lines = [0, 0]
    for token in parser.parse(text):
        block_lines = token.map or block_lines
        if token.type != "inline" or not token.children:
            continue
        places = _places(text, lines, block_lines, token.content, done)
        if not places:
            continue
        yield text[done : places[0]]
        for part in tagged_text.trees(_stream(text, token.content, token.children, places)):
            yield part if isinstance(part, str) else (part, splitting)
        done = places[-1] + 1
    yield text[done:]


def _places(
    text: str, lines: Sequence[int], block: Sequence[int], content: str, done: int
) -> list[int]:
    """The place in `text` of each character of a block's content.

    It is empty where the content is not there as it is, as in a cell of a table with `\\|`.
    """
    places: list[int] = []
    position = max(done, lines[block[0]])
    for number, line in enumerate(content.split("\n")):
        if number:
            places.append(position)  # of the end of the line before it
            position = lines[min(bisect.bisect_right(lines, position), len(lines) - 1)]
        start = text.find(line, position)
        if start < 0 or _LINE_END.search(text, position, start):
            return []
        places += range(start, start + len(line))
        position = start + len(line)
    return places


def _stream(
    text: str, content: str, tokens: Sequence[Token], places: Sequence[int]
) -> list[Words | Kept | Tag]:
    """Text and tags of a block."""
    starts = [*(token.meta[_PLACE] for token in tokens), len(content)]
    ends = [*places, places[-1] + 1]
    stream: list[Words | Kept | Tag] = []
    raws = [text[ends[start] : ends[end]] for start, end in itertools.pairwise(starts)]
    kept_until = 0
    for number, (token, raw) in enumerate(zip(tokens, raws, strict=True)):
        if number < kept_until:
            continue
        kind, _, side = token.type.rpartition("_")
        if token.type == "link_open":
            last = _end_of_link(tokens, number)
            if raws[last] in ("]", "][]"):  # whose words name the definition of its address
                stream.append(Kept("".join(raws[number : last + 1])))
                kept_until = last + 1
                continue
        if token.type == "text":
            size = len(token.content)
            stream += [Words(raw[:size], raw[:size]), Kept(raw[size:])]
        elif token.type == "text_special":
            stream.append(Words(raw, token.content))
        elif token.type == "softbreak":
            stream.append(Words(raw, " "))
        elif token.type == "hardbreak":
            stream.append(Tag(raw, "break", True))  # which has no other, so it divides the text
        elif token.type == _LITERAL and token.markup:
            stream.append(Tag(raw, "line", True))  # the same
        elif jsx := _JSX.fullmatch(raw):
            stream.append(Kept(raw) if raw.endswith("/>") else Tag(raw, jsx[2], bool(jsx[1])))
        elif token.type == "html_inline":
            stream.append(html_tags.inline_part(raw))
        elif kind in _PAIRED and token.markup != "autolink":
            stream.append(Tag(raw, kind + token.markup, side == "close"))
        else:  # code, images, addresses
            stream.append(Kept(raw))
    parts = [part for part in _with_whole_marks(stream) if part.raw]
    parts = list(html_tags.without_notes(list(html_tags.with_untranslated_kept(parts))))
    return html_tags.with_formulas(parts)


def _end_of_link(tokens: Sequence[Token], first: int) -> int:
    """The number of the token that ends a link; links have no links in them."""
    return next(n for n in range(first, len(tokens)) if tokens[n].type == "link_close")


def _literal(state: StateInline, silent: bool) -> bool:
    """A rule of the parser: what is kept, beyond CommonMark, is a token."""
    for pattern, mark in ((_DIVIDING, "line"), (_KEPT, ""), (_JSX, "")):
        match = pattern.match(state.src, state.pos, state.posMax)
        if match:
            if not silent:
                state.push(_LITERAL, "", 0).markup = mark
            state.pos = match.end()
            return True
    return False


def _with_whole_marks(stream: Sequence[Words | Kept | Tag]) -> Iterator[Words | Kept | Tag]:
    """The stream with both halves of `**` in the tag; the outer one is a token by itself."""
    parts = [part for part in stream if part.raw]
    number = 0
    while number < len(parts):
        part = parts[number]
        after = parts[number + 1] if number + 1 < len(parts) else None
        if _is_half(part, after, False):
            assert isinstance(after, Tag)
            yield dataclasses.replace(after, raw=part.raw + after.raw)
            number += 1
        elif _is_half(after, part, True):
            assert isinstance(part, Tag)
            assert after
            yield dataclasses.replace(part, raw=part.raw + after.raw)
            number += 1
        else:
            yield part
        number += 1


def _is_half(
    mark: Words | Kept | Tag | None, tag: Words | Kept | Tag | None, is_closing: bool
) -> bool:
    return (
        isinstance(mark, Kept)
        and isinstance(tag, Tag)
        and mark.raw == tag.raw
        and tag.name in ("strong**", "strong__")
        and tag.is_closing == is_closing
    )


# --- Places of tokens --------------------------------------------------------------------------

_PLACE = "place"


class _State(StateInline):
    """Notes where each token begins."""

    def pushPending(self) -> Token:  # noqa: N802  # as the library names it
        """Makes the text that is read a token: it ends here, except for white space."""
        content = self.pending
        token = super().pushPending()
        token.meta = {_PLACE: self.src.rfind(content, 0, self.pos)}
        return token

    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        """Adds a token that begins here."""
        # Of a link with a label, the library reads the label now, and is after the bracket.
        is_label = ttype == "link_open" and self.posMax < len(self.src) and not self.linkLevel
        self.pos -= is_label
        token = super().push(ttype, tag, nesting)
        place = self.pos
        self.pos += is_label
        before = self.tokens[-2] if len(self.tokens) > 1 else None
        if before:
            # Marks of emphasis come one by one, or in pairs, without a move.
            size = len(before.content) if ttype == before.type == "text" else 0
            place = max(place, before.meta[_PLACE] + size)
        token.meta = {_PLACE: place}
        return token


class _Inline(ParserInline):
    """Reads the text of blocks, without joining tokens of text, which would lose places."""

    def __init__(self) -> None:
        super().__init__()
        self.ruler2.disable("fragments_join")
        self.ruler.before("text", _LITERAL, _literal)

    def parse(
        self,
        src: str,
        md: markdown_it.MarkdownIt,
        env: MutableMapping[str, Any],
        tokens: list[Token],
    ) -> list[Token]:
        """The tokens of a block's text."""
        state = _State(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens
