"""Uvicorn's HTTP protocol, for clients that send their headers slowly, or without end."""

import asyncio
import importlib.util
import json
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # from a connection's beginning, or a request's first byte, to its headers
HEADER_BYTES = 16 * 1024

if TYPE_CHECKING:
    _Base = H11Protocol
else:
    _Base = object


class _Timed(_Base):
    """What closes connections on which no headers arrive in time.

    Args:
      header_seconds: as `HEADER_SECONDS`.
      **arguments: of uvicorn's protocol.
    """

    def __init__(self, *, header_seconds: float = HEADER_SECONDS, **arguments: Any):
        super().__init__(**arguments)
        self._header_seconds = header_seconds
        self._timer: asyncio.TimerHandle | None = None

    awaits_headers: bool  # whether the client is to send headers, or the rest of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the headers of the first request."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Reads `data`; waits for more where it ends within headers."""
        super().data_received(data)
        if self.awaits_headers and not self.transport.is_closing():
            self._start_timer()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP, in JSON as all errors."""
        body = json.dumps({"error": msg, "message": msg})
        head = (
            "HTTP/1.1 400 Bad Request",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        )
        self.transport.write("\r\n".join([*head, "", body]).encode("ascii"))
        self.transport.close()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._header_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TimedH11Protocol(_Timed, H11Protocol):
    """In Python; it bounds the size of headers itself."""

    @property
    def awaits_headers(self) -> bool:  # type: ignore[override]
        """Whether the client is to send headers, or the rest of them."""
        return self.conn.their_state is h11.IDLE


def fastest_protocol() -> type[Any]:
    """The protocol of httptools, where that is installed, else that of h11."""
    if importlib.util.find_spec("httptools") is None:
        return TimedH11Protocol
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class TimedHttpToolsProtocol(_Timed, HttpToolsProtocol):  # type: ignore[misc]
        """In C; it has no bound of headers."""

        awaits_headers = True
        _num_bytes = 0  # of headers that have yet to end
        _complete_bytes = 0  # of headers that have ended

        def data_received(self, data: bytes) -> None:
            """Reads `data`; refuses headers without end."""
            was_awaiting = self.awaits_headers
            super().data_received(data)
            if was_awaiting and self.awaits_headers:
                self._num_bytes += len(data)
                if self._num_bytes > HEADER_BYTES and not self.transport.is_closing():
                    self.send_400_response("The headers are too large.")

        def on_message_begin(self) -> None:
            """A request begins."""
            self.awaits_headers = True
            self._num_bytes = self._complete_bytes = 0
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            """A header is complete; an error here is answered with 400."""
            self._complete_bytes += len(name) + len(value) + 4
            if self._complete_bytes > HEADER_BYTES:
                raise ValueError("too large")
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            """All headers are there."""
            self.awaits_headers = False
            super().on_headers_complete()

    return TimedHttpToolsProtocol
