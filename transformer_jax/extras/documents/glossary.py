"""Glossaries: terms of a source and what they have to be in its translation."""

import collections
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from etils import epath

from transformer_jax.data import text_lines
from transformer_jax.errors import UserError, UserTypeError, did_you_mean
from transformer_jax.translator.phrases import OneOf
from transformer_jax.translator.requests import check_text, described
from transformer_jax.translator.words import words_of

CASE, INFLECT = "case", "inflect"
FLAGS = (CASE, INFLECT)
SEPARATOR = "|"  # between the forms of a target
_COMMENT = "#"
# Of an inflected word: letters that may be different at the end of the term's word, and that a word
# may have more. Words of up to `_STEM` letters keep all of theirs.
_ENDING, _STEM = 2, 4
_INDEXED = 3  # first letters by which terms are found


@dataclasses.dataclass(frozen=True)
class Term:
    """An entry of a glossary.

    Attributes:
      source: words; they match entire words, capital letters or not.
      forms: one of which the translation has to contain.
      case: the source has to have the same capital letters.
      inflect: words of the source may have another ending of up to two letters, and the last word
        of a form may have a further ending.
      place: where the entry is, for messages.
    """

    source: str
    forms: tuple[str, ...]
    case: bool = False
    inflect: bool = False
    place: str = ""

    @property
    def phrase(self) -> OneOf:
        """What the translation has to contain: a form, also as it begins a sentence."""
        forms = (one for form in self.forms for one in (form, form[:1].upper() + form[1:]))
        return OneOf(tuple(dict.fromkeys(forms)), self.inflect)


class Glossary:
    """Terms, which are found in texts.

    Args:
      terms: in any order.

    Raises:
      UserError: two terms have the same source and other forms; or a term has no word.
    """

    def __init__(self, terms: Iterable[Term]):
        self.terms = tuple(terms)
        self._by_start: dict[str, list[_Entry]] = collections.defaultdict(list)
        known: dict[tuple[str, ...], Term] = {}
        for term in self.terms:
            words = words_of(term.source)
            if not words or not term.forms or not all(map(words_of, term.forms)):
                raise UserError(f"{term.place}a term needs a source and a target.")
            key = tuple(words if term.case else _folded(words))
            other = known.setdefault(key, term)
            if {*other.forms} != {*term.forms}:
                raise UserError(
                    f"{term.place}{term.source!r} is {SEPARATOR.join(term.forms)!r} here and "
                    f"{SEPARATOR.join(other.forms)!r} in another entry; write all forms into one, "
                    f"as {SEPARATOR.join((*other.forms, *term.forms))!r}."
                )
            self._by_start[words[0].casefold()[:_INDEXED]].append(_Entry(words, term))

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def digest(self) -> str:
        """Of all terms."""
        return hashlib.sha256(repr(self.terms).encode()).hexdigest()

    def find(self, text: str) -> list[Term]:
        """The terms in a text, each once, in its order."""
        return list(dict.fromkeys(one.term for one in self.occurrences(text)))

    def occurrences(self, text: str) -> "list[Occurrence]":
        """Where terms are in a text, in its order. Of terms that overlap, the longest."""
        words, place = words_of(text), 0
        places: list[Occurrence] = []
        while place < len(words):
            best = max(
                (entry for entry in self._entries(words[place]) if entry.begins(words[place:])),
                # Of equal ones, the term that fits the text most closely.
                key=lambda entry: (len(entry.words), entry.term.case, not entry.term.inflect),
                default=None,
            )
            size = len(best.words) if best else 1
            if best:
                places.append(Occurrence(best.term, place, place + size))
            place += size
        return places

    def _entries(self, word: str) -> "Iterator[_Entry]":
        """Those that may begin with a word, which may be longer than theirs."""
        start = word.casefold()[:_INDEXED]
        for size in range(1, len(start) + 1):
            yield from self._by_start.get(start[:size], ())


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """A term in a text: its words from `first` to before `end`, counted by `translator.words`."""

    term: Term
    first: int
    end: int


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A term with the words of its source."""

    words: Sequence[str]
    term: Term

    def begins(self, text: Sequence[str]) -> bool:
        """Whether the words of a text begin with those of the term."""
        wanted, words = self.words, text[: len(self.words)]
        if not self.term.case:
            wanted, words = list(_folded(wanted)), list(_folded(words))
        if len(words) < len(wanted):
            return False
        if self.term.inflect:
            return all(map(_is_inflected, wanted, words))
        return list(words) == list(wanted)


def read(path: epath.PathLike) -> Glossary:
    """Reads a glossary, a term a line: source, tab, target; and after another tab its flags.

    Forms of a target are separated by `|`, flags (`case`, `inflect`) by commas. Empty lines, and
    those that begin with `#`, are left out.

    Raises:
      UserError: there is no such file, or a line is wrong.
    """
    path = epath.Path(path)
    if not path.exists() or path.is_dir():
        raise UserError(f"There is no glossary {path}.")
    lines = enumerate(text_lines.read_lines(path), start=1)
    return Glossary(
        _term(line, f"{path}, line {number}: ")
        for number, line in lines
        if line.strip() and not line.startswith(_COMMENT)
    )


def of(given: Any) -> Glossary | None:
    """The glossary that a caller gives: a path, rows as of `of_rows`, a glossary, or None.

    Raises:
      UserError: it is wrong.
    """
    if given is None or isinstance(given, Glossary):
        return given
    if isinstance(given, str | os.PathLike):
        return read(given)
    if isinstance(given, Iterable):
        return of_rows(given)
    raise UserTypeError(f"`glossary` is {described(given)}, not a path or a list of terms.")


def of_rows(rows: Iterable[Sequence[str]]) -> Glossary:
    """A glossary of (source, target) or (source, target, flags), as of `read`.

    Raises:
      UserError: a row is wrong.
    """
    terms = []
    for index, row in enumerate(rows):
        place = f"glossary[{index}]"
        columns = [row] if isinstance(row, str) else row
        if not isinstance(columns, Sequence) or not all(isinstance(one, str) for one in columns):
            raise UserTypeError(f"`{place}` is {described(row)}, not (source, target).")
        terms.append(_term("\t".join(columns), f"`{place}`: "))
    return Glossary(terms)


def _term(line: str, place: str) -> Term:
    """The term of a line.

    Raises:
      UserError: it has other columns, or an unknown flag.
    """
    columns = [column.strip() for column in line.split("\t")]
    if not 2 <= len(columns) <= 3:
        raise UserError(
            f"{place}{len(columns)} columns instead of source, tab, target, and if need be "
            "another tab and flags."
        )
    for column in columns:
        try:
            check_text(column)
        except UserError as error:
            raise UserError(f"{place}{error}") from error
    flags = {flag.strip() for flag in columns[2].split(",")} - {""} if len(columns) > 2 else set()
    for flag in sorted(flags - {*FLAGS}):
        raise UserError(f"{place}there is no flag {flag}{did_you_mean(flag, FLAGS)}")
    forms = tuple(filter(None, (form.strip() for form in columns[1].split(SEPARATOR))))
    return Term(columns[0], forms, CASE in flags, INFLECT in flags, place)


def _folded(words: Iterable[str]) -> Iterator[str]:
    return (word.casefold() for word in words)


def _is_inflected(wanted: str, word: str) -> bool:
    """Whether a word may be another form of the wanted one."""
    stem = wanted[: max(len(wanted) - _ENDING, _STEM)]
    return word.startswith(stem) and len(word) <= len(wanted) + _ENDING
