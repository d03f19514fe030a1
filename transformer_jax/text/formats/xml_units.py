"""Bilingual XML (XLIFF 1.2 and 2, TMX) as documents: what is not translated yet is filled.

XLIFF: https://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html
TMX: https://www.gala-global.org/tmx-14b
"""

import dataclasses
import html
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from transformer_jax.errors import UserError
from transformer_jax.text import languages, tagged_text
from transformer_jax.text.document import Document, Part, Reading
from transformer_jax.text.formats import xml_nodes
from transformer_jax.text.formats.xml_nodes import Node
from transformer_jax.text.sentences import NO_LINES
from transformer_jax.text.tagged_text import Kept, Tag, Words

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
_XML_LANG = ("xml:lang", "lang")


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
    units.check_languages(reading.language, reading.target_language)
    fillings = list(units.targets())
    if fillings:
        fillings = [*units.missing_target_language(reading.target_language), *fillings]
    return Document(units.parts(iter(fillings), reading.splitting), text, reading, _escape)


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
        self._nodes = xml_nodes.read(self._bytes)
        first = next(node for node in self._nodes if node.kind == "open")
        if first.local_name != root:
            raise UserError(f"the root element is {first.name}, not {root}.")

    def parts(self, fillings: Iterator[_Filling], splitting: str) -> Iterator[Part]:
        """The file with the source of each missing translation in its place."""
        done = 0
        for filling in fillings:
            yield self._bytes[done : filling.place[0]].decode() + filling.before
            for part in tagged_text.trees(_with_lone_codes_kept(self._stream(filling.source))):
                yield part if isinstance(part, str) else (part, splitting or NO_LINES)
            yield filling.after
            done = filling.place[1]
        yield self._bytes[done:].decode()

    def check_languages(self, language: str, target_language: str) -> None:
        """Raises a `UserError` where an XLIFF file is of other languages."""
        sides = {
            "source": (("srcLang", "source-language"), language),
            "target": (("trgLang", "target-language"), target_language),
        }
        for node in self._nodes:
            for side, (names, wanted) in sides.items():
                stated = [node.attributes[name] for name in names if name in node.attributes]
                if (
                    stated
                    and wanted
                    and languages.two_letters(stated[0]) != languages.two_letters(wanted)
                ):
                    raise UserError(
                        f"the {side} language of the file is {stated[0]}, and that of the "
                        f"translation {wanted}."
                    )

    def missing_target_language(self, target_language: str) -> Iterator[_Filling]:
        """The attribute that a file of XLIFF 2 with targets has to have."""
        root = next(node for node in self._nodes if node.kind == "open")
        if "srcLang" in root.attributes and "trgLang" not in root.attributes and target_language:
            place = root.end - 1
            code = html.escape(languages.standard(target_language))
            yield _Filling(range(0), (place, place), f' trgLang="{code}"', "")

    def targets(self) -> Iterator[_Filling]:
        """Those of the units and segments of XLIFF."""
        parents: list[Node] = []
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
            indentation = self._indentation(source)
        last = opening
        for _, node in self._siblings_after(opening.partner):
            if node.local_name == "seg-source":
                last = node
        end = self._nodes[last.partner].end
        tag = f"{prefix}target"
        yield _Filling(inner, (end, end), f"{indentation}<{tag}>", f"</{tag}>")

    def _siblings_after(self, closing: int) -> Iterator[tuple[int, Node]]:
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
        indentation = self._indentation(variant)
        end = self._nodes[opening.partner].end
        code = html.escape(languages.standard(target_language))
        before = f'{indentation}<tuv xml:lang="{code}"><seg>'
        return _Filling(source, (end, end), before, "</seg></tuv>")

    def _indentation(self, number: int) -> str:
        """The white space before a node. Text comes line by line, as several nodes."""
        first = number
        while (
            first
            and self._nodes[first - 1].kind == "text"
            and (not self._nodes[first - 1].text.strip())
        ):
            first -= 1
        return self._bytes[self._nodes[first].start : self._nodes[number].start].decode()

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
            elif node.kind == "open" and (node.local_name not in _PAIRED or _is_untranslated(node)):
                raw = self._bytes[node.start : self._nodes[node.partner].end].decode()
                yield _code(node, raw)
                number = node.partner
            elif raw:
                is_empty = self._nodes[node.partner].start == self._nodes[node.partner].end
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


def _is_translated(parents: Sequence[Node]) -> bool:
    """Whether what is in these elements is to be translated."""
    said = [node.attributes["translate"] for node in parents if "translate" in node.attributes]
    is_alternative = any(node.local_name in ("alt-trans", "matches") for node in parents)
    return not is_alternative and (not said or said[-1] != "no")


def _is_of(variant: Node, language: str) -> bool:
    """Whether a variant is in a language, of any country."""
    codes = [variant.attributes[name] for name in _XML_LANG if name in variant.attributes]
    wanted = language.replace("_", "-").lower()
    code = codes[0].replace("_", "-").lower() if codes else ""
    # A model may write `deu_Latn`.
    return bool(code) and (
        wanted in (code, code.split("-")[0]) or languages.is_same(code, language)
    )
