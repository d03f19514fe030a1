"""Futures of several results together."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")
Joined = TypeVar("Joined")


def gather(
    futures: Sequence[concurrent.futures.Future[Result]],
    combine: Callable[[list[Result]], Joined],
) -> concurrent.futures.Future[Joined]:
    """The future of what `combine` makes of several results.

    It fails with the first that fails, or where `combine` does. Then, or when it is cancelled, the
    others are cancelled.
    """
    joined: concurrent.futures.Future[Joined] = concurrent.futures.Future()
    lock, num_left = threading.Lock(), len(futures)
    parts = list(futures)

    def finish() -> None:
        try:
            joined.set_result(combine([part.result() for part in parts]))
        except concurrent.futures.InvalidStateError:
            pass  # cancelled, or another part has failed
        except BaseException as error:
            joined.set_exception(error)

    def settle(part: concurrent.futures.Future[Result]) -> None:
        nonlocal num_left
        with lock:
            num_left -= 1
            is_last = num_left == 0
        # Another thread may settle it at the same time.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if part.cancelled():
                joined.cancel()
            elif part.exception() is not None:
                joined.set_exception(part.exception())
            elif is_last and not joined.done():
                finish()
        if is_last:
            parts.clear()  # which refer to `joined`: it would be left to the garbage collector

    def free(done: concurrent.futures.Future[Joined]) -> None:
        if done.cancelled() or done.exception() is not None:
            for part in list(parts):
                part.cancel()  # those that run or are done stay as they are

    joined.add_done_callback(free)
    for future in futures:
        future.add_done_callback(settle)
    if not futures:
        finish()
    return joined
