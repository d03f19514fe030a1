"""Which checkpoints are kept, and which of them is best."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from transformer_jax.config import CheckpointConfig
from transformer_jax.config.metrics import METRICS

UNSCHEDULED = "unscheduled"  # metric of a checkpoint that was saved only because the run stopped


def quality(metrics: dict[str, float], metric: str) -> list[float]:
    """Score and minus loss: higher is better; a list, as JSON has it.

    A score that is NaN or missing counts as the worst.
    """
    loss = metrics.get("eval_loss", np.inf)
    is_lower_better = METRICS[metric.removeprefix("eval_")].lower_is_better
    score = metrics.get(metric, np.nan)
    score = -score if is_lower_better else score
    return [-np.inf if np.isnan(x) else x for x in (score, -loss)]


class CheckpointInfo(Protocol):
    """What Orbax knows of a checkpoint."""

    step: int
    metrics: dict[str, float] | None


@dataclasses.dataclass
class Retention:
    """Which checkpoints are kept, as a preservation policy of Orbax.

    These are the newest, from which the run resumes, and the `keep_best` best. Also the
    `max_to_keep` newest that were scheduled: `average:N` must not depend on when a run was stopped.
    """

    config: CheckpointConfig

    def should_preserve(self, checkpoints: Sequence[CheckpointInfo], *, context: Any) -> list[bool]:
        """Whether each checkpoint is kept, oldest first; Orbax's `context` is not needed."""
        del context
        metrics = {info.step: info.metrics or {} for info in checkpoints}
        scheduled = [step for step in metrics if UNSCHEDULED not in metrics[step]]
        name = self.config.best_metric
        # Some may lack a metric that the run was resumed with. Until one has it, they are the best.
        ranked = sorted(
            (step for step in metrics if name in metrics[step] or "eval_loss" in metrics[step]),
            key=lambda step: quality(metrics[step], name),
            reverse=True,
        )
        kept = {
            *list(metrics)[-1:],
            *scheduled[-self.config.max_to_keep :],
            *ranked[: self.config.keep_best],
        }
        return [step in kept for step in metrics]
