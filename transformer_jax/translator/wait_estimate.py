"""How long a text will wait, judged by the batches before it."""

WEIGHT = 0.2  # of the last batch, in averages that forget
MARGIN = 1.4  # batches vary, and what is accepted has to be in time
# After which averages are forgotten, with the time of two batches. A busy scheduler renews them
# with each batch; one that refuses all that comes, because of former times, never would.
OLD_SECONDS = 5.0


class WaitEstimate:
    """Averages of the batches of a busy scheduler.

    Only batches that left texts waiting count. Others may be small, which says nothing of what the
    device can do.

    Args:
      num_workers: batches that run at once.
    """

    def __init__(self, num_workers: int):
        self._num_workers = num_workers
        self._batch_seconds = self._text_seconds = 0.0
        self._added: float | None = None  # when the last batch was; None: nothing is known

    def add(self, num_texts: int, seconds: float, now: float) -> None:
        """Counts a batch that has left texts waiting, now."""
        text_seconds = seconds / (num_texts * self._num_workers)
        weight = 1.0 if self._added is None else WEIGHT
        self._batch_seconds += weight * (seconds - self._batch_seconds)
        self._text_seconds += weight * (text_seconds - self._text_seconds)
        self._added = now

    def seconds(self, num_before: int, now: float) -> float:
        """Seconds until the result of a text: those before it, a batch that runs, and its own.

        It has a margin. It is 0 where no text waits before it, or where nothing is known.
        """
        if self._added is not None and now - self._added > OLD_SECONDS + 2 * self._batch_seconds:
            self._added = None
        if not num_before or self._added is None:
            return 0.0
        return MARGIN * (num_before * self._text_seconds + 2 * self._batch_seconds)
