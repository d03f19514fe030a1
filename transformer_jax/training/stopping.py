"""Requests to stop a run: SIGTERM, preemption notices, and a step that the caller chooses."""

import signal
import threading
from typing import Any

from jax.experimental import multihost_utils

from transformer_jax import distributed


class StopRequest:
    """Whether the run was asked to stop, by SIGTERM or a preemption notice to any process.

    With several processes, JAX's preemption service listens, and chooses a step at which all stop.

    Args:
      after: a step after which to stop in any case.
    """

    def __init__(self, after: int | None = None):
        self._after = after
        self._got_signal = False
        self._old_handler: Any = None  # as `signal` returns it

    def __enter__(self) -> "StopRequest":
        if (
            distributed.process_count() == 1
            and threading.current_thread() is threading.main_thread()
        ):
            self._old_handler = signal.signal(signal.SIGTERM, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._old_handler is not None:
            signal.signal(signal.SIGTERM, self._old_handler)

    def _handle_signal(self, *_: object) -> None:
        self._got_signal = True

    def is_due(self, before_step: int) -> bool:
        """Whether to stop before that step; the same answer on all processes."""
        if self._after is not None and before_step > self._after:
            return True
        if distributed.process_count() == 1:
            return self._got_signal
        return multihost_utils.reached_preemption_sync_point(before_step)
