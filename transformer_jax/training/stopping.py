"""Requests to stop a run: SIGTERM, Ctrl-C, preemption notices, and a step the caller chooses."""

import os
import signal
import threading
from typing import Any

from jax.experimental import multihost_utils

from transformer_jax import distributed

INTERRUPTED = b"\nstopping: saves this step and ends; Ctrl-C again ends at once, without saving\n"


class StopRequest:
    """Whether the run was asked to stop, by a signal or by a preemption notice to any process.

    SIGINT (Ctrl-C) asks once. A second one ends the process at once, as it does without a handler.
    It is left alone if the process was started with SIGINT ignored, as by `nohup` and in scripts.

    With several processes, JAX's preemption service listens for SIGTERM, and chooses a step at
    which all stop.

    Args:
      after: a step after which to stop in any case.
    """

    def __init__(self, after: int | None = None):
        self._after = after
        self._got_signal = self._is_interrupted = False
        self._old_handlers: dict[signal.Signals, Any] = {}  # as `signal` returns them

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            if distributed.process_count() == 1:
                self._handle(signal.SIGTERM, self._handle_sigterm)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                self._handle(signal.SIGINT, self._handle_sigint)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: signal.Signals, handler: Any) -> None:
        self._old_handlers[number] = signal.signal(number, handler)

    def _handle_sigterm(self, *_: object) -> None:
        self._got_signal = True

    def _handle_sigint(self, *_: object) -> None:
        self._is_interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.write(2, INTERRUPTED)  # `print` may be what was interrupted
        signal.raise_signal(signal.SIGTERM)  # to the handler above, or to JAX's service

    def is_due(self, before_step: int) -> bool:
        """Whether to stop before that step; the same answer on all processes."""
        if self._after is not None and before_step > self._after:
            return True
        if distributed.process_count() == 1:
            return self._got_signal
        return multihost_utils.reached_preemption_sync_point(before_step)

    def raise_if_interrupted(self) -> None:
        """Raises a `KeyboardInterrupt` if SIGINT has asked.

        Several processes end normally, because an error on some of them would leave others waiting.
        """
        if self._is_interrupted and distributed.process_count() == 1:
            raise KeyboardInterrupt
