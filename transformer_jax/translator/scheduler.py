"""The scheduler of the process: texts of all callers form batches, which take turns on the device.

A caller gives batches (`Scheduler.run`) or single texts (`Scheduler.submit`). A single text waits a
moment for others that can share its batch.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from transformer_jax.translator.batching import Batch
from transformer_jax.translator.text_queue import (
    DeadlineError,
    Entry,
    Lane,
    QueueFullError,
    TextQueue,
)

# Batches that run at once: while one waits for its last product, another's products run.
NUM_WORKERS = 2
IDLE_SECONDS = 0.05  # that a thread stays for the next text, which costs less than another thread
LONGEST_WAIT = 0.5  # seconds until a thread that waits looks whether the process is ending

Item = TypeVar("Item")
Result = TypeVar("Result")


WEIGHT = 0.2  # of the last batch, in averages that forget
MARGIN = 1.4  # batches vary, and what is accepted has to be in time
# After which averages are forgotten, with the time of two batches. A busy scheduler renews them
# with each batch; one that refuses all that comes, because of former times, never would.
OLD_SECONDS = 5.0


class WaitEstimate:
    """Averages of the batches of a busy scheduler.

    Only batches that left texts waiting count. Others may be small, which says nothing of what the
    device can do.

    Args:
      num_workers: batches that run at once.
    """

    def __init__(self, num_workers: int):
        self._num_workers = num_workers
        self._batch_seconds = self._text_seconds = 0.0
        self._added: float | None = None  # when the last batch was; None: nothing is known

    def add(self, num_texts: int, seconds: float, now: float) -> None:
        """Counts a batch that has left texts waiting, now."""
        text_seconds = seconds / (num_texts * self._num_workers)
        weight = 1.0 if self._added is None else WEIGHT
        self._batch_seconds += weight * (seconds - self._batch_seconds)
        self._text_seconds += weight * (text_seconds - self._text_seconds)
        self._added = now

    def seconds(self, num_before: int, now: float) -> float:
        """Seconds until the result of a text: those before it, a batch that runs, and its own.

        It has a margin. It is 0 where no text waits before it, or where nothing is known.
        """
        if self._added is not None and now - self._added > OLD_SECONDS + 2 * self._batch_seconds:
            self._added = None
        if not num_before or self._added is None:
            return 0.0
        return MARGIN * (num_before * self._text_seconds + 2 * self._batch_seconds)


@dataclasses.dataclass(frozen=True)
class BatchReport:
    """A batch of single texts that was computed; times are in seconds.

    Attributes:
      rows: of the batch, with those that are padding.
      length: padded.
      sizes: tokens of each text.
      waited: of each text, before the batch.
      seconds: that the batch took.
    """

    rows: int
    length: int
    sizes: Sequence[int]
    waited: Sequence[float]
    seconds: float


class Scheduler:
    """Runs the batches of all callers.

    Args:
      num_workers: threads, which are batches that run at once.
      clock: seconds, rising.
    """

    def __init__(self, num_workers: int = NUM_WORKERS, clock: Callable[[], float] = time.monotonic):
        # Called after each batch of single texts, as long as there is something to call.
        self._listeners: list[Callable[[], Callable[[BatchReport], None] | None]] = []
        self._num_workers, self._clock = num_workers, clock
        self._changed = threading.Condition()
        self._queue = TextQueue()
        self._wait_estimate = WaitEstimate(num_workers)
        self._num_active = self._num_busy = 0  # threads

    @property
    def num_waiting(self) -> int:
        """Single texts and whole batches that wait."""
        with self._changed:
            return len(self._queue)

    def add_listener(self, listener: Callable[[], Callable[[BatchReport], None] | None]) -> None:
        """Lets each batch of single texts be reported.

        Args:
          listener: gives what is called with the report, or None once it is gone; such as a
            `weakref.WeakMethod`.
        """
        alive = [one for one in self._listeners if one() is not None]
        self._listeners = [*alive, listener]

    def submit(
        self,
        lane: Lane[Item, Result],
        item: Item,
        length: int,
        size: int = 0,
        client: Hashable = None,
        wait_seconds: float = 0.0,
        deadline: float = math.inf,
        max_waiting: float = math.inf,
    ) -> concurrent.futures.Future[Result]:
        """The future result of an item. Cancelling it takes it out of the queue.

        Args:
          lane: of the item.
          item: given to `lane.run`.
          length: of its batch, padded; batches may be longer.
          size: its tokens, for `BatchReport`.
          client: whose turn it takes.
          wait_seconds: how long it waits for others to share its batch.
          deadline: by the clock; the item is not begun after it, and its future raises
            `DeadlineError`.
          max_waiting: how many may wait before it.

        Raises:
          QueueFullError: more than `max_waiting` wait, or its result would be there after
            `deadline`, judged by the batches before.
        """
        now = self._clock()
        entry = Entry(
            client,
            concurrent.futures.Future(),
            now,
            now + wait_seconds,
            deadline,
            lane,
            item,
            length,
            size,
        )
        self._add(entry, max_waiting)
        return entry.future

    def run(
        self,
        function: Callable[..., Result],
        calls: Iterable[tuple[Any, ...]],
        num_ahead: int | None = None,
    ) -> Iterator[Result]:
        """Results of `function`, which computes whole batches, for each of `calls`, in order.

        `function` may not call the scheduler itself.

        Args:
          function: to run.
          calls: its arguments, of each call.
          num_ahead: calls that the threads begin before the result of an earlier one is there;
            None: as many as there are threads.
        """
        num_ahead = self._num_workers if num_ahead is None else num_ahead
        client = object()
        running: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            for arguments in calls:
                running.append(self._submit_call(client, function, arguments))
                if len(running) > num_ahead:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()

    def _submit_call(
        self, client: Hashable, function: Callable[..., Result], arguments: tuple[Any, ...]
    ) -> concurrent.futures.Future[Result]:
        now = self._clock()
        entry = Entry(
            client,
            concurrent.futures.Future(),
            now,
            due=now,
            call=lambda: function(*arguments),
        )
        self._add(entry, math.inf)
        return entry.future

    def check_room(self, client: Hashable, deadline: float, max_waiting: float) -> None:
        """Refuses an item as `submit` would, before any work is done for it.

        Raises:
          QueueFullError: as of `submit`.
        """
        with self._changed:
            self._check_room(client, self._clock(), deadline, max_waiting)

    def _check_room(
        self, client: Hashable, now: float, deadline: float, max_waiting: float
    ) -> None:
        num_waiting = len(self._queue)
        if num_waiting >= max_waiting:
            raise QueueFullError(f"{num_waiting} texts wait already; try again later.")
        wait = self._wait_estimate.seconds(self._queue.num_before(client), now)
        if wait and now + wait > deadline:
            raise QueueFullError(
                f"{num_waiting} texts wait already, for about {wait:.1f} s; try again later.",
                retry_seconds=wait,
            )

    def _add(self, entry: Entry, max_waiting: float) -> None:
        with self._changed:
            self._check_room(entry.client, entry.arrived, entry.deadline, max_waiting)
            if self._queue.add(entry):
                self._changed.notify()
            if self._num_active < self._num_workers:
                try:
                    # No daemon: the process ends when all that waits is computed.
                    threading.Thread(target=self._work, name="transformer_jax_batch").start()
                except RuntimeError:  # the interpreter is ending
                    self._queue.remove(entry)
                    raise
                self._num_active += 1
        entry.future.add_done_callback(functools.partial(self._free_place, [entry]))

    def _free_place(self, place: list[Entry], future: concurrent.futures.Future[Any]) -> None:
        """Takes the entry of a place out of the queue if its future was cancelled."""
        # A future keeps its callbacks, and would refer to itself by them and the entry.
        entry = place.pop()
        if future.cancelled():
            with self._changed:
                self._queue.remove(entry)

    def _work(self) -> None:
        """Runs batches until nothing waits."""
        while self._run_next_batch():
            pass

    def _run_next_batch(self) -> bool:
        """Whether there was one. A function, so that a thread that waits holds no model."""
        entries = self._next_batch()
        if not entries:
            return False
        if entries[0].call is not None:
            _run_call(entries[0])
        else:
            self._run_items(entries)
        with self._changed:
            self._num_busy -= 1
        return True

    def _next_batch(self) -> list[Entry]:
        """What to compute next; waits for it. Nothing where the thread is not needed any more."""
        while True:
            with self._changed:
                now = self._clock()
                expired = self._queue.take_expired(now)
                # Where the main thread has ended, the process waits for the last results.
                is_ending = not threading.main_thread().is_alive()
                entries = (
                    []
                    if expired
                    else self._queue.take(
                        math.inf if is_ending else now, self._num_workers - self._num_busy
                    )
                )
                started = [e for e in entries if e.future.set_running_or_notify_cancel()]
                if started:
                    self._num_busy += 1
                    return started
                if not entries and not expired:
                    first_due = self._queue.first_due()
                    if first_due is None:
                        if not is_ending and self._changed.wait(IDLE_SECONDS):
                            continue
                        if len(self._queue) == 0:
                            self._num_active -= 1
                            return []
                        continue
                    self._changed.wait(min(max(0.0, first_due - now), LONGEST_WAIT))
            while expired:  # without the lock, because this calls functions of callers
                _expire(expired.pop(0), now)

    def _run_items(self, entries: Sequence[Entry]) -> None:
        try:
            results = self._results(entries)
        except BaseException as error:
            for entry in entries:
                entry.future.set_exception(error)
            return
        for entry, result in zip(entries, results, strict=True):
            entry.future.set_result(result)

    def _results(self, entries: Sequence[Entry]) -> Sequence[Any]:
        """The result of each of a batch's entries; reports the batch."""
        lane, length = entries[0].lane, max(entry.length for entry in entries)
        assert lane is not None
        rows = next(n for n in lane.row_options(length) if n >= len(entries))
        started = self._clock()
        batch = Batch(list(range(len(entries))), rows, length)
        results = lane.run(batch, [entry.item for entry in entries])
        if len(results) != len(entries):
            raise ValueError(f"{len(results)} results for {len(entries)} items")
        ended = self._clock()
        seconds = ended - started
        with self._changed:
            if len(self._queue):
                self._wait_estimate.add(len(entries), seconds, ended)
        if listeners := list(filter(None, [one() for one in self._listeners])):
            sizes = [entry.size for entry in entries]
            waited = [started - entry.arrived for entry in entries]
            report = BatchReport(rows, length, sizes, waited, seconds)
            for listener in listeners:
                try:
                    listener(report)
                except Exception:
                    logging.exception("a listener of the scheduler failed")
        return results


def _expire(entry: Entry, now: float) -> None:
    if entry.future.set_running_or_notify_cancel():
        waited = 1000 * (now - entry.arrived)
        entry.future.set_exception(DeadlineError(f"not begun within {waited:.0f} ms."))


def _run_call(entry: Entry) -> None:
    assert entry.call is not None
    try:
        result = entry.call()
    except BaseException as error:
        entry.future.set_exception(error)
    else:
        entry.future.set_result(result)


class _Process:
    """The process's scheduler; a child of `os.fork` has none of its parent's threads."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.scheduler = Scheduler()


_process = _Process()


def of_process() -> Scheduler:
    """The scheduler that all callers of the process share."""
    return _process.scheduler
