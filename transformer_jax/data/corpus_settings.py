"""Chooses the settings of a run for a surveyed corpus.

`config/sizing.py` has the rules. This module gets what they ask about the text: how many characters
and tokens it has, the latter by training the tokenizer on the sample.
"""

import dataclasses
import math
import re

import numpy as np

from transformer_jax.config import Config, DataConfig, sizing, validate
from transformer_jax.config.sizing import Machine, Reasons, TextFacts, TokenFacts
from transformer_jax.data.corpus_survey import CorpusSurvey, SideSurvey
from transformer_jax.data.sources import Corpus
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.data.tokenizer_training import make_tokenizers
from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Choice:
    """A config for a corpus.

    Attributes:
      config: of the run, validated.
      reasons: path of a setting -> why it has its value.
      tokens: lengths of the corpus in the tokens of the config.
    """

    config: Config
    reasons: Reasons
    tokens: TokenFacts


def choose_settings(
    survey: CorpusSurvey, data: DataConfig, num_train: int, num_validation: int, machine: Machine
) -> Choice:
    """The config that fits a corpus, with its reasons.

    Args:
      survey: of the corpus.
      data: the paths and languages; the rest of it is chosen.
      num_train: different pairs to train on.
      num_validation: pairs of the validation set.
      machine: that trains.

    Raises:
      UserError: the text allows no tokenizer.
    """
    sizes = sizing.choose_sizes(num_train, machine)
    facts = TextFacts(
        num_pairs=num_train,
        same_script=survey.source.script == survey.target.script,
        num_characters=_num_characters(survey.source, survey.target),
    )
    chosen, reasons = sizing.choose_tokenizer(sizes, facts)
    names = ("train", "validation", "test", "source_lang", "target_lang", "cache_dir")
    data = dataclasses.replace(chosen, **{name: getattr(data, name) for name in names})
    # Of a small corpus the sample has the pairs that will be set aside too.
    data, tokenizers = _train_tokenizers(data, survey.sample[:num_train], reasons)
    tokens = token_facts(survey.sample, tokenizers, num_train)
    config, more_reasons = sizing.make_config(sizes, data, tokens, num_validation, machine)
    return Choice(validate(config), reasons | more_reasons, tokens)


def _train_tokenizers(
    data: DataConfig, pairs: list[tuple[str, str]], reasons: Reasons
) -> tuple[DataConfig, TokenizerPair]:
    """Tokenizers of the size in `data`, or of the largest size that the text allows.

    Returns:
      `data`, with the size of the tokenizers, whose reason is in `reasons`; and the tokenizers.
    """
    sample = Corpus("the sample", data.source_lang, data.target_lang, lambda: iter(pairs), "")
    try:
        return data, make_tokenizers(data, [sample])
    except UserError as error:
        limit = re.search(r"<= (\d+)", str(error))  # SentencePiece's words
        if not limit or "vocab_size" not in str(error):
            raise
    size = math.floor(0.95 * int(limit[1]))  # the training text may differ a little
    reasons["data.vocab_size"] = (
        f"The text is so uniform that it has no more than {limit[1]} tokens."
    )
    smaller = dataclasses.replace(data, vocab_size=size)
    return smaller, make_tokenizers(smaller, [sample])


def token_facts(
    sample: list[tuple[str, str]], tokenizers: TokenizerPair, num_train: int
) -> TokenFacts:
    """Lengths of the sample in tokens, and the tokens of `num_train` pairs like it."""
    sides = zip((tokenizers.source, tokenizers.target), zip(*sample, strict=True), strict=True)
    counts = [[len(ids) for ids in tokenizer.encode_batch(texts)] for tokenizer, texts in sides]
    lengths = np.array(counts) + 1  # [2, pairs], with the end symbols
    longer = lengths.max(axis=0)
    return TokenFacts(
        median=int(np.median(lengths[1])),
        most=int(np.quantile(longer, 0.999, method="higher")),
        longest=int(longer.max()),
        per_epoch=float(lengths[1].mean()) * num_train,
    )


def _num_characters(source: SideSurvey, target: SideSurvey) -> int:
    """Different characters that a tokenizer of one writing system has to represent."""
    if source.script == target.script:
        return len(source.character_counts | target.character_counts)
    return max(len(source.character_counts), len(target.character_counts))
