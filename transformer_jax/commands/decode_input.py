"""The input of `decode`: lines of files, pipes and terminals."""

import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator

from etils import epath

from transformer_jax import paths
from transformer_jax.data import text_lines
from transformer_jax.errors import UserError

# Lines that arrive within this time of each other are translated together.
GRACE_SECONDS = 0.05


def is_stream(path: str) -> bool:
    """Whether a path (- is standard input) is a pipe or terminal, which can be read only once."""
    if "://" in path:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()) if path == "-" else os.stat(path)
    except (OSError, ValueError, AttributeError):  # standard input is closed or not a file
        return path == "-"
    return not stat.S_ISREG(mode.st_mode)


def count_lines(path: str) -> int | None:
    """Number of lines of a file; None for a stream."""
    if path == "-" or is_stream(path):
        return None
    return sum(1 for _ in read_lines(path))


def read_lines(path: str) -> Iterator[str]:
    """Lines of a file, `.gz` too, or of standard input (-)."""
    if path == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise UserError("Standard input is closed; name a file with --input.")
        # Not `sys.stdin`: Python aborts at exit while a thread still reads it.
        stream = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
        return text_lines.decode_lines(stream, "standard input", allow_nul=True)
    return text_lines.read_lines(epath.Path(path), allow_nul=True)


def read_text(path: str) -> str:
    """The whole of a file, or of standard input (-), with its line ends as they are.

    Raises:
      UserError: it is no UTF-8.
    """
    if path == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise UserError("Standard input is closed; name a file with --input.")
        data, name = sys.stdin.buffer.read(), "standard input"
    else:
        with paths.store_errors():
            data, name = epath.Path(path).read_bytes(), path
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: byte {error.start:,} is not UTF-8; convert the file first."
        ) from error


class Lines:
    """Iterates over the lines of a file, or of a stream that a thread reads ahead.

    Errors of the thread are raised by the iteration.

    Args:
      path: - is standard input.
      read_ahead: most lines of a stream that are read in advance.
    """

    def __init__(self, path: str, read_ahead: int):
        self._queue: queue.Queue[str | Exception] | None = None
        self._next: list[str | Exception] = []  # at most one line, already out of the queue
        self._lines = read_lines(path)
        if is_stream(path):
            self._queue = queue.Queue(read_ahead)
            threading.Thread(target=self._read, args=(self._queue,), daemon=True).start()

    def _read(self, lines: queue.Queue) -> None:
        try:
            for line in self._lines:
                lines.put(line)
            lines.put(StopIteration())
        except Exception as error:  # raised by `__next__`
            lines.put(error)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._queue is None:
            return next(self._lines)
        line = self._next.pop() if self._next else self._queue.get()
        if isinstance(line, Exception):
            self._next.append(line)  # later calls raise it again
            raise line
        return line

    def ready(self) -> bool:
        """Whether the next line or the end can be read without waiting."""
        if self._queue is None or self._next:
            return True
        try:
            self._next.append(self._queue.get(timeout=GRACE_SECONDS))
        except queue.Empty:
            return False
        return True
