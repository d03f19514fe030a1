"""Sentences grouped into batches of a few declared shapes."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from transformer_jax.config import DecodeConfig

MIN_LEN = 8
EXTRA_TOKENS = 10  # on top of max_decode_ratio


@dataclasses.dataclass(frozen=True)
class Group:
    """Sentences that are computed together."""

    indices: list[int]  # of the sentences
    rows: int  # at least as many
    length: int  # padded


def padded_length(length: int, max_len: int) -> int:
    """Smallest declared length that holds `length`: 8, 16, 24, 32, 48, 64, 96, …, then max_len."""
    size = MIN_LEN
    while size < length and size < 2 * MIN_LEN:
        size *= 2
    while size < length:  # from 16 on, a power of two and the middle to the next in turn
        size = size // 2 * 3 if size & (size - 1) == 0 else size // 3 * 4
    return min(size, max_len)


def output_room(source_length: int, limit: int, max_len: int) -> int:
    """Positions for the outputs of a batch: few sizes, whatever limits the settings give.

    Args:
      source_length: padded.
      limit: tokens of an output at most; up to `max_len`.
      max_len: tokens that the model writes.
    """
    usual = DecodeConfig()
    most = math.ceil(usual.max_decode_ratio * source_length) + EXTRA_TOKENS
    room = padded_length(min(most, usual.max_decode_len), max_len)
    while room < min(limit, max_len):
        room = min(2 * room, max_len)
    return room


def roomy(size: int) -> int:
    """The next power of two, so that few shapes are compiled."""
    return 1 << (size - 1).bit_length()


def row_options(full: int) -> list[int]:
    """Declared numbers of rows, rising: one, an eighth of a full batch, a full batch."""
    return sorted({1, max(1, full // 8), full})


def shapes(
    length: int, num_sentences: int, max_len: int, batch_tokens: int, num_devices: int = 1
) -> list[tuple[int, int]]:
    """(rows, padded length) of every group that calls of few sentences can form.

    Args:
      length: of a group's longest sentence.
      num_sentences: most of a call.
      max_len: as in `group_by_length`, and so on.
      batch_tokens: positions in a full batch on one device.
      num_devices: that share a batch.
    """
    size = padded_length(length, max_len)
    options = _all_row_options(size, batch_tokens, num_devices)
    most = next(n for n in options if n >= min(num_sentences, options[-1]))
    return [(n, size) for n in options if n <= most]


def _all_row_options(size: int, batch_tokens: int, num_devices: int) -> list[int]:
    full = max(1, batch_tokens // size)
    return [1, *(n * num_devices for n in row_options(full))]


def group_by_length(
    lengths: Sequence[int], max_len: int, batch_tokens: int, num_devices: int = 1
) -> list[Group]:
    """Groups sentences of like length, so that a file uses as many shapes as lengths, and one more.

    Longest first, each group is filled up with the next shorter ones; only the last may be
    smaller. Groups come in the order of their first sentences.

    Args:
      lengths: of the sentences, none above max_len.
      max_len: longest padded length.
      batch_tokens: positions in a full batch on one device (at least one row).
      num_devices: rows are a multiple of it, or one.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups = []
    while order:
        size = padded_length(lengths[order[0]], max_len)
        options = _all_row_options(size, batch_tokens, num_devices)
        taken = order[: options[-1]]
        rows = next(n for n in options if n >= len(taken))
        groups.append(Group(sorted(taken), rows, size))
        order = order[len(taken) :]
    return sorted(groups, key=lambda group: group.indices[0])


def pad_rows(
    sequences: Sequence[Sequence[int]], rows: int, length: int, fill: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids `[rows, length]` behind which `fill` stands, and lengths `[rows]`, 0 in unused rows."""
    ids = np.full((rows, length), fill, np.int32)
    lengths = np.zeros(rows, np.int32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        lengths[row] = len(sequence)
    return ids, lengths
