"""Makes the plans of all shards, by several processes, and keeps them in files.

In: the shards of each corpus, whose lengths are known. Out: a `StreamPlan`. Files are mapped into
memory: a process keeps none of a plan, and processes of one machine share what they read.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from transformer_jax import paths
from transformer_jax.data.plans.lazy_sequence import LazySequence
from transformer_jax.data.plans.mapped_file import MappedFile
from transformer_jax.data.plans.pair_selection import SelectionCounts, select_shard
from transformer_jax.data.plans.shard_plan import (
    ShardPlan,
    bucket_shard,
    code_lengths,
    length_code,
    pack_shard,
)
from transformer_jax.data.workers import IN_THIS_PROCESS, Workers

ROWS = "rows.npy"  # of each kind and shard; written when the plans of all shards are there
LENGTHS = "lengths.npz"


class Shard(Protocol):
    """A shard as far as plans are concerned. It has to be picklable."""

    @property
    def fingerprint(self) -> str:
        """Changes when the lengths do."""
        ...

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of source and target, `[pairs]` each, end symbols not included."""
        ...


@dataclasses.dataclass(frozen=True)
class LengthCounts:
    """How often each pair of lengths occurs among the selected pairs of some shards.

    Attributes:
      counts: of the pairs.
      codes: `[classes]` ascending, as of `length_code`; positions, end symbols included.
      sizes: `[classes]` pairs.
    """

    counts: SelectionCounts
    codes: np.ndarray
    sizes: np.ndarray

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Source and target positions of each class."""
        return code_lengths(self.codes)

    @property
    def positions(self) -> tuple[int, int]:
        """Source and target positions of all pairs."""
        source, target = self.lengths
        return int(source @ self.sizes), int(target @ self.sizes)

    @classmethod
    def total(cls, parts: Sequence["LengthCounts"]) -> "LengthCounts":
        """Those of several shards together."""
        codes, inverse = np.unique(np.concatenate([p.codes for p in parts]), return_inverse=True)
        sizes = np.zeros(len(codes), np.int64)
        np.add.at(sizes, inverse, np.concatenate([p.sizes for p in parts]))
        return cls(sum((p.counts for p in parts), SelectionCounts()), codes, sizes)


def count_lengths(shard: Shard, max_len: int, max_ratio: float) -> LengthCounts:
    """The lengths of the pairs of `shard` that `select_shard` leaves."""
    selection = select_shard(*shard.lengths(), max_len, max_ratio)
    codes = length_code(selection.source_lengths, selection.target_lengths)
    return LengthCounts(selection.counts, *np.unique(codes, return_counts=True))


@dataclasses.dataclass(frozen=True)
class RowShape:
    """What the rows of a plan look like; `plan` makes those of a shard.

    Attributes:
      max_len, max_ratio: as of `select_shard`.
      packed: source and target positions of a packed row; None for a bucketed plan.
      class_codes, class_buckets: of a bucketed plan, as of `bucket_shard`.
    """

    max_len: int
    max_ratio: float
    packed: tuple[int, int] | None
    class_codes: np.ndarray
    class_buckets: np.ndarray

    @property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.max_len, self.max_ratio, self.packed)).encode())
        digest.update(self.class_codes.tobytes() + self.class_buckets.tobytes())
        return digest.hexdigest()

    def plan(self, shard: Shard) -> ShardPlan:
        """The rows of `shard`."""
        selection = select_shard(*shard.lengths(), self.max_len, self.max_ratio)
        if self.packed:
            return pack_shard(selection, *self.packed)
        return bucket_shard(selection, self.class_codes, self.class_buckets)

    def rows(self, plan: ShardPlan) -> np.ndarray:
        """Rows of each kind in the plan of a shard, `[kinds]`."""
        return np.asarray([plan.num_rows]) if self.packed else np.diff(plan.class_starts)


@dataclasses.dataclass(frozen=True)
class PlanFiles:
    """Where plans are kept, and what makes them.

    Attributes:
      folder: of all plans; None keeps them in memory.
      workers: the processes.
      prepared: folder of plans that are there already, which `prepare` has made.
      fetch: called with a file of `prepared` before it is read; None: all are there.
    """

    folder: Path | None = None
    workers: Workers = IN_THIS_PROCESS
    prepared: Path | None = None
    fetch: Callable[[Path], None] | None = None

    def count_lengths(
        self, shards: Sequence[Shard], max_len: int, max_ratio: float
    ) -> LengthCounts:
        """The lengths of the selected pairs of all shards."""
        count = functools.partial(count_lengths, max_len=max_len, max_ratio=max_ratio)
        file = self._folder(shards, f"{max_len} {max_ratio}")
        if file is None:
            return _total(self.workers(count, shards))
        path = file / LENGTHS
        if not path.exists():
            total = _total(self.workers(count, shards))
            counts = np.asarray(dataclasses.astuple(total.counts))
            file.mkdir(parents=True, exist_ok=True)
            with paths.new_path(path, is_cache=True) as temporary, temporary.open("wb") as stream:
                np.savez(stream, counts=counts, codes=total.codes, sizes=total.sizes)
        with np.load(path) as arrays:
            numbers = map(int, arrays["counts"])
            return LengthCounts(SelectionCounts(*numbers), arrays["codes"], arrays["sizes"])

    def plans(
        self, shards: Sequence[Shard], shape: RowShape
    ) -> tuple[Sequence[ShardPlan], np.ndarray]:
        """The plans of all shards, and their rows of each kind, `[kinds, shards]`."""
        folder = self._folder(shards, shape.fingerprint)
        if folder is None:
            plans = list(self.workers(shape.plan, shards))
            return plans, np.stack([shape.rows(plan) for plan in plans], axis=1)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{number:05}.npy" for number in range(len(shards))]
        if self.fetch and folder.parent == self.prepared:
            fetch = self.fetch
            fetched = LazySequence(lambda i: _read_plan(files[i], fetch), len(files))
            return fetched, np.load(folder / ROWS)
        missing = [pair for pair in zip(shards, files, strict=True) if not pair[1].exists()]
        make = functools.partial(_write_plan, shape)
        collections.deque(self.workers(make, missing), maxlen=0)
        mapped = LazySequence(lambda i: _read_plan(files[i]), len(files))
        if missing or not (folder / ROWS).exists():  # written last, when all plans are there
            rows = np.stack([shape.rows(plan) for plan in mapped], axis=1).astype(np.int64)
            with paths.new_path(folder / ROWS) as temporary, temporary.open("wb") as stream:
                np.save(stream, rows)
        return mapped, np.load(folder / ROWS)

    def _folder(self, shards: Sequence[Shard], settings: str) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.blake2b(settings.encode(), digest_size=16)
        for shard in shards:
            digest.update(shard.fingerprint.encode())
        name = digest.hexdigest()
        if self.prepared and any((self.prepared / name / end).exists() for end in (ROWS, LENGTHS)):
            return self.prepared / name
        return self.folder / name


def _total(parts: Iterator[LengthCounts]) -> LengthCounts:
    """The sum of many parts, of which few are in memory at a time."""
    total = None
    while some := list(itertools.islice(parts, 16)):
        total = LengthCounts.total([*([total] if total else []), *some])
    if total is None:
        raise ValueError("no shards")
    return total


def _write_plan(shape: RowShape, shard_and_file: tuple[Shard, Path]) -> None:
    """Makes the plan of a shard and writes it as one array, which begins with its four ends."""
    shard, file = shard_and_file
    array, ends = shape.plan(shard).flat()
    with paths.new_path(file, is_cache=True) as temporary, temporary.open("wb") as stream:
        np.save(stream, np.concatenate([ends.astype(np.int32), array]))


def _read_plan(file: Path, fetch: Callable[[Path], None] | None = None) -> ShardPlan:
    if fetch:
        fetch(file)
    return ShardPlan.from_file(MappedFile(file))
