"""The lock of a work directory in an object store, where a file cannot be locked.

The object `.lock` names the process that trains there. That process writes it again every `PERIOD`
seconds and removes it at its end. Other processes remove the lock of a process that has ended
(which shows only on the same machine), and one that has not changed for `EXPIRES` seconds. The
store creates an object atomically, so of two processes that start at once one gets the lock. If
both have removed the same old lock, the one that reads the other's name at its next renewal ends.
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
OLD = 600.0  # seconds since the renewal, by clocks that may differ; older locks are removed

Lock = dict[str, Any]  # the JSON object in `.lock`


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


def holder(workdir: epath.PathLike) -> str | None:
    """Which process trains in a remote work directory now; None if none does.

    Of a process on another machine it counts whether the lock was renewed lately, by its clock.
    """
    lock = _Lease(workdir).read()
    if not lock or "renewed" not in lock:
        return None
    is_alive = _is_alive(lock)
    if is_alive is None:
        is_alive = time.time() - lock["renewed"] < EXPIRES
    return str(lock.get("who")) if is_alive else None


class _Lease:
    """The lock as this process creates, renews and removes it."""

    def __init__(self, workdir: epath.PathLike):
        self._workdir = workdir
        self._path = epath.Path(workdir) / ".lock"
        self._process = {
            "id": uuid.uuid4().hex,
            "who": (
                f"process {os.getpid()} on {socket.gethostname()}, "
                f"since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            ),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": _start_time(os.getpid()),
        }

    def acquire(self) -> None:
        """Creates the lock, once no other process has it."""
        waited_for: Lock | None = None
        waited_since = 0.0
        while not self._create():
            lock = self.read()
            if lock is None:
                continue
            if not lock.keys() >= self._process.keys():
                self._path.unlink(missing_ok=True)  # the lock of a disk, copied with the run
                continue
            if lock["id"] == self._process["id"]:
                return  # created by a request whose answer was lost
            is_alive = _is_alive(lock)
            was_renewed = waited_for is not None and lock != waited_for
            if is_alive or was_renewed:
                raise UserError(
                    f"Another process trains in {self._workdir} ({lock['who']}); wait for it or "
                    "end it, or use another `workdir`."
                )
            has_expired = waited_for is not None and time.monotonic() - waited_since > EXPIRES
            if is_alive is False or has_expired or time.time() - lock["renewed"] > OLD:
                self._path.unlink(missing_ok=True)
            elif waited_for is None:
                print(
                    f"{self._workdir} is locked by {lock['who']}; waiting up to {EXPIRES:.0f} s "
                    "to see whether it still runs",
                    flush=True,
                )
                waited_for, waited_since = lock, time.monotonic()
            else:
                time.sleep(1)

    def renew_until(self, ended: threading.Event) -> None:
        """Renews the lock every `PERIOD`; ends the process if another one has it now."""
        while not ended.wait(PERIOD):
            # The store may not answer for a while, or the object may be no lock.
            with contextlib.suppress(OSError, ValueError):
                lock = self.read()
                if lock and lock.get("id") != self._process["id"]:
                    self._end_process(lock)
                paths.write(self._path, self._text())

    def release(self) -> None:
        with contextlib.suppress(OSError):
            lock = self.read()
            if lock and lock.get("id") == self._process["id"]:
                self._path.unlink(missing_ok=True)

    def _end_process(self, lock: Lock) -> None:
        print(
            f"error: {lock.get('who')} trains in {self._workdir} now, because this process did "
            "not renew its lock in time; start it again after that run.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)  # whatever this process wrote now would damage the other's run

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

    def read(self) -> Lock | None:
        """The lock; None if there is none, empty if the object is no lock."""
        try:
            with paths.store_errors():
                text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            lock = json.loads(text)
        except ValueError:
            lock = None
        return lock if isinstance(lock, dict) else {}

    def _text(self) -> bytes:
        return json.dumps({**self._process, "renewed": time.time()}).encode()


def _is_alive(lock: Lock) -> bool | None:
    """Whether the process of a lock runs; None if it is not known, being on another machine."""
    if lock["machine"] != _machine() or not lock["started"]:
        return None
    return _start_time(lock["pid"]) == lock["started"]


def _machine() -> str:
    """Names this boot of the machine, and the namespace of process numbers (of a container)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex


def _start_time(pid: int) -> str:
    """When a process was started, in ticks; empty if there is no process of that number."""
    try:
        # The name, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""
