"""Translations that cannot be right, whatever the model says of them: loops, copies, …

A guard looks at two texts only. What is in the source already, such as a word that is repeated
there, is no fault of the translation.
"""

import dataclasses
import difflib
import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence

import langcodes

from transformer_jax.data.writing_systems import script_of, separates_words
from transformer_jax.extras.documents import placeholders
from transformer_jax.translator.words import words_of

EMPTY, LOOP, COPY = "empty", "loop", "copy"
SHORT, LONG, SCRIPT, UNKNOWN = "short", "long", "script", "unknown"
PLACEHOLDER = "placeholder"
# What each flag means, for messages and documents.
MEANINGS = {
    EMPTY: "no letter or digit",
    LOOP: "words or letters that repeat",
    COPY: "the source, not translated",
    SHORT: "far shorter than the source",
    LONG: "far longer than the source",
    SCRIPT: "another writing system than that of the language",
    UNKNOWN: "characters that the model cannot write",
    PLACEHOLDER: "a placeholder of the source is missing, such as %s or {name}",
}
_UNKNOWN_MARK = "⁇"  # as SentencePiece writes an unknown token

# Of a loop: repetitions of one word, of several, of letters, that follow each other.
_REPEATED_WORD, _REPEATED_WORDS, _REPEATED_LETTERS = 4, 3, 6
_REPEATED_DIGITS = 10  # a number may end with nine zeros
_LONGEST_LOOP = 12  # words, or characters of scripts without spaces
_LETTERS = re.compile(
    rf"((?!\d)\w[\w'’-]{{0,7}}?)\1{{{_REPEATED_LETTERS - 1},}}"
    rf"|(\d[\d.,'’-]{{0,7}}?)\2{{{_REPEATED_DIGITS - 1},}}"
)
_LEAST_WORDS, _LEAST_DISTINCT = 15, 0.5  # of a loop with other words in between: of its trigrams
# Of a copy: words that are not names, and the share of them that the source has in the same order.
_COPIED_WORDS, _COPIED_SHARE = 4, 0.8
_COPIED_CHARACTERS = 12  # in scripts without spaces
# Of lengths: factors between the texts, and characters by which they always may differ.
_SHORTEST, _LONGEST, _SLACK = 0.25, 3.5, 15
# A letter of these says as much as this many of an alphabet.
_DENSE = {"Han": 3.0, "Hiragana": 1.7, "Katakana": 1.7, "Hangul": 2.0}
_WRONG_SHARE, _WRONG_LETTERS = 0.3, 4  # of letters of another script

_SCRIPTS = {
    "Hans": {"Han"},
    "Hant": {"Han", "Bopomofo"},
    "Jpan": {"Han", "Hiragana", "Katakana"},
    "Kore": {"Hangul", "Han"},
}
# fmt: off
# Languages that are written in two scripts.
_ALSO = {
    "az": "Cyrillic", "bs": "Cyrillic", "kk": "Latin", "ku": "Arabic", "mn": "Mongolian",
    "sr": "Latin", "tg": "Latin", "tk": "Cyrillic", "tt": "Latin", "uz": "Cyrillic",
}
# fmt: on


