"""A model's two tokenizers: text of each side to token ids, and back.

The work directory keeps them in `tokenizer/`: `tokenizer.json` and one or two model files.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Sequence

from etils import epath

from transformer_jax import paths
from transformer_jax.config import DataConfig, ModelConfig
from transformer_jax.data.tokenizer import CONTEXT_SEPARATOR, Tokenizer, TokenizerState
from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that surround sentences in a batch."""

    source_pad: int
    source_eos: int
    target_pad: int
    target_eos: int
    decoder_start: int


@dataclasses.dataclass(frozen=True)
class LanguageTags:
    """The tokens that tell a multilingual model its languages; each precedes a text.

    Attributes:
      template: of a token; `{}` is the language. Without it, all languages have the same token.
      both_sides: True: each text follows the tag of its own language. False: the source follows the
        tag of the target language.
      pattern: regular expression of a language.
      is_word: a tag is tokenized as a word of the text, which may give a space too (MADLAD-400).
    """

    template: str = "<2{}>"
    both_sides: bool = False
    pattern: str = ".+"
    is_word: bool = False

    def token(self, language: str) -> str:
        return self.template.format(language)

    def language(self, token: str) -> str:
        """The language of a tag; "" for other tokens."""
        before, _, after = self.template.partition("{}")
        if "{}" not in self.template or not (token.startswith(before) and token.endswith(after)):
            return ""
        return token[len(before) : len(token) - len(after)]


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
        """Digest of both models and of all settings that change token ids."""
        digest = hashlib.blake2b(digest_size=16)
        for tokenizer in (self.source, self.target):
            digest.update(tokenizer.model + bytes([tokenizer.lowercase]))
            if type(tokenizer) is not Tokenizer:
                digest.update(json.dumps([tokenizer.state, self.tags.template]).encode())
        return digest.hexdigest()

    def language_tags(self, source_lang: str, target_lang: str) -> tuple[list[int], list[int]]:
        """Ids of the language tags before the source and before the target.

        Raises:
          UserError: where the tokenizer has no tag for a language.
        """
        if self.tags.both_sides:
            return self._tag_ids(self.source, source_lang), self._tag_ids(self.target, target_lang)
        return self._tag_ids(self.source, target_lang), []

    def with_prefix(
        self, tags: tuple[list[int], list[int]], prefix: str
    ) -> tuple[list[int], list[int]]:
        """`tags` of `language_tags`, and the ids of a text before every source after them."""
        return ([*tags[0], *self.source.encode(prefix)], tags[1]) if prefix else tags

    @property
    def has_language_tags(self) -> bool:
        """Whether the vocabulary has the tag of any language."""
        return any(map(self.tags.language, self.source.tokens(range(self.source.vocab_size))))

    @functools.cached_property
    def languages(self) -> list[str]:
        """Codes of the languages that have a tag in the vocabulary, sorted."""
        codes = map(self.tags.language, self.source.tokens(range(self.source.vocab_size)))
        return sorted(code for code in codes if code and re.fullmatch(self.tags.pattern, code))

    def context_separator(self) -> int:
        """Id of the token after each sentence before a source (`data.context`).

        Raises:
          UserError: the tokenizer has none.
        """
        separator = self.source.token_id(CONTEXT_SEPARATOR)
        if separator == self.source.unk_id:
            raise UserError(
                f"The tokenizer has no token {CONTEXT_SEPARATOR}: this model was not trained with "
                "config.data.context_sentences, so it reads no sentences before a text."
            )
        return separator

    def _tag_ids(self, tokenizer: Tokenizer, language: str) -> list[int]:
        tag = self.tags.token(language)
        tag_id = tokenizer.token_id(tag)
        if "{}" not in self.tags.template:
            return [tag_id]
        if tag_id == tokenizer.unk_id or not re.fullmatch(self.tags.pattern, language):
            raise UserError(
                f"The tokenizer has no token {tag}: this model does not know {language!r}."
                if language
                else "This model serves several languages: name source_lang and target_lang."
            )
        return tokenizer.encode_marker(tag) if self.tags.is_word else [tag_id]

    def needs_tag(self, config: DataConfig, target_lang: str) -> bool:
        """Whether texts name their target language, as neither a caller nor the config does."""
        has_language = bool(target_lang) or self.tags.both_sides or not config.target_language_tags
        return not has_language and config.target_lang not in self.languages

    def split_tag(self, text: str) -> tuple[list[int], str]:
        """Ids of the language tag that a text begins with (`<2de> A dog.`), and the rest of it."""
        before, _, after = map(re.escape, self.tags.template.partition("{}"))
        match = re.match(rf"\s*{before}({self.tags.pattern}?){after}\s*", text)
        if match is None or match[1] not in self.languages:
            return [], text
        return self.language_tags("", match[1])[0], text[match.end() :]

    def num_tags(self, ids: Sequence[int]) -> int:
        """Tokens of a language tag that a text begins with (`>>de<<`), with the space before it."""
        if self.tags.both_sides:
            return 0
        tokens = self.source.tokens(ids[:2])
        num_spaces = int(tokens[:1] == ["▁"])
        tag = tokens[num_spaces : num_spaces + 1]
        return num_spaces + 1 if tag and self.tags.language(tag[0]) else 0

    @property
    def state(self) -> TokenizerState:
        """All but the model files that is needed to create the pair again."""
        return {
            "shared": self.shared,
            "tags": dataclasses.asdict(self.tags),
            "tokenizers": [t.state for t in dict.fromkeys((self.source, self.target))],
        }

    def save(self, folder: epath.Path) -> None:
        """Writes `tokenizer.json` and one or two models."""
        folder.mkdir(parents=True, exist_ok=True)
        # Written last and atomically: it marks the folder as complete.
        description = folder / "tokenizer.json"
        description.unlink(missing_ok=True)
        tokenizers = {"source": self.source, "target": self.target}
        if self.shared:
            tokenizers = {"shared": self.source}
        for name, tokenizer in tokenizers.items():
            (folder / f"{name}.model").write_bytes(tokenizer.model)
        paths.write_atomically(description, json.dumps(self.state, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: epath.Path) -> "TokenizerPair":
        """Reads what `save` wrote.

        Raises:
          UserError: where files are missing or are not tokenizers.
        """
        try:
            state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            names = ["shared"] if state["shared"] else ["source", "target"]
            models = [(folder / f"{name}.model").read_bytes() for name in names]
            return cls.from_state(state, models)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder} has no usable tokenizer ({error}). Copy it again from the original."
            ) from error

    @classmethod
    def from_state(cls, state: TokenizerState, models: Sequence[bytes]) -> "TokenizerPair":
        """The pair of a `state`.

        Args:
          state: as JSON gives it.
          models: content of the model files: of one tokenizer that both share, or of two.
        """
        # Work directories of version 0.1 name no kinds.
        plain = {"kind": "sentencepiece", "lowercase": state.get("lowercase", False)}
        states = state.get("tokenizers", [plain] * len(models))
        tags = LanguageTags(**state.get("tags", {}))
        tokenizers = [_from_state(m, dict(s)) for m, s in zip(models, states, strict=True)]
        return cls(tokenizers[0], tokenizers[-1], tags)


def _from_state(model: bytes, state: TokenizerState) -> Tokenizer:
    kind = state.pop("kind")
    if kind == "sentencepiece":
        return Tokenizer(model, **state)
    from transformer_jax.data import foreign_tokenizers  # of models that were not trained here

    kinds: dict[str, Callable[..., Tokenizer]] = {
        "vocabulary": foreign_tokenizers.VocabularyTokenizer,
        "tokenizers": foreign_tokenizers.JsonTokenizer,
        "bytes": foreign_tokenizers.ByteTokenizer,
    }
    return kinds[kind](model, **state)


def special_ids(tokenizers: TokenizerPair, model: ModelConfig) -> SpecialIds:
    """Ids that surround sentences, for this model."""
    return SpecialIds(
        source_pad=tokenizers.source.pad_id,
        source_eos=tokenizers.source.eos_id,
        target_pad=tokenizers.target.pad_id,
        target_eos=tokenizers.target.eos_id,
        decoder_start=model.decoder_start_id,
    )
