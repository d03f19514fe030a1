"""Which words of a translation belong to which words of its source, from attention."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from transformer_jax.translator.alignment import WORD_START
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.words import word_spans

# (source word, word of the translation, share of what the latter attends to)
Link = tuple[int, int, float]
_LEAST_SHARE = 0.02  # of what a word attends to; less is no link
_WINDOW = 512  # characters that are compared at once
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def links_of(source: str, translation: Translation) -> list[Link]:
    """Links between the words of a sentence and those of its translation.

    They are shares of attention; of a name, number or mark that occurs once in both, the whole.
    Without attention, words are linked in their order.

    Args:
      source: the sentence, as it was translated.
      translation: of it.
    """
    source_words, words = word_spans(source), word_spans(translation.text)
    if not source_words or not words:
        return []
    weights = _weights(source, translation, source_words, words)
    for source_word, word in _same(source, source_words, translation.text, words):
        weights[word] = 0
        weights[word, source_word] = 1
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    return [
        (int(s), int(t), round(float(weights[t, s]), 3))
        for t, s in np.argwhere(weights >= _LEAST_SHARE)
    ]


def matrix(links: Sequence[Link], num_words: int, num_source_words: int) -> sparse.csc_array:
    """The links as `[words, source words]`; without those of words that are not there."""
    # A word that was cut, because it alone is longer than the model reads, is two words there.
    inside = [(s, t, share) for s, t, share in links if s < num_source_words and t < num_words]
    sources, words, shares = zip(*inside, strict=True) if inside else ((), (), ())
    shape = (num_words, num_source_words)
    return sparse.csc_array((np.array(shares, float), (words, sources)), shape=shape)


def _weights(
    source: str,
    translation: Translation,
    source_words: Sequence[tuple[int, int]],
    words: Sequence[tuple[int, int]],
) -> np.ndarray:
    """Attention `[words, source words]`; without it, that of words in order."""
    if translation.attention is None:
        weights = np.zeros((len(words), len(source_words)))
        places = np.arange(len(words)) * len(source_words) // len(words)
        weights[np.arange(len(words)), places] = 1
        return weights
    rows = overlaps(translation.text, translation.tokens, words)
    columns = overlaps(source, translation.source_tokens, source_words)
    attention = translation.attention[: len(translation.tokens), : len(translation.source_tokens)]
    weights = rows.T @ attention @ columns
    return weights.toarray() if sparse.issparse(weights) else np.asarray(weights, float)


def overlaps(text: str, tokens: Sequence[str], words: Sequence[tuple[int, int]]) -> Any:
    """Share of each token that is in each word, `[tokens, words]`."""
    word_of = np.full(len(text), -1)
    for number, (start, end) in enumerate(words):
        word_of[start:end] = number
    token_of = token_of_characters(text, tokens)
    inside = (word_of >= 0) & (token_of >= 0)
    counts = sparse.coo_array(
        (np.ones(inside.sum()), (token_of[inside], word_of[inside])),
        shape=(len(tokens), len(words)),
    ).tocsr()
    totals = np.maximum(counts.sum(axis=1), 1)
    return sparse.diags_array(1 / totals) @ counts


def token_of_characters(text: str, tokens: Sequence[str]) -> np.ndarray:
    """Number of the token of each character of `text`; -1 where it has none.

    Tokenizers may normalise a text, so characters are matched in their order.
    """
    written: list[str] = []
    owners: list[int] = []
    for number, token in enumerate(tokens):
        surface = "" if _BYTE.fullmatch(token) else token.replace(WORD_START, "")
        written += surface
        owners += [number] * len(surface)
    places = [place for place, char in enumerate(text) if not char.isspace()]
    shown = [text[place] for place in places]
    token_of = np.full(len(text), -1)
    if written == shown:
        token_of[places] = owners
        return token_of
    for first, second in _matches(shown, written):
        token_of[places[first]] = owners[second]
    return token_of


def _matches(shown: Sequence[str], written: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Places of characters that are the same, in both orders.

    Only a window of both is compared at once: the time grows with the length, not with its square.
    """
    first = second = 0
    while first < len(shown) and second < len(written):
        if shown[first] == written[second]:
            yield first, second
            first, second = first + 1, second + 1
            continue
        here, there = shown[first : first + _WINDOW], written[second : second + _WINDOW]
        is_last = first + _WINDOW >= len(shown) and second + _WINDOW >= len(written)
        matcher = difflib.SequenceMatcher(None, here, there, autojunk=False)
        blocks = [block for block in matcher.get_matching_blocks() if block.size]
        if not is_last:  # towards its end, what belongs together may be beyond it
            blocks = [block for block in blocks if max(block.a, block.b) < _WINDOW // 2]
        for block in blocks:
            for offset in range(block.size):
                yield first + block.a + offset, second + block.b + offset
        if is_last:
            return
        done = [(block.a + block.size, block.b + block.size) for block in blocks[-1:]]
        (more_first, more_second) = done[0] if done else (_WINDOW // 2, _WINDOW // 2)
        first, second = first + more_first, second + more_second


def _same(
    source: str,
    source_words: Sequence[tuple[int, int]],
    text: str,
    words: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """(source word, word) of those that are the same, once in each, and no common words."""
    places = [
        _once([string[start:end] for start, end in spans])
        for string, spans in ((source, source_words), (text, words))
    ]
    return [(places[0][word], place) for word, place in places[1].items() if word in places[0]]


def _once(words: Sequence[str]) -> dict[str, int]:
    """Places of the words that occur once; not of small letters only, which may differ in sense."""
    places: dict[str, int] = {}
    repeated = set()
    for place, word in enumerate(words):
        if word in places:
            repeated.add(word)
        places[word] = place
    return {
        word: place
        for word, place in places.items()
        if word not in repeated and not (word.isalpha() and word.islower())
    }
