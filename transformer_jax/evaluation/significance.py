"""Paired bootstrap resampling: do two systems differ by more than chance (Koehn, 2004)?"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
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


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What a metric counts in each sentence of one system.

    Attributes:
      metric: its name.
      sentences: `[num_sentences, num_statistics]`.
      score: the metric of summed statistics `[num_statistics]`.
      signature: what it was computed with.
    """

    metric: str
    sentences: np.ndarray
    score: Callable[[np.ndarray], float]
    signature: str

    @property
    def total(self) -> float:
        """The metric of all sentences."""
        return self.score(self.sentences.sum(axis=0))


def of_sacrebleu(
    metric: BLEU | CHRF | TER, hypotheses: Sequence[str], references: Sequence[str]
) -> Statistics:
    """Statistics of a metric of sacreBLEU; its signature is without the resamples."""
    # sacreBLEU has no public names for the statistics of sentences, and for a score of their sum.
    private: Any = metric
    counts = private._extract_corpus_statistics(list(hypotheses), [list(references)])
    sentences = np.array(counts, np.float64)
    name = private._compute_score_from_stats(sentences.sum(axis=0)).name
    return Statistics(
        name,
        sentences,
        lambda sums: float(private._compute_score_from_stats(sums).score),
        str(metric.get_signature()),
    )


def of_sentence_scores(metric: str, scores: Sequence[float], signature: str) -> Statistics:
    """Statistics of a metric that is the mean of the scores of sentences."""
    sentences = np.stack([np.asarray(scores, np.float64), np.ones(len(scores))], axis=1)
    return Statistics(metric, sentences, lambda sums: float(sums[0] / sums[1]), signature)


def paired_bootstrap(
    this: Statistics,
    other: Statistics,
    resamples: Iterable[np.ndarray] | None = None,
    identical: bool = False,
) -> Comparison:
    """Compares two systems by a metric, on random resamples of their sentences.

    Args:
      this, other: of the two systems, sentence by sentence in the same order.
      resamples: `[num_sentences]` indices each; None: sacreBLEU's.
      identical: whether both gave the same translations.
    """
    if resamples is None:
        resamples = random_resamples(len(this.sentences))
    scores = np.array(
        [
            [system.score(system.sentences[indices].sum(axis=0)) for system in (this, other)]
            for indices in resamples
        ]
    )  # [num_resamples, 2]
    first, *rest = this.signature.split("|")
    intervals = [float(estimate_ci(column)[1]) for column in scores.T]
    return Comparison(
        metric=this.metric,
        score=this.total,
        interval=intervals[0],
        other_score=other.total,
        other_interval=intervals[1],
        p_value=p_value(scores[:, 0] - scores[:, 1], this.total - other.total),
        # Where sacreBLEU has them.
        signature="|".join([first, f"bs:{len(scores)}", f"seed:{_seed().lower()}", *rest]),
        identical=identical,
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
