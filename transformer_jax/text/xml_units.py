"""Bilingual XML (XLIFF 1.2 and 2, TMX) as documents: what is not translated yet is filled.

XLIFF: https://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html
TMX: https://www.gala-global.org/tmx-14b
"""

import dataclasses
import html
import xml.parsers.expat
from collections.abc import Iterator, Sequence

from transformer_jax.errors import UserError
from transformer_jax.text import tagged_text
from transformer_jax.text.document import Document, Part, Reading
from transformer_jax.text.sentences import NO_LINES
from transformer_jax.text.tagged_text import Kept, Tag, Words

# Elements that enclose text. Of others, such as ph and bpt, the content is no text.
_PAIRED = {"g", "mrk", "pc", "hi"}
_XML_LANG = ("xml:lang", "lang")


@dataclasses.dataclass
class _Node:
    """A tag, text, or something else of a file, with its place in bytes.

    Attributes:
      kind: `open`, `close`, `text` or `other`.
      start: of it.
      name: of a tag, with its prefix.
      attributes: of an opening tag.
      text: of a text, without escapes.
      end: of it; `start`, of the end of an element that is one tag.
      partner: index of the closing tag.
    """

    kind: str
    start: int
    name: str = ""
    attributes: dict[str, str] = dataclasses.field(default_factory=dict)
    text: str = ""
    end: int = 0
    partner: int = -1

    @property
    def local_name(self) -> str:
        return self.name.rpartition(":")[2]


@dataclasses.dataclass(frozen=True)
class _Filling:
    """A translation that is missing.

    Attributes:
      source: numbers of the nodes to translate.
      place: (first byte, end) of what it replaces.
      before: written before it.
      after: written after it.
    """

    source: range
    place: tuple[int, int]
    before: str
    after: str


def read_xliff(text: str, reading: Reading) -> Document:
    """The document of an XLIFF file. Targets that have content stay.

    Args:
      text: of the file.
      reading: how its sources are read; lines do not end sentences.

    Raises:
      UserError: the file is no XML, or has another root.
    """
    units = _Units(text, "xliff")
    return Document(units.parts(units.targets(), reading.splitting), text, reading, _escape)


def read_tmx(text: str, reading: Reading) -> Document:
    """The document of a translation memory, whose units get a variant in the target language.

    Variants in the target language that have content stay, and units without a source.

    Args:
      text: of the file.
      reading: how variants in its language are read; lines do not end sentences.

    Raises:
      UserError: the file is no XML, or has another root, or a language is missing.
    """
    language, target_language = reading.language, reading.target_language
    if not (language and target_language):
        raise UserError("a TMX file needs a source and a target language: set both.")
    units = _Units(text, "tmx")
    fillings = units.variants(language, target_language)
    return Document(units.parts(fillings, reading.splitting), text, reading, _escape)


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


