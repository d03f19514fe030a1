"""What holds for every request: bounds of its body and time, safe headers, and that it is counted.

It is the outermost part of the application, so its answers to failures are the last word.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformer_jax.extras.serving.errors import ServiceError, frames

BODY_SECONDS = 20.0  # for a whole body
SEND_SECONDS = 60.0  # for each part of an answer, of a client that reads slowly
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
}
_log = logging.getLogger(__name__)


class FailedError(Exception):
    """An answer that had begun could not be finished; what was wrong is in the log."""


class RequestLimits:
    """Middleware that refuses bodies which are too large or too slow, and adds safe headers.

    Args:
      app: the application.
      max_bytes: of a body.
      on_request: called with route, status and seconds of each request that is answered.
      answer: the answer that says an error, for a path.
      body_seconds: from the first byte of a body to its last.
      send_seconds: for each part of an answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        on_request: Callable[[str, int, float], None],
        answer: Callable[[str, ServiceError], Response],
        body_seconds: float = BODY_SECONDS,
        send_seconds: float = SEND_SECONDS,
    ):
        self._app, self._max_bytes = app, max_bytes
        self._on_request, self._answer = on_request, answer
        self._body_seconds, self._send_seconds = body_seconds, send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, has_begun = time.monotonic(), False
        # Some clients add their path to an address that ends in a slash. The server sends no body
        # to HEAD, whatever the application answers.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope = {**scope, "method": method, "path": f"/{scope['path'].lstrip('/')}"}

        async def send_safely(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                given = message.get("headers", ())
                names = {name for name, _ in given}
                added = [(n, value) for n, value in _HEADERS.items() if n not in names]
                message["headers"] = [*given, *added]
                route = getattr(scope.get("route"), "path", "none")
                self._on_request(route, message["status"], time.monotonic() - started)
            async with asyncio.timeout(self._send_seconds):
                await send(message)

        try:
            body = await self._read(scope, receive)
            await self._app(scope, _replay(body, receive), send_safely)
        except ServiceError as error:
            answer = self._answer(scope["path"], error)
            answer.headers["Connection"] = "close"  # the rest of the body is not read
            await answer(scope, receive, send_safely)
        except Exception as error:
            _log.error("A request failed: %s", frames(error))
            if has_begun:
                raise FailedError from None
            failure = ServiceError(500, "The server failed; its log says more.")
            await self._answer(scope["path"], failure)(scope, receive, send_safely)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The body.

        Raises:
          ServiceError: it is too large, too slow, or compressed.
        """
        headers = dict(scope["headers"])
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ServiceError(415, "The body must not be compressed.")
        length = headers.get(b"content-length", b"0")
        too_large = ServiceError(413, f"The request is larger than {self._max_bytes:,} bytes.")
        if not length.isdigit() or int(length[:20]) > self._max_bytes:
            raise too_large
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_bytes:
                        raise too_large
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ServiceError(408, "The body took too long.") from None
        return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` of an application that gets a body which has been read."""
    is_given = False

    async def receive_body() -> Any:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body
