"""Shares of the corpora in the training data: by size, weight or temperature, and by stage."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.config.data_fields import parse_stage
from transformer_jax.data.sources import Corpus

Stages = list[tuple[int, list[float]]]


def make_stages(
    config: DataConfig, corpora: Sequence[Corpus], sizes: Sequence[int]
) -> Stages | None:
    """The first step of each stage, and the share of each corpus in the pairs from there on.

    Args:
      config: weights, temperature and stages.
      corpora: of the run; those of the same languages are one for the temperature.
      sizes: pairs of each.

    Returns:
      None where all pairs are seen equally often.
    """
    if config.stages:
        return [parse_stage(stage) for stage in config.stages]
    if config.train_weights:
        return [(0, list(config.train_weights))]
    if config.temperature == 1 or len(corpora) == 1:
        return None
    languages = [(corpus.source_lang, corpus.target_lang) for corpus in corpora]
    totals = {
        pair: sum(size for other, size in zip(languages, sizes, strict=True) if other == pair)
        for pair in languages
    }
    # Arivazhagan et al. (2019): p is proportional to size^(1 / temperature).
    powers = np.asarray([totals[pair] for pair in languages], float) ** (1 / config.temperature - 1)
    return [(0, (powers * np.asarray(sizes)).tolist())]
