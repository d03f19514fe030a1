"""Which source words an output's words were written from, by the decoder's attention."""

from collections.abc import Sequence

import numpy as np

WORD_START = "▁"


def words_of(pieces: Sequence[str]) -> list[int]:
    """Number of the word that each piece belongs to; "▁" begins one."""
    numbers, word = [], -1
    for piece in pieces:
        word += piece.startswith(WORD_START) or word < 0
        numbers.append(word)
    return numbers


def join_words(pieces: Sequence[str]) -> list[str]:
    """The words that `words_of` counts, without their marks."""
    words = [""] * (max(words_of(pieces), default=-1) + 1)
    for word, piece in zip(words_of(pieces), pieces, strict=True):
        words[word] += piece.removeprefix(WORD_START)
    return words


def word_attention(
    attention: np.ndarray, source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> np.ndarray:
    """Attention of words to words: summed over a source word's pieces, averaged over a target's.

    Args:
      attention: `[T, S]`; further rows and columns, such as of end symbols, are not read.
      source_pieces: S of them.
      target_pieces: T of them.

    Returns:
      `[target words, source words]`.
    """
    source, target = words_of(source_pieces), words_of(target_pieces)
    to_source = np.zeros((len(source), max(source, default=-1) + 1))
    to_source[np.arange(len(source)), source] = 1.0
    to_target = np.zeros((max(target, default=-1) + 1, len(target)))
    to_target[target, np.arange(len(target))] = 1.0
    to_target /= np.maximum(to_target.sum(axis=1, keepdims=True), 1.0)
    return to_target @ attention[: len(target), : len(source)] @ to_source


def links(word_weights: np.ndarray) -> list[tuple[int, int]]:
    """(source word, target word) for every target word: the source word that it attends to most."""
    if not word_weights.size:
        return []
    return [(int(s), t) for t, s in enumerate(word_weights.argmax(axis=1))]


def pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """Links as `0-0 1-2`, source first."""
    return " ".join(f"{source}-{target}" for source, target in pairs)
