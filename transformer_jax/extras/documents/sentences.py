"""Texts of several sentences: split into sentences, and put together again from translations."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import sentencex

from transformer_jax.data.writing_systems import joiner
from transformer_jax.extras.documents import languages, sentence_rules

# How a text becomes sentences, as DeepL's `split_sentences` numbers them: it is one; lines, columns
# and punctuation end them; only punctuation does.
NO_SPLIT, SENTENCES, NO_LINES = "0", "1", "nonewlines"
SPLITTINGS = (NO_SPLIT, SENTENCES, NO_LINES)

_BREAK = re.compile(r"[\n\r\u2028\u2029]")
_LINE = re.compile(r"[^\n\r\u2028\u2029]+")
# A column of a line: two spaces or a tab are between two of them, as in the help of a command.
_COLUMN = re.compile(r"[^\t ]++(?: [^\t ]++)*+")
# What a line of a list or quotation begins with, which is not translated.
_BULLET = re.compile(
    r"(?:[>#]+|[-*+~•‣◦▪●○■□–—→⇒►▶➔➤☐☑☒✓✔✗✘]|\[[ xX]\]|\(?(?:\d{1,3}|[a-z])[.)]|\(?[A-Z]\)"
    r"|\d{1,3}(?:\.\d{1,3})+\.|\d{1,3}(?:\.\d{1,3}){2,})(?=\s)\s+"
)
_SPACE = re.compile(r"\s")


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


def split(text: str, language: str, splitting: str = SENTENCES) -> list[Sentence]:
    """The sentences of a text, in order.

    Parts without letters, such as a number, are no sentences.

    Args:
      text: any.
      language: its code; sentences end as in English where the language is not known.
      splitting: `NO_SPLIT`, `SENTENCES` or `NO_LINES`.
    """
    if splitting == NO_SPLIT:
        parts = iter([(text, 0)])
    elif splitting == NO_LINES:
        parts = _parts(_BREAK.sub(" ", text), 0, language)
    else:
        parts = (
            part
            for line in _LINE.finditer(text)
            for column in _COLUMN.finditer(text, line.start() + _begin(line[0]), line.end())
            for part in _parts(column[0], column.start(), language)
        )
    sentences = []
    for part, start in parts:
        stripped = part.strip()
        if any(map(str.isalpha, stripped)):
            indent = len(part) - len(part.lstrip())
            sentences.append(Sentence(stripped, start + indent))
    return sentences


def _begin(line: str) -> int:
    """Where the text of a line begins: after its bullet."""
    bullet = _BULLET.match(line, len(line) - len(line.lstrip()))
    return bullet.end() if bullet and bullet.end() < len(line) else 0


def _parts(line: str, start: int, language: str) -> Iterator[tuple[str, int]]:
    """Sentences of a line with what is between them, and their places; not its bullet."""
    begin = _begin(line)
    start += begin
    code = languages.two_letters(language) if language else "en"
    for part in sentence_rules.corrected(_segments(line[begin:], code), code):
        yield part, start
        start += len(part)


def _segments(line: str, code: str) -> list[str]:
    """The sentences of a line as the library divides it."""
    # One kind of space, because others make the library fail.
    try:
        parts = sentencex.segment(code, _SPACE.sub(" ", line))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which is no Exception
            raise
        raise RuntimeError(f"sentencex cannot divide {line!r} ({code}).") from error
    ends = [*itertools.accumulate(map(len, parts))]
    return [line[start:end] for start, end in itertools.pairwise([0, *ends])]


def between(text: str, sentences: Sequence[Sentence], translations: Sequence[str]) -> list[str]:
    """What is before each translation, and after the last one.

    It is as in `text`; but between two sentences of a line there is a space, or none, as the
    script of the translations has it.

    Args:
      text: of the sentences.
      sentences: of `split`.
      translations: of each.
    """
    parts, end = [], 0
    for number, (sentence, translation) in enumerate(zip(sentences, translations, strict=True)):
        part = text[end : sentence.start]
        if number and translation and translations[number - 1] and part in ("", " "):
            part = joiner(translations[number - 1], translation)
        parts.append(part)
        end = sentence.end
    return [*parts, text[end:]]
