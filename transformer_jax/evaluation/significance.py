"""Paired bootstrap resampling: do two systems differ by more than chance (Koehn, 2004)?"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import estimate_ci

NUM_RESAMPLES = 1000
SEED = "12345"  # sacreBLEU's
SAME_SCORE = 1e-9  # of 100: two scores that differ by less differ by rounding alone


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two systems on the same sentences, by one metric.

    Attributes:
      interval, other_interval: half of the 95% confidence interval.
      p_value: probability of so large a difference between equally good systems.
      identical: the systems gave the same translations.
    """

    metric: str
    score: float
    interval: float
    other_score: float
    other_interval: float
    p_value: float
    signature: str
    identical: bool


def paired_bootstrap(
    metric: BLEU | CHRF,
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    resamples: Iterable[np.ndarray] | None = None,
) -> Comparison:
    """Compares two systems by a metric, on random resamples of their sentences.

    Args:
      metric: of sacreBLEU.
      hypotheses, others, references: in the same order.
      resamples: `[num_sentences]` indices each; None: sacreBLEU's.
    """
    # sacreBLEU has no public names for the statistics of sentences, and for a score of their sum.
    private: Any = metric
    systems = [
        np.array(private._extract_corpus_statistics(list(texts), [list(references)]), np.float64)
        for texts in (hypotheses, others)
    ]  # [num_sentences, num_statistics] each
    this, other = (private._compute_score_from_stats(s.sum(axis=0)) for s in systems)
    if resamples is None:
        resamples = random_resamples(len(references))
    scores = np.array(
        [
            [private._compute_score_from_stats(s[indices].sum(axis=0)).score for s in systems]
            for indices in resamples
        ]
    )  # [num_resamples, 2]
    signature = metric.get_signature()
    signature.update("seed", _seed().lower())
    signature.update("bs", len(scores))
    intervals = [float(estimate_ci(column)[1]) for column in scores.T]
    return Comparison(
        metric=this.name,
        score=float(this.score),
        interval=intervals[0],
        other_score=float(other.score),
        other_interval=intervals[1],
        p_value=p_value(scores[:, 0] - scores[:, 1], this.score - other.score),
        signature=str(signature),
        identical=list(hypotheses) == list(others),
    )


def p_value(differences: np.ndarray, observed: float) -> float:
    """Probability of an observed difference, or a larger one, between equally good systems.

    sacreBLEU counts the resamples whose difference exceeds the mean of all resamples by more than
    the observed one. Here ties count too, because they are no evidence against chance: a difference
    that exceeds the mean by exactly the observed one, and a resample in which the systems are
    equal. So systems with equal scores have 1. Without ties the result is sacreBLEU's.

    Args:
      differences: `[num_resamples]`, of the two scores in each resample.
      observed: the difference over all sentences.
    """
    if abs(observed) < SAME_SCORE:
        return 1.0
    sizes = np.abs(differences)
    is_as_large = sizes - sizes.mean() > abs(observed) - SAME_SCORE
    is_equal = sizes < SAME_SCORE
    count = int(np.sum(is_as_large | is_equal))
    return (count + 1) / (len(differences) + 1)


def random_resamples(num_sentences: int) -> Iterator[np.ndarray]:
    """The resamples that sacreBLEU draws; its environment variable `SACREBLEU_SEED` counts."""
    seed = _seed()
    rng = np.random.default_rng(None if seed.lower() == "none" else int(seed))
    for _ in range(NUM_RESAMPLES):
        yield rng.choice(num_sentences, size=num_sentences, replace=True)


def _seed() -> str:
    return os.environ.get("SACREBLEU_SEED", SEED)
