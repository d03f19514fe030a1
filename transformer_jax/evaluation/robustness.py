"""How much quality is lost when the sources have the noise of real text."""

import dataclasses
from collections.abc import Callable, Sequence

from transformer_jax.data import noise
from transformer_jax.evaluation.corpus_metrics import corpus_scores

SEED = 0
KINDS = ("upper_case", "lower_case", "no_punctuation", "typos")  # of `data.noise`


@dataclasses.dataclass(frozen=True)
class NoisyScore:
    """Scores of translations of noisy sources, with untouched references.

    Attributes:
      noise: its name, of `KINDS`.
      changed: percent of the sources that it changes, by more than their spaces.
      bleu, chrf: of the translations.
      bleu_change, chrf_change: what is lost, below 0, or gained.
    """

    noise: str
    changed: float
    bleu: float
    chrf: float
    bleu_change: float
    chrf_change: float


def scores(
    translate: Callable[[list[str]], list[str]],
    pairs: Sequence[tuple[str, str]],
    tokenizer: str,
    clean: tuple[float, float],
) -> list[NoisyScore]:
    """Scores with each of `KINDS` of noise in the sources.

    Args:
      translate: the translation of each source.
      pairs: (source, reference).
      tokenizer: of BLEU, from `bleu_tokenizers.choose`.
      clean: BLEU and chrF with the sources as they are.
    """
    rows = []
    references = [reference for _, reference in pairs]
    for kind in KINDS:
        noisy = [noise.add(kind, source, SEED, i) for i, (source, _) in enumerate(pairs)]
        changed = sum(
            text.split() != source.split() for text, (source, _) in zip(noisy, pairs, strict=True)
        )
        result = corpus_scores(translate(noisy), references, tokenizer)
        share = 100.0 * changed / max(len(pairs), 1)
        changes = result.bleu - clean[0], result.chrf - clean[1]
        rows.append(NoisyScore(kind, share, result.bleu, result.chrf, *changes))
    return rows
