"""Texts of several sentences: split into sentences, and put together again from translations."""

import dataclasses
import re
from collections.abc import Sequence

import sentencex

from transformer_jax.data.writing_systems import joiner


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of a text, without the white space around it.

    Attributes:
      text: of the sentence.
      start: index of its first character in the text.
    """

    text: str
    start: int

    @property
    def end(self) -> int:
        """Index after its last character."""
        return self.start + len(self.text)


def split(text: str, language: str) -> list[Sentence]:
    """The sentences of a text, in order. A line ends a sentence.

    Args:
      text: any.
      language: its code; sentences end as in English where the language is not known.
    """
    sentences = []
    for line in re.finditer(r"[^\n\r\u2028\u2029]+", text):
        start = line.start()
        for part in sentencex.segment(language or "en", line[0]):
            stripped = part.strip()
            if stripped:
                indent = len(part) - len(part.lstrip())
                sentences.append(Sentence(stripped, start + indent))
            start += len(part)
    return sentences


def join(text: str, sentences: Sequence[Sentence], translations: Sequence[str]) -> str:
    """`text` with the translation of each sentence in its place, and all else as it is.

    Between two sentences of a line there is a space, or none, as the script of the translations
    has it.

    Args:
      text: of the sentences.
      sentences: of `split`.
      translations: of each.
    """
    parts, end = [], 0
    for number, (sentence, translation) in enumerate(zip(sentences, translations, strict=True)):
        between = text[end : sentence.start]
        if number and translation and translations[number - 1] and between in ("", " "):
            between = joiner(translations[number - 1], translation)
        parts += [between, translation]
        end = sentence.end
    return "".join([*parts, text[end:]])
