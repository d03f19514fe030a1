"""The threads that run batches: one pool for all users in the process."""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax

# Programs that run at once: while one waits for its last product, another's runs.
NUM_WORKERS = 2

Result = TypeVar("Result")


class _Pool:
    """The process's pool; a child of `os.fork` has none of its parent's threads."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.threads = concurrent.futures.ThreadPoolExecutor(NUM_WORKERS, "transformer_jax_batch")


_pool = _Pool()


def run(
    device: jax.Device,
    precision: str | None,
    function: Callable[..., Result],
    calls: Iterable[tuple[Any, ...]],
) -> Iterator[Result]:
    """Results of `function` for each of `calls`, in order; the threads are a few calls ahead.

    The calls of several users take turns. `function` may not call `run` itself.

    Args:
      device: JAX's default device for `function`; threads do not inherit the caller's.
      precision: of matrix products, likewise.
      function: to run.
      calls: its arguments, of each call.
    """

    def call(arguments: tuple[Any, ...]) -> Result:
        with jax.default_device(device), jax.default_matmul_precision(precision):
            return function(*arguments)

    running: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
    try:
        for arguments in calls:
            running.append(_pool.threads.submit(call, arguments))
            if len(running) > NUM_WORKERS:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()
