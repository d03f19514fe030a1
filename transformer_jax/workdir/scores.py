"""Scores of an evaluation: their names, and which values are better."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformer_jax.config.metrics import METRICS

Scores = Mapping[str, Any]

# Name -> what tables call it, of the scores that every evaluation has.
LABELS = {name: metric.label for name, metric in METRICS.items() if not metric.on_request}


def names_in(evaluations: Collection[Scores]) -> list[str]:
    """The names of `LABELS`, and those of other metrics that some evaluation has."""
    return [name for name in METRICS if name in LABELS or any(name in one for one in evaluations)]


def quality(scores: Scores, metric: str) -> tuple[float, float]:
    """The score, negative where lower is better, and minus the loss: higher is better."""
    value = -scores[metric] if METRICS[metric].lower_is_better else scores[metric]
    return value, -scores["loss"]


def best(evaluations: Iterable[Scores], metric: str) -> Scores | None:
    """The evaluation with the best value of a score; of equal ones that of the lowest loss."""
    known = [line for line in evaluations if not math.isnan(line.get(metric, math.nan))]
    return max(known, key=lambda line: quality(line, metric), default=None)


def has_too_few_words(scores: Scores) -> bool:
    """Whether BLEU is 0 because no sentence has four words."""
    return not scores["bleu"] and bool(scores["exact_match"])
