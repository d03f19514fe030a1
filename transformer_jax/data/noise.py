"""Noise as in the text of users: other case, missing punctuation, spaces, typing errors.

Typing errors are those of Belinkov and Bisk, "Synthetic and Natural Noise Both Break Neural Machine
Translation" (2018), without the keyboard: two letters swapped, one missing, one twice. All noise
depends on the seed and the number of a text only.
"""

import itertools
import random
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from transformer_jax.data.plans.permutation import make_key

VERSION = 3  # of the noise that a seed gives
# Share of the words with at least `MIN_LETTERS` letters that get an error.
TYPO_RATE = 0.15
MIN_LETTERS = 4

# Share of the punctuation marks that get a space before them, where a text gets any.
SPACE_RATE = 0.2

# What a model reads as a tag, such as `<BT>` of `translate-corpus` or Marian's `>>deu<<`.
_TAG = re.compile(r"(?:>>[^<>\s]+<<|<[^<>\s]+>)\s+")

# Marks that are part of a word or number between two letters or digits.
_INNER_MARKS = frozenset("'’-./@&_:")


def upper(text: str, rng: random.Random) -> str:
    """All letters in upper case."""
    return text.upper()


def lower(text: str, rng: random.Random) -> str:
    """All letters in lower case."""
    return text.lower()


def title_case(text: str, rng: random.Random) -> str:
    """The first letter of each word in upper case, as in a headline."""
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


def extra_spaces(text: str, rng: random.Random) -> str:
    """Spaces before some punctuation marks, one at least; without marks, one inside of a word.

    None is next to another space: tokenizers usually take two for one.
    """
    marks = [
        i
        for i in range(1, len(text))
        if unicodedata.category(text[i])[0] == "P"
        and text[i - 1].isalnum()
        and not text[i + 1 : i + 2].isalnum()
    ]
    if marks:
        chosen = {rng.choice(marks), *(i for i in marks if rng.random() < SPACE_RATE)}
    else:
        inside = [
            i
            for i in range(2, len(text) - 1)
            if text[i - 2 : i + 2].isalnum()  # two letters at least on both sides
        ]
        chosen = {rng.choice(inside)} if inside else set()
    return "".join(" " + mark if i in chosen else mark for i, mark in enumerate(text))


def no_end_punctuation(text: str, rng: random.Random) -> str:
    """Without the punctuation marks at the end."""
    end = len(text)
    while end and (text[end - 1].isspace() or unicodedata.category(text[end - 1])[0] == "P"):
        end -= 1
    return text[:end]


def no_punctuation(text: str, rng: random.Random) -> str:
    """Without punctuation marks; those inside of a word or number remain."""

    def is_inner(before: str, mark: str, after: str) -> bool:
        is_number = before.isdigit() and after.isdigit()
        return is_number or (mark in _INNER_MARKS and before.isalnum() and after.isalnum())

    padded = f" {text} "
    kept = [
        mark
        if not unicodedata.category(mark).startswith("P") or is_inner(before, mark, after)
        else " "
        for before, mark, after in zip(padded, padded[1:], padded[2:], strict=False)
    ]
    return " ".join("".join(kept).split())


def typos(text: str, rng: random.Random) -> str:
    """With typing errors in some words, never in a word's first letter.

    In a script without spaces a word is the text between two marks.
    """

    def change(word: str) -> str:
        if len(word) < MIN_LETTERS or rng.random() >= TYPO_RATE:
            return word
        kind, place = rng.randrange(3), rng.randrange(1, len(word) - 1)
        before, letter, after = word[:place], word[place], word[place + 1 :]
        return before + (after[0] + letter + after[1:], after, letter + letter + after)[kind]

    runs = itertools.groupby(text, lambda letter: unicodedata.category(letter)[0] in "LM")
    return "".join(change("".join(run)) if is_word else "".join(run) for is_word, run in runs)


# Name -> function of a text and its random numbers.
KINDS: dict[str, Callable[[str, random.Random], str]] = {
    "upper_case": upper,
    "lower_case": lower,
    "title_case": title_case,
    "no_punctuation": no_punctuation,
    "no_end_punctuation": no_end_punctuation,
    "extra_spaces": extra_spaces,
    "typos": typos,
}


def add(kind: str, text: str, seed: int, number: int) -> str:
    """`text` with noise; unchanged where nothing would be left of it. A first tag stays as it is.

    Args:
      kind: in `KINDS`.
      text: any.
      seed: of all texts.
      number: of this text; the same seed and number give the same noise.
    """
    tag = match[0] if (match := _TAG.match(text)) else ""
    text = text.removeprefix(tag)
    return tag + (KINDS[kind](text, random.Random(f"{seed} {number}")) or text)


def add_to_some(texts: Sequence[str], shares: Mapping[str, float], seed: int) -> list[str]:
    """The texts, some of them with noise of one kind.

    Args:
      texts: any.
      shares: for each kind the probability that a text has it; together at most 1.
      seed: the same texts and seed give the same noise.
    """
    draws = make_key(seed, np.arange(len(texts))) / 2.0**64
    ends = np.cumsum([*shares.values()])
    chosen = np.searchsorted(ends, draws, side="right")
    kinds, noisy = [*shares], list(texts)
    for i in np.flatnonzero(chosen < len(kinds)).tolist():
        noisy[i] = add(kinds[chosen[i]], texts[i], seed, i)
    return noisy
