"""What waits for a batch: texts of all callers, and whose turn it is.

Clients take turns, both for the next batch and for its rows, so that one with many texts delays the
others by one batch at most.
"""

import bisect
import collections
import concurrent.futures
import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from transformer_jax.errors import UserError
from transformer_jax.translator.batching import Batch

# Of the time that a text may wait for others: where none comes for so long, few will follow.
QUIET_SHARE = 0.25

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(UserError):
    """As many texts wait as may wait; a later call may succeed.

    Args:
      message: a sentence.
      retry_seconds: after which a call may succeed.
    """

    def __init__(self, message: str, retry_seconds: float = 1.0):
        super().__init__(message)
        self.retry_seconds = retry_seconds


class DeadlineError(UserError):
    """A text was not translated within its time."""


@dataclasses.dataclass(frozen=True)
class Lane(Generic[Item, Result]):
    """Items that can share batches, and what computes these.

    Attributes:
      key: equal for items that can share a batch.
      row_options: numbers of rows that batches of a padded length may have, rising.
      run: the result of each item of a batch.
      step_rows: rows whose computation takes as long as what a step takes besides its rows.
    """

    key: Hashable
    row_options: Callable[[int], Sequence[int]] = dataclasses.field(compare=False)
    run: Callable[[Batch, Sequence[Item]], Sequence[Result]] = dataclasses.field(compare=False)
    step_rows: float = dataclasses.field(default=1.0, compare=False)


@dataclasses.dataclass(eq=False)
class Entry:
    """A single item, or a whole batch, that waits."""

    client: Hashable
    future: concurrent.futures.Future[Any]
    arrived: float
    due: float  # when it need not wait for others any more
    deadline: float = math.inf
    # Of a single item:
    lane: Lane[Any, Any] | None = None
    item: Any = None
    length: int = 0  # padded
    size: int = 0  # tokens
    # Of a whole batch:
    call: Callable[[], Any] | None = None
    # Whether it has left the queue; containers drop it when they meet it.
    has_left: bool = False


@dataclasses.dataclass(eq=False)
class _Bucket:
    """The entries of one lane and padded length."""

    most_rows: int
    num_waiting: int = 0

    @property
    def is_full(self) -> bool:
        return self.num_waiting >= self.most_rows


