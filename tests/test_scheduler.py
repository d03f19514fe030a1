"""The scheduler: which texts share a batch, whose turn it is, deadlines, and a queue that ends."""

import concurrent.futures
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from transformer_jax.translator import scheduler as scheduler_module
from transformer_jax.translator.futures import gather
from transformer_jax.translator.scheduler import Scheduler
from transformer_jax.translator.text_queue import (
    DeadlineError,
    Entry,
    Lane,
    QueueFullError,
    TextQueue,
)

FOREVER = 1e9


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Recorder:
    """A lane of batches of 1, 2 or 4 rows; it records them, and upper-cases their texts."""

    def __init__(self, key="lane"):
        self.batches = []
        self.lane = Lane(key, lambda length: (1, 2, 4), self._run, step_rows=4.0)

    def _run(self, batch, items):
        self.batches.append((batch.rows, batch.length, list(items)))
        return [item.upper() for item in items]


class Busy:
    """Keeps the scheduler's only thread until the block ends; what is submitted there waits."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self._begun, self._end = threading.Event(), threading.Event()

    def _hold(self):
        self._begun.set()
        assert self._end.wait(60)

    def __enter__(self):
        self._thread = threading.Thread(
            target=lambda: list(self._scheduler.run(self._hold, [()])), daemon=True
        )
        self._thread.start()
        assert self._begun.wait(60)

    def __exit__(self, *_):
        self._end.set()
        self._thread.join(60)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def scheduler(clock):
    return Scheduler(num_workers=1, clock=clock)


def test_scheduler_puts_texts_that_wait_into_one_batch(scheduler):
    recorder = Recorder()
    with Busy(scheduler):
        futures = [scheduler.submit(recorder.lane, text, 8) for text in "abcdef"]
        assert scheduler.num_waiting == 6
    assert [future.result(60) for future in futures] == list("ABCDEF")
    assert recorder.batches == [(4, 8, list("abcd")), (2, 8, list("ef"))]
    assert scheduler.num_waiting == 0


def test_scheduler_fills_a_batch_with_shorter_texts_longest_first(scheduler):
    recorder, other = Recorder(), Recorder("other")
    with Busy(scheduler):
        futures = [
            scheduler.submit(lane.lane, text, length)
            for lane, text, length in (
                (recorder, "a", 16),
                (recorder, "long", 24),
                (recorder, "b", 8),
                (other, "x", 16),
                (recorder, "c", 16),
            )
        ]
    for future in futures:
        future.result(60)
    # "a" comes first, so the longer one has a batch of its own, and so has the other lane.
    assert recorder.batches == [(4, 16, ["a", "c", "b"]), (1, 24, ["long"])]
    assert other.batches == [(1, 16, ["x"])]


def test_scheduler_gives_clients_turns_in_a_batch_and_between_batches(scheduler):
    recorder = Recorder()
    with Busy(scheduler):
        book = [scheduler.submit(recorder.lane, f"b{i}", 8, client="book") for i in range(9)]
        sentence = scheduler.submit(recorder.lane, "s", 8, client="one")
        two = [scheduler.submit(recorder.lane, f"t{i}", 8, client="two") for i in range(2)]
        batch = scheduler._submit_call("other", recorder.batches.append, ("a call",))
    for future in (*book, sentence, *two, batch):
        future.result(60)
    assert recorder.batches == [
        (4, 8, ["b0", "s", "t0", "t1"]),
        "a call",
        (4, 8, ["b1", "b2", "b3", "b4"]),
        (4, 8, ["b5", "b6", "b7", "b8"]),
    ]


def test_scheduler_waits_for_a_full_batch_or_for_the_time_given(scheduler, clock):
    recorder, other = Recorder(), Recorder("other")
    first = scheduler.submit(recorder.lane, "a", 8, wait_seconds=5)
    assert not first.done()
    rest = [scheduler.submit(recorder.lane, text, 8, wait_seconds=FOREVER) for text in "bcd"]
    assert first.result(60) == "A"  # four are a full batch
    fifth = scheduler.submit(recorder.lane, "e", 8, wait_seconds=5)
    clock.now = 1.0
    scheduler.submit(other.lane, "x", 8).result(60)  # wakes the thread
    assert not fifth.done()
    clock.now = 6.0
    scheduler.submit(other.lane, "y", 8).result(60)
    assert fifth.result(60) == "E"
    assert [future.result(60) for future in rest] == list("BCD")
    assert recorder.batches == [(4, 8, list("abcd")), (1, 8, ["e"])]


def test_scheduler_drops_expired_and_cancelled_texts(scheduler, clock):
    recorder = Recorder()
    with Busy(scheduler):
        kept = scheduler.submit(recorder.lane, "a", 8, deadline=3.5)
        cancelled = scheduler.submit(recorder.lane, "b", 8)
        expired = scheduler.submit(recorder.lane, "c", 8, deadline=2.5)
        assert cancelled.cancel()
        clock.now = 3.0
    assert kept.result(60) == "A"
    with pytest.raises(DeadlineError, match="not begun within 3000 ms"):
        expired.result(60)
    assert recorder.batches == [(1, 8, ["a"])]


def test_scheduler_refuses_more_than_may_wait(scheduler):
    recorder = Recorder()
    with Busy(scheduler):
        future = scheduler.submit(recorder.lane, "a", 8, max_waiting=1)
        with pytest.raises(QueueFullError, match="1 texts wait already"):
            scheduler.submit(recorder.lane, "b", 8, max_waiting=1)
        future.cancel()
        # A cancelled text has left when the next one comes.
        again = scheduler.submit(recorder.lane, "c", 8, max_waiting=1)
    assert again.result(60) == "C"


def test_scheduler_refuses_what_would_be_late(scheduler, clock):
    def run(batch, items):
        clock.now += 2.0
        return items

    lane = Lane("slow", lambda length: (2,), run)

    def submit(client, seconds):
        return scheduler.submit(lane, "a", 8, client=client, deadline=clock.now + seconds)

    with Busy(scheduler):
        # Nothing is known yet: nothing is refused.
        first = [submit("book", 5.0) for _ in range(4)]
    for future in first:
        future.result(60)
    # Of these two batches, the first left texts waiting: a batch takes 2 s, a text 1 s.
    with Busy(scheduler):
        texts = [submit("book", 0.1)]  # nothing waits before it
        texts += [submit("book", 100.0) for _ in range(2)]
        # 3 texts wait, a batch may run, and then its own does: 7 s, and a margin of 40%.
        with pytest.raises(QueueFullError, match=r"3 texts wait .* 9\.8 s") as info:
            submit("book", 9.7)
        assert info.value.retry_seconds == pytest.approx(9.8)
        texts.append(submit("book", 9.9))
        # One text of the book has its turn before those of another client.
        texts.append(submit("sentence", 7.1))
        with pytest.raises(QueueFullError):
            submit("third", 8.3)  # one of the book, and one of the other
    for future in texts:
        future.result(60)
    # Of a former busy time, nothing is known any more: both texts of a client are accepted.
    clock.now += 60.0
    with Busy(scheduler):
        texts = [submit("page", 1.0) for _ in range(2)]
    assert [future.result(60) for future in texts] == ["a", "a"]


def test_scheduler_gives_an_error_to_each_text_of_the_batch_and_goes_on(scheduler):
    def fail(batch, items):
        raise ZeroDivisionError(f"{len(items)} texts")

    recorder = Recorder()
    with Busy(scheduler):
        failing = [scheduler.submit(Lane("fails", lambda _: (4,), fail), i, 8) for i in range(2)]
        fine = scheduler.submit(recorder.lane, "a", 8)
    for future in failing:
        with pytest.raises(ZeroDivisionError, match="2 texts"):
            future.result(60)
    assert fine.result(60) == "A"


def test_scheduler_reports_batches(scheduler, clock):
    recorder, reports = Recorder(), []
    scheduler.add_listener(lambda: reports.append)
    with Busy(scheduler):
        futures = [
            scheduler.submit(recorder.lane, text, n, n - 1) for text, n in (("a", 16), ("b", 8))
        ]
        futures.append(scheduler.submit(recorder.lane, "c", 8))
        clock.now = 2.0
    for future in futures:
        future.result(60)
    (report,) = reports
    assert (report.rows, report.length, list(report.sizes)) == (4, 16, [15, 7, 0])
    assert list(report.waited) == [2.0, 2.0, 2.0]


def test_scheduler_goes_on_where_a_listener_or_a_lane_fails(scheduler, caplog):
    recorder = Recorder()

    def fail(*_):
        raise ZeroDivisionError("a listener")

    scheduler.add_listener(lambda: fail)
    assert scheduler.submit(recorder.lane, "a", 8).result(60) == "A"
    assert "a listener" in caplog.text
    with pytest.raises(ZeroDivisionError):
        scheduler.submit(Lane("no rows", fail, recorder.lane.run), "b", 8)
    assert scheduler.num_waiting == 0
    short = scheduler.submit(Lane("short", lambda _: (4,), lambda batch, items: []), "c", 8)
    with pytest.raises(ValueError, match="0 results for 1 items"):
        short.result(60)
    assert scheduler.submit(recorder.lane, "d", 8).result(60) == "D"


def test_scheduler_holds_no_model_while_a_thread_waits(monkeypatch):
    class Model:
        pass

    monkeypatch.setattr(scheduler_module, "IDLE_SECONDS", 30.0)
    scheduler, model, freed = Scheduler(1), Model(), threading.Event()
    weakref.finalize(model, freed.set)
    assert list(scheduler.run(lambda model: 1, [(model,)])) == [1]
    del model
    assert freed.wait(10)
    monkeypatch.undo()
    assert list(scheduler.run(lambda: 2, [()])) == [2]  # wakes the thread, which then ends


def test_scheduler_calls_functions_of_callers_without_its_lock(scheduler, clock):
    """A callback that waits for another thread must not stop that thread."""
    recorder, answers = Recorder(), []

    def ask_another_thread(_):
        other = threading.Thread(
            target=lambda: answers.append(scheduler.submit(recorder.lane, "b", 8)), daemon=True
        )
        other.start()
        other.join(20)

    with Busy(scheduler):
        expired = scheduler.submit(recorder.lane, "a", 8, deadline=1.0)
        expired.add_done_callback(ask_another_thread)
        clock.now = 2.0
    with pytest.raises(DeadlineError):
        expired.result(60)
    concurrent.futures.wait([expired])
    while not answers:
        scheduler.submit(recorder.lane, "c", 8).result(60)
    assert answers[0].result(60) == "B"


class CountingLane(Lane):
    """A lane that counts how often it is compared or hashed."""

    calls = 0

    def __eq__(self, other):
        CountingLane.calls += 1
        return self is other

    def __hash__(self):
        CountingLane.calls += 1
        return 1


@pytest.mark.parametrize("num_clients", [1, 10])
def test_queue_meets_the_texts_of_a_batch_and_not_all_that_wait(num_clients, monkeypatch):
    lane = CountingLane("lane", lambda length: (1, 2, 4), None)
    queue = TextQueue()

    def entry(i):
        future = concurrent.futures.Future()
        return Entry(i % num_clients, future, 0.0, 1.0, 100.0, lane, i, 8 * (i % 4 + 1))

    entries = [entry(i) for i in range(4000)]
    for one in entries:
        queue.add(one)
    met = set()
    has_left = property(lambda e: met.add(e) or e.gone, lambda e, value: setattr(e, "gone", value))
    for one in entries:
        one.gone = False
    monkeypatch.setattr(Entry, "has_left", has_left)
    CountingLane.calls = 0
    assert len(queue.take(2.0)) == 4
    assert queue.take_expired(2.0) == []
    queue.remove(entries[1000])
    assert len(queue) == 3995
    assert len(met) < 40 + 4 * num_clients
    assert CountingLane.calls < 40 + 4 * num_clients


def test_queue_forgets_what_has_left():
    queue, recorder = TextQueue(), Recorder()
    for i in range(2000):
        one = Entry(None, concurrent.futures.Future(), 0.0, 5.0, 1e6, recorder.lane, i, 8)
        queue.add(one)
        queue.remove(one)
    assert len(queue) == 0
    assert not queue._by_client
    assert not queue._buckets
    assert len(queue._by_deadline._heap) < 100
    assert len(queue._by_due._heap) < 100


def test_queue_keeps_nothing_that_was_taken_of_a_client_that_always_waits():
    """Batches of one row meet no other text, so only `add` can drop what has left."""
    queue, lane = TextQueue(), Lane("lane", lambda length: (1,), None)
    for i in range(2000):
        queue.add(Entry(None, concurrent.futures.Future(), 0.0, 0.0, 1e6, lane, i, 8))
        assert i == 0 or len(queue.take(1.0)) == 1
    assert len(queue) == 1
    (waiting,) = queue._by_client.values()
    assert len(waiting.by_lane[lane][8]) < 10
    assert len(waiting.arrivals) < 10


def test_process_ends_although_a_text_waits_for_others():
    program = """
