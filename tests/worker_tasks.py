"""Tasks of `Workers` in tests, which import nothing, so that a process of theirs starts fast."""

import os
import signal
from pathlib import Path


def square_or_die(task: tuple[int, str]) -> int:
    """Squares a number; the first time that the file of a task is missing, the process dies."""
    number, marker = task
    if marker and not os.path.exists(marker):
        Path(marker).touch()
        die(task)
    return number * number


def die(task: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
