"""A model's two tokenizers: trained on the corpus or given, kept in the work directory."""

import dataclasses
import hashlib
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sentencepiece
from etils import epath

from transformer_jax import paths
from transformer_jax.config import DataConfig, ModelConfig
from transformer_jax.data.foreign_tokenizers import JsonTokenizer, VocabularyTokenizer
from transformer_jax.data.sources import Corpus
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError

MAX_TRAINING_SENTENCES = 4_000_000  # beyond, SentencePiece samples


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Ids that surround sentences in a batch."""

    source_pad: int
    source_eos: int
    target_pad: int
    target_eos: int
    decoder_start: int


@dataclasses.dataclass(frozen=True)
class LanguageTags:
    """How a multilingual model is told its languages: a token before the text."""

    template: str = "<2{}>"
    both_sides: bool = False  # each text after its own tag; else the target's before the source
    pattern: str = ".+"  # what a language looks like

    def token(self, language: str) -> str:
        return self.template.format(language)


@dataclasses.dataclass(frozen=True)
class TokenizerPair:
    """Source and target tokenizer; the same object where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer
    tags: LanguageTags = LanguageTags()

    @property
    def shared(self) -> bool:
        return self.source is self.target

    @property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for tokenizer in (self.source, self.target):
            digest.update(tokenizer.model + bytes([tokenizer.lowercase]))
            if type(tokenizer) is not Tokenizer:
                digest.update(json.dumps([tokenizer.state, self.tags.template]).encode())
        return digest.hexdigest()

    def prefixes(self, source_lang: str, target_lang: str) -> tuple[list[int], list[int]]:
        """Ids that go before the source and before the target, to name the languages.

        Raises:
          UserError: where the tokenizer has no tag for a language.
        """
        if self.tags.both_sides:
            return [self._tag(self.source, source_lang)], [self._tag(self.target, target_lang)]
        return [self._tag(self.source, target_lang)], []

    def _tag(self, tokenizer: Tokenizer, language: str) -> int:
        tag = self.tags.token(language)
        found = tokenizer.token_id(tag)
        if found == tokenizer.unk_id or not re.fullmatch(self.tags.pattern, language):
            raise UserError(
                f"The tokenizer has no token {tag}: this model does not know {language!r}."
                if language
                else "This model serves several languages: name source_lang and target_lang."
            )
        return found

    def begins_with_tag(self, ids: Sequence[int]) -> bool:
        """Whether source ids begin with a language tag that stood in the text (`>>de<<`)."""
        before, after = self.tags.template.split("{}")
        if self.tags.both_sides or not ids:
            return False
        (token,) = self.source.tokens(ids[:1])
        return (
            token.startswith(before) and token.endswith(after) and len(token) > len(before + after)
        )

    def save(self, folder: epath.Path) -> None:
        """Writes `tokenizer.json` and one or two models."""
        folder.mkdir(parents=True, exist_ok=True)
        # Written last and at once: it marks the folder as complete.
        description = folder / "tokenizer.json"
        description.unlink(missing_ok=True)
        named = {"shared": self.source} if self.shared else {
            "source": self.source, "target": self.target}  # fmt: skip
        for name, tokenizer in named.items():
            (folder / f"{name}.model").write_bytes(tokenizer.model)
        state = {
            "shared": self.shared,
            "tags": dataclasses.asdict(self.tags),
            "tokenizers": [tokenizer.state for tokenizer in named.values()],
        }
        paths.write_atomically(description, json.dumps(state, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: epath.Path) -> "TokenizerPair":
        """Inverse of `save`.

        Raises:
          UserError: where files are missing or no tokenizers.
        """
        try:
            state = json.loads((folder / "tokenizer.json").read_text())
            names = ["shared"] if state["shared"] else ["source", "target"]
            models = [(folder / f"{name}.model").read_bytes() for name in names]
            # Work directories of version 0.1 name no kinds.
            plain = {"kind": "sentencepiece", "lowercase": state.get("lowercase", False)}
            states = state.get("tokenizers", [plain] * len(names))
            tags = LanguageTags(**state.get("tags", {}))
            tokenizers = [_from_state(m, dict(s)) for m, s in zip(models, states, strict=True)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder} holds no usable tokenizer ({error}).") from error
        return cls(tokenizers[0], tokenizers[-1], tags)


def special_ids(tokenizers: TokenizerPair, model: ModelConfig) -> SpecialIds:
    """Ids that surround sentences, for this model."""
    return SpecialIds(
        source_pad=tokenizers.source.pad_id,
        source_eos=tokenizers.source.eos_id,
        target_pad=tokenizers.target.pad_id,
        target_eos=tokenizers.target.eos_id,
        decoder_start=model.decoder_start_id,
    )


def _from_state(model: bytes, state: dict[str, Any]) -> Tokenizer:
    kinds: dict[str, Callable[..., Tokenizer]] = {
        "sentencepiece": Tokenizer,
        "vocabulary": VocabularyTokenizer,
        "tokenizers": JsonTokenizer,
    }
    return kinds[state.pop("kind")](model, **state)


def make_tokenizers(config: DataConfig, corpora: Sequence[Corpus]) -> TokenizerPair:
    """Loads the models that `config.tokenizer_model` names, or trains on the training corpora."""
    if config.tokenizer_model:
        paths = [epath.Path(path.strip()) for path in config.tokenizer_model.split(",")]
        if len(paths) != (1 if config.shared_vocab else 2):
            raise UserError(
                f"config.data.tokenizer_model names {len(paths)} files, but with "
                f"config.data.shared_vocab={config.shared_vocab} it must name "
                f"{1 if config.shared_vocab else '2, SOURCE,TARGET'}."
            )
        for path in paths:
            if not path.exists():
                raise UserError(f"There is no tokenizer file {path} (config.data.tokenizer_model).")
        tokenizers = [Tokenizer(path.read_bytes(), config.lowercase) for path in paths]
        return TokenizerPair(tokenizers[0], tokenizers[-1])
    tags = sorted({LanguageTags().token(c.target_lang) for c in corpora}) if (
        config.target_language_tags) else []  # fmt: skip
    rules = normalization_rules(config)

    def texts(*sides: int) -> Iterator[str]:
        normalize = [_normalizer(rule) for rule in rules]
        for corpus in corpora:
            for pair in corpus.read():
                for side in sides:
                    text = pair[side].lower() if config.lowercase else pair[side]
                    yield normalize[side](text)

    if config.shared_vocab:
        model = _train(config, texts(0, 1), tags)
        models = [_with_rule(model, rule) for rule in rules]
    else:
        trained = _train(config, texts(0), tags), _train(config, texts(1), [])
        models = [_with_rule(model, rule) for model, rule in zip(trained, rules, strict=True)]
    source = Tokenizer(models[0], config.lowercase)
    if config.shared_vocab and models[0] == models[1]:
        return TokenizerPair(source, source)
    return TokenizerPair(source, Tokenizer(models[1], config.lowercase))


def normalization_rules(config: DataConfig) -> tuple[str, str]:
    """SentencePiece's names of the rules for source and target."""
    names = [name.strip() for name in config.normalization.split(",")]
    return names[0], names[-1]


def _normalizer(rule: str) -> Callable[[str], str]:
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name=rule, add_dummy_prefix=False, escape_whitespaces=False
    )
    return normalizer.normalize