from transformer_jax.translator.scheduler import of_process
from transformer_jax.translator.text_queue import Lane
lane = Lane("lane", lambda length: (4,), lambda batch, items: items)
future = of_process().submit(lane, "translated", 8, wait_seconds=3600)
future.add_done_callback(lambda f: print(f.result()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "translated\n"


def entry(lane, name, length, arrived=0.0, wait=0.0):
    future = concurrent.futures.Future()
    return Entry("client", future, arrived, arrived + wait, lane=lane, item=name, length=length)


def batch_lengths(options, step_rows, lengths, num_takers=1):
    """Lengths of the batch that a queue of items gives; the first item arrives first."""
    queue = TextQueue()
    lane = Lane("lane", lambda length: options, None, step_rows)
    for index, length in enumerate(lengths):
        queue.add(entry(lane, index, length))
    return [one.length for one in queue.take(1.0, num_takers)]


@pytest.mark.parametrize(
    ("num_waiting", "step_rows", "used"),
    [
        # Rows and the cost of a step, over texts: 17 / 12 with all in 16 rows, 5 / 4 without.
        (12, 1.0, 4),
        (14, 1.0, 14),  # 17 / 14 and 5 / 4
        (16, 1.0, 16),
        (40, 1.0, 16),
        (3, 1.0, 3),  # 5 / 3 and 2 / 1
        (8, 16.0, 8),  # 32 / 8 and 20 / 4
        (5, 16.0, 4),  # 32 / 5 and 20 / 4
    ],
)
def test_batch_has_the_rows_that_take_least_time_a_text(num_waiting, step_rows, used):
    assert len(batch_lengths((1, 4, 16), step_rows, [8] * num_waiting)) == used


def test_batch_is_longer_than_its_first_text_where_that_fills_it():
    # 16 positions of 1 + 4 rows for one text, or 24 of as many for four.
    assert batch_lengths((4, 8), 1.0, [16, 24, 24, 24]) == [16, 24, 24, 24]
    # 8 positions for four texts are less a text than 128 for five.
    assert batch_lengths((4, 8), 1.0, [8, 8, 8, 8, 128]) == [8, 8, 8, 8]


def test_texts_that_wait_are_shared_by_all_who_are_free():
    assert len(batch_lengths(range(1, 17), 1.0, [8] * 8, num_takers=2)) == 4
    assert len(batch_lengths(range(1, 17), 1.0, [8] * 9, num_takers=2)) == 5
    assert len(batch_lengths(range(1, 17), 1.0, [8] * 8, num_takers=1)) == 8


def test_text_waits_no_longer_where_no_other_comes():
    queue, lane = TextQueue(), Lane("lane", lambda length: (4,), None)
    queue.add(entry(lane, "a", 8, arrived=0.0, wait=8.0))
    assert queue.first_due() == 2.0  # a quarter of the time
    queue.add(entry(lane, "b", 8, arrived=1.0, wait=8.0))
    assert queue.first_due() == 3.0
    assert queue.take(2.5) == []
    queue.add(entry(lane, "c", 8, arrived=7.0, wait=8.0))
    assert queue.first_due() == 8.0  # the first has waited long enough
    assert [one.item for one in queue.take(8.0)] == ["a", "b", "c"]


def test_whole_batches_are_a_few_calls_ahead_and_end_with_their_reader(scheduler):
    started = []
    results = scheduler.run(lambda i: started.append(i) or i * 10, ((i,) for i in range(100)))
    assert [next(results) for _ in range(3)] == [0, 10, 20]
    results.close()
    concurrent.futures.wait([scheduler._submit_call("last", lambda: None, ())])
    assert len(started) <= 5


# --- Futures of several parts ---------------------------------------------------------------------


def futures(count):
    return [concurrent.futures.Future() for _ in range(count)]


def test_gather_combines_results_in_order():
    parts = futures(3)
    joined = gather(parts, "".join)
    for part, text in zip(parts[::-1], "cba", strict=True):
        assert not joined.done()
        part.set_result(text)
    assert joined.result(0) == "abc"
    assert gather([], len).result(0) == 0


def test_gather_cancels_the_other_parts_where_one_fails_or_all_are_cancelled():
    parts = futures(3)
    joined = gather(parts, "".join)
    parts[0].set_result("a")
    parts[1].set_exception(ZeroDivisionError("b"))
    assert parts[2].cancelled()
    with pytest.raises(ZeroDivisionError, match="b"):
        joined.result(0)
    parts = futures(2)
    assert gather(parts, "".join).cancel()
    assert all(part.cancelled() for part in parts)
    parts = futures(2)
    joined = gather(parts, "".join)
    parts[1].cancel()
    assert joined.cancelled()
    assert parts[0].cancelled()


def test_futures_do_not_refer_to_themselves():
    """A server collects garbage of all ages rarely, so a request may leave none."""
    scheduler, lane = Scheduler(1), Recorder().lane
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)  # what refers to itself is kept in gc.garbage
    try:
        for _ in range(3):
            assert gather([scheduler.submit(lane, "a", 1)], "".join).result(60) == "A"
        with Busy(scheduler):
            assert gather([scheduler.submit(lane, text, 1) for text in "ab"], "".join).cancel()
        failed = futures(2)
        joined = gather(failed, "".join)
        failed[0].set_exception(ZeroDivisionError())
        assert joined.exception(0)
        del failed, joined
        gc.collect()
        assert not [one for one in gc.garbage if isinstance(one, concurrent.futures.Future)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_gather_fails_where_its_parts_cannot_be_combined():
    (part,) = futures(1)
    joined = gather([part], lambda results: results[3])
    part.set_result("a")
    with pytest.raises(IndexError):
        joined.result(0)


def test_gather_looks_at_each_part_a_few_times():
    class Part(concurrent.futures.Future):
        num_looks = 0

        def cancelled(self):
            Part.num_looks += 1
            return super().cancelled()

        def done(self):
            Part.num_looks += 1
            return super().done()

    parts = [Part() for _ in range(300)]
    joined = gather(parts, len)
    for part in parts:
        part.set_result(1)
    assert joined.result(0) == 300
    assert Part.num_looks < 5 * len(parts)
