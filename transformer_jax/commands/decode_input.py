"""What `decode` reads: lines of files, of pipes and of terminals."""

import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator

from etils import epath

from transformer_jax.data import sources
from transformer_jax.errors import UserError

# A line that follows another within this time is translated together with it.
GRACE_SECONDS = 0.05


def is_stream(path: str) -> bool:
    """Whether a path (- is standard input) is a pipe or terminal: read once, and perhaps slowly."""
    if "://" in path:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()) if path == "-" else os.stat(path)
    except (OSError, ValueError, AttributeError):  # standard input is closed or no file
        return path == "-"
    return not stat.S_ISREG(mode.st_mode)


def count_lines(path: str) -> int | None:
    """Lines of a file; None for what can be read only once."""
    if path == "-" or is_stream(path):
        return None
    return sum(1 for _ in read_lines(path))


def read_lines(path: str) -> Iterator[str]:
    """Lines of a file, `.gz` too, or of standard input (-)."""
    if path == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise UserError("Standard input is closed; name a file with --input.")
        # Not `sys.stdin`: Python aborts at its end while a thread still reads that.
        stream = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
        return sources.decode_lines(stream, "standard input", allow_nul=True)
    return sources.read_lines(epath.Path(path), allow_nul=True)


class Lines:
    """Lines of a file, or of a stream that a thread reads ahead.

    Iterating raises what reading raised.

    Args:
      path: - is standard input.
      ahead: lines of a stream that are read before they are asked for.
    """

    def __init__(self, path: str, ahead: int):
        self._queue: queue.Queue[str | Exception] | None = None
        self._taken: list[str | Exception] = []  # at most one, from the queue
        self._lines = read_lines(path)
        if is_stream(path):
            self._queue = queue.Queue(ahead)
            threading.Thread(target=self._read, args=(self._queue,), daemon=True).start()

    def _read(self, lines: queue.Queue) -> None:
        try:
            for line in self._lines:
                lines.put(line)
            lines.put(StopIteration())
        except Exception as error:  # raised where the line is asked for
            lines.put(error)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._queue is None:
            return next(self._lines)
        line = self._taken.pop() if self._taken else self._queue.get()
        if isinstance(line, Exception):
            self._taken.append(line)  # the end stays the end
            raise line
        return line

    def ready(self) -> bool:
        """Whether the next line, or the end, is there without waiting for it."""
        if self._queue is None or self._taken:
            return True
        try:
            self._taken.append(self._queue.get(timeout=GRACE_SECONDS))
        except queue.Empty:
            return False
        return True
