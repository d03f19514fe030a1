"""Lines that say what is compiled, so that a long compilation does not look like a stop."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

SILENCE = 8.0  # seconds without a line, at most


@contextlib.contextmanager
def announced(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Says that `what` is compiled, then how long it takes: now and again, and at the end."""
    started, ended = time.monotonic(), threading.Event()

    def say_how_long(how: str) -> None:
        say(f"{how} {time.monotonic() - started:.1f} s")

    def remind() -> None:
        while not ended.wait(SILENCE):
            say_how_long("still compiling after")

    say(f"compiling {what}")
    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        ended.set()
        reminder.join()
    say_how_long("compiled in")
