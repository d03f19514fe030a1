"""Translation memories (TMX) as documents: variants that are missing are filled.

https://www.gala-global.org/tmx-14b
"""

import html
from collections.abc import Iterator

from transformer_jax.errors import UserError
from transformer_jax.extras.documents import languages
from transformer_jax.extras.documents.document import Document, Reading
from transformer_jax.extras.documents.formats.xml_nodes import Node
from transformer_jax.extras.documents.formats.xml_units import Filling, Units, escape

_XML_LANG = ("xml:lang", "lang")


def read(text: str, reading: Reading) -> Document:
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
    units = _Memory(text, "tmx")
    fillings = units.variants(language, target_language)
    return Document(units.parts(fillings, reading.splitting), text, reading, escape)


class _Memory(Units):
    """The units of a file, with variants that are missing."""

    def variants(self, language: str, target_language: str) -> Iterator[Filling]:
        """Those of the units of a translation memory."""
        for number, node in enumerate(self.nodes):
            if node.kind != "open" or node.local_name != "tu":
                continue
            variants = [
                (at, one)
                for at, one in self.siblings_after(number)
                if one.local_name == "tuv" and self._segment_of(at) is not None
            ]
            source = next((at for at, one in variants if _is_of(one, language)), None)
            target = next((at for at, one in variants if _is_of(one, target_language)), None)
            segment = None if source is None else self._segment_of(source)
            if source is None or segment is None or source == target:
                continue
            inner = range(segment + 1, self.nodes[segment].partner)
            if not self.has_content(inner):
                continue
            if target is None:
                yield self._new_variant(inner, source, target_language)
                continue
            filled = self._segment_of(target)
            assert filled is not None
            if not self.has_content(range(filled + 1, self.nodes[filled].partner)):
                yield self.inside(inner, filled)

    def _new_variant(self, source: range, variant: int, target_language: str) -> Filling:
        """A variant after another one, with its layout."""
        opening = self.nodes[variant]
        indentation = self.indentation(variant)
        end = self.nodes[opening.partner].end
        code = html.escape(languages.standard(target_language))
        before = f'{indentation}<tuv xml:lang="{code}"><seg>'
        return Filling(source, (end, end), before, "</seg></tuv>")

    def _segment_of(self, variant: int) -> int | None:
        """The node of the text of a variant."""
        for number, node in self.siblings_after(variant):
            if node.local_name == "seg":
                return number
        return None


def _is_of(variant: Node, language: str) -> bool:
    """Whether a variant is in a language, of any country."""
    codes = [variant.attributes[name] for name in _XML_LANG if name in variant.attributes]
    wanted = language.replace("_", "-").lower()
    code = codes[0].replace("_", "-").lower() if codes else ""
    # A model may write `deu_Latn`.
    return bool(code) and (
        wanted in (code, code.split("-")[0]) or languages.is_same(code, language)
    )
