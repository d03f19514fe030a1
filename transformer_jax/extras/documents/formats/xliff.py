"""XLIFF 1.2 and 2 as documents: targets that are missing are filled.

https://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html
"""

import html
from collections.abc import Iterator, Sequence

from transformer_jax.errors import UserError
from transformer_jax.extras.documents import languages
from transformer_jax.extras.documents.document import Document, Reading
from transformer_jax.extras.documents.formats.xml_nodes import Node
from transformer_jax.extras.documents.formats.xml_units import Filling, Units, escape


def read(text: str, reading: Reading) -> Document:
    """The document of an XLIFF file. Targets that have content stay.

    Args:
      text: of the file.
      reading: how its sources are read; lines do not end sentences.

    Raises:
      UserError: the file is no XML, or has another root.
    """
    units = _Files(text, "xliff")
    units.check_languages(reading.language, reading.target_language)
    fillings = list(units.targets())
    if fillings:
        fillings = [*units.missing_target_language(reading.target_language), *fillings]
    return Document(units.parts(iter(fillings), reading.splitting), text, reading, escape)


class _Files(Units):
    """The units of a file, with targets that are missing."""

    def check_languages(self, language: str, target_language: str) -> None:
        """Raises a `UserError` where an XLIFF file is of other languages."""
        sides = {
            "source": (("srcLang", "source-language"), language),
            "target": (("trgLang", "target-language"), target_language),
        }
        for node in self.nodes:
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

    def missing_target_language(self, target_language: str) -> Iterator[Filling]:
        """The attribute that a file of XLIFF 2 with targets has to have."""
        root = next(node for node in self.nodes if node.kind == "open")
        if "srcLang" in root.attributes and "trgLang" not in root.attributes and target_language:
            place = root.end - 1
            code = html.escape(languages.standard(target_language))
            yield Filling(range(0), (place, place), f' trgLang="{code}"', "")

    def targets(self) -> Iterator[Filling]:
        """Those of the units and segments of XLIFF."""
        parents: list[Node] = []
        for number, node in enumerate(self.nodes):
            if node.kind == "open":
                is_unit = parents and parents[-1].local_name in ("trans-unit", "segment")
                if node.local_name == "source" and is_unit and _is_translated(parents):
                    yield from self._target_of(number)
                parents.append(node)
            elif node.kind == "close":
                parents.pop()

    def _target_of(self, source: int) -> Iterator[Filling]:
        """The missing target of a source."""
        opening = self.nodes[source]
        inner = range(source + 1, opening.partner)
        if not self.has_content(inner):
            return
        prefix, last = opening.name.removesuffix("source"), opening
        for number, node in self.siblings_after(opening.partner):
            if node.local_name == "seg-source":
                last, segmented = node, range(number + 1, node.partner)
                inner = segmented if self.has_text(segmented) else inner
            elif node.local_name == "target":
                yield from self._in_target(inner, number)
                return
        indentation = ""
        before = self.nodes[source - 1]
        if before.kind == "text" and not before.text.strip():
            indentation = self.indentation(source)
        end = self.nodes[last.partner].end
        tag = f"{prefix}target"
        filling = Filling(inner, (end, end), f"{indentation}<{tag}>", f"</{tag}>")
        yield from self._by_segment(filling)

    def _in_target(self, source: range, number: int) -> Iterator[Filling]:
        """What is missing in a target.

        Args:
          source: of the unit; where it has segments, with those.
          number: of the target.
        """
        target = range(number + 1, self.nodes[number].partner)
        segments = {self.nodes[n].attributes.get("mid"): n for n in self._segments(source)}
        filled = [*self._segments(target)]
        for at in filled:
            partner = segments.get(self.nodes[at].attributes.get("mid"))
            if partner and not self.has_text(range(at + 1, self.nodes[at].partner)):
                yield self.inside(range(partner + 1, self.nodes[partner].partner), at)
        if filled or self.has_text(target):
            return
        if self.has_text(source) or not self.has_content(target):
            yield from self._by_segment(self.inside(source, number))

    def _segments(self, inner: range) -> Iterator[int]:
        """Numbers of the marked segments."""
        for number in inner:
            node = self.nodes[number]
            if node.kind == "open" and node.attributes.get("mtype") == "seg":
                yield number

    def _by_segment(self, filling: Filling) -> Iterator[Filling]:
        """A filling, by itself for each segment of its source."""
        segments = [*self._segments(filling.source)]
        if not segments:
            yield filling
            return
        before, place = filling.before, filling.place
        start = self.nodes[filling.source.start].start
        for number in segments:
            node = self.nodes[number]
            before += self.bytes[start : node.end].decode()
            start = self.nodes[node.partner].start
            yield Filling(range(number + 1, node.partner), place, before, "")
            before, place = "", (place[1], place[1])
        rest = self.bytes[start : self.nodes[filling.source.stop].start].decode()
        yield Filling(range(0), place, rest, filling.after)


def _is_translated(parents: Sequence[Node]) -> bool:
    """Whether what is in these elements is to be translated."""
    said = [node.attributes["translate"] for node in parents if "translate" in node.attributes]
    is_alternative = any(node.local_name in ("alt-trans", "matches") for node in parents)
    return not is_alternative and (not said or said[-1] != "no")
