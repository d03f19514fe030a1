"""Runs a function on many tasks, in this process, in several, or on the machines of a Ray cluster.

Results come in the order of the tasks, whichever is done first. A function and its tasks have to be
picklable. Processes that die are replaced, and their tasks run again.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Generic, TypeVar

from transformer_jax.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

ATTEMPTS = 3  # of a task whose process dies
QUEUED = 2  # tasks that wait, which may be blocks of text


@dataclasses.dataclass(frozen=True)
class Workers:
    """What runs tasks.

    Attributes:
      num: processes of this machine; 1 runs everything in this process.
      ray: address of a Ray cluster that runs the tasks instead, `auto` for the one that this
        machine belongs to; empty: none.
    """

    num: int = 1
    ray: str = ""

    @classmethod
    def of(cls, asked: int) -> "Workers":
        """`asked` processes; 0: one for each core that this process may use."""
        return cls(asked or len(os.sched_getaffinity(0)))

    def __call__(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[Result]:
        """Yields `function(task)` for each task, in order.

        Args:
          function: what to run; a function of a module, or an instance of a class of one.
          tasks: read as they are needed, a few ahead.

        Raises:
          UserError: the processes of a task die `ATTEMPTS` times.
          Exception: whatever `function` raises.
        """
        tasks = iter(tasks)
        first = list(itertools.islice(tasks, 2))
        tasks = itertools.chain(first, tasks)
        if self.ray:
            from transformer_jax.data import ray_tasks

            yield from ray_tasks.run(function, tasks, self.ray)
        elif self.num == 1 or len(first) < 2:  # a process would take longer to start
            yield from map(function, tasks)
        else:
            with contextlib.closing(_Pool(function, self.num)) as pool:
                yield from pool.map(tasks)


IN_THIS_PROCESS = Workers()


class _Pool(Generic[Task, Result]):
    """Processes that run one function."""

    def __init__(self, function: Callable[[Task], Result], num_workers: int):
        self._function, self._num_workers = function, num_workers
        self._executor = self._start()

    def _start(self) -> concurrent.futures.ProcessPoolExecutor:
        # Not forked: this process has threads of JAX.
        context = multiprocessing.get_context("spawn")
        return concurrent.futures.ProcessPoolExecutor(self._num_workers, context)

    def map(self, tasks: Iterator[Task]) -> Iterator[Result]:
        """As `Workers`."""
        waiting: collections.deque[tuple[Task, concurrent.futures.Future[Result]]]
        waiting = collections.deque()
        failures = 0
        while True:
            room = self._num_workers + QUEUED - len(waiting)
            for task in itertools.islice(tasks, room):
                waiting.append((task, self._submit(task)))
            if not waiting:
                return
            try:
                result = waiting[0][1].result()
            except BrokenProcessPool as error:
                failures += 1
                if failures == ATTEMPTS:
                    raise UserError(
                        f"The processes that prepare data died {ATTEMPTS} times in a row; the "
                        "machine may be out of memory. Use fewer of them: config.data.num_workers."
                    ) from error
                logging.warning("a process that prepares data died; starting others")
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._executor = self._start()
                # Those that are done have their results already.
                waiting = collections.deque(
                    (task, future if _has_result(future) else self._submit(task))
                    for task, future in waiting
                )
                continue
            failures = 0
            waiting.popleft()
            yield result

    def _submit(self, task: Task) -> "concurrent.futures.Future[Result]":
        try:
            return self._executor.submit(self._function, task)
        except BrokenProcessPool as error:  # noticed when a result is asked for
            future: concurrent.futures.Future[Result] = concurrent.futures.Future()
            future.set_exception(error)
            return future

    def close(self) -> None:
        """Ends the processes; tasks that wait are dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _has_result(future: "concurrent.futures.Future[Result]") -> bool:
    """Whether it has ended otherwise than by the death of a process."""
    return future.done() and not isinstance(future.exception(), BrokenProcessPool)
