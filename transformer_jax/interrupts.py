"""Ctrl-C, which ends a command within two seconds wherever it is.

Python raises a `KeyboardInterrupt` in whatever code runs next in the main thread. That may be a
callback of the garbage collector, which drops it, an import, which makes an `ImportError` of it, or
nothing for a minute, while XLA compiles. So a thread hears of the signal too, and ends the process
if the main thread has not done so in time. Handlers of others, as of a training that saves its step
first, are left alone.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator

STATUS = 130
GRACE_SECONDS = 1.5  # for what the main thread has to clean up

# What a process does before it ends at once: quick functions, which any thread may call again.
at_end: list[Callable[[], None]] = []
_message = b"interrupted.\n"
_was_asked = _goes_on = False


def install() -> None:
    """Ends the process at once by Ctrl-C, until `raise_errors`.

    It is left alone if the process was started with SIGINT ignored, as by `nohup` and in scripts.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Python writes the number of each signal there at once, in any code.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
    signal.signal(signal.SIGINT, _end)


def raise_errors(message: str) -> None:
    """From now on Ctrl-C raises a `KeyboardInterrupt`, and ends the process if nothing else does.

    Args:
      message: what the process says before it ends.
    """
    global _message, _goes_on
    _message, _goes_on = f"{message}\n".encode(), False  # of an earlier command in this process
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _raise)
        sys.unraisablehook = _repeat


@contextlib.contextmanager
def left_to_caller() -> Iterator[None]:
    """Inside, Ctrl-C only raises a `KeyboardInterrupt`, which the caller catches."""
    is_ours = signal.getsignal(signal.SIGINT) is _raise
    if is_ours:
        writer = signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        global _goes_on
        _goes_on = True
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, _raise)
            signal.set_wakeup_fd(writer, warn_on_full_buffer=False)


def goes_on() -> bool:
    """Whether a computation may still run that the caller of `left_to_caller` has given up."""
    return _goes_on


def was_asked() -> bool:
    """Whether Ctrl-C was pressed, so that any error may come from it."""
    return _was_asked


def _raise(_: int, frame: types.FrameType | None) -> None:
    global _was_asked
    _was_asked = True
    while frame:
        # Modules in C may end the process if their initialization fails.
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _end()
        frame = frame.f_back
    raise KeyboardInterrupt


def _repeat(dropped: "sys.UnraisableHookArgs") -> None:
    """Raises an error again, some moments later, that Python has dropped as in a callback."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        main = threading.main_thread().ident
        threading.Timer(0.02, signal.pthread_kill, (main, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(dropped)


def _end(*_: object) -> None:
    for function in at_end:
        with contextlib.suppress(Exception):  # it ends in any case
            function()
    os.write(2, _message)
    os._exit(STATUS)


def _watch(reader: int) -> None:
    while True:
        for number in os.read(reader, 1):
            if number == signal.SIGINT and signal.getsignal(signal.SIGINT) in (_raise, _end):
                time.sleep(GRACE_SECONDS)
                _end()