def _with_rule(model: bytes, rule: str) -> bytes:
    """The model, which keeps text as it is, with the rule that it applies to text first."""
    from sentencepiece import sentencepiece_model_pb2  # transformers may bring one of its own

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.name = rule
    spec = sentencepiece_model_pb2.NormalizerSpec.FromString(
        sentencepiece.SentencePieceNormalizer(rule_name=rule).serialized_normalizer_spec()
    )
    proto.normalizer_spec.precompiled_charsmap = spec.precompiled_charsmap
    return proto.SerializeToString(deterministic=True)


def _train(config: DataConfig, texts: Iterator[str], tags: list[str]) -> bytes:
    """A model of texts that are normalised already; its own rule is `identity`."""
    logging.info("training a SentencePiece tokenizer of %d tokens", config.vocab_size)
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
            model_type=config.tokenizer,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity",
            control_symbols=tags,  # which no text can spell
            input_sentence_size=MAX_TRAINING_SENTENCES,
            shuffle_input_sentence=True,
            max_sentence_length=65_536,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            minloglevel=2,
        )
    except RuntimeError as error:
        if damage:
            raise damage[0] from error
        reason = " ".join(str(error).split()).rpartition("] ")[2]
        raise UserError(
            f"A tokenizer of config.data.vocab_size={config.vocab_size} tokens cannot be trained "
            f"on this corpus: {reason}"
        ) from error
    if damage:
        raise damage[0]
    return model.getvalue()