@dataclasses.dataclass(frozen=True)
class Guards:
    """Checks translations between two languages.

    Attributes:
      source_lang: code; "": not known.
      target_lang: code; "": not known.
    """

    source_lang: str = ""
    target_lang: str = ""

    def problems(self, source: str, translation: str) -> tuple[str, ...]:
        """What is wrong with a translation, as names of `MEANINGS`; () where nothing is.

        Args:
          source: a sentence.
          translation: of it.
        """
        if not any(map(str.isalnum, source)):
            return ()
        if not any(map(str.isalnum, translation)):
            return (EMPTY,)
        source_words, words = words_of(source), words_of(translation)
        is_other_language = not self.source_lang or self.source_lang != self.target_lang
        checks = {
            LOOP: _has_loop(source, source_words, translation, words),
            COPY: is_other_language and _is_copy(source_words, words),
            SHORT: _size(translation) < _SHORTEST * _size(source) - _SLACK / 3,
            LONG: _size(translation) > _LONGEST * _size(source) + _SLACK,
            SCRIPT: self._has_other_script(source_words, words),
            UNKNOWN: translation.count(_UNKNOWN_MARK) > source.count(_UNKNOWN_MARK),
            PLACEHOLDER: bool(placeholders.missing(source, translation)),
        }
        return tuple(name for name, is_wrong in checks.items() if is_wrong)

    def _has_other_script(self, source_words: Sequence[str], words: Sequence[str]) -> bool:
        """Whether many letters are of no script of the language, in words that are not copied."""
        expected = scripts(self.target_lang)
        if not expected:
            return False
        kept = {word.casefold() for word in source_words}
        letters = [
            char
            for word in words
            if word.casefold() not in kept
            for char in word
            if unicodedata.category(char).startswith("L")
        ]
        num_wrong = sum(script_of(letter) not in expected for letter in letters)
        return num_wrong >= max(_WRONG_LETTERS, _WRONG_SHARE * len(letters))


@functools.cache
def scripts(language: str) -> frozenset[str]:
    """Writing systems of a language by its code, as `script_of` names them; none if not known."""
    try:
        parsed = langcodes.Language.get(language.replace("_", "-")) if language else None
        if parsed is None or not parsed.is_valid():
            return frozenset()
        script = parsed.maximize().script or ""
        names = _SCRIPTS.get(script) or {langcodes.Language.make(script=script).script_name()}
    except (ValueError, LookupError):
        return frozenset()
    also = _ALSO.get(parsed.language or "")
    return frozenset(names | ({also} if also else set()))


def _has_loop(
    source: str, source_words: Sequence[str], translation: str, words: Sequence[str]
) -> bool:
    folded, source_folded = ([w.casefold() for w in one] for one in (words, source_words))
    usual = max(_repetitions(source_folded).values())
    for size, count in _repetitions(folded).items():
        least = _REPEATED_WORD if size == 1 else _REPEATED_WORDS
        if count >= least and count > usual + 1:
            return True
    if _LETTERS.search(translation.casefold()) and not _LETTERS.search(source.casefold()):
        return True
    if len(folded) < _LEAST_WORDS:
        return False
    # Each trigram about twice, or more often.
    return _distinct_share(folded) < min(_LEAST_DISTINCT, _distinct_share(source_folded) - 0.1)


def _repetitions(words: Sequence[str]) -> dict[int, int]:
    """Size of a sequence of words -> how often such a one follows itself, with the first."""
    counts = {}
    for size in range(1, min(_LONGEST_LOOP, max(1, len(words) // 2)) + 1):
        same = (a == b for a, b in zip(words, words[size:], strict=False))
        runs = (len(list(run)) for is_same, run in itertools.groupby(same) if is_same)
        counts[size] = 1 + max(runs, default=0) // size
    return counts


def _distinct_share(words: Sequence[str]) -> float:
    """Share of trigrams that are different."""
    trigrams = [*zip(words, words[1:], words[2:], strict=False)]
    return len({*trigrams}) / len(trigrams) if trigrams else 1.0


def _is_copy(source_words: Sequence[str], words: Sequence[str]) -> bool:
    """Whether most words are those of the source, in its order; names and numbers do not count."""
    considered, target = _translatable(source_words), _translatable(words)
    matcher = difflib.SequenceMatcher(None, considered, target, autojunk=False)
    copied = [
        target[block.b + offset]
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    ]
    is_spaced = all(map(separates_words, copied))
    least = _COPIED_WORDS if is_spaced else _COPIED_CHARACTERS
    return len(copied) >= least and len(copied) >= _COPIED_SHARE * len(target)


def _translatable(words: Sequence[str]) -> list[str]:
    """The words that a translation should change, in small letters."""
    return [
        word.casefold()
        for number, word in enumerate(words)
        if word.isalpha() and (number == 0 or not word[0].isupper())
    ]


def _size(text: str) -> float:
    """Letters and digits, as those of an alphabet count."""
    return sum(_DENSE.get(script_of(char), 1.0) for char in text if char.isalnum())
