"""Scores of an evaluation: their names, and which values are better."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

Scores = Mapping[str, Any]

# Name -> what tables call it.
LABELS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match",
    "loss": "loss",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy",
}
# Those of `checkpoint.best_metric` that other runs do not have.
OTHER_LABELS = {"chrf++": "chrF++", "ter": "TER", "comet": "COMET", "comet_qe": "COMET-QE"}
LOWER_IS_BETTER = ("loss", "perplexity", "ter")


def label(metric: str) -> str:
    """What tables call a metric."""
    return {**LABELS, **OTHER_LABELS}[metric]


def names_in(evaluations: Collection[Scores]) -> list[str]:
    """The names of `LABELS`, and those of `OTHER_LABELS` that some evaluation has."""
    others = [name for name in OTHER_LABELS if any(name in one for one in evaluations)]
    return [*LABELS, *others]


def quality(scores: Scores, metric: str) -> tuple[float, float]:
    """The score, negative where lower is better, and minus the loss: higher is better."""
    value = -scores[metric] if metric in LOWER_IS_BETTER else scores[metric]
    return value, -scores["loss"]


def best(evaluations: Iterable[Scores], metric: str) -> Scores | None:
    """The evaluation with the best value of a score; of equal ones that of the lowest loss."""
    known = [line for line in evaluations if not math.isnan(line.get(metric, math.nan))]
    return max(known, key=lambda line: quality(line, metric), default=None)


def has_too_few_words(scores: Scores) -> bool:
    """Whether BLEU is 0 because no sentence has four words."""
    return not scores["bleu"] and bool(scores["exact_match"])
