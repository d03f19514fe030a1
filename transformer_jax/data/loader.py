"""Batches as arrays, loaded by Grain ahead of the device."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator

import grain
import numpy as np

from transformer_jax.data.batch_shapes import BatchLayout
from transformer_jax.data.epoch_data import Epochs
from transformer_jax.data.token_cache import TokenizedCorpus, TokenizedSide
from transformer_jax.data.tokenizer_pair import SpecialIds

Batch = dict[str, np.ndarray]

NUM_THREADS = 2
PREFETCH = 8


def make_batch(corpus: TokenizedCorpus, layout: BatchLayout, ids: SpecialIds) -> Batch:
    """Arrays of one training batch.

    Returns:
      `inputs` `[B, S]`, `targets` and `decoder_inputs` `[B, T]` token ids;
      `{inputs,targets}_positions` that restart with each sentence; `{inputs,targets}_segment_ids`
      from 1, 0 being padding; `loss_mask` `[B, T]`, True on targets that count. All are int32 but
      the boolean mask.
    """
    shape = layout.shape
    source = _lay_out(
        corpus.source, layout, layout.source_starts, (shape.rows, shape.source_len),
        ids.source_pad, ids.source_eos)  # fmt: skip
    target = _lay_out(
        corpus.target, layout, layout.target_starts, (shape.rows, shape.target_len),
        ids.target_pad, ids.target_eos)  # fmt: skip
    decoder_inputs = np.roll(target.tokens, 1, axis=1)
    decoder_inputs[target.positions == 0] = ids.decoder_start
    decoder_inputs[target.segments == 0] = ids.target_pad
    return {
        "inputs": source.tokens,
        "inputs_positions": source.positions,
        "inputs_segment_ids": source.segments,
        "decoder_inputs": decoder_inputs,
        "targets": target.tokens,
        "targets_positions": target.positions,
        "targets_segment_ids": target.segments,
        "loss_mask": target.segments != 0,
    }


@dataclasses.dataclass(frozen=True)
class _Side:
    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray


def _lay_out(
    side: TokenizedSide,
    layout: BatchLayout,
    starts: np.ndarray,
    shape: tuple[int, int],
    pad_id: int,
    eos_id: int,
) -> _Side:
    tokens = np.full(shape[0] * shape[1], pad_id, np.int32)
    positions = np.zeros_like(tokens)
    segments = np.zeros_like(tokens)
    first = side.offsets[layout.pairs]
    lengths = side.offsets[layout.pairs + 1] - first
    within = _ranges(lengths)
    begin = layout.rows * shape[1] + starts
    where = np.repeat(begin, lengths) + within
    tokens[where] = side.tokens[np.repeat(first, lengths) + within]
    tokens[begin + lengths] = eos_id
    within = _ranges(lengths + 1)
    where = np.repeat(begin, lengths + 1) + within
    positions[where] = within
    segments[where] = np.repeat(layout.segments, lengths + 1)
    return _Side(*(x.reshape(shape) for x in (tokens, positions, segments)))


def _ranges(lengths: np.ndarray) -> np.ndarray:
    """0 .. n-1 for each n of `lengths`, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


class BatchSource:
    """Random access to batch `t`, as Grain wants it: the rows of this process.

    Args:
      epochs: corpus and batch plan of each step.
      ids: special ids.
      num_steps: of the run.
      row_multiple: empty rows make the number of rows a multiple of it.
      local_rows: maps that number to the numbers of the rows that are wanted; None: all.
    """

    def __init__(
        self,
        epochs: Epochs,
        ids: SpecialIds,
        num_steps: int,
        row_multiple: int = 1,
        local_rows: Callable[[int], np.ndarray] | None = None,
    ):
        self._epochs, self._ids = epochs, ids
        self._num_steps, self._row_multiple = num_steps, row_multiple
        self._local_rows = local_rows

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, t: int) -> Batch:
        data, batch = self._epochs.at(int(t))
        layout = data.plan.layout(batch)
        shape = layout.shape.padded(self._row_multiple)
        layout = dataclasses.replace(layout, shape=shape)
        if self._local_rows is not None:
            layout = layout.select_rows(self._local_rows(shape.rows))
        return make_batch(data.corpus, layout, self._ids)

    def __repr__(self) -> str:
        return f"BatchSource({self._num_steps} steps)"

    def pairs(self, t: int) -> np.ndarray:
        """Numbers in the corpus of all pairs of batch `t`, row by row."""
        data, batch = self._epochs.at(t)
        return data.plan.layout(batch).pairs

    def digest(self, t: int) -> str:
        """A digest of batch `t` that does not depend on devices and processes."""
        digest = hashlib.blake2b(digest_size=8)
        data, batch = self._epochs.at(t)
        layout = data.plan.layout(batch)
        for name, array in make_batch(data.corpus, layout, self._ids).items():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()


def load_batches(source: BatchSource, first_step: int) -> Iterator[Batch]:
    """Batches `first_step, first_step + 1, …` of `source`, prefetched by threads."""
    options = grain.ReadOptions(num_threads=NUM_THREADS, prefetch_buffer_size=PREFETCH)
    dataset = grain.MapDataset.source(source)
    if first_step:
        dataset = dataset[first_step:]
    return iter(dataset.to_iter_dataset(options))
