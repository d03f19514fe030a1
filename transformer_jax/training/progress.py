"""What a run remembers besides its state; every checkpoint contains it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Progress:
    """Counters of a run. Its methods return new counters and change nothing.

    Attributes:
      metric: name of the metric that ranks evaluations.
      best: its best value so far (`retention.quality`); None before the first evaluation.
      best_step: step of that evaluation.
      evaluations_since_best: later evaluations, none of which was better.
      skipped: steps that changed nothing, of the entire run.
      skipped_in_a_row: those since the last step that was not skipped.
    """

    metric: str = ""
    best: list[float] | float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0

    def after_step(self, skipped: bool) -> "Progress":
        """The counters after one more step."""
        if not skipped:
            return dataclasses.replace(self, skipped_in_a_row=0)
        return dataclasses.replace(
            self, skipped=self.skipped + 1, skipped_in_a_row=self.skipped_in_a_row + 1
        )

    def after_evaluation(self, step: int, metric: str, quality: list[float]) -> "Progress":
        """The counters after an evaluation at `step`; another metric starts a new comparison."""
        best = [self.best] if isinstance(self.best, float) else self.best  # 0.1.0 kept no loss
        if best is None or metric != self.metric or quality > best:
            return dataclasses.replace(
                self, metric=metric, best=quality, best_step=step, evaluations_since_best=0
            )
        return dataclasses.replace(self, evaluations_since_best=self.evaluations_since_best + 1)

    def stops_early(self, patience: int) -> bool:
        """Whether the last `patience` evaluations were no better than the best; 0: never."""
        return bool(patience) and self.evaluations_since_best >= patience
