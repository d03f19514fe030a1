"""Runs the web application: from the address to the last answer."""

import contextlib
import functools
import os
import resource
import signal
import socket
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import fastapi
import uvicorn

from transformer_jax.errors import UserError
from transformer_jax.extras.serving import priority
from transformer_jax.extras.serving.slow_clients import (
    HEADER_BYTES,
    HEADER_SECONDS,
    fastest_protocol,
)


class Server(uvicorn.Server):
    """Uvicorn's server, which answers what it has accepted before it ends.

    Args:
      app: to serve.
      drain_seconds: most time for the last answers.
      on_reload: called in a thread on SIGHUP.
      header_seconds: for the headers of a request.
    """

    def __init__(
        self,
        app: fastapi.FastAPI,
        drain_seconds: int,
        on_reload: Callable[[], None] = lambda: None,
        header_seconds: float = HEADER_SECONDS,
    ):
        http: Callable[..., Any] = fastest_protocol()
        protocol: Any = functools.partial(http, header_seconds=header_seconds)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,  # any client of this machine could write them
                timeout_keep_alive=5,
                timeout_graceful_shutdown=drain_seconds,
                h11_max_incomplete_event_size=HEADER_BYTES,
            )
        )
        self._service, self._on_reload = app.state.service, on_reload
        self.stopped_by = ""  # name of the signal

    def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
        """Ends when all is answered; on a second signal at once."""
        if self.should_exit:
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
        self._service.is_draining = True
        self.should_exit, self.stopped_by = True, signal.Signals(sig).name

    def _reload(self) -> None:
        priority.lower()  # compiling is not to delay requests
        self._on_reload()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals, in the main thread, until the server has ended."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def reload(number: int, frame: types.FrameType | None) -> None:
            threading.Thread(target=self._reload, daemon=True).start()

        handlers: dict[int, Any] = {
            signal.SIGTERM: self.handle_exit,
            signal.SIGINT: self.handle_exit,
            signal.SIGHUP: reload,
        }
        former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address of this machine; connections are accepted later.

    Args:
      host: name or address.
      port: 0: any that is free.

    Raises:
      UserError: the address is taken, or not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()  # of two servers at one address, the second fails here
    except OSError as error:
        raise UserError(
            f"{host}, port {port}: {error.strerror}. Choose another port; 0 is any that is free."
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL of a socket, for this machine."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def allow_connections() -> None:
    """Lets the process have as many open connections as the system allows it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
