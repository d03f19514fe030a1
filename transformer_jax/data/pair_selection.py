"""Selects the sentence pairs that are trained on, and groups them by their lengths.

In: token counts `[pairs]` of both sides. Out: `CorpusSelection`, indices of the selected pairs.
"""

import dataclasses

import numpy as np

from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class CorpusSelection:
    """The pairs of one epoch, and how many pairs were left out for which reason.

    Attributes:
      pairs: `[selected]` indices into the corpus; sampling weights may repeat an index.
      source_lengths, target_lengths: `[selected]` positions, the end symbol included.
      num_pairs: pairs of the corpus.
      num_empty, num_too_long, num_uneven: pairs that were left out.
    """

    pairs: np.ndarray
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    num_pairs: int
    num_empty: int
    num_too_long: int
    num_uneven: int = 0


# Tokens by which a side may always be longer: "EU" may well be "Europäische Union".
RATIO_SLACK = 10


def select_pairs(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_len: int,
    corpus_sizes: tuple[int, ...] = (),
    weights: tuple[float, ...] = (),
    max_ratio: float = 0.0,
) -> CorpusSelection:
    """Leaves out empty, over-long and uneven pairs; repeats corpora according to `weights`.

    Args:
      source_lengths, target_lengths: `[pairs]` tokens, end symbols not included.
      max_len: longest side in positions, its end symbol included.
      corpus_sizes: pairs of each corpus, in order.
      weights: one for each corpus; none for shares by size.
      max_ratio: leaves out pairs of which one side has more than `max_ratio` times the tokens of
        the other plus `RATIO_SLACK`, as they are hardly translations; 0 turns this off.

    Raises:
      UserError: where no pair is left.
    """
    lengths = np.stack([source_lengths, target_lengths]).astype(np.int64) + 1  # [2, pairs]
    empty = (lengths == 1).any(axis=0)
    too_long = ~empty & (lengths > max_len).any(axis=0)
    longer, shorter = lengths.max(axis=0) - 1, lengths.min(axis=0) - 1
    uneven = ~empty & ~too_long & (longer > max_ratio * shorter + RATIO_SLACK)
    uneven &= max_ratio > 0
    pairs = np.flatnonzero(~empty & ~too_long & ~uneven)
    if not len(pairs):
        raise UserError(
            f"No sentence pair is left to train on: of {lengths.shape[1]}, {empty.sum()} have an "
            f"empty side, {too_long.sum()} exceed config.data.max_len={max_len} tokens and "
            f"{uneven.sum()} config.data.max_ratio={max_ratio:g}. "
            "Check the files, or raise these limits."
        )
    if weights:
        pairs = _repeat_corpora(pairs, corpus_sizes, weights)
    return CorpusSelection(
        pairs=pairs,
        source_lengths=lengths[0, pairs],
        target_lengths=lengths[1, pairs],
        num_pairs=lengths.shape[1],
        num_empty=int(empty.sum()),
        num_too_long=int(too_long.sum()),
        num_uneven=int(uneven.sum()),
    )


def _repeat_corpora(
    pairs: np.ndarray, corpus_sizes: tuple[int, ...], weights: tuple[float, ...]
) -> np.ndarray:
    """Repeats pairs until the corpora's shares are those of `weights`; drops none.

    The corpus with the fewest pairs for its weight is seen once an epoch, the others more often.
    """
    corpus = np.repeat(np.arange(len(corpus_sizes)), corpus_sizes)[pairs]
    counts = np.bincount(corpus, minlength=len(corpus_sizes))
    if not counts.all():
        raise UserError(
            f"Corpus {int(np.argmin(counts)) + 1} of config.data.train has no usable pair. "
            "Check its files, or remove it and its weight."
        )
    factors = np.asarray(weights) / counts
    factors = factors / factors.min()
    repeated = []
    for i, factor in enumerate(factors):
        of_corpus = pairs[corpus == i]
        # A factor of 2.5 repeats pairs 2, 3, 2, 3, … times.
        ends = np.floor(np.arange(len(of_corpus) + 1) * factor + 1e-9).astype(np.int64)
        repeated.append(np.repeat(of_corpus, np.diff(ends)))
    return np.concatenate(repeated)


class LengthClasses:
    """Selected pairs sorted by (source, target) length; equal lengths form a class.

    Attributes:
      order: `[selected]` indices into the selection, class by class.
      starts, sizes: `[classes]` the part of `order` that a class takes.
      source_len, target_len: `[classes]` lengths of the pairs of a class.
    """

    def __init__(self, selection: CorpusSelection):
        source, target = selection.source_lengths, selection.target_lengths
        code = source * (int(target.max()) + 1) + target
        # Stable, so that the order within a class, hence every batch, is the same everywhere.
        self.order = np.argsort(code, kind="stable")
        codes, self.starts, self.sizes = np.unique(
            code[self.order], return_index=True, return_counts=True
        )
        self.source_len, self.target_len = np.divmod(codes, int(target.max()) + 1)

    def __len__(self) -> int:
        return len(self.sizes)
