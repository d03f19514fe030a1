"""New tokens of a tokenizer that belongs to a model: words and tags of further languages.

A SentencePiece model is trained on text of these languages. Those of its tokens that the tokenizer
lacks are added: characters first, then the others in their order. In byte-pair encoding they have
lower ranks than all earlier tokens, so that a text is segmented as before, and then new tokens join
neighbours. In a unigram model they compete by their probability in the new text.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import sentencepiece

from transformer_jax.config import DataConfig
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.foreign_tokenizers import VocabularyTokenizer
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.data.tokenizer_training import sample_pairs, sample_rates, train_model
from transformer_jax.errors import UserError

# A model is trained with this many times the tokens that are needed: enough of them are new.
SPARE_FACTOR = 2
# Share of a text's characters that get tokens where bytes can write the others; SentencePiece's
# advice for large alphabets.
COVERAGE_WITH_BYTES = 0.9995
SPACE = "▁"  # SentencePiece's mark of a space
NAMES_OF_SYMBOLS = {"<unk>", "<s>", "</s>"}  # of a model that is trained here

# For each id, ids of the tokenizer without new tokens: the same id, or those that its text was
# segmented into. Its row in a table is the mean of their rows.
Origins = list[list[int]]


@dataclasses.dataclass(frozen=True)
class ExtendedPair:
    """Tokenizers with new tokens, and where the rows of each come from."""

    tokenizers: TokenizerPair
    source_origins: Origins
    target_origins: Origins


def extend_pair(
    pair: TokenizerPair, known: Set[str], config: DataConfig, corpora: Sequence[Corpus]
) -> ExtendedPair:
    """Adds `new_tokens` tokens of languages that are new to the model, and tags of languages.

    If no language is new, the tokens are of all texts. Two vocabularies are extended one by one.

    Args:
      pair: of the model.
      known: languages of the model, besides those that have tags.
      config: of the run.
      corpora: of the training data.

    Raises:
      UserError: tokenizers that cannot be extended, or corpora without new tokens.
    """
    rates = sample_rates(config, corpora)
    known = {*known, *pair.languages}
    languages = {language for c in corpora for language in (c.source_lang, c.target_lang)}
    wanted = languages - known or languages
    tokenizers = (pair.source, pair.target)

    def texts(*sides: int) -> Iterator[str]:
        for corpus, rate in zip(corpora, rates, strict=True):
            of_sides = (corpus.source_lang, corpus.target_lang)
            if chosen := [side for side in sides if of_sides[side] in wanted]:
                for texts_of_pair in sample_pairs(corpus, rate):
                    for side in chosen:
                        normalized = tokenizers[side].normalize(texts_of_pair[side])
                        yield normalized.replace(SPACE, " ").strip()

    tags = _new_tags(pair, config, corpora)
    tokens = [tokenizer.tokens(range(tokenizer.vocab_size)) for tokenizer in tokenizers]
    if tokens[0] == tokens[1]:  # one vocabulary, perhaps with two rules of normalization
        added = learn(pair.target, lambda: texts(0, 1), config)
        source, source_origins = extend(pair.source, added, pair.tags, tags)
        target, target_origins = source, source_origins
        if not pair.shared:
            target, target_origins = extend(pair.target, added, pair.tags, tags)
    else:
        added = learn(pair.source, lambda: texts(0), config)
        source, source_origins = extend(pair.source, added, pair.tags, tags)
        added = learn(pair.target, lambda: texts(1), config)
        target_tags = tags if pair.tags.both_sides else []
        target, target_origins = extend(pair.target, added, pair.tags, target_tags)
    return ExtendedPair(TokenizerPair(source, target, pair.tags), source_origins, target_origins)


def _new_tags(pair: TokenizerPair, config: DataConfig, corpora: Sequence[Corpus]) -> list[str]:
    """Tags of languages that the model needs and does not have."""
    if not (pair.has_language_tags or config.target_language_tags):
        return []
    languages = {corpus.target_lang for corpus in corpora}
    if pair.tags.both_sides:
        languages |= {corpus.source_lang for corpus in corpora}
    missing = sorted(languages - set(pair.languages))
    for language in missing:
        if not re.fullmatch(pair.tags.pattern, language):
            raise UserError(
                f"{language!r} is no language in the form of this model's, such as "
                f"{', '.join(pair.languages[:3])}. Name the language in this form."
            )
    return [pair.tags.token(language) for language in missing]


def learn(
    tokenizer: Tokenizer, texts: Callable[[], Iterator[str]], config: DataConfig
) -> dict[str, float]:
    """Tokens of texts that a tokenizer lacks, with their scores.

    Args:
      tokenizer: of a model.
      texts: returns them, normalized; it is called twice.
      config: of the run; says how many tokens, and the share of characters that get one.

    Returns:
      At most `new_tokens` tokens; none where there are no texts.

    Raises:
      UserError: a tokenizer that is not SentencePiece's, or texts without new tokens.
    """
    proto = _read_model(tokenizer, config.new_tokens)
    characters = set[str]()
    for text in texts():
        characters.update(text)
    if not characters:
        return {}
    scores = _scores(proto)
    is_unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
    coverage = config.character_coverage
    if proto.trainer_spec.byte_fallback:
        coverage = min(coverage, COVERAGE_WITH_BYTES)
    model = train_model(
        texts(),
        f"config.data.new_tokens={config.new_tokens}: no tokens can be learned from this corpus",
        model_type="unigram" if is_unigram else "bpe",
        vocab_size=SPARE_FACTOR * config.new_tokens + len(characters) + len(NAMES_OF_SYMBOLS),
        hard_vocab_limit=False,
        character_coverage=coverage,
    )
    learned = _scores(type(proto).FromString(model))
    known = {*tokenizer.tokens(range(tokenizer.vocab_size)), *NAMES_OF_SYMBOLS}
    fresh = [token for token in learned if token not in known]
    # Without its characters a token could be of no use.
    chosen = sorted(fresh, key=lambda token: len(token) > 1)[: config.new_tokens]
    if not chosen:
        raise UserError(
            f"config.data.new_tokens={config.new_tokens}: the tokenizer has all tokens of this "
            "corpus. Set it to 0."
        )
    if is_unigram:
        return {token: learned[token] for token in chosen}
    lowest = min(scores.values())
    return {token: lowest - rank for rank, token in enumerate(chosen, start=1)}


def extend(
    tokenizer: Tokenizer, added: Mapping[str, float], tags: LanguageTags, new_tags: Sequence[str]
) -> tuple[Tokenizer, Origins]:
    """Adds tokens and tags after those of a tokenizer, whose ids stay.

    Args:
      tokenizer: of a model.
      added: tokens with their scores, from `learn`.
      tags: of the model's languages.
      new_tags: to add; no text can spell them. Their rows begin as the mean of the other tags, or
        else as the end symbol.
    """
    proto = _read_model(tokenizer, len(added))
    bare = _without_dummy_prefix(proto)
    origins = [[i] for i in range(tokenizer.vocab_size)]
    for token in added:
        parts = bare.encode(token.replace(SPACE, " "), out_type=str)
        origins.append([tokenizer.token_id(part) for part in parts])
    origins += [_ids_of_tags(tokenizer, tags)] * len(new_tags)
    kinds = proto.SentencePiece
    if isinstance(tokenizer, VocabularyTokenizer):
        _add(proto, added, kinds.NORMAL)
        if tags.is_word:  # such a tag is looked up as a word of a text
            _add(proto, dict.fromkeys(new_tags, 0.0), kinds.USER_DEFINED)
        return _with_vocabulary(tokenizer, proto, [*added], new_tags), origins
    _define_special_tokens(proto, tokenizer)
    _add(proto, added, kinds.NORMAL)
    _add(proto, dict.fromkeys(new_tags, 0.0), kinds.CONTROL)
    return Tokenizer(proto.SerializeToString(deterministic=True), tokenizer.lowercase), origins


def _read_model(tokenizer: Tokenizer, num_tokens: int) -> Any:
    from sentencepiece import sentencepiece_model_pb2  # transformers may install another one

    if type(tokenizer) not in (Tokenizer, VocabularyTokenizer):
        raise UserError(
            f"config.data.new_tokens={num_tokens} extends SentencePiece models, and this model has "
            "another tokenizer (tokenizer.json, or bytes). Set it to 0."
        )
    return sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)


def _scores(proto: Any) -> dict[str, float]:
    """Score of each token of a SentencePiece model, in their order."""
    return {entry.piece: entry.score for entry in proto.pieces}  # SentencePiece's names


def _add(proto: Any, scores: Mapping[str, float], kind: int) -> None:
    """Adds tokens to a SentencePiece model, or uses those that it has without an id."""
    present = {entry.piece: entry for entry in proto.pieces}  # SentencePiece's names
    for token, score in scores.items():
        if token in present:
            present[token].type = kind
        else:
            proto.pieces.add(piece=token, score=score, type=kind)  # SentencePiece's names


def _without_dummy_prefix(proto: Any) -> sentencepiece.SentencePieceProcessor:
    """The model, for parts of a word: it puts no space before a text."""
    bare = type(proto).FromString(proto.SerializeToString())
    bare.normalizer_spec.add_dummy_prefix = False
    bare.normalizer_spec.remove_extra_whitespaces = False
    bare.normalizer_spec.precompiled_charsmap = b""
    return sentencepiece.SentencePieceProcessor(model_proto=bare.SerializeToString())


def _define_special_tokens(proto: Any, tokenizer: Tokenizer) -> None:
    """Writes special tokens that follow the model's tokens into it, so that they keep their ids."""
    spec = proto.trainer_spec
    for name in ("pad", "bos", "eos"):
        special_id = getattr(tokenizer, f"{name}_id")
        if special_id >= len(_scores(proto)):
            token = getattr(spec, f"{name}_piece")  # SentencePiece's name
            if token in _scores(proto):
                raise UserError(
                    f"config.data.new_tokens: the tokenizer of the model has a token {token}, and "
                    f"the model has another {name} symbol. Set it to 0."
                )
            _add(proto, {token: 0.0}, proto.SentencePiece.CONTROL)
            setattr(spec, f"{name}_id", special_id)


def _ids_of_tags(tokenizer: Tokenizer, tags: LanguageTags) -> list[int]:
    """Ids of the languages' tags that the tokenizer has, or else of the end symbol."""
    codes = map(tags.language, tokenizer.tokens(range(tokenizer.vocab_size)))
    ids = [i for i, code in enumerate(codes) if code and re.fullmatch(tags.pattern, code)]
    return ids or [tokenizer.eos_id]


def _with_vocabulary(
    tokenizer: VocabularyTokenizer, proto: Any, names: Iterable[str], tags: Sequence[str]
) -> VocabularyTokenizer:
    state = tokenizer.state
    state.pop("kind")
    new = [*names, *tags]
    ids = range(tokenizer.vocab_size, tokenizer.vocab_size + len(new))
    state["vocabulary"] = state["vocabulary"] | dict(zip(new, ids, strict=True))
    state["dropped"] = [*state["dropped"], *tags]
    state["vocab_size"] = ids.stop
    return VocabularyTokenizer(proto.SerializeToString(deterministic=True), **state)
