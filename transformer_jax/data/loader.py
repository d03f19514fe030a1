"""Training batches as arrays, loaded by Grain ahead of the device.

In: `Epochs` and the number of a step. Out: a dict of arrays, `[B, S]` for the source and `[B, T]`
for the target.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator

import grain
import numpy as np

from transformer_jax.data.epoch_data import Epochs
from transformer_jax.data.plans.batch_shapes import BatchLayout, ranges
from transformer_jax.data.token_cache import Sentences, TokenizedCorpus
from transformer_jax.data.token_links import TokenLinks
from transformer_jax.data.tokenizer_pair import SpecialIds

Batch = dict[str, np.ndarray]

NUM_THREADS = 2
PREFETCH = 8
MAX_LINKS = 4  # of a target token; more are left out


class BatchSource:
    """Random access to batch `t`, in the interface that Grain expects.

    Args:
      epochs: corpus and batch plan of each step.
      ids: special ids.
      num_steps: of the run.
      row_multiple: batches get empty rows up to a multiple of this number.
      local_rows: maps the number of rows of a batch to the rows that this process loads; None: all.
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
        corpus, layout = self._corpus_and_layout(int(t))
        layout = dataclasses.replace(layout, shape=layout.shape.padded(self._row_multiple))
        if self._local_rows is not None:
            layout = layout.select_rows(self._local_rows(layout.shape.rows))
        return make_batch(corpus, layout, self._ids)

    def __repr__(self) -> str:
        return f"BatchSource({self._num_steps} steps)"

    def pairs(self, t: int) -> np.ndarray:
        """Indices into the corpus of all pairs of batch `t`, row by row."""
        return self._corpus_and_layout(t)[1].pairs

    def digest(self, t: int) -> str:
        """A digest of batch `t` that does not depend on devices and processes."""
        digest = hashlib.blake2b(digest_size=8)
        for name, array in make_batch(*self._corpus_and_layout(t), self._ids).items():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def _corpus_and_layout(self, t: int) -> tuple[TokenizedCorpus, BatchLayout]:
        data, batch = self._epochs.at(t)
        return data.corpus, data.plan.layout(batch)


def load_batches(source: BatchSource, first_step: int) -> Iterator[Batch]:
    """Batches `first_step, first_step + 1, …` of `source`, prefetched by threads."""
    options = grain.ReadOptions(num_threads=NUM_THREADS, prefetch_buffer_size=PREFETCH)
    dataset = grain.MapDataset.source(source)
    if first_step:
        dataset = dataset[first_step:]
    return iter(dataset.to_iter_dataset(options))


def make_batch(corpus: TokenizedCorpus, layout: BatchLayout, ids: SpecialIds) -> Batch:
    """Writes the pairs of one batch into arrays.

    Returns:
      `inputs` `[B, S]`, `targets` and `decoder_inputs` `[B, T]`: token ids;
      `{inputs,targets}_positions`: they restart with each sentence;
      `{inputs,targets}_segment_ids`: from 1 in each row, segment id 0 is padding;
      `loss_mask` `[B, T]`: True on targets that count;
      `alignment` `[B, T, MAX_LINKS]`, if the corpus has links: positions of `inputs` that belong to
      the token of `decoder_inputs`, -1 for none.
      All are int32, except the boolean mask.
    """
    inputs, inputs_positions, inputs_segment_ids = _fill_rows(
        corpus.source,
        layout,
        layout.source_starts,
        layout.shape.source_len,
        ids.source_pad,
        ids.source_eos,
    )
    targets, targets_positions, targets_segment_ids = _fill_rows(
        corpus.target,
        layout,
        layout.target_starts,
        layout.shape.target_len,
        ids.target_pad,
        ids.target_eos,
    )
    decoder_inputs = np.roll(targets, 1, axis=1)
    decoder_inputs[targets_positions == 0] = ids.decoder_start
    decoder_inputs[targets_segment_ids == 0] = ids.target_pad
    batch = {
        "inputs": inputs,
        "inputs_positions": inputs_positions,
        "inputs_segment_ids": inputs_segment_ids,
        "decoder_inputs": decoder_inputs,
        "targets": targets,
        "targets_positions": targets_positions,
        "targets_segment_ids": targets_segment_ids,
        "loss_mask": targets_segment_ids != 0,
    }
    if corpus.links is not None:
        batch["alignment"] = _alignment(corpus.links, layout)
    return batch


def _alignment(links: TokenLinks, layout: BatchLayout) -> np.ndarray:
    """Linked source positions of each token that the decoder reads, `[rows, T, MAX_LINKS]`."""
    shape = (layout.shape.rows, layout.shape.target_len, MAX_LINKS)
    alignment = np.full(shape, -1, np.int32)
    first = links.offsets[layout.pairs]
    counts = links.offsets[layout.pairs + 1] - first
    chosen = links.tokens[np.repeat(first, counts) + ranges(counts)].astype(np.int64)
    row = np.repeat(layout.rows, counts)
    source = np.repeat(layout.source_starts, counts) + chosen[:, 0]
    target = np.repeat(layout.target_starts, counts) + chosen[:, 1] + 1  # after the start symbol
    # Links of a token follow each other.
    token = row * layout.shape.target_len + target
    rank = ranges(np.unique(token, return_counts=True)[1]) if len(token) else token
    order = np.argsort(token, kind="stable")
    row, target, source = row[order], target[order], source[order]
    kept = rank < MAX_LINKS
    alignment[row[kept], target[kept], rank[kept]] = source[kept]
    return alignment


def _fill_rows(
    side: Sentences,
    layout: BatchLayout,
    starts: np.ndarray,
    row_len: int,
    pad_id: int,
    eos_id: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and segment ids of one side, int32 `[rows, row_len]` each.

    Args:
      side: the sentences.
      layout: of the batch.
      starts: `[pairs]` position in its row where each sentence starts.
      row_len: positions of a row.
      pad_id: of positions without a sentence.
      eos_id: follows each sentence.
    """
    tokens = np.full(layout.shape.rows * row_len, pad_id, np.int32)
    positions = np.zeros_like(tokens)
    segment_ids = np.zeros_like(tokens)
    ids, lengths = side.take(layout.pairs)
    begin = layout.rows * row_len + starts  # [pairs], indices into the flat batch

    tokens[np.repeat(begin, lengths) + ranges(lengths)] = ids
    tokens[begin + lengths] = eos_id

    within = ranges(lengths + 1)
    index = np.repeat(begin, lengths + 1) + within
    positions[index] = within
    segment_ids[index] = np.repeat(layout.segments, lengths + 1)
    shape = (layout.shape.rows, row_len)
    return tokens.reshape(shape), positions.reshape(shape), segment_ids.reshape(shape)
