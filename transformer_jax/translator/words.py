"""Words of a text, by their places."""

import itertools
import re

from transformer_jax.data.writing_systems import separates_words

# Private use, for what is no word of a language but is treated as one: see `protection`.
FIRST_MARK, LAST_MARK = "\U000f0000", "\U000ffffd"
_LETTER = rf"[\w{FIRST_MARK}-{LAST_MARK}]"
_WORD = re.compile(rf"{_LETTER}+(?:['’\-]{_LETTER}+)*|[^\w\s]")


def word_spans(text: str) -> list[tuple[int, int]]:
    """(first character, end) of each word and punctuation mark.

    In scripts that put no spaces between words, each character is one.
    """
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        if separates_words(match[0]):
            spans.append(match.span())
            continue
        for is_spaced, run in itertools.groupby(
            range(*match.span()), lambda place: separates_words(text[place])
        ):
            places = list(run)
            if is_spaced:
                spans.append((places[0], places[-1] + 1))
            else:
                spans += ((place, place + 1) for place in places)
    return spans


def words_of(text: str) -> list[str]:
    """Its words and punctuation marks."""
    return [text[start:end] for start, end in word_spans(text)]
