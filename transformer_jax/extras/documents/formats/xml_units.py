"""Files of bilingual XML (XLIFF, TMX): their nodes, and the translations that are missing."""

import dataclasses
import html
from collections.abc import Iterable, Iterator
from typing import cast

from transformer_jax.errors import UserError
from transformer_jax.extras.documents import tagged_text
from transformer_jax.extras.documents.document import Part
from transformer_jax.extras.documents.formats import xml_nodes
from transformer_jax.extras.documents.formats.xml_nodes import Node
from transformer_jax.extras.documents.sentences import NO_LINES
from transformer_jax.extras.documents.tagged_text import Kept, Tag, Words

# Elements that enclose text. Of others, such as ph and bpt, the content is no text.
_PAIRED = {"g", "mrk", "pc", "hi"}
# Two elements without text that enclose it: name of the first -> name of the second, and the
# attributes of each that say which belong together, the first that is there.
_CODES = {
    "bpt": ("ept", ("rid", "i", "id"), ("rid", "i", "id")),
    "bx": ("ex", ("rid", "id"), ("rid", "id")),
    "sc": ("ec", ("id",), ("startRef",)),
}
_CLOSING_CODES = {closing: opening for opening, (closing, _, _) in _CODES.items()}


@dataclasses.dataclass(frozen=True)
class Filling:
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


def escape(text: str) -> str:
    return html.escape(text, quote=False)


class Units:
    """The nodes of a file, and the translations that are missing in it."""

    def __init__(self, text: str, root: str):
        self.bytes = text.encode()
        self.nodes = xml_nodes.read(self.bytes)
        first = next(node for node in self.nodes if node.kind == "open")
        if first.local_name != root:
            raise UserError(f"the root element is {first.name}, not {root}.")

    def parts(self, fillings: Iterator[Filling], splitting: str) -> Iterator[Part]:
        """The file with the source of each missing translation in its place."""
        done = 0
        for filling in fillings:
            yield self.bytes[done : filling.place[0]].decode() + filling.before
            for part in tagged_text.trees(_with_lone_codes_kept(self._stream(filling.source))):
                yield part if isinstance(part, str) else (part, splitting or NO_LINES)
            yield filling.after
            done = filling.place[1]
        yield self.bytes[done:].decode()

    def siblings_after(self, closing: int) -> Iterator[tuple[int, Node]]:
        """The elements that follow another in their parent."""
        number = closing + 1
        while number < len(self.nodes) and self.nodes[number].kind != "close":
            node = self.nodes[number]
            if node.kind == "open":
                yield number, node
                number = node.partner
            number += 1

    def inside(self, source: range, number: int) -> Filling:
        """A filling between the tags of an element that is empty."""
        opening = self.nodes[number]
        closing = self.nodes[opening.partner]
        if closing.start < closing.end:
            return Filling(source, (opening.end, closing.start), "", "")
        raw = self.bytes[opening.start : opening.end].decode().removesuffix("/>").rstrip()
        return Filling(source, (opening.start, opening.end), f"{raw}>", f"</{opening.name}>")

    def indentation(self, number: int) -> str:
        """The white space before a node. Text comes line by line, as several nodes."""
        first = number
        while (
            first
            and self.nodes[first - 1].kind == "text"
            and (not self.nodes[first - 1].text.strip())
        ):
            first -= 1
        return self.bytes[self.nodes[first].start : self.nodes[number].start].decode()

    def has_text(self, inner: range) -> bool:
        """Whether there is text to translate: that of codes is none."""
        number = inner.start
        while number < inner.stop:
            node = self.nodes[number]
            if node.kind == "text" and node.text.strip():
                return True
            is_code = node.kind == "open" and node.local_name not in _PAIRED
            number = (node.partner if is_code else number) + 1
        return False

    def has_content(self, inner: range) -> bool:
        return any(self.nodes[n].kind == "open" or self.nodes[n].text.strip() for n in inner)

    def _stream(self, inner: range) -> Iterator[Words | Kept | Tag]:
        """Text and tags of a source."""
        number = inner.start
        while number < inner.stop:
            node = self.nodes[number]
            raw = self.bytes[node.start : node.end].decode()
            if node.kind == "text":
                yield Words(raw, node.text)
            elif node.kind == "other":
                yield Kept(raw)
            elif node.kind == "open" and (node.local_name not in _PAIRED or _is_untranslated(node)):
                raw = self.bytes[node.start : self.nodes[node.partner].end].decode()
                yield _code(node, raw)
                number = node.partner
            elif raw:
                is_empty = self.nodes[node.partner].start == self.nodes[node.partner].end
                is_kept = node.kind == "open" and is_empty
                yield Kept(raw) if is_kept else Tag(raw, node.name, node.kind == "close")
            number += 1


def _is_untranslated(node: Node) -> bool:
    """Whether an element in a text stays as it is."""
    return node.attributes.get("translate") == "no" or node.attributes.get("mtype") == "protected"


def _code(node: Node, raw: str) -> Kept | Tag:
    """An element without text: one of two that belong together, as a tag, or alone."""
    opening = _CLOSING_CODES.get(node.local_name, node.local_name)
    if opening not in _CODES:
        return Kept(raw)
    is_closing = node.local_name != opening
    names = _CODES[opening][2 if is_closing else 1]
    number = next((node.attributes[name] for name in names if name in node.attributes), "")
    return Tag(raw, f"{opening} {number}", is_closing)


def _with_lone_codes_kept(stream: Iterable[Words | Kept | Tag]) -> list[Words | Kept | Tag]:
    """A stream in which codes without another, or that cross other tags, are no tags."""
    parts = list(stream)
    waiting: list[int] = []
    for number, part in enumerate(parts):
        if not isinstance(part, Tag):
            continue
        if not part.is_closing:
            waiting.append(number)
            continue
        names = [cast(Tag, parts[place]).name for place in waiting]
        last = max((n for n, name in enumerate(names) if name == part.name), default=-1)
        is_crossing = any(" " not in name for name in names[last + 1 :])
        if last < 0 or is_crossing:
            parts[number] = Kept(part.raw)
            continue
        for place in waiting[last + 1 :]:
            parts[place] = Kept(parts[place].raw)
        del waiting[last:]
    for place in waiting:
        parts[place] = Kept(parts[place].raw)
    return parts
