"""The lock of a work directory in an object store, where a file cannot be locked.

The object `.lock` names the process that trains there, which writes it anew every `PERIOD` seconds
and removes it at its end. It counts as left behind where its process is gone (which can only be
seen on the same machine), or where it has not changed for `EXPIRES` seconds. The store creates an
object atomically, so of two processes that start at once one gets the lock. Where both remove the
same old lock, the one that finds the other's name at its next renewal ends.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError

PERIOD, EXPIRES = 15.0, 60.0  # seconds
OLD = 600.0  # seconds by the clock, which may differ between machines, after which nobody waits


@contextlib.contextmanager
def lock(workdir: epath.PathLike) -> Iterator[None]:
    """Keeps other runs out of a remote work directory.

    Raises:
      UserError: where another process trains there, or it cannot be written.
    """
    lease = _Lease(workdir)
    lease.acquire()
    ended = threading.Event()
    thread = threading.Thread(target=lease.renew_until, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lease.release()


class _Lease:
    def __init__(self, workdir: epath.PathLike):
        self._workdir = workdir
        self._path = epath.Path(workdir) / ".lock"
        self._process = {
            "id": uuid.uuid4().hex,
            "who": f"process {os.getpid()} on {socket.gethostname()}, "
                   f"since {time.strftime('%Y-%m-%d %H:%M:%S')}",
            "machine": _machine(), "pid": os.getpid(), "started": _start_time(os.getpid()),
        }  # fmt: skip

    def acquire(self) -> None:
        """Creates the lock, once no other process holds it."""
        seen: dict[str, Any] | None = None
        waited_since = 0.0
        while not self._create():
            found = self._read()
            if found is None:
                continue
            if not found.keys() >= self._process.keys():
                self._path.unlink(missing_ok=True)  # the lock of a disk, copied with the run
                continue
            if found["id"] == self._process["id"]:
                return  # created by a request whose answer was lost
            is_alive = _is_alive(found)
            if is_alive or (seen is not None and found != seen):
                raise UserError(
                    f"Another process trains in {self._workdir} ({found['who']}); wait for it or "
                    "end it, or use another --workdir."
                )
            if is_alive is False or time.time() - found["renewed"] > OLD or (
                seen is not None and time.monotonic() - waited_since > EXPIRES
            ):  # fmt: skip
                self._path.unlink(missing_ok=True)
            elif seen is None:
                print(f"{self._workdir} is locked by {found['who']}; waiting up to {EXPIRES:.0f} s "
                      "to see whether it still runs", flush=True)  # fmt: skip
                seen, waited_since = found, time.monotonic()
            else:
                time.sleep(1)

    def renew_until(self, ended: threading.Event) -> None:
        """Writes the lock anew every `PERIOD`; ends the process where another one holds it now."""
        while not ended.wait(PERIOD):
            # The store may not answer for a while, or somebody has written something else.
            with contextlib.suppress(OSError, ValueError):
                found = self._read()
                if found and found.get("id") != self._process["id"]:
                    self._lose(found)
                paths.write(self._path, self._text())

    def release(self) -> None:
        with contextlib.suppress(OSError):
            found = self._read()
            if found and found.get("id") == self._process["id"]:
                self._path.unlink(missing_ok=True)

    def _lose(self, found: dict[str, Any]) -> None:
        print(f"error: {found.get('who')} trains in {self._workdir} now, because this process did "
              "not renew its lock in time; start it again after that run.",
              file=sys.stderr, flush=True)  # fmt: skip
        os._exit(2)  # anything that is written now would spoil the other's run

    def _create(self) -> bool:
        try:
            paths.write(self._path, self._text(), must_be_new=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise UserError(
                f"{self._workdir} cannot be written: {paths.explain(error)}."
            ) from error
        return True

    def _read(self) -> dict[str, Any] | None:
        try:
            with paths.store_errors():
                text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {}

    def _text(self) -> bytes:
        return json.dumps({**self._process, "renewed": time.time()}).encode()


def _is_alive(found: dict[str, Any]) -> bool | None:
    """Whether the process of a lock runs; None where that cannot be seen from here."""
    if found["machine"] != _machine() or not found["started"]:
        return None
    return _start_time(found["pid"]) == found["started"]


def _machine() -> str:
    """This boot of this machine and its process numbers, which containers have of their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex


def _start_time(pid: int) -> str:
    """When a process was started, in ticks; empty where there is none of that number."""
    try:
        # The name, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
