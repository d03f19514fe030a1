"""Phrases of a request: their tokens, and which of them an output contains."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.writing_systems import separates_words
from transformer_jax.search.search_settings import PhraseArrays
from transformer_jax.translator import batching


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A phrase with several forms, of which a translation has to contain one.

    Attributes:
      forms: such as `("roter Hut", "roten Hut")`.
      may_continue: whether letters may follow a form, as in `Hutes` for `Hut`.
    """

    forms: tuple[str, ...]
    may_continue: bool = False


@dataclasses.dataclass(frozen=True)
class PhraseForm:
    """A form of a phrase."""

    text: str  # as the tokenizer gives it back
    ids: tuple[int, ...]
    may_continue: bool  # letters may follow it
    is_known: bool = True  # the tokenizer can write it

    @property
    def ends_word(self) -> bool:
        """Whether the token after it may not continue its last word."""
        return not self.may_continue and separates_words(self.text[-1])


@dataclasses.dataclass(frozen=True)
class Phrase:
    """What a translation has to contain: one of its forms."""

    asked: tuple[str, ...]  # as the user wrote the forms
    forms: tuple[PhraseForm, ...]

    @property
    def name(self) -> str:
        """For messages and `Translation.unmet`."""
        return f"phrase {' or '.join(map(repr, self.asked))}"

    @property
    def most_tokens(self) -> int:
        """Of its longest form."""
        return max(len(form.ids) for form in self.forms)


def encode(tokenizer: Tokenizer, asked: str | OneOf) -> Phrase | None:
    """A phrase as it is inside a sentence; None where no token is left of it.

    Scripts that put no spaces between words have no word boundaries to keep: a phrase of these
    begins without the space that tokenizers add before a text, and may be followed by anything.
    """
    wanted = OneOf((asked,)) if isinstance(asked, str) else asked
    forms = (_encode_form(tokenizer, text, wanted.may_continue) for text in wanted.forms)
    known = tuple(filter(None, forms))
    return Phrase(wanted.forms, known) if known else None


def _encode_form(tokenizer: Tokenizer, text: str, may_continue: bool) -> PhraseForm | None:
    ids = tokenizer.encode(text)
    if not ids:
        return None
    is_known = tokenizer.unk_id not in ids
    decoded = (tokenizer.decode(ids).strip() if is_known else "") or text
    if not separates_words(decoded[0]):
        ids = _without_space(tokenizer, decoded, ids)
    return PhraseForm(decoded, tuple(ids), may_continue, is_known)


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


def contains(output: str, phrase: str, may_continue: bool = False) -> bool:
    """Whether `output` contains `phrase`, as of `places`."""
    return any(True for _ in places(output, phrase, may_continue))


def places(output: str, phrase: str, may_continue: bool = False) -> Iterator[int]:
    """Where `output` contains `phrase`, between word boundaries if its script has them.

    Args:
      output: text.
      phrase: text.
      may_continue: letters may follow it.
    """
    start = output.find(phrase)
    while start >= 0:
        end = start + len(phrase)
        starts = start == 0 or _is_boundary(output[start - 1], phrase[0])
        ends = may_continue or end == len(output) or _is_boundary(phrase[-1], output[end])
        if starts and ends:
            yield start
        start = output.find(phrase, start + 1)


def missing(output: str, phrases: Sequence[Phrase]) -> tuple[str, ...]:
    """Names of the phrases of which `output` contains no form, each once."""
    names = (
        phrase.name
        for phrase in phrases
        if not any(contains(output, form.text, form.may_continue) for form in phrase.forms)
    )
    return tuple(dict.fromkeys(names))


def within(phrases: tuple[Phrase, ...], room: tuple[int, int, int] | None) -> tuple[Phrase, ...]:
    """The phrases that a program has room for; the others stay unmet.

    Args:
      phrases: of a text.
      room: most phrases, forms of a phrase, and tokens of a form; None: any.
    """
    if room is None:
        return phrases
    num_phrases, num_forms, num_tokens = room
    short = (
        tuple(form for form in phrase.forms if len(form.ids) <= num_tokens)[:num_forms]
        for phrase in phrases
    )
    kept = (
        dataclasses.replace(phrase, forms=forms)
        for phrase, forms in zip(phrases, short, strict=True)
        if forms
    )
    return tuple(itertools.islice(kept, num_phrases))


def stack(
    wanted: Sequence[Sequence[Phrase]], rows: int, room: tuple[int, int, int] | None = None
) -> PhraseArrays | None:
    """Arrays of the phrases of each row; None where there is none.

    Args:
      wanted: phrases of each row.
      rows: at least as many.
      room: sizes of the arrays, as of `within`; None: powers of two that hold the phrases.
    """
    every = [phrase for phrases in wanted for phrase in phrases]
    if not every:
        return None
    num_phrases, num_forms, longest = room or (
        batching.next_power_of_two(max(map(len, wanted))),
        batching.next_power_of_two(max(len(phrase.forms) for phrase in every)),
        batching.next_power_of_two(max(phrase.most_tokens for phrase in every)),
    )
    ids: Any = np.full((rows, num_phrases, num_forms, longest), -1, np.int32)
    ends_word: Any = np.zeros((rows, num_phrases, num_forms), bool)
    for row, phrases in enumerate(wanted):
        for number, phrase in enumerate(phrases):
            for place, form in enumerate(phrase.forms):
                ids[row, number, place, : len(form.ids)] = form.ids
                ends_word[row, number, place] = form.ends_word
    return PhraseArrays(ids, ends_word)


def _is_boundary(left: str, right: str) -> bool:
    """Whether a word may end between two characters."""
    return any(not c.isalnum() or not separates_words(c) for c in (left, right))


def possible(phrase: Phrase, decode: DecodeConfig) -> Phrase | None:
    """The phrase with the forms that can be written: the tokenizer and the rules allow them."""
    forms = tuple(form for form in phrase.forms if _is_possible(form, decode))
    return dataclasses.replace(phrase, forms=forms) if forms else None


def _is_possible(form: PhraseForm, decode: DecodeConfig) -> bool:
    size, ids = decode.no_repeat_ngram_size, form.ids
    grams = [ids[i : i + size] for i in range(len(ids) - size + 1)] if size else []
    allowed = not set(ids) & set(decode.suppressed_ids) and len(set(grams)) == len(grams)
    return form.is_known and allowed


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
