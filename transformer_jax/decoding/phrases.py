"""Phrases of a request: their tokens, and which of them an output contains."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.writing_systems import separates_words
from transformer_jax.decoding import batching
from transformer_jax.decoding.search_settings import PhraseArrays


@dataclasses.dataclass(frozen=True)
class Phrase:
    """What a translation has to contain."""

    asked: str  # as the user wrote it
    text: str  # as the tokenizer gives it back
    ids: tuple[int, ...]
    ends_word: bool  # the token after it may not continue its last word
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
    decoded = (tokenizer.decode(ids).strip() if is_known else "") or text
    if not separates_words(decoded[0]):
        ids = _without_space(tokenizer, decoded, ids)
    return Phrase(text, decoded, tuple(ids), separates_words(decoded[-1]), is_known)


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


def contains(output: str, phrase: str) -> bool:
    """Whether `output` contains `phrase`, between word boundaries if its script has them."""
    start = output.find(phrase)
    while start >= 0:
        end = start + len(phrase)
        starts = start == 0 or _is_boundary(output[start - 1], phrase[0])
        ends = end == len(output) or _is_boundary(phrase[-1], output[end])
        if starts and ends:
            return True
        start = output.find(phrase, start + 1)
    return False


def missing(output: str, phrases: Sequence[Phrase]) -> tuple[str, ...]:
    """Names of the phrases that `output` does not contain, each once."""
    return tuple(dict.fromkeys(p.name for p in phrases if not contains(output, p.text)))


def stack(wanted: Sequence[Sequence[Phrase]], rows: int) -> PhraseArrays | None:
    """Arrays of the phrases of each row; None where there is none."""
    num_phrases = batching.next_power_of_two(max(map(len, wanted)))
    if not num_phrases:
        return None
    longest = max(len(phrase.ids) for phrases in wanted for phrase in phrases)
    ids: Any = np.full((rows, num_phrases, batching.next_power_of_two(longest)), -1, np.int32)
    ends_word: Any = np.zeros((rows, num_phrases), bool)
    for row, phrases in enumerate(wanted):
        for number, phrase in enumerate(phrases):
            ids[row, number, : len(phrase.ids)] = phrase.ids
            ends_word[row, number] = phrase.ends_word
    return PhraseArrays(ids, ends_word)


def _is_boundary(left: str, right: str) -> bool:
    """Whether a word may end between two characters."""
    return any(not c.isalnum() or not separates_words(c) for c in (left, right))


def is_possible(phrase: Phrase, decode: DecodeConfig) -> bool:
    """Whether the tokenizer has all of `phrase`, and the rules allow its tokens."""
    size, ids = decode.no_repeat_ngram_size, phrase.ids
    grams = [ids[i : i + size] for i in range(len(ids) - size + 1)] if size else []
    allowed = not set(ids) & set(decode.suppressed_ids) and len(set(grams)) == len(grams)
    return phrase.is_known and allowed


def starts_word(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray:
    """`[V]` boolean: tokens that cannot continue the word before them, the end symbol included."""
    is_start = np.ones(vocab_size, bool)
    names = tokenizer.tokens(range(min(tokenizer.vocab_size, vocab_size)))
    is_start[: len(names)] = [begins_word(name) for name in names]
    is_start[tokenizer.eos_id] = True
    return is_start


def begins_word(token: str) -> bool:
    """Whether a token cannot continue the word before it.

    It begins with a space or a letter of a script without spaces, or it has no letter.
    """
    is_byte = token.startswith("<0x")  # of any character; the text is checked afterwards
    if is_byte or token.startswith("▁") or not any(c.isalnum() for c in token):
        return True
    return not separates_words(token[0])
