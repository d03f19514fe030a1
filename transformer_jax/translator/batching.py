"""Sentences grouped into batches of a few declared shapes."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import DecodeConfig

MIN_LEN = 8
EXTRA_TOKENS = 10  # on top of max_decode_ratio


@dataclasses.dataclass(frozen=True)
class Batch:
    """Sentences that are computed together, and the shape of their arrays."""

    indices: list[int]  # of the sentences
    rows: int  # at least as many; the rest is empty
    length: int  # padded
    least_tokens: int = 0  # of the vocabulary, in a search with a shortlist


def padded_length(length: int, max_len: int) -> int:
    """The smallest batch length that holds `length`: 8, 16, 24, 32, 48, 64, 96, …, then max_len."""
    size = MIN_LEN
    while size < length and size < 2 * MIN_LEN:
        size *= 2
    while size < length:  # from 16 on, a power of two and the middle to the next in turn
        size = size // 2 * 3 if size & (size - 1) == 0 else size // 3 * 4
    return min(size, max_len)


def padded_lengths(max_len: int) -> list[int]:
    """All batch lengths up to `max_len`, which is the last."""
    lengths = [padded_length(1, max_len)]
    while lengths[-1] < max_len:
        lengths.append(padded_length(lengths[-1] + 1, max_len))
    return lengths


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


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`; 0 stays 0. So few shapes are compiled."""
    return 1 << (size - 1).bit_length() if size else 0


def row_options(full: int) -> list[int]:
    """Numbers of rows that are used, rising: 1, 4, 16, … and a full batch."""
    return [4**i for i in range(full.bit_length()) if 4**i < full] + [full]


def shapes(
    length: int, num_sentences: int, max_len: int, batch_tokens: int, num_devices: int = 1
) -> list[tuple[int, int]]:
    """(rows, padded length) of every batch that calls of few sentences can form.

    Args:
      length: of a batch's longest sentence.
      num_sentences: most of a call.
      max_len: longest padded length.
      batch_tokens: positions in a full batch on one device.
      num_devices: that share a batch.
    """
    size = padded_length(length, max_len)
    options = all_row_options(size, batch_tokens, num_devices)
    most = next(n for n in options if n >= min(num_sentences, options[-1]))
    return [(n, size) for n in options if n <= most]


def all_row_options(size: int, batch_tokens: int, num_devices: int = 1) -> list[int]:
    """Numbers of rows that batches may have, rising; arguments as of `shapes`."""
    full = max(1, batch_tokens // size)
    return sorted({1, *(n * num_devices for n in row_options(full))})


def group_by_length(
    lengths: Sequence[int], max_len: int, batch_tokens: int, num_devices: int = 1
) -> list[Batch]:
    """Batches of sentences of similar length, in the order of their first sentences.

    Each batch takes the longest sentences left. Only the last may be smaller than full, so a file
    needs one shape for each length, and one more.

    Args:
      lengths: of the sentences, none above max_len.
      max_len: longest padded length.
      batch_tokens: positions in a full batch on one device (at least one row).
      num_devices: rows are a multiple of it, or one.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches = []
    while order:
        size = padded_length(lengths[order[0]], max_len)
        options = all_row_options(size, batch_tokens, num_devices)
        longest = order[: options[-1]]
        rows = next(n for n in options if n >= len(longest))
        batches.append(Batch(sorted(longest), rows, size))
        order = order[len(longest) :]
    return sorted(batches, key=lambda batch: batch.indices[0])


@flax.struct.dataclass
class TokenRows:
    """Token ids of B rows; NumPy arrays until a program runs."""

    ids: jax.Array  # [B, L], padded
    lengths: jax.Array  # [B]; 0 in unused rows

    def mask(self) -> jax.Array:
        """`[B, L]` boolean, True within the lengths."""
        return jnp.arange(self.ids.shape[1]) < self.lengths[:, None]


def pad_rows(sequences: Sequence[Sequence[int]], rows: int, length: int, fill: int) -> TokenRows:
    """Rows `[rows, length]` of the sequences, padded with `fill`; rows beyond them are unused."""
    ids: Any = np.full((rows, length), fill, np.int32)
    lengths: Any = np.zeros(rows, np.int32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        lengths[row] = len(sequence)
    return TokenRows(ids, lengths)
