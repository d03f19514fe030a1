"""Shares of the corpora in the training data: by size, weight or temperature, and by stage."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.config.data_fields import parse_stage
from transformer_jax.data.corpus import Corpus
from transformer_jax.errors import UserError

Stages = list[tuple[int, list[float]]]


def make_stages(
    config: DataConfig, corpora: Sequence[Corpus], sizes: Sequence[int]
) -> Stages | None:
    """The first step of each stage, and the share of each corpus in the pairs from there on.

    Args:
      config: weights, temperature and stages.
      corpora: of the run; those of the same languages are one for the temperature.
      sizes: pairs of each.

    Raises:
      UserError: another number of shares than of corpora.

    Returns:
      None where all pairs are seen equally often.
    """
    stages = [parse_stage(stage) for stage in config.stages]
    if config.train_weights:
        stages = [(0, list(config.train_weights))]
    for _, shares in stages:
        if len(shares) != len(corpora):  # in a prepared folder; others are checked before
            raise UserError(
                f"config.data.train={config.train} has {len(corpora)} corpora, but shares are "
                f"given for {len(shares)} (config.data.train_weights or stages)."
            )
    if stages:
        return stages
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
