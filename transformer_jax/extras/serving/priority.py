"""Priority of the threads that compute: the event loop goes first."""

import os
import sys
import threading

NICE = 10  # of threads that compute; the event loop has the usual 0


def lower() -> None:
    """Lets this thread, and the threads that it starts, compute after the other threads.

    A request is read, refused or answered in less than a millisecond. Where all cores compute, it
    would wait for its turn many times as long. Only Linux has priorities of single threads.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
