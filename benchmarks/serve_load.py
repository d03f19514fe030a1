"""The load of `benchmarks/serve.py`: clients that send a sentence a request, in one process.

Locust needs about as much processor time a request as a server does, and has no open loop. This
generator needs a tenth of that: each client is a connection that is kept, and a prepared request.
"""

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import json
import math
import random
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

FAILED = 0  # in place of a status: no answer
# After which a connection is not used again: servers close one that is idle, uvicorn after 5 s, and
# a request that is sent at that moment has no answer.
IDLE_SECONDS = 3.0


@dataclasses.dataclass(frozen=True)
class Target:
    """What requests are sent to.

    Attributes:
      port: of a server on this machine.
      path: of the route.
      bodies: of the requests, in their order; then again from the first.
    """

    port: int
    path: str
    bodies: tuple[bytes, ...]

    def requests(self) -> Iterator[bytes]:
        """Requests without end."""
        for body in itertools.cycle(self.bodies):
            head = (
                f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            yield head.encode() + body


@dataclasses.dataclass(frozen=True)
class Answer:
    """What became of a request; times in seconds from the start of the load.

    Attributes:
      due: when it was to be sent.
      sent: when it was; infinite where there was no connection.
      done: when its answer was complete.
      status: of HTTP, or `FAILED`.
      body: of the answer, where it is wanted.
    """

    due: float
    sent: float
    done: float
    status: int
    body: bytes = b""

    @property
    def seconds(self) -> float:
        """From when it was due."""
        return self.done - self.due


class Connection(asyncio.Protocol):
    """A connection to a server, for one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        self._received += data
        answer = read_answer(self._received)
        if answer is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((FAILED, b""))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to a request."""
        self._received = b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Closes it."""
        self._transport.close()


def read_answer(received: bytes) -> tuple[int, bytes] | None:
    """Status and body of an answer; None while it is not complete.

    Args:
      received: so far. Its header has a `Content-Length`.
    """
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return None
    status, *fields = head.split(b"\r\n")
    values = dict(field.lower().split(b":", 1) for field in fields)
    size = int(values[b"content-length"])
    return (int(status.split(b" ", 2)[1]), body[:size]) if len(body) >= size else None


def arrivals(rate: float, seconds: float, seed: int = 0) -> list[float]:
    """Times of a Poisson process, rising."""
    draw, times = random.Random(seed), []
    now = draw.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += draw.expovariate(rate)
    return times


class Load:
    """Sends requests; an object of a process of its own (`processes.Worker`)."""

    def ask(self, target: Target) -> list[Answer]:
        """The answers to each of the bodies, one after the other."""
        return _run(_ask_each(target))

    def closed(self, target: Target, clients: int, seconds: float) -> list[Answer]:
        """Each client sends its next request when it has its answer."""
        return _run(_closed(target, clients, seconds))

    def open(self, target: Target, times: Sequence[float]) -> list[Answer]:
        """A request at each of `times`, whatever became of those before it."""
        return _run(_open(target, times))


def _run(load: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
    run: Any = asyncio.run
    with contextlib.suppress(ModuleNotFoundError):
        import uvloop

        run = uvloop.run
    # A collection of all objects takes 0.1 s, in which no answer would be read.
    gc.collect()
    gc.disable()
    try:
        answers: list[Answer] = run(load)
    finally:
        gc.enable()
    return answers


async def _connect(target: Target) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", target.port)
    return connection


async def _ask_each(target: Target) -> list[Answer]:
    connection, answers = await _connect(target), []
    for request in itertools.islice(target.requests(), len(target.bodies)):
        begun = time.monotonic()
        status, body = await connection.ask(request)
        answers.append(Answer(0.0, 0.0, time.monotonic() - begun, status, body))
    connection.close()
    return answers


async def _closed(target: Target, clients: int, seconds: float) -> list[Answer]:
    requests, answers = target.requests(), []
    connections = [await _connect(target) for _ in range(clients)]
    started = time.monotonic()

    async def ask_again(connection: Connection) -> None:
        while (now := time.monotonic() - started) < seconds and connection.is_open:
            status, _ = await connection.ask(next(requests))
            answers.append(Answer(now, now, time.monotonic() - started, status))
        connection.close()

    await asyncio.gather(*map(ask_again, connections))
    return answers


async def _open(target: Target, times: Sequence[float]) -> list[Answer]:
    requests, answers = target.requests(), []
    free: list[tuple[Connection, float]] = []  # with the time of its last answer
    started = time.monotonic()

    async def ask_once(due: float, request: bytes) -> None:
        status, sent = FAILED, math.inf
        try:
            connection = _take_free(free) or await _connect(target)
            sent = time.monotonic() - started
            status, _ = await connection.ask(request)
            if status != FAILED:
                free.append((connection, time.monotonic()))
        except OSError:
            pass
        answers.append(Answer(due, sent, time.monotonic() - started, status))

    tasks = []
    for due in times:
        if (wait := due - (time.monotonic() - started)) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(ask_once(due, next(requests))))
    await asyncio.gather(*tasks)
    for connection, _ in free:
        connection.close()
    return answers


def _take_free(free: list[tuple[Connection, float]]) -> Connection | None:
    """The connection that was used last, if the server has not closed it, nor will soon."""
    while free:
        connection, used = free.pop()
        if connection.is_open and time.monotonic() - used < IDLE_SECONDS:
            return connection
        connection.close()
    return None


def bodies(texts: Sequence[str], wrap: Any) -> tuple[bytes, ...]:
    """A request's body for each text, by `wrap` from the text to the fields."""
    return tuple(json.dumps(wrap(text)).encode() for text in texts)