class _ClientEntries:
    """What waits of one client."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self.arrivals: collections.deque[Entry] = collections.deque()
        # Of each lane, by padded length.
        self.by_lane: dict[Lane[Any, Any], dict[int, collections.deque[Entry]]] = {}

    def add(self, entry: Entry) -> None:
        self.num_waiting += 1
        self.arrivals.append(entry)
        if entry.lane is not None:
            by_length = self.by_lane.setdefault(entry.lane, {})
            entries = by_length.setdefault(entry.length, collections.deque())
            # Batches of one row, which share with no other text, never look at them.
            _drop_first_left(entries)
            entries.append(entry)

    def in_order(self) -> Iterator[Entry]:
        """All that wait, in the order in which they arrived."""
        _drop_first_left(self.arrivals)
        return (entry for entry in self.arrivals if not entry.has_left)

    def longest_first(self, lane: Lane[Any, Any], most: int) -> Iterator[Entry]:
        """What waits in a lane with lengths up to `most`."""
        by_length = self.by_lane.get(lane, {})
        for length in sorted((n for n in by_length if n <= most), reverse=True):
            _drop_first_left(by_length[length])
            yield from (entry for entry in by_length[length] if not entry.has_left)


class _EarliestFirst:
    """Entries by a time of theirs; those that have left are dropped now and then."""

    def __init__(self, time_of: Callable[[Entry], float]):
        self._time_of = time_of
        self._heap: list[tuple[float, int, Entry]] = []
        self._numbers = itertools.count()  # the heap compares no entries

    def add(self, entry: Entry, num_waiting: int) -> None:
        """Adds an entry to a queue that has `num_waiting`."""
        heapq.heappush(self._heap, (self._time_of(entry), next(self._numbers), entry))
        if len(self._heap) > 2 * num_waiting + 64:
            self._heap = [one for one in self._heap if not one[2].has_left]
            heapq.heapify(self._heap)

    def first(self) -> Entry | None:
        """The earliest that waits."""
        while self._heap and self._heap[0][2].has_left:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None


class TextQueue:
    """What waits. It knows no time of its own, and is for one thread at a time.

    A call costs no more where many texts wait: it meets the texts of a batch, and not the others.
    """

    def __init__(self) -> None:
        self._num_waiting = 0
        # Of each client with something that waits, in the order of their turns.
        self._by_client: collections.OrderedDict[Hashable, _ClientEntries] = (
            collections.OrderedDict()
        )
        # How many of these clients have a number of entries.
        self._client_sizes: collections.Counter[int] = collections.Counter()
        self._buckets: dict[Lane[Any, Any], dict[int, _Bucket]] = {}
        self._num_full = 0  # buckets
        self._last_arrived = -math.inf
        self._by_due = _EarliestFirst(lambda entry: entry.due)
        self._by_deadline = _EarliestFirst(lambda entry: entry.deadline)

    def __len__(self) -> int:
        """Single texts and batches that wait."""
        return self._num_waiting

    def num_before(self, client: Hashable) -> int:
        """How many entries have their turn before a new one of `client`."""
        waiting = self._by_client.get(client)
        turns = 1 + (waiting.num_waiting if waiting else 0)
        return sum(count * min(size, turns) for size, count in self._client_sizes.items())

    def add(self, entry: Entry) -> bool:
        """Adds the last of its client; returns whether a batch can be due earlier by it."""
        earliest = self._by_due.first()
        # First, because a lane's function may raise.
        is_full = entry.lane is not None and self._count(entry, 1)
        self._num_waiting += 1
        self._last_arrived = entry.arrived
        client = self._by_client.setdefault(entry.client, _ClientEntries())
        client.add(entry)
        self._count_client(client.num_waiting - 1, client.num_waiting)
        self._by_due.add(entry, self._num_waiting)
        if entry.deadline < math.inf:
            self._by_deadline.add(entry, self._num_waiting)
        return is_full or earliest is None or entry.due < earliest.due

    def remove(self, entry: Entry) -> None:
        """Takes an entry out, such as one that is cancelled."""
        if entry.has_left:
            return
        entry.has_left = True
        self._num_waiting -= 1
        client = self._by_client[entry.client]
        client.num_waiting -= 1
        self._count_client(client.num_waiting + 1, client.num_waiting)
        if not client.num_waiting:
            del self._by_client[entry.client]
        if entry.lane is not None:
            self._count(entry, -1)

    def _count_client(self, before: int, after: int) -> None:
        """Counts that a client has `after` entries instead of `before`."""
        for size, change in ((before, -1), (after, 1)):
            if size:
                self._client_sizes[size] += change
                if not self._client_sizes[size]:
                    del self._client_sizes[size]

    def _count(self, entry: Entry, change: int) -> bool:
        """Counts an entry in or out; returns whether those of its lane and length fill a batch."""
        lane = entry.lane
        assert lane is not None
        bucket = self._buckets.get(lane, {}).get(entry.length)
        if bucket is None:
            bucket = _Bucket(lane.row_options(entry.length)[-1])
            self._buckets.setdefault(lane, {})[entry.length] = bucket
        self._num_full -= bucket.is_full
        bucket.num_waiting += change
        self._num_full += bucket.is_full
        if not bucket.num_waiting:
            del self._buckets[lane][entry.length]
            if not self._buckets[lane]:
                del self._buckets[lane]
        return bucket.is_full

    def first_due(self) -> float | None:
        """When the next text need not wait any more; None where nothing waits.

        That is when its time is over, or when no text has come for a share of that time.
        """
        entry = self._by_due.first()
        return None if entry is None else self._due(entry)

    def _due(self, entry: Entry) -> float:
        """When an entry need not wait any more, unless another comes."""
        return min(entry.due, self._last_arrived + QUIET_SHARE * (entry.due - entry.arrived))

    def take_expired(self, now: float) -> list[Entry]:
        """Takes out what is past its deadline."""
        expired = []
        while (entry := self._by_deadline.first()) is not None and entry.deadline <= now:
            self.remove(entry)
            expired.append(entry)
        return expired

    def take(self, now: float, num_takers: int = 1) -> list[Entry]:
        """The next batch: of the first client with a text that is due. It waits no longer.

        Args:
          now: by the clock of the entries.
          num_takers: batches that can be computed at once now, which share what waits.
        """
        first_due = self.first_due()
        if first_due is None or (first_due > now and not self._num_full):
            return []
        for client, waiting in self._by_client.items():
            first = next((e for e in waiting.in_order() if self._is_due(e, now)), None)
            if first is not None:
                self._by_client.move_to_end(client)
                entries = [first] if first.lane is None else self._batch_of(first, num_takers)
                for entry in entries:
                    self.remove(entry)
                return entries
        return []

    def _is_due(self, entry: Entry, now: float) -> bool:
        if entry.lane is None or self._due(entry) <= now:
            return True
        return self._buckets[entry.lane][entry.length].is_full

    def _batch_of(self, first: Entry, num_takers: int) -> list[Entry]:
        """`first`, and what shares its batch: an item of each client in turn, longest first."""
        length, num_items = self._cheapest_size(first, num_takers)
        others = (entry for entry in self._in_turns(first, length) if entry is not first)
        return [first, *itertools.islice(others, num_items - 1)]

    def _cheapest_size(self, first: Entry, num_takers: int) -> tuple[int, int]:
        """Longest item and number of items of the batch with `first` that takes least time an item.

        Of those that take the same, it is the one with most items.
        """
        lane = first.lane
        assert lane is not None
        sizes: list[tuple[float, int, int]] = []
        num_possible = 0
        for length, bucket in sorted(self._buckets[lane].items()):
            num_possible += bucket.num_waiting
            if length >= first.length:
                share = math.ceil(num_possible / num_takers)
                for num_items, rows in used_rows(share, lane.row_options(length)):
                    cost = length * (lane.step_rows + rows) / num_items
                    sizes.append((cost, -num_items, length))
        _, negative_items, length = min(sizes)
        return length, -negative_items

    def _in_turns(self, first: Entry, length: int) -> Iterator[Entry]:
        """What may share the batch of `first`, whose client has had its first turn by it.

        Args:
          first: of the batch.
          length: of the longest item.
        """
        assert first.lane is not None
        later = []
        for client, waiting in self._by_client.items():
            entries = waiting.longest_first(first.lane, length)
            if client != first.client:
                entry = next(entries, None)
                if entry is None:
                    continue
                yield entry
            later.append(entries)
        while later:
            for entries in list(later):
                entry = next(entries, None)
                while entry is first:
                    entry = next(entries, None)
                if entry is None:
                    later.remove(entries)
                else:
                    yield entry


def _drop_first_left(entries: collections.deque[Entry]) -> None:
    """Drops entries at the beginning that have left the queue."""
    while entries and entries[0].has_left:
        entries.popleft()


def used_rows(num_waiting: int, options: Sequence[int]) -> list[tuple[int, int]]:
    """How many of those that wait a batch can have, with its rows: all, or no padding.

    Args:
      num_waiting: at least 1.
      options: numbers of rows, rising.
    """
    index = bisect.bisect_left(options, num_waiting)
    used = [(options[index - 1], options[index - 1])] if index > 0 else []
    if index < len(options):
        used.append((num_waiting, options[index]))
    return used
