"""The rows that the pairs of one shard are put in, as flat arrays that can be mapped into memory.

In: the lengths of the pairs of a shard. Out: a `ShardPlan`. It depends on nothing but the shard and
the shape of a row, so the plans of all shards are made by several processes and kept in files.
"""

import dataclasses

import numpy as np

from transformer_jax.data.plans.mapped_file import MappedFile
from transformer_jax.data.plans.packing import pack_classes, unroll
from transformer_jax.data.plans.pair_selection import CorpusSelection, classes_of

EXACT_LEN = 64  # lengths up to here have classes for themselves


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """Rows of a shard; each has slots, and each slot a pair of its class.

    Attributes:
      class_starts: `[classes + 1]` the part of `order` that a class takes. In a bucketed plan the
        classes are the buckets.
      row_starts: `[rows + 1]` the first slot of each row; empty in a bucketed plan, where every row
        has one slot and the rows of a bucket are in the order of its pairs.
      slots: `[pairs]` for each slot an index into `order`; empty in a bucketed plan, as row_starts.
      order: `[pairs, 2]` indices into the shard, class by class, and the `length_code` of each, as
        32 bits. Next to each other, because a batch reads them at random places of a file.
      file: of which the arrays are views; None: they are in memory.
    """

    class_starts: np.ndarray
    row_starts: np.ndarray
    slots: np.ndarray
    order: np.ndarray
    file: MappedFile | None = None

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """All arrays as one, int32, and where each ends in it, int64 `[4]`."""
        arrays = [self.class_starts, self.row_starts, self.slots, self.order.ravel()]
        ends = np.cumsum([len(array) for array in arrays])
        return np.concatenate(arrays).astype(np.int32), ends.astype(np.int64)

    @classmethod
    def from_file(cls, file: MappedFile) -> "ShardPlan":
        """The plan in a file that has the ends of its arrays and the arrays, as of `flat`."""
        ends, array = np.asarray(file.array[:4], np.int64), file.array[4:]
        class_starts, row_starts, slots, order = np.split(array, ends[:-1])
        return cls(class_starts, row_starts, slots, order.reshape(-1, 2), file)

    def read_ahead(self, part: np.ndarray, places: np.ndarray) -> None:
        """Starts to read `places` of one of the arrays, if they are in a file."""
        if self.file is not None:
            self.file.read_ahead(part, places)

    def pairs_at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Indices of the pairs at `places` of `order`, and their lengths, int64 `[pairs]` each."""
        chosen = self.order[places]
        source, target = code_lengths(chosen[:, 1].view(np.uint32).astype(np.int64))
        return chosen[:, 0].astype(np.int64), source, target

    @property
    def num_rows(self) -> int:
        """Rows of a packed plan."""
        return len(self.row_starts) - 1


def pack_shard(selection: CorpusSelection, source_len: int, target_len: int) -> ShardPlan:
    """Packs the pairs of a shard into rows of `source_len` and `target_len` positions.

    A class has pairs of equal length. Longer ones share it with pairs that are a little shorter:
    such lengths are rare, so each would have a class with a pair or two, and packing takes time for
    each class.

    Args:
      selection: pairs of the shard, by index into it.
      source_len, target_len: positions of a row.
    """
    source = _class_len(selection.source_lengths, source_len)
    target = _class_len(selection.target_lengths, target_len)
    if not len(selection.pairs):
        none = np.zeros(0, np.int32)
        start = np.zeros(1, np.int32)
        return ShardPlan(start, start, none, none.reshape(0, 2))
    order, starts, sizes, class_source, class_target = classes_of(source, target)
    templates = pack_classes(class_source, class_target, sizes, (source_len, target_len))
    row_starts, slot_class, slot_rank = unroll(templates, len(sizes))
    return ShardPlan(
        class_starts=np.append(starts, len(order)),
        row_starts=row_starts,
        slots=starts[slot_class] + slot_rank,
        order=_with_lengths(selection, order),
    )


def bucket_shard(
    selection: CorpusSelection, class_codes: np.ndarray, class_buckets: np.ndarray
) -> ShardPlan:
    """Groups the pairs of a shard by bucket.

    Args:
      selection: pairs of the shard, by index into it.
      class_codes: `[classes]` ascending `length_code`s of all lengths that occur in the corpus.
      class_buckets: `[classes]` the bucket of each.
    """
    codes = length_code(selection.source_lengths, selection.target_lengths)
    buckets = class_buckets[np.searchsorted(class_codes, codes)]
    counts = np.bincount(buckets, minlength=int(class_buckets.max()) + 1)
    return ShardPlan(
        class_starts=np.concatenate([[0], np.cumsum(counts)]),
        row_starts=np.zeros(0, np.int32),
        slots=np.zeros(0, np.int32),
        order=_with_lengths(selection, np.argsort(buckets, kind="stable")),
    )


def _with_lengths(selection: CorpusSelection, order: np.ndarray) -> np.ndarray:
    """Pairs of a selection in an order, with their lengths: `ShardPlan.order`."""
    codes = length_code(selection.source_lengths, selection.target_lengths)
    both = np.stack([selection.pairs.astype(np.int32), codes.astype(np.uint32).view(np.int32)], 1)
    return both[order]


def length_code(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """One number for each pair of lengths, which are below 2^16."""
    return source.astype(np.int64) << 16 | target.astype(np.int64)


def code_lengths(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Source and target lengths of `length_code`s."""
    return codes >> 16, codes & 0xFFFF


def _class_len(lengths: np.ndarray, row_len: int) -> np.ndarray:
    """The length at which pairs are packed: up to 2, 4, … positions more above `EXACT_LEN`."""
    step = np.maximum(1, 1 << np.ceil(np.log2(np.maximum(lengths, 1) / EXACT_LEN)).astype(np.int64))
    step = np.where(lengths <= EXACT_LEN, 1, step)
    return np.minimum(-(-lengths // step) * step, row_len)
