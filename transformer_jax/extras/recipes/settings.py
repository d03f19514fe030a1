"""Makes the config of a run for a surveyed corpus.

`sizing` has the numbers. This module gets what they depend on from the text: how many characters
and tokens it has, the latter by training the tokenizer on the sample.
"""

import dataclasses
import math

import numpy as np

from transformer_jax.config import (
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    validate,
)
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.plans.pair_selection import select_pairs
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.data.tokenizer_training import VocabularyTooLargeError, make_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.extras.recipes import sizing
from transformer_jax.extras.recipes.device import Device
from transformer_jax.extras.recipes.reasons import ChosenSettings, make_reasons
from transformer_jax.extras.recipes.sizing import Reasons, Sizes, TokenLengths
from transformer_jax.extras.recipes.survey import CorpusSurvey

Pairs = list[tuple[str, str]]
WORDS_OF_BLEU = 4


def choose_settings(
    survey: CorpusSurvey, train: Pairs, data: DataConfig, num_validation: int, device: Device
) -> ChosenSettings:
    """The config that fits a corpus, with its reasons.

    Args:
      survey: of the corpus.
      train: the sampled pairs that are trained on.
      data: the paths and languages; the rest of it is chosen.
      num_validation: pairs of the validation set.
      device: that trains.

    Raises:
      UserError: the text allows no tokenizer, or has no pair that can be trained on.
    """
    share = len(train) / len(survey.sample)
    num_pairs = round(share * survey.num_usable)
    sizes = sizing.choose_sizes(num_pairs, device.machine, device.num_units)
    source, target = survey.source, survey.target
    chosen, reasons = sizing.choose_tokenizer(
        sizes,
        num_pairs,
        source.character_counts,
        target.character_counts,
        source.script == target.script,
    )
    bleu_tokenizer, reason = bleu_tokenizers.choose_installed(data.target_lang)
    if reason:
        reasons["data.bleu_tokenizer"] = reason
    data = dataclasses.replace(
        chosen,
        train=data.train,
        validation=data.validation,
        test=data.test,
        source_lang=data.source_lang,
        target_lang=data.target_lang,
        bleu_tokenizer=bleu_tokenizer,
    )
    data, tokenizers = _train_tokenizers(data, train, reasons)
    tokens = count_tokens(train, tokenizers, round(share * survey.num_filled), data.max_ratio)
    if tokens.per_epoch == 0:
        raise UserError(
            f"{data.train}: every pair has more than {tokens.max_len} tokens, or sides of very "
            "different lengths. Split the text into sentences."
        )
    config = make_config(sizes, data, tokens, num_validation, device)
    reasons |= make_reasons(sizes, config, tokens, device.machine)
    if target.words and target.words.median < WORDS_OF_BLEU:
        checkpoint = dataclasses.replace(config.checkpoint, best_metric="eval_chrf")
        config = dataclasses.replace(config, checkpoint=checkpoint)
        reasons["checkpoint.best_metric"] = (
            "BLEU compares four words in a row, and most translations are shorter."
        )
    return ChosenSettings(validate(config), reasons, tokens)


def make_config(
    sizes: Sizes, data: DataConfig, tokens: TokenLengths, num_validation: int, device: Device
) -> Config:
    """The config of the run.

    Args:
      sizes: the row of the table.
      data: with the tokenizer, paths and languages.
      tokens: measured with that tokenizer.
      num_validation: pairs of the validation set.
      device: that trains.
    """
    num_steps = sizing.choose_num_steps(sizes, tokens.per_epoch, device.num_units)
    eval_every = sizing.round_number(num_steps / (12 if num_steps <= 10_000 else 20))
    few = num_validation <= 1000 or device.machine == "accelerator"
    return Config(
        model=ModelConfig(
            num_encoder_layers=sizes.num_layers,
            num_decoder_layers=sizes.num_layers,
            d_model=sizes.d_model,
            num_heads=sizes.num_heads,
            d_ff=sizes.d_ff,
            dropout_rate=sizes.dropout_rate,
            norm_position=sizes.norm_position,
            tie_embeddings="all" if data.shared_vocab else "decoder",
            max_len=2 * tokens.max_len,
        ),
        data=dataclasses.replace(data, max_len=tokens.max_len, batch_tokens=sizes.batch_tokens),
        train=TrainConfig(
            num_steps=num_steps,
            eval_every_steps=eval_every,
            checkpoint_every_steps=eval_every,
            early_stopping_patience=sizes.patience,
            ema_decay=sizes.ema_decay,
            eval_sentences=0 if few else 1000,
        ),
        optimizer=OptimizerConfig(
            schedule=sizes.schedule,
            learning_rate=sizing.learning_rate(sizes),
            warmup_steps=sizes.warmup_steps,
            eps=1e-8,
            clip_norm=1.0 if sizes.norm_position == "pre" else 0.0,
        ),
        decode=DecodeConfig(max_decode_len=2 * tokens.max_len),
    )


