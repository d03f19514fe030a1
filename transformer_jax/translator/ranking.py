"""Which of the hypotheses that a search or sampling gives are the translations of a text."""

import dataclasses
import itertools
from collections.abc import Iterable

from transformer_jax.config import DataConfig
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.translator import mbr
from transformer_jax.translator.translation import Translation, distinct
from transformer_jax.translator.translation_settings import TranslationSettings


def best_translations(
    hypotheses: Iterable[Translation], settings: TranslationSettings, bleu_tokenizer: str
) -> list[Translation]:
    """The translations of a text, best first, as many as asked for.

    Args:
      hypotheses: of the text, best first; or samples in any order. No more of them are read than
        are needed, so that the texts of others need not be written.
      settings: of the text.
      bleu_tokenizer: splits words where `mbr` compares by BLEU.
    """
    method = settings.decode.method
    if method == "mbr":
        samples = list(hypotheses)
        utilities = mbr.expected_utilities(
            [one.text for one in samples], settings.decode.mbr_metric, bleu_tokenizer
        )
        hypotheses = [
            dataclasses.replace(one, score=utility)
            for one, utility in zip(samples, utilities, strict=True)
        ]
        hypotheses.sort(key=lambda one: -one.score)
    if method != "sample":
        hypotheses = distinct(hypotheses)
    return list(itertools.islice(hypotheses, settings.num_hypotheses))


def choose_bleu_tokenizer(settings: TranslationSettings, data: DataConfig) -> str:
    """What splits words where `mbr` compares by BLEU; checked before anything runs."""
    if (settings.decode.method, settings.decode.mbr_metric) != ("mbr", "bleu"):
        return bleu_tokenizers.DEFAULT
    tokenizer = bleu_tokenizers.choose(
        settings.target_lang or data.target_lang, data.pretokenized, data.bleu_tokenizer
    )
    bleu_tokenizers.make_bleu(tokenizer)
    return tokenizer
