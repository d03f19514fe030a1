"""Phrases of a request as text: their tokens, and which of them an output holds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.writing_systems import separates_words
from transformer_jax.decoding import batching


@dataclasses.dataclass(frozen=True)
class Phrase:
    """What must appear in a translation."""

    asked: str  # as the user wrote it
    text: str  # as the tokenizer gives it back
    ids: tuple[int, ...]
    ends_word: bool  # the token after it must not continue its last word
    is_known: bool = True  # the tokenizer can write it

    @property
    def name(self) -> str:
        """For messages and `Translation.unmet`."""
        return f"phrase {self.asked!r}"


def encode(tokenizer: Tokenizer, text: str) -> Phrase | None:
    """The phrase `text` as it is inside a sentence; None where no token is left of it.

    Scripts that put no spaces between words have no word boundaries to keep: a phrase of these
    begins without the space that tokenizers add before a text, and may be followed by anything.
    """
    ids = tokenizer.encode(text)
    if not ids:
        return None
    is_known = tokenizer.unk_id not in ids
    given_back = (tokenizer.decode(ids).strip() if is_known else "") or text
    if not separates_words(given_back[0]):
        ids = _without_space(tokenizer, given_back, ids)
    return Phrase(text, given_back, tuple(ids), separates_words(given_back[-1]), is_known)


def _without_space(tokenizer: Tokenizer, text: str, ids: list[int]) -> list[int]:
    """Ids of `text` directly after other text; `ids`, with a space, where that cannot be had."""
    tokens = tokenizer.tokens(ids)
    if not tokens[0].startswith("▁"):
        return ids
    if tokens[0] == "▁" and len(ids) > 1:
        return ids[1:]
    for before in "。(.1":
        first, both = tokenizer.encode(before), tokenizer.encode(before + text)
        size = len(first)
        if both[:size] == first and both[size:]:
            return both[size:]
    return ids


def holds(output: str, phrase: str) -> bool:
    """Whether `output` has `phrase`, with word boundaries around it where its script has them."""
    start = output.find(phrase)
    while start >= 0:
        end = start + len(phrase)
        before = start == 0 or _is_boundary(output[start - 1], phrase[0])
        after = end == len(output) or _is_boundary(phrase[-1], output[end])
        if before and after:
            return True
        start = output.find(phrase, start + 1)
    return False


def missing(output: str, phrases: Sequence[Phrase]) -> tuple[str, ...]:
    """Names of the phrases that `output` does not hold, each once."""
    return tuple(dict.fromkeys(p.name for p in phrases if not holds(output, p.text)))


def stack(wanted: Sequence[Sequence[Phrase]], rows: int) -> tuple[Any, Any]:
    """Phrases `[rows, C, L]` and whether each ends a word `[rows, C]`; None where there is none."""
    most = max(map(len, wanted))
    if not most:
        return None, None
    most = batching.roomy(most)
    longest = batching.roomy(max(len(p.ids) for own in wanted for p in own))
    ids = np.full((rows, most, longest), -1, np.int32)
    word_ends = np.zeros((rows, most), bool)
    for row, own in enumerate(wanted):
        for number, phrase in enumerate(own):
            ids[row, number, : len(phrase.ids)] = phrase.ids
            word_ends[row, number] = phrase.ends_word
    return ids, word_ends


def _is_boundary(left: str, right: str) -> bool:
    """Whether a word may end between two characters."""
    return any(not c.isalnum() or not separates_words(c) for c in (left, right))


def is_possible(phrase: Phrase, decode: DecodeConfig) -> bool:
    """Whether the tokenizer has all of `phrase`, and the rules allow its tokens."""
    size, ids = decode.no_repeat_ngram_size, phrase.ids
    grams = [ids[i : i + size] for i in range(len(ids) - size + 1)] if size else []
    allowed = not set(ids) & set(decode.suppressed_ids) and len(set(grams)) == len(grams)
    return phrase.is_known and allowed
