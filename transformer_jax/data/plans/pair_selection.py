"""Selects the sentence pairs that are trained on, and groups them by their lengths.

In: token counts `[pairs]` of both sides. Out: `CorpusSelection`, indices of the selected pairs.
"""

import dataclasses

import numpy as np

from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class SelectionCounts:
    """How many pairs there are, and how many are left out for which reason."""

    num_pairs: int = 0
    num_empty: int = 0
    num_too_long: int = 0
    num_uneven: int = 0

    def __add__(self, other: "SelectionCounts") -> "SelectionCounts":
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return SelectionCounts(*(a + b for a, b in zip(mine, theirs, strict=True)))

    @property
    def num_selected(self) -> int:
        return self.num_pairs - self.num_empty - self.num_too_long - self.num_uneven

    def require_pairs(self, max_len: int, max_ratio: float) -> None:
        """Raises a `UserError` where no pair is left."""
        if not self.num_pairs:
            raise UserError(
                "No sentence pair is left to train on: config.data.filters and filter_function "
                "drop all pairs of a corpus."
            )
        if not self.num_selected:
            raise UserError(
                f"No sentence pair is left to train on: of {self.num_pairs}, {self.num_empty} have "
                f"an empty side, {self.num_too_long} exceed config.data.max_len={max_len} tokens "
                f"and {self.num_uneven} config.data.max_ratio={max_ratio:g}. "
                "Check the files, or raise these limits."
            )


@dataclasses.dataclass(frozen=True)
class CorpusSelection:
    """The pairs of one epoch, and how many pairs were left out for which reason.

    Attributes:
      pairs: `[selected]` indices into the corpus; sampling weights may repeat an index.
      source_lengths, target_lengths: `[selected]` positions, the end symbol included.
      counts: of all pairs of the corpus.
    """

    pairs: np.ndarray
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    counts: SelectionCounts


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
    """Leaves out pairs as `select_shard`; repeats corpora according to `weights`.

    Args:
      source_lengths, target_lengths, max_len, max_ratio: as of `select_shard`.
      corpus_sizes: pairs of each corpus, in order.
      weights: one for each corpus; none for shares by size.

    Raises:
      UserError: where no pair is left.
    """
    selection = select_shard(source_lengths, target_lengths, max_len, max_ratio)
    selection.counts.require_pairs(max_len, max_ratio)
    if not weights:
        return selection
    pairs = _repeat_corpora(selection.pairs, corpus_sizes, weights)
    lengths = np.stack([source_lengths, target_lengths]).astype(np.int64) + 1
    source, target = lengths[:, pairs]
    return CorpusSelection(pairs, source, target, selection.counts)


def select_shard(
    source_lengths: np.ndarray, target_lengths: np.ndarray, max_len: int, max_ratio: float = 0.0
) -> CorpusSelection:
    """Leaves out empty, over-long and uneven pairs.

    Args:
      source_lengths, target_lengths: `[pairs]` tokens, end symbols not included.
      max_len: longest side in positions, its end symbol included.
      max_ratio: leaves out pairs of which one side has more than `max_ratio` times the tokens of
        the other plus `RATIO_SLACK`, as they are hardly translations; 0 turns this off.
    """
    lengths = np.stack([source_lengths, target_lengths]).astype(np.int64) + 1  # [2, pairs]
    empty = (lengths == 1).any(axis=0)
    too_long = ~empty & (lengths > max_len).any(axis=0)
    longer, shorter = lengths.max(axis=0) - 1, lengths.min(axis=0) - 1
    uneven = ~empty & ~too_long & (longer > max_ratio * shorter + RATIO_SLACK)
    uneven &= max_ratio > 0
    pairs = np.flatnonzero(~empty & ~too_long & ~uneven)
    numbers = (int(left_out.sum()) for left_out in (empty, too_long, uneven))
    source, target = lengths[:, pairs]
    counts = SelectionCounts(lengths.shape[1], *numbers)
    return CorpusSelection(pairs, source, target, counts)


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
        self.order, self.starts, self.sizes, self.source_len, self.target_len = classes_of(
            selection.source_lengths, selection.target_lengths
        )

    def __len__(self) -> int:
        return len(self.sizes)


def classes_of(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sorts pairs by (source, target) length; returns the attributes of `LengthClasses`.

    Args:
      source, target: `[pairs]` lengths.
    """
    base = int(target.max()) + 1
    # Stable, so that the order within a class, hence every batch, is the same everywhere.
    code = source * base + target
    order = np.argsort(code, kind="stable")
    codes, starts, sizes = np.unique(code[order], return_index=True, return_counts=True)
    return order, starts, sizes, *np.divmod(codes, base)
