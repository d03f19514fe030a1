"""Trains the tokenizers of a run on its corpora, or loads the model files that the config names."""

import io
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import sentencepiece
from etils import epath

from transformer_jax.config import DataConfig, split_paths
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.corpus_shares import make_stages
from transformer_jax.data.tokenizer import CONTEXT_SEPARATOR, Tokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError

MAX_TRAINING_SENTENCES = 4_000_000  # of more, SentencePiece draws a sample
READ_PAIRS = 100_000  # pairs of a corpus that are read at once


class VocabularyTooLargeError(UserError):
    """The text allows no vocabulary of this size.

    Args:
      message: for the user.
      most: tokens of the largest vocabulary that it allows.
    """

    def __init__(self, message: str, most: int):
        super().__init__(message)
        self.most = most


def make_tokenizers(config: DataConfig, corpora: Sequence[Corpus]) -> TokenizerPair:
    """Loads the models that `config.tokenizer_model` names, or trains on the training corpora.

    Raises:
      UserError: where a model file is missing, or the corpora do not allow such a vocabulary.
    """
    if config.tokenizer_model:
        return _load_models(config)
    # SentencePiece's names of the normalization rules for source and target.
    rules = [name.strip() for name in config.normalization.split(",")]
    rules = [rules[0], rules[-1]]
    tags = []
    if config.target_language_tags:
        tags = sorted({LanguageTags().token(corpus.target_lang) for corpus in corpora})

    separator = [CONTEXT_SEPARATOR] if config.context_sentences else []

    rates = sample_rates(config, corpora)

    def texts(*sides: int) -> Iterator[str]:
        normalize = [_normalizer(rule) for rule in rules]
        for corpus, rate in zip(corpora, rates, strict=True):
            for pair in sample_pairs(corpus, rate):
                for side in sides:
                    text = pair[side].lower() if config.lowercase else pair[side]
                    yield normalize[side](text)

    if config.shared_vocab:
        trained = [_train(config, config.vocab_size, texts(0, 1), [*tags, *separator])] * 2
    else:
        trained = [
            _train(config, config.vocab_size, texts(0), [*tags, *separator]),
            _train(config, config.target_vocab_size or config.vocab_size, texts(1), []),
        ]
    models = [_with_rule(model, rule) for model, rule in zip(trained, rules, strict=True)]
    source = Tokenizer(models[0], config.lowercase)
    if config.shared_vocab and models[0] == models[1]:
        return TokenizerPair(source, source)
    return TokenizerPair(source, Tokenizer(models[1], config.lowercase))


def sample_rates(config: DataConfig, corpora: Sequence[Corpus]) -> list[float]:
    """Share of the pairs of each corpus, 0 .. 1, that a tokenizer is trained on.

    All of them, unless they have more sentences than SentencePiece takes. Then corpora that are
    mixed by shares have the shares of the first steps, where SentencePiece's sample would be by
    size, and few of the texts are read by Python.
    """
    sizes = np.asarray([corpus.count() for corpus in corpora])
    room = MAX_TRAINING_SENTENCES / (2 if config.shared_vocab else 1)  # pairs
    if sizes.sum() <= room:
        return [1.0] * len(corpora)
    stages = make_stages(config, corpora, sizes.tolist())
    shares = np.asarray(stages[0][1]) if stages else sizes
    quotas = room * shares / shares.sum()
    return np.minimum(1.0, quotas / np.maximum(sizes, 1)).tolist()


def sample_pairs(corpus: Corpus, rate: float) -> Iterator[tuple[str, str]]:
    """A share of the pairs, 0 .. 1, at equal distances."""
    first = 0
    for block in corpus.blocks(READ_PAIRS):
        numbers = np.arange(first, first + block.num_pairs + 1)
        is_chosen = np.diff((numbers * rate).astype(np.int64)) > 0
        yield from itertools.compress(zip(*block.texts(), strict=True), is_chosen.tolist())
        first += block.num_pairs


def _load_models(config: DataConfig) -> TokenizerPair:
    files = list(map(epath.Path, split_paths(config.tokenizer_model)))
    if len(files) != (1 if config.shared_vocab else 2):
        raise UserError(
            f"config.data.tokenizer_model names {len(files)} files, but with "
            f"config.data.shared_vocab={config.shared_vocab} it must name "
            f"{1 if config.shared_vocab else '2, SOURCE,TARGET'}."
        )
    for file in files:
        if not file.exists():
            raise UserError(f"There is no tokenizer file {file} (config.data.tokenizer_model).")
    tokenizers = [Tokenizer(file.read_bytes(), config.lowercase) for file in files]
    return TokenizerPair(tokenizers[0], tokenizers[-1])


def _normalizer(rule: str) -> Callable[[str], str]:
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name=rule, add_dummy_prefix=False, escape_whitespaces=False
    )
    return normalizer.normalize


def _with_rule(model: bytes, rule: str) -> bytes:
    """Returns the model with a normalization rule, which it applies to text before encoding."""
    from sentencepiece import sentencepiece_model_pb2  # transformers may install another one

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.name = rule
    spec = sentencepiece_model_pb2.NormalizerSpec.FromString(
        sentencepiece.SentencePieceNormalizer(rule_name=rule).serialized_normalizer_spec()
    )
    proto.normalizer_spec.precompiled_charsmap = spec.precompiled_charsmap
    return proto.SerializeToString(deterministic=True)


def _train(config: DataConfig, vocab_size: int, texts: Iterator[str], tags: list[str]) -> bytes:
    logging.info("training a SentencePiece tokenizer of %d tokens", vocab_size)
    return train_model(
        texts,
        f"A tokenizer of config.data.vocab_size={vocab_size} tokens cannot be trained on this "
        "corpus",
        model_type=config.tokenizer,
        vocab_size=vocab_size,
        character_coverage=config.character_coverage,
        byte_fallback=config.byte_fallback,
        control_symbols=tags,  # which no text can spell
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
    )


def train_model(texts: Iterable[str], failure: str, **options: Any) -> bytes:
    """Trains a SentencePiece model; its rule is `identity`, as `texts` are normalised already.

    Args:
      texts: of the corpus.
      failure: what does not work if training fails, for a message.
      **options: of SentencePiece's trainer.

    Raises:
      UserError: a text cannot be read, or no such model can be trained on these.
    """
    model = io.BytesIO()
    damage: list[UserError] = []

    def sentences() -> Iterator[str]:
        try:
            yield from texts
        except UserError as error:  # SentencePiece would wrap it in its own words
            damage.append(error)

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences(),
            model_writer=model,
            normalization_rule_name="identity",
            input_sentence_size=MAX_TRAINING_SENTENCES,
            shuffle_input_sentence=True,
            max_sentence_length=65_536,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        if damage:
            raise damage[0] from error
        reason = " ".join(str(error).split()).rpartition("] ")[2]
        # SentencePiece's message names its own flags, and our settings have the same names.
        reason = re.sub(r"--(\w+)(?: option)?", r"config.data.\1", reason)
        message = f"{failure}: {reason}"
        if most := re.search(r"vocab_size.*<= (\d+)", message):  # SentencePiece's words
            raise VocabularyTooLargeError(message, int(most[1])) from error
        raise UserError(message) from error
    if damage:
        raise damage[0]
    return model.getvalue()
