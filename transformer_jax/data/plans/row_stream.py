"""The rows of a corpus as an endless stream, epoch after epoch, from any row on.

In: the `ShardPlan`s of the corpus. Out: a `RowStream`, which maps the numbers of rows to the pairs
in them. An epoch permutes the shards. `GROUP_SHARDS` shards that follow each other form a group,
whose rows are permuted. So a batch has rows of several places of the corpus, and a process reads
few files at a time. The sentences within a class of a shard are permuted too.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from transformer_jax.data.plans.batch_shapes import ranges
from transformer_jax.data.plans.permutation import make_key, permute
from transformer_jax.data.plans.shard_plan import ShardPlan

GROUP_SHARDS = 8

# Tags that keep the keys of different permutations apart.
_SHARDS, _ROWS, _SENTENCES = range(3)


@dataclasses.dataclass(frozen=True)
class PlannedShards:
    """The shards of one stream; each sequence has an item for a shard.

    Attributes:
      plans: rows of the shard.
      first_pairs: index of its first pair in the data of the run.
      fetch_ahead: called with the shards of the next group when one begins; None: all are here.
    """

    plans: Sequence[ShardPlan]
    first_pairs: Sequence[int]
    fetch_ahead: Callable[[Sequence[int]], None] | None = None


@dataclasses.dataclass(frozen=True)
class RowPairs:
    """The pairs of some rows; arrays are `[pairs]`."""

    owners: np.ndarray  # which of the rows, ascending within each shard
    pairs: np.ndarray  # indices into the data of the run
    source_lengths: np.ndarray  # positions, the end symbol included
    target_lengths: np.ndarray

    @classmethod
    def concatenate(cls, parts: Sequence["RowPairs"]) -> "RowPairs":
        """The pairs of several sets of rows; owners have to be numbers of the same rows."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class RowStream:
    """The rows of one corpus in every epoch.

    Args:
      shards: of the corpus.
      rows: `[shards]` rows of each.
      seed: of the permutations.
      name: a number that tells this stream from others of the same seed.
      bucket: of a bucketed plan; None for a packed one.
    """

    def __init__(
        self,
        shards: PlannedShards,
        rows: np.ndarray,
        seed: int,
        name: int = 0,
        bucket: int | None = None,
    ):
        self._shards, self._rows, self._bucket = shards, np.asarray(rows, np.int64), bucket
        self._seed, self._name = seed, name
        self.rows_per_epoch = int(self._rows.sum())
        self._last = (-1, -1)  # epoch and group that were used last
        self._epoch = functools.lru_cache(maxsize=4)(self._order_of_epoch)

    def pairs(self, numbers: np.ndarray) -> RowPairs:
        """The pairs of the rows `numbers`, int64 `[rows]`."""
        epochs, shards, rows = self._locate(np.asarray(numbers, np.int64))
        used = np.unique(shards).tolist()
        members = [np.flatnonzero(shards == shard) for shard in used]
        slots = self._slots(used, members, rows)
        parts = []  # of each shard: rows, index into `order`, where its class starts, size of it
        keys = []
        for shard, (owners, places, classes) in zip(used, slots, strict=True):
            class_starts = self._shards.plans[shard].class_starts
            starts = class_starts[classes].astype(np.int64)
            parts.append((owners, places - starts, starts, class_starts[classes + 1] - starts))
            first_pair = int(self._shards.first_pairs[shard])
            keys.append(make_key(self._seed, epochs[owners], _SENTENCES, first_pair, classes))
        owners, ranks, starts, sizes = (np.concatenate(part) for part in zip(*parts, strict=True))
        # One call for all pairs: it costs little more than one for a few.
        places = starts + permute(ranks, sizes, np.concatenate(keys))
        ends = np.cumsum([len(part[0]) for part in parts])
        chosen = self._in_shards(used, np.split(places, ends[:-1]))
        return RowPairs(owners, *(np.concatenate(part) for part in zip(*chosen, strict=True)))

    def _locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Epoch, shard, and row within the shard of each number, `[rows]` each."""
        epochs, places = np.divmod(numbers, self.rows_per_epoch)
        shards, rows = np.empty_like(numbers), np.empty_like(numbers)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            order, starts = self._epoch(epoch)
            place = places[chosen]
            groups = (np.searchsorted(starts, place, side="right") - 1) // GROUP_SHARDS
            self._begin(epoch, int(groups.max()))
            first = starts[groups * GROUP_SHARDS]
            end = starts[np.minimum((groups + 1) * GROUP_SHARDS, len(order))]
            bucket = -1 if self._bucket is None else self._bucket
            key = make_key(self._seed, self._name, epoch, _ROWS, bucket, groups)
            place = first + permute(place - first, end - first, key)
            at = np.searchsorted(starts, place, side="right") - 1
            shards[chosen], rows[chosen] = order[at], place - starts[at]
        return epochs, shards, rows

    def _begin(self, epoch: int, group: int) -> None:
        """Fetches the group after `group` when that is used for the first time."""
        if self._shards.fetch_ahead and self._last != (epoch, group):
            self._last = epoch, group
            place = (group + 1) * GROUP_SHARDS
            if place >= len(self._rows):  # the first group of the next epoch
                epoch, place = epoch + 1, 0
            order, _ = self._epoch(epoch)
            self._shards.fetch_ahead(order[place : place + GROUP_SHARDS].tolist())

    def _order_of_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards in the order of an epoch, `[shards]`, and their first rows, `[shards + 1]`."""
        numbers = np.arange(len(self._rows))
        # The same for all buckets, so that they read the same files at a time.
        key = make_key(self._seed, self._name, epoch, _SHARDS)
        order = permute(numbers, len(numbers), key)
        return order, np.concatenate([[0], np.cumsum(self._rows[order])])

    def _slots(
        self, shards: list[int], members: list[np.ndarray], rows: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of each slot in rows of each shard: which row, index into `order`, class; `[pairs]` each.

        Args:
          shards: that have rows.
          members: of each shard, which of the rows are in it.
          rows: number of each row within its shard.
        """
        plans = [self._shards.plans[shard] for shard in shards]
        if self._bucket is not None:
            return [
                (
                    owners,
                    rows[owners] + plan.class_starts[self._bucket],
                    np.full(len(owners), self._bucket),
                )
                for plan, owners in zip(plans, members, strict=True)
            ]
        # Files are read ahead for all shards before any of them is waited for.
        for plan, owners in zip(plans, members, strict=True):
            plan.read_ahead(plan.row_starts, rows[owners])
        spans = []
        for plan, owners in zip(plans, members, strict=True):
            first = plan.row_starts[rows[owners]].astype(np.int64)
            spans.append((first, plan.row_starts[rows[owners] + 1] - first))
            plan.read_ahead(plan.slots, first)
        slots = []
        for plan, owners, (first, counts) in zip(plans, members, spans, strict=True):
            places = plan.slots[np.repeat(first, counts) + ranges(counts)].astype(np.int64)
            classes = np.searchsorted(plan.class_starts, places, side="right") - 1
            slots.append((np.repeat(owners, counts), places, classes))
        return slots

    def _in_shards(
        self, shards: list[int], places: list[np.ndarray]
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Index into the data of the run, and positions of source and target; `[pairs]` each."""
        plans = [self._shards.plans[shard] for shard in shards]
        for plan, of_shard in zip(plans, places, strict=True):
            plan.read_ahead(plan.order, of_shard)
        chosen = []
        for shard, plan, of_shard in zip(shards, plans, places, strict=True):
            local, source, target = plan.pairs_at(of_shard)
            chosen.append((local + int(self._shards.first_pairs[shard]), source, target))
        return chosen
