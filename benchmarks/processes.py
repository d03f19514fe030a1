"""Runs each engine of a comparison in a separate process."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from transformer_jax.workdir import host_memory


def _serve(
    connection: Connection, make: Callable[..., Any], args: tuple[Any, ...], keep_memory: bool
) -> None:
    if keep_memory:
        host_memory.keep_freed_memory()
    engine = make(*args)
    while True:
        method, args = connection.recv()
        if method == "close":
            return
        connection.send(getattr(engine, method)(*args))


class Worker:
    """The object `make(*args)` in a fresh process, whose methods are called one at a time.

    Args:
      make: called in the new process.
      args: of `make`.
      keep_memory: allocate as the commands do (`workdir/host_memory.py`).
    """

    def __init__(self, make: Callable[..., Any], *args: Any, keep_memory: bool = False):
        context = multiprocessing.get_context("spawn")
        self.connection, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote, make, args, keep_memory))
        self.process.start()
        remote.close()

    def call(self, method: str, *args: Any) -> Any:
        """Calls a method of the object and returns its result."""
        self.connection.send((method, args))
        while not self.connection.poll(1.0):
            if not self.process.is_alive():
                raise SystemExit(f"an engine ended with status {self.process.exitcode}")
        return self.connection.recv()

    def close(self) -> None:
        self.connection.send(("close", ()))
        self.process.join()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
