"""Sentences grouped into batches of a few declared shapes, and over-long ones cut into parts."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

MIN_LEN = 8
PART_ENDINGS = (".", "!", "?", ";", ":", ",", "。", "！", "？", "；", "，")


@dataclasses.dataclass(frozen=True)
class SentenceBatch:
    """Rows of one shape; `indices` says which sentence each used row holds."""

    indices: list[int]
    inputs: np.ndarray  # [B, S] ids, padded
    lengths: np.ndarray  # [B], 0 in unused rows


def padded_length(length: int, max_len: int) -> int:
    """Smallest declared length that holds `length`: powers of two from MIN_LEN, then max_len."""
    size = MIN_LEN
    while size < length:
        size *= 2
    return min(size, max_len)


def row_options(full: int) -> list[int]:
    """Declared numbers of rows, rising: one, an eighth of a full batch, a full batch."""
    return sorted({1, max(1, full // 8), full})


def make_batches(
    sentences: Sequence[Sequence[int]], max_len: int, batch_tokens: int, pad_id: int
) -> Iterator[SentenceBatch]:
    """Groups sentences by padded length, longest first.

    Args:
      sentences: ids of each, end symbol included, none longer than max_len.
      max_len: longest padded length.
      batch_tokens: positions in a full batch (at least one row).
      pad_id: fills up rows.
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    start = 0
    while start < len(order):
        size = padded_length(len(sentences[order[start]]), max_len)
        rows = max(1, batch_tokens // size)
        group = order[start : start + rows]
        group = [i for i in group if padded_length(len(sentences[i]), max_len) == size]
        rows = next(n for n in row_options(rows) if n >= len(group))
        inputs = np.full((rows, size), pad_id, np.int32)
        lengths = np.zeros(rows, np.int32)
        for row, i in enumerate(group):
            inputs[row, : len(sentences[i])] = sentences[i]
            lengths[row] = len(sentences[i])
        yield SentenceBatch(group, inputs, lengths)
        start += len(group)


def split_ids(ids: Sequence[int], pieces: Sequence[str], limit: int) -> list[list[int]]:
    """Cuts into parts of at most `limit`: after punctuation, else between words, else anywhere.

    Args:
      ids: piece ids of one text.
      pieces: the same as SentencePiece writes them ("▁" starts a word).
      limit: longest part.
    """
    parts, start = [], 0
    while len(ids) - start > limit:
        window = range(start + limit, start + limit // 2, -1)
        cut = next((i for i in window if pieces[i - 1].endswith(PART_ENDINGS)), None)
        if cut is None:
            cut = next((i for i in window if pieces[i].startswith("▁")), start + limit)
        parts.append(list(ids[start:cut]))
        start = cut
    return [*parts, list(ids[start:])]
