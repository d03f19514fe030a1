"""Texts of several sentences: split into sentences, and put together again from translations."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import sentencex

from transformer_jax.data.writing_systems import joiner
from transformer_jax.extras.documents import languages

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


# Words that are no abbreviations at the end of a sentence, although the library knows them as such.
_ORDINARY = {
    "cs": ("co", "hod", "kol", "pod", "tu"),
    "de": ("Art", "Bart"),
    "en": ("art", "fed", "fig", "id", "ill", "may", "May", "me", "miss", "no", "ore"),
    "fr": ("art", "sec", "vol"),
}
_CAPITAL = r"(?=[\"'“„«‹(\[¿¡]*[^\W\d_])"  # whether it is one is checked
# A dot after three others, or in brackets, ends a sentence where a capital letter follows.
_MORE_ENDS = rf"(?:…|\.\.\.)\s+{_CAPITAL}|[.!?…]\)\s+{_CAPITAL}"
# Abbreviations before a number.
_BEFORE_NUMBER = re.compile(
    r"(?<!\w)(?:approx|art|ca|ch|fig|max|min|no|nos|nr|núms?|p|pp|sec|str|tel|vols?|č)\.\s*$",
    re.IGNORECASE,
)
_FRENCH_TITLE = re.compile(r"(?<!\w)(?:Dr|Me|MM?|Mlles?|Mmes?|Mgr)\.\s*$")
_GERMAN_ORDINAL = re.compile(
    r"\b(?:am|im|vom|zum|beim|seit|bis|de[rmns]|die|das|ein(?:e[mnrs]?)?)\s+\d{1,2}\.\s*$",
    re.IGNORECASE,
)
_OPENING = " \t\"'“”„«»‹›([–—-"


def corrected(parts: Sequence[str], language: str) -> Iterator[str]:
    """Sentences as they should be, with what is between them.

    Args:
      parts: as the library divides a text.
      language: code of it.
    """
    waiting = ""
    for part in parts:
        if waiting and not _continues(waiting, part, language):
            yield from _divided(waiting, language)
            waiting = ""
        waiting += part
    if waiting:
        yield from _divided(waiting, language)


def _continues(before: str, after: str, language: str) -> bool:
    """Whether a text that was divided here is one sentence."""
    begin = after.lstrip(_OPENING)[:1]
    # In a text that has no capital letters, a small one begins a sentence.
    if begin.islower() and any(map(str.isupper, before)):
        return True
    if begin.isdigit() and _BEFORE_NUMBER.search(before):
        return True
    not_an_end = {"de": _GERMAN_ORDINAL, "fr": _FRENCH_TITLE}.get(language)
    if not_an_end and not_an_end.search(before):
        return True
    return language == "ja" and before.endswith(("」", "』")) and after.startswith(("と", "って"))


def _divided(text: str, language: str) -> Iterator[str]:
    """A text divided where sentences end in it that were missed."""
    words = "|".join(_ORDINARY.get(language, ()))
    pattern = _MORE_ENDS + (rf"|(?<!\w)(?:{words})\.\s+{_CAPITAL}" if words else "")
    start = 0
    for match in re.finditer(pattern, text):
        if text[match.end() :].lstrip(_OPENING + "¿¡")[:1].isupper():
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


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
    for part in corrected(_segments(line[begin:], code), code):
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
