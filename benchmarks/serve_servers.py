"""The servers that `benchmarks/serve.py` compares, each a process of its own."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import serve_load

ROOT = Path(__file__).parent.parent
START_SECONDS = 600.0  # compilation included


@dataclasses.dataclass(frozen=True)
class Case:
    """A server to measure.

    Attributes:
      name: in tables.
      command: that starts it; `{port}` is replaced.
      path: of the route that translates.
      wrap: a request's fields, from a text.
      unwrap: the translation, from an answer's fields.
    """

    name: str
    command: tuple[str, ...]
    path: str
    wrap: Callable[[str], Any]
    unwrap: Callable[[Any], str]


def ours(name: str, folder: str, *flags: str, timeout_ms: float | None = None) -> Case:
    """This project's server.

    Args:
      name: in tables.
      folder: of its model.
      *flags: further ones.
      timeout_ms: of each request; None: the server's.
    """
    limit = {} if timeout_ms is None else {"timeout_ms": timeout_ms}
    script = str(ROOT / "serve.py")
    return Case(
        name,
        (sys.executable, script, f"--model=m={folder}", "--port={port}", *flags),
        "/v1/translate",
        lambda text: {"texts": [text], "format": "sentence", **limit},
        lambda answer: answer["translations"][0]["text"],
    )


def peer(name: str, folder: str, search: dict[str, Any]) -> Case:
    """FastAPI around CTranslate2 (`serve_fastapi.py`)."""
    script = str(ROOT / "benchmarks" / "serve_fastapi.py")
    return Case(
        name,
        (sys.executable, script, folder, "{port}", json.dumps(search)),
        "/translate",
        lambda text: {"text": text},
        lambda answer: answer["text"],
    )


class Server:
    """A running server; ends with the `with` block.

    Args:
      case: what to start.
      cores: that it may use; None: all.
    """

    def __init__(self, case: Case, cores: tuple[int, ...] | None = None):
        self.case, self.port = case, free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # `stop` closes it
        command = [part.replace("{port}", str(self.port)) for part in case.command]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd=ROOT)
        self._usage = psutil.Process(self._process.pid)
        if cores is not None:
            self._usage.cpu_affinity(list(cores))

    def wait_until_ready(self) -> None:
        """Returns when it answers `/readyz`."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz"):
                    return
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.2)
        log = self.log()
        self.stop()
        raise SystemExit(f"{self.case.name} did not start:\n{log}")

    def target(self, texts: list[str]) -> serve_load.Target:
        """Requests for these texts."""
        return serve_load.Target(
            self.port, self.case.path, serve_load.bodies(texts, self.case.wrap)
        )

    @property
    def cpu_seconds(self) -> float:
        """Processor time that it has used."""
        times = self._usage.cpu_times()
        return times.user + times.system

    @property
    def memory(self) -> int:
        """Bytes that are resident."""
        return self._usage.memory_info().rss

    def end(self, seconds: float = 60.0) -> int:
        """Sends SIGTERM; the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(seconds)

    def stop(self) -> None:
        """Kills it, if it runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._log.close()

    def log(self) -> str:
        """What it has printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def free_port() -> int:
    """A port of this machine that no one uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def cores() -> list[int]:
    """Cores that this process may use."""
    return sorted(os.sched_getaffinity(0))
