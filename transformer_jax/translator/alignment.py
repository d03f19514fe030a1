"""Word alignment from the decoder's attention to the source."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from transformer_jax.config import Config, ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import alignment_head

WORD_START = "▁"


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The decoder layer and head whose attention comes with a translation.

    Attributes:
      layer: the last but one usually aligns best. In a decoder of one layer, -2 is that layer.
      head: None: the mean of all.
      shift: whether the attention of a token is that of the step that reads it, as
        `train.alignment_weight` teaches; else that of the step that writes it.
    """

    layer: int = -2
    head: int | None = None
    shift: bool = False

    def check(self, model: ModelConfig) -> None:
        """Checks that a model has this layer and head.

        Raises:
          UserError: it does not.
        """
        decoder = model.for_decoder()
        depth, heads = decoder.num_decoder_layers, decoder.num_heads
        if not -max(depth, 2) <= self.layer < depth:
            raise UserError(f"There is no decoder layer {self.layer}; the model has {depth}.")
        if self.head is not None and not 0 <= self.head < heads:
            raise UserError(f"There is no head {self.head}; a layer has {heads}.")


def of_model(config: Config, measured: AttentionChoice | None = None) -> AttentionChoice:
    """The head that `train.alignment_weight` has taught to align.

    Args:
      config: of the model.
      measured: what is best of a model without such a head; None: the default.
    """
    if not config.train.alignment_weight:
        return measured or AttentionChoice()
    return AttentionChoice(*alignment_head(config.model.num_decoder_layers), shift=True)


def words_of(tokens: Sequence[str]) -> list[int]:
    """Number of the word that each token belongs to; "▁" starts a word."""
    numbers, word = [], -1
    for token in tokens:
        word += token.startswith(WORD_START) or word < 0
        numbers.append(word)
    return numbers


def join_words(tokens: Sequence[str]) -> list[str]:
    """The words that `words_of` numbers, without "▁"."""
    words = [""] * (max(words_of(tokens), default=-1) + 1)
    for word, token in zip(words_of(tokens), tokens, strict=True):
        words[word] += token.removeprefix(WORD_START)
    return words


def block_diagonal(parts: Sequence[np.ndarray]) -> sparse.csr_array:
    """Joins the matrices `[T, S]` of a text's parts into a sparse one: parts attend to themselves.

    Every element of a part is stored, zeros too.
    """
    rows, columns = np.array([part.shape for part in parts]).T
    starts = np.cumsum(columns) - columns
    indices = [
        np.tile(np.arange(start, start + part.shape[1], dtype=np.int32), len(part))
        for start, part in zip(starts, parts, strict=True)
    ]
    ends = np.cumsum(np.repeat(columns, rows))
    return sparse.csr_array(
        (
            np.concatenate([part.reshape(-1) for part in parts]),
            np.concatenate(indices),
            np.concatenate([[0], ends]),
        ),
        shape=(rows.sum(), columns.sum()),
    )


def dense(matrix: Any) -> np.ndarray:
    """A matrix, sparse or not, as an array."""
    return matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)


def word_attention(
    attention: np.ndarray | sparse.csr_array,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
) -> np.ndarray | sparse.csr_array:
    """Attention of target words to source words.

    Summed over the tokens of a source word, averaged over those of a target word.

    Args:
      attention: `[T, S]`, dense or sparse; further rows and columns, such as those of end
        symbols, are ignored.
      source_tokens: S of them.
      target_tokens: T of them.

    Returns:
      `[target words, source words]`, sparse where `attention` is.
    """
    source, target = words_of(source_tokens), words_of(target_tokens)
    sizes = np.bincount(target, minlength=1)
    to_source = _membership(source, np.ones(len(source)))
    to_target = _membership(target, 1.0 / sizes[target]).T
    return to_target @ attention[: len(target), : len(source)] @ to_source


def _membership(words: Sequence[int], values: np.ndarray) -> sparse.csr_array:
    """`values` of tokens `[N]` as `[N, words]`, each in the column of its word."""
    shape = (len(words), max(words, default=-1) + 1)
    return sparse.csr_array((values, (np.arange(len(words)), words)), shape=shape)


def links(word_weights: Any) -> list[tuple[int, int]]:
    """(source word, target word) for every target word: the source word that it attends to most."""
    if 0 in word_weights.shape:
        return []
    return [(int(s), t) for t, s in enumerate(word_weights.argmax(axis=1))]


def pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """Links as `0-0 1-2`, source first."""
    return " ".join(f"{source}-{target}" for source, target in pairs)
