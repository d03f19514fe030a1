"""Lines that say what takes long, so that it does not look like a stop."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

SILENCE = 8.0  # seconds without a line, at most


class Silence:
    """How long nothing was said."""

    def __init__(self) -> None:
        self.end()

    def end(self) -> None:
        """Records that something is said."""
        self._since = time.monotonic()

    @property
    def is_long(self) -> bool:
        """Whether it is time for a line."""
        return time.monotonic() - self._since > SILENCE


@contextlib.contextmanager
def reminded(
    doing: Callable[[float], str], say: Callable[[str], None], first: float | None = None
) -> Iterator[None]:
    """Says now and again that something is not finished yet.

    Args:
      doing: what is said, given the seconds so far.
      say: gets it, in another thread.
      first: seconds until the first line, where the silence began earlier.
    """
    started, ended = time.monotonic(), threading.Event()

    def remind() -> None:
        seconds = SILENCE if first is None else first
        while not ended.wait(seconds):
            say(doing(time.monotonic() - started))
            seconds = SILENCE

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        ended.set()
        reminder.join()


@contextlib.contextmanager
def announced(
    what: str, say: Callable[[str], None], verbs: tuple[str, str] = ("compiling", "compiled")
) -> Iterator[None]:
    """Says what is done, then how long it takes: now and again, and at the end."""
    doing, done = verbs
    say(f"{doing} {what}")
    started = time.monotonic()
    with reminded(lambda seconds: f"still {doing} after {seconds:.1f} s", say):
        yield
    say(f"{done} in {time.monotonic() - started:.1f} s")
