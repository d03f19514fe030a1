"""Which sentence pairs are trained on, and their classes of equal lengths."""

import dataclasses

import numpy as np

from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class CorpusSelection:
    """What is trained on, and what is left out and why."""

    pairs: np.ndarray  # indices; one that a sampling weight repeats stands several times
    source_lengths: np.ndarray  # positions of each, the end symbol included
    target_lengths: np.ndarray
    num_pairs: int  # before anything was left out
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

    With weights, the corpus that is rarest for its weight is seen once an epoch and the others the
    more often, so that every pair is seen and the shares are those of the weights.

    Args:
      source_lengths, target_lengths: `[pairs]` tokens, end symbols not included.
      max_len: longest side in positions, its end symbol included.
      corpus_sizes: pairs of each corpus, in order.
      weights: one a corpus, or none for shares by size.
      max_ratio: a side longer than this many times the other, and `RATIO_SLACK` tokens, leaves the
        pair out, as it is hardly a translation; 0: off.

    Raises:
      UserError: where nothing is left.
    """
    lengths = np.stack([source_lengths, target_lengths]).astype(np.int64) + 1
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
            f"{uneven.sum()} config.data.max_ratio={max_ratio:g}."
        )
    if weights:
        corpus = np.repeat(np.arange(len(corpus_sizes)), corpus_sizes)[pairs]
        counts = np.bincount(corpus, minlength=len(corpus_sizes))
        if not counts.all():
            raise UserError(
                f"Corpus {int(np.argmin(counts)) + 1} of config.data.train has no usable pair."
            )
        factors = np.asarray(weights) / counts
        factors = factors / factors.min()
        parts = []
        for i, factor in enumerate(factors):
            own = pairs[corpus == i]
            ends = np.floor(np.arange(len(own) + 1) * factor + 1e-9).astype(np.int64)
            parts.append(np.repeat(own, np.diff(ends)))
        pairs = np.concatenate(parts)
    return CorpusSelection(
        pairs=pairs,
        source_lengths=lengths[0, pairs],
        target_lengths=lengths[1, pairs],
        num_pairs=lengths.shape[1],
        num_empty=int(empty.sum()),
        num_too_long=int(too_long.sum()),
        num_uneven=int(uneven.sum()),
    )


class LengthClasses:
    """Pairs sorted by (source, target) length, equal lengths forming a class."""

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
