"""Engines that are compared, each in a process of its own."""

import multiprocessing
from collections.abc import Callable
from typing import Any


def _serve(connection, make: Callable[..., Any], args: tuple) -> None:
    served = make(*args)
    while True:
        method, args = connection.recv()
        if method == "close":
            return
        connection.send(getattr(served, method)(*args))


class Worker:
    """What `make(*args)` gives, in a fresh process, asked one thing at a time."""

    def __init__(self, make: Callable[..., Any], *args: Any):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, args))
        self.process.start()
        theirs.close()

    def call(self, method: str, *args: Any) -> Any:
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

    def __exit__(self, *exception) -> None:
        self.close()