class _Units:
    """The nodes of a file, and the translations that are missing in it."""

    def __init__(self, text: str, root: str):
        self._bytes = text.encode()
        self._nodes = _nodes(self._bytes)
        first = next(node for node in self._nodes if node.kind == "open")
        if first.local_name != root:
            raise UserError(f"the root element is {first.name}, not {root}.")

    def parts(self, fillings: Iterator[_Filling], splitting: str) -> Iterator[Part]:
        """The file with the source of each missing translation in its place."""
        done = 0
        for filling in fillings:
            yield self._bytes[done : filling.place[0]].decode() + filling.before
            for part in tagged_text.trees(list(self._stream(filling.source))):
                yield part if isinstance(part, str) else (part, splitting or NO_LINES)
            yield filling.after
            done = filling.place[1]
        yield self._bytes[done:].decode()

    def targets(self) -> Iterator[_Filling]:
        """Those of the units and segments of XLIFF."""
        parents: list[_Node] = []
        for number, node in enumerate(self._nodes):
            if node.kind == "open":
                is_unit = parents and parents[-1].local_name in ("trans-unit", "segment")
                if node.local_name == "source" and is_unit and _is_translated(parents):
                    yield from self._target_of(number)
                parents.append(node)
            elif node.kind == "close":
                parents.pop()

    def _target_of(self, source: int) -> Iterator[_Filling]:
        """The missing target of a source."""
        opening = self._nodes[source]
        inner = range(source + 1, opening.partner)
        if not self._has_content(inner):
            return
        prefix = opening.name.removesuffix("source")
        for number, node in self._siblings_after(opening.partner):
            if node.local_name == "target":
                if not self._has_content(range(number + 1, node.partner)):
                    yield self._inside(inner, number)
                return
        indentation = ""
        before = self._nodes[source - 1]
        if before.kind == "text" and not before.text.strip():
            # Text comes line by line.
            lines = self._bytes[: opening.start].decode()
            indentation = lines[len(lines.rstrip()) :]
        end = self._nodes[opening.partner].end
        tag = f"{prefix}target"
        yield _Filling(inner, (end, end), f"{indentation}<{tag}>", f"</{tag}>")

    def _siblings_after(self, closing: int) -> Iterator[tuple[int, _Node]]:
        """The elements that follow another in their parent."""
        number = closing + 1
        while number < len(self._nodes) and self._nodes[number].kind != "close":
            node = self._nodes[number]
            if node.kind == "open":
                yield number, node
                number = node.partner
            number += 1

    def _inside(self, source: range, number: int) -> _Filling:
        """A filling between the tags of an element that is empty."""
        opening = self._nodes[number]
        closing = self._nodes[opening.partner]
        if closing.start < closing.end:
            return _Filling(source, (opening.end, closing.start), "", "")
        raw = self._bytes[opening.start : opening.end].decode().removesuffix("/>").rstrip()
        return _Filling(source, (opening.start, opening.end), f"{raw}>", f"</{opening.name}>")

    def variants(self, language: str, target_language: str) -> Iterator[_Filling]:
        """Those of the units of a translation memory."""
        for number, node in enumerate(self._nodes):
            if node.kind != "open" or node.local_name != "tu":
                continue
            variants = [
                (at, one)
                for at, one in self._siblings_after(number)
                if one.local_name == "tuv" and self._segment_of(at) is not None
            ]
            source = next((at for at, one in variants if _is_of(one, language)), None)
            target = next((at for at, one in variants if _is_of(one, target_language)), None)
            segment = None if source is None else self._segment_of(source)
            if source is None or segment is None or source == target:
                continue
            inner = range(segment + 1, self._nodes[segment].partner)
            if not self._has_content(inner):
                continue
            if target is None:
                yield self._new_variant(inner, source, target_language)
                continue
            filled = self._segment_of(target)
            assert filled is not None
            if not self._has_content(range(filled + 1, self._nodes[filled].partner)):
                yield self._inside(inner, filled)

    def _new_variant(self, source: range, variant: int, target_language: str) -> _Filling:
        """A variant after another one, with its layout."""
        opening = self._nodes[variant]
        lines = self._bytes[: opening.start].decode()
        indentation = lines[len(lines.rstrip()) :]
        end = self._nodes[opening.partner].end
        code = html.escape(target_language)
        before = f'{indentation}<tuv xml:lang="{code}"><seg>'
        return _Filling(source, (end, end), before, "</seg></tuv>")

    def _segment_of(self, variant: int) -> int | None:
        """The node of the text of a variant."""
        for number, node in self._siblings_after(variant):
            if node.local_name == "seg":
                return number
        return None

    def _has_content(self, inner: range) -> bool:
        return any(self._nodes[n].kind == "open" or self._nodes[n].text.strip() for n in inner)

    def _stream(self, inner: range) -> Iterator[Words | Kept | Tag]:
        """Text and tags of a source."""
        number = inner.start
        while number < inner.stop:
            node = self._nodes[number]
            raw = self._bytes[node.start : node.end].decode()
            if node.kind == "text":
                yield Words(raw, node.text)
            elif node.kind == "other":
                yield Kept(raw)
            elif node.kind == "open" and node.local_name not in _PAIRED:
                end = self._nodes[node.partner].end
                yield Kept(self._bytes[node.start : end].decode())
                number = node.partner
            elif raw:
                is_empty = self._nodes[node.partner].start == self._nodes[node.partner].end
                is_kept = node.kind == "open" and is_empty
                yield Kept(raw) if is_kept else Tag(raw, node.name, node.kind == "close")
            number += 1


def _is_translated(parents: Sequence[_Node]) -> bool:
    """Whether what is in these elements is to be translated."""
    said = [node.attributes["translate"] for node in parents if "translate" in node.attributes]
    is_alternative = any(node.local_name in ("alt-trans", "matches") for node in parents)
    return not is_alternative and (not said or said[-1] != "no")


def _is_of(variant: _Node, language: str) -> bool:
    """Whether a variant is in a language, of any country."""
    codes = [variant.attributes[name] for name in _XML_LANG if name in variant.attributes]
    wanted = language.replace("_", "-").lower()
    code = codes[0].replace("_", "-").lower() if codes else ""
    return code == wanted or code.split("-")[0] == wanted


def _nodes(data: bytes) -> list[_Node]:
    """Everything in a file, in its order. A CDATA section is one text."""
    reader = _NodeReader(data)
    try:
        reader.parser.Parse(data, True)
    except xml.parsers.expat.ExpatError as error:
        reason = xml.parsers.expat.ErrorString(error.code)
        raise UserError(f"line {error.lineno} is not valid XML: {reason}.") from error
    reader.nodes[-1].end = len(data)
    return reader.nodes


class _NodeReader:
    """Notes what the parser reads, and where."""

    def __init__(self, data: bytes):
        self.nodes: list[_Node] = []
        self._data = data
        self._waiting: list[int] = []  # elements that are open
        self._in_section = False
        self.parser = xml.parsers.expat.ParserCreate("utf-8")  # whatever the declaration says
        self.parser.StartElementHandler = self._open
        self.parser.EndElementHandler = self._close
        self.parser.CharacterDataHandler = self._text
        self.parser.DefaultHandler = self._other

    def _add(self, node: _Node) -> None:
        if self.nodes:
            self.nodes[-1].end = node.start
        self.nodes.append(node)

    def _open(self, name: str, attributes: dict[str, str]) -> None:
        self._waiting.append(len(self.nodes))
        self._add(_Node("open", self.parser.CurrentByteIndex, name, attributes))

    def _close(self, name: str) -> None:
        opening = self._waiting.pop()
        self.nodes[opening].partner = len(self.nodes)
        self._add(_Node("close", self.parser.CurrentByteIndex, name, partner=opening))

    def _text(self, text: str) -> None:
        if self._in_section:
            self.nodes[-1].text += text
        else:
            self._add(_Node("text", self.parser.CurrentByteIndex, text=text))

    def _other(self, raw: str) -> None:
        if raw == "<![CDATA[":
            self._text("")
            self._in_section = True
        elif self._in_section:
            self._in_section = False
        else:
            self._add(_Node("other", self.parser.CurrentByteIndex))