def count_tokens(
    pairs: Pairs, tokenizers: TokenizerPair, num_pairs: int, max_ratio: float
) -> TokenLengths:
    """Lengths of pairs in tokens, and what follows for a corpus of `num_pairs` pairs like them."""
    sides = zip((tokenizers.source, tokenizers.target), zip(*pairs, strict=True), strict=True)
    counts = [[len(ids) for ids in tokenizer.encode_batch(texts)] for tokenizer, texts in sides]
    lengths = np.array(counts) + 1  # [2, pairs], with the end symbols
    longer = lengths.max(axis=0)
    most, longest = int(np.quantile(longer, 0.999, method="higher")), int(longer.max())
    max_len = sizing.choose_max_len(most, longest)
    selection = select_pairs(lengths[0] - 1, lengths[1] - 1, max_len, max_ratio=max_ratio)
    return TokenLengths(
        median=int(np.median(lengths[1])),
        most=most,
        longest=longest,
        max_len=max_len,
        too_long=selection.counts.num_too_long / len(pairs),
        uneven=selection.counts.num_uneven / len(pairs),
        per_epoch=float(selection.target_lengths.sum()) * num_pairs / len(pairs),
    )


def _train_tokenizers(
    data: DataConfig, pairs: Pairs, reasons: Reasons
) -> tuple[DataConfig, TokenizerPair]:
    """Tokenizers of the sizes in `data`, or of the largest sizes that the text allows.

    Returns:
      `data`, with the sizes of the tokenizers, whose reasons are in `reasons`; and the tokenizers.
    """
    try:
        return data, make_tokenizers(data, [_corpus(data, pairs)])
    except VocabularyTooLargeError:
        pass  # a smaller one is chosen below
    sides = [pairs]
    if not data.shared_vocab:
        sides = [[(text, "") for text in side] for side in zip(*pairs, strict=True)]
    sizes = []
    for name, side in zip(("vocab_size", "target_vocab_size"), sides, strict=False):
        sizes.append(_possible_size(data, getattr(data, name) or data.vocab_size, side))
        if sizes[-1] != (getattr(data, name) or data.vocab_size):
            reasons[f"data.{name}"] = "The text is so uniform that it has hardly more tokens."
    target_size = 0 if sizes[-1] == sizes[0] else sizes[-1]
    smaller = dataclasses.replace(data, vocab_size=sizes[0], target_vocab_size=target_size)
    return smaller, make_tokenizers(smaller, [_corpus(data, pairs)])


def _possible_size(data: DataConfig, size: int, pairs: Pairs) -> int:
    """`size`, or nearly the size of the largest vocabulary that the text allows."""
    alone = dataclasses.replace(data, shared_vocab=True, vocab_size=size, target_vocab_size=0)
    try:
        make_tokenizers(alone, [_corpus(data, pairs)])
    except VocabularyTooLargeError as error:
        limit = error.most
        # The training text may differ a little. Every character needs a token all the same.
        num_characters = len(set().union(*map("".join, pairs)))
        needed = sizing.BYTE_TOKENS + sizing.SPECIAL_TOKENS + num_characters
        return min(limit, max(math.floor(0.95 * limit), needed))
    return size


def _corpus(data: DataConfig, pairs: Pairs) -> Corpus:
    return Corpus("the sample", data.source_lang, data.target_lang, lambda: iter(pairs), "")
