"""The threads that run batches: one pool for the process, whoever translates."""

import concurrent.futures
import os
from collections.abc import Callable
from typing import Any

import jax

# Programs that run at once: while one waits for its last product, another's runs.
NUM_WORKERS = 2


class _Pool:
    """The process's pool; a child of `os.fork` has none of its parent's threads."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.threads = concurrent.futures.ThreadPoolExecutor(NUM_WORKERS, "transformer_jax_batch")


_pool = _Pool()


def submit(
    device: jax.Device, precision: str | None, function: Callable[..., Any], *args: Any
) -> concurrent.futures.Future:
    """Has one of the threads run `function`, which must not submit itself.

    Args:
      device: JAX's default device meanwhile, which threads do not inherit.
      precision: of products, likewise.
      function: to run.
      *args: its arguments.
    """

    def run() -> Any:
        with jax.default_device(device), jax.default_matmul_precision(precision):
            return function(*args)

    return _pool.threads.submit(run)
