"""Texts longer than the model reads: where they are cut, and how translations of parts are joined.

A cut is in the second half of the longest part that fits. The end of a sentence is best, then the
end of a clause, a comma, and a space between words. Of equal places the last one is chosen. Where
that half has none of them, the last one of the first half is; only a word or number that is longer
than a part is cut itself.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence

from transformer_jax.data.writing_systems import joiner, separates_words

# Punctuation by the kind of place after it, best first.
_MARKS = (".!?…。！？．｡؟۔।॥։።។၊།༎။", ";:；：؛፤", ",，、､،፣")
_CLOSERS = "\"'”’»)]}）」』】〉》〕］｝＂＇"  # belong to the text before them
SENTENCE, CLAUSE, COMMA, WORD, ANYWHERE, NEVER = range(6)
_SPACE = "▁"  # as SentencePiece writes it
_CONTEXT = 12  # characters on each side of a place that are considered
# Digits in groups with spaces between them, such as 1 000 000.
_BEGIN_OF_GROUPS = re.compile(rf"(?<![\w.,])\d{{1,3}}(?:{_SPACE}\d{{3}})*$")
_NEXT_GROUP = re.compile(r"\d{3}(?!\w)")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a character without a token of its own, in UTF-8


def split_ids(ids: Sequence[int], tokens: Sequence[str], limit: int) -> list[list[int]]:
    """Cuts into parts of at most `limit`, at the best places.

    Args:
      ids: token ids of one text.
      tokens: the same as SentencePiece writes them ("▁" starts a word).
      limit: longest part.
    """
    texts = _texts(tokens)
    cased = any(c.isupper() for text in texts for c in text)
    parts, start = [], 0
    while len(ids) - start > limit:
        cut, best = start + limit, NEVER + 1
        for i in range(start + limit, start, -1):  # of equal places the last
            if i <= start + limit // 2 and best <= WORD:
                break
            kind = _kind_of_place(texts, i, cased)
            if kind < best:
                cut, best = i, kind
            if kind == SENTENCE:
                break
        parts.append(list(ids[start:cut]))
        start = cut
    return [*parts, list(ids[start:])]


def join(texts: Sequence[str]) -> str:
    """Joins translations of parts, with spaces between them if their script has spaces."""
    return functools.reduce(lambda left, right: left + joiner(left, right) + right, texts, "")


def _texts(tokens: Sequence[str]) -> list[str]:
    """The tokens as text: a character in bytes is at its first byte, "" at the others."""
    texts, i = [], 0
    while i < len(tokens):
        matches = [_BYTE.fullmatch(token) for token in tokens[i : i + 4]]
        values = [int(match[1], 16) for match in itertools.takewhile(bool, matches) if match]
        later = list(itertools.takewhile(lambda byte: byte & 0xC0 == 0x80, values[1:]))
        if values:
            texts += [bytes([values[0], *later]).decode(errors="replace"), *[""] * len(later)]
        else:
            texts.append(tokens[i])
        i += 1 + len(later)
    return texts


def _kind_of_place(texts: Sequence[str], i: int, cased: bool) -> int:
    """What kind of place is before token `i`: `SENTENCE`, the best, to `NEVER`.

    `cased`: sentences begin with capital letters, in scripts that have them.
    """
    if not texts[i]:
        return NEVER  # within a character
    before = "".join(texts[max(0, i - _CONTEXT) : i])[-_CONTEXT:]
    after = "".join(texts[i : i + _CONTEXT])[:_CONTEXT]
    spaced = before.endswith(_SPACE) or after.startswith(_SPACE)
    before, after = before.rstrip(_SPACE), after.lstrip(_SPACE)
    if not before or not after:
        return WORD if spaced else ANYWHERE
    if not spaced:
        # Marks and punctuation stay with the character before them.
        if unicodedata.category(after[0]).startswith("M"):
            return NEVER
        if after[0] in _CLOSERS or any(after[0] in marks for marks in _MARKS):
            return ANYWHERE
    if spaced and _BEGIN_OF_GROUPS.search(before) and _NEXT_GROUP.match(after):
        return ANYWHERE
    unspaced = not separates_words(before[-1] + after[0])
    if not (spaced or unspaced) or (not spaced and _within_number(before, after)):
        return ANYWHERE
    ended = before.rstrip(_CLOSERS)
    for kind, marks in enumerate(_MARKS):
        if ended and ended[-1] in marks:
            continues = kind == SENTENCE and ((cased and after[0].islower()) or _abbreviates(ended))
            return WORD if continues else kind
    return WORD


def _within_number(before: str, after: str) -> bool:
    """Whether a cut would be within a number, such as 3.14 or １０：３０."""
    digits = before.rstrip(".,:．，：")[-1:]
    return digits.isdigit() and after[0].isdigit()


def _abbreviates(ended: str) -> bool:
    """Whether a full stop is after a single letter, as in `J. Doe`, `e.g. this`, `z. B.`."""
    match = re.search(r"(\w+)\.$", ended)
    if match is None:
        return False
    return len(match[1]) == 1 and match[1].isalpha() and separates_words(ended)
