"""Minimum-Bayes-risk choice: of several samples, the one most like all of them."""

import collections
from collections.abc import Callable, Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

METRICS: dict[str, Callable[[], BLEU | CHRF]] = {
    "chrf": CHRF,
    "bleu": lambda: BLEU(effective_order=True),
}


def expected_utilities(texts: Sequence[str], metric: str) -> list[float]:
    """Mean score of each text with every text, itself included, as its reference.

    Eikema and Aziz, 2020, equation 4, with the samples as both candidates and references.

    Args:
      texts: samples of one sentence.
      metric: `chrf` or `bleu`, of sacreBLEU, on sentences; 0 to 100.
    """
    scorer = METRICS[metric]()
    counts = collections.Counter(texts)
    utilities = {
        text: sum(n * scorer.sentence_score(text, [other]).score for other, n in counts.items())
        / len(texts)
        for text in counts
    }
    return [utilities[text] for text in texts]
