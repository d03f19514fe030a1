"""Requests: texts to translate, checked, and encoded as token ids that the model can read."""

import dataclasses
import reprlib
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from transformer_jax.data import context
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError, UserTypeError
from transformer_jax.translator import long_texts, phrases
from transformer_jax.translator.phrases import OneOf, Phrase
from transformer_jax.translator.translation_settings import TranslationSettings

T = TypeVar("T")
PHRASES_NEED_BEAMS = (
    "phrases need beam search, which `method={method}` is not. Remove the phrases, or set "
    "`method=beam`."
)


@dataclasses.dataclass(frozen=True)
class Request:
    """A text to translate.

    Raises:
      UserError: phrases that are no list of strings.
    """

    text: str
    prefix: str = ""  # what the translation begins with
    # What the translation has to contain; one string is one phrase.
    phrases: Sequence[str | OneOf] = ()
    # Sentences before it, of a model that was trained with `data.context_sentences`.
    context: Sequence[str] = ()
    # Its number in a file, for messages; None: messages name its index in the list of texts.
    line: int | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        is_one = isinstance(self.phrases, str | OneOf)
        phrases = (self.phrases,) if is_one else self.phrases
        if not isinstance(phrases, Sequence) or isinstance(phrases, bytes):
            raise UserTypeError(f"`phrases` is {described(phrases)}, not a list of strings.")
        object.__setattr__(self, "phrases", tuple(phrases))  # so that requests can be hashed
        if not isinstance(self.context, Sequence) or isinstance(self.context, str | bytes):
            raise UserTypeError(f"`context` is {described(self.context)}, not a list of strings.")
        object.__setattr__(self, "context", tuple(self.context))


@dataclasses.dataclass(frozen=True, eq=False)
class RefusedItem:
    """An item that is no request, or one that the method cannot answer."""

    error: UserError
    line: int | None = None
    part: str = ""  # of the item that is wrong, such as ".prefix"


def read_requests(
    items: Iterable[Any], why_no_phrases: str = ""
) -> Iterator[Request | RefusedItem]:
    """The request of each item, or why there is none.

    Args:
      items: texts and requests.
      why_no_phrases: why requests may have no phrases; "": they may.
    """
    for item in items:
        request = item if isinstance(item, Request) else Request(item)
        parts = {"": request.text, ".prefix": request.prefix}
        parts |= {f".context[{number}]": text for number, text in enumerate(request.context)}
        for number, phrase in enumerate(request.phrases):
            name = f".phrases[{number}]"
            if isinstance(phrase, OneOf):
                parts |= {f"{name}.forms[{n}]": form for n, form in enumerate(phrase.forms)}
            else:
                parts[name] = phrase
        part = ""
        try:
            if request.phrases and why_no_phrases:
                raise UserError(why_no_phrases)
            for name, value in parts.items():
                part = name
                check_text(value)
            yield request
        except UserError as error:
            yield RefusedItem(error, request.line, part)


def windows(
    items: Iterable[T], size: int, ready: Callable[[], bool] | None = None
) -> Iterator[list[T]]:
    """Lists of `size` items, or fewer where the next item would have to be waited for.

    Args:
      items: read as lists are asked for.
      size: at least 1.
      ready: whether the next item can be read without waiting; None: always.
    """
    window = []
    for item in items:
        window.append(item)
        if len(window) == size or not (ready is None or ready()):
            yield window
            window = []
    if window:
        yield window


def check_text(value: Any) -> None:
    """Checks that `value` is a string that can be written as UTF-8.

    Raises:
      UserError: it is not. The message has no subject: `item_error` adds it.
    """
    if not isinstance(value, str):
        hint = "; decode it first." if isinstance(value, bytes) else "."
        raise UserTypeError(f"is {described(value)}, not a string{hint}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"no valid text: character {error.start} is U+{ord(value[error.start]):04X}, half of "
            "a surrogate pair."
        ) from error


def described(value: Any) -> str:
    """What an object is, for messages: `a float (nan)`."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "" if name == "bytes" else "an " if name[0].lower() in "aeiou" else "a "
    return f"{article}{name} ({reprlib.repr(value)})"


def place_of(item: Any, index: int, name: str = "texts") -> str:
    """Where an item is, for messages: its line of a file, or its index in the list `name`."""
    line = getattr(item, "line", None)
    return f"{name}[{index}]{getattr(item, 'part', '')}" if line is None else f"line {line}"


def item_error(error: UserError, place: str) -> UserError:
    """`error` with the place of its item."""
    separator = " " if isinstance(error, UserTypeError) else ": "
    return type(error)(f"{place}{separator}{error}")


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """Token ids of a text, or of a part of a text that is longer than the model reads."""

    source: tuple[int, ...]  # with language tags and end symbol
    settings: TranslationSettings
    prefix: tuple[int, ...] = ()  # what the output begins with, language tags included
    phrases: tuple[Phrase, ...] = ()
    num_source_tags: int = 0  # the first ones of `source`
    num_context: int = 0  # tokens of sentences before it, after the tags
    num_target_tags: int = 0  # at the beginning of `prefix`

    @property
    def num_before(self) -> int:
        """Tokens of `source` before those of the text."""
        return self.num_source_tags + self.num_context

    @property
    def own_length(self) -> int:
        """Tokens of `source` without those of the sentences before it."""
        return len(self.source) - self.num_context

    @property
    def seed(self) -> int:
        """A number of 32 bits that depends on the source alone."""
        return zlib.crc32(np.asarray(self.source, np.int32).tobytes())

    def min_output(self, wanted: Sequence[Phrase]) -> int:
        """Output tokens that the prefix and `wanted` phrases may take, with the end symbol."""
        if not self.prefix and not wanted:
            return 0
        return len(self.prefix) + sum(phrase.most_tokens for phrase in wanted) + 1


class RequestEncoder:
    """Encodes requests.

    Args:
      tokenizers: of the model.
      language_tags: ids before source and target.
      max_len: tokens that the model reads and writes, the end symbol included.
      source_eos: end symbol of a source.
      needs_tag: whether each text has to begin with the tag of its target language.
    """

    def __init__(
        self,
        tokenizers: TokenizerPair,
        language_tags: tuple[list[int], list[int]],
        max_len: int,
        source_eos: int,
        needs_tag: bool = False,
    ):
        self.tokenizers, self.max_len, self._needs_tag = tokenizers, max_len, needs_tag
        self._source_tags, self.target_tags = language_tags
        self._source_eos = source_eos

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text with its tags, without the end symbol; [] where it is empty."""
        tags = [self._source_tags] * len(texts)
        if self._needs_tag:
            split = [self.tokenizers.split_tag(text) for text in texts]
            tags, texts = [ids for ids, _ in split], [rest for _, rest in split]
        encoded = self.tokenizers.source.encode_batch(texts)
        return [[*tag, *ids] if ids else [] for tag, ids in zip(tags, encoded, strict=True)]

    def with_context(self, ids: list[int], before: Sequence[str]) -> tuple[list[int], int]:
        """Ids with those of sentences before them, as far as there is room; and their number.

        Args:
          ids: of a text, with its tags.
          before: sentences; empty ones are left out.

        Raises:
          UserError: the model reads no sentences before a text.
        """
        if not ids or not any(before):
            return ids, 0
        separator = self.tokenizers.context_separator()
        encoded = filter(None, self.tokenizers.source.encode_batch(before))
        added = context.joined_ids(list(encoded), separator, len(ids), self.max_len - 1)
        num_tags = len(self._source_tags)
        return [*ids[:num_tags], *added, *ids[num_tags:]], len(added)

    def empty_text(self, settings: TranslationSettings) -> EncodedText:
        """An empty text with the language tags that every text has."""
        return self._encoded([*self._source_tags], settings, len(self._source_tags))

    def encode(
        self, requests: Sequence[Request], settings: TranslationSettings
    ) -> list[list[EncodedText] | UserError]:
        """The parts of each request: none if it is empty, several if it is too long.

        Of a request whose phrases or prefix do not fit, what is wrong with it.
        """
        sources = self.source_ids([request.text for request in requests])
        encoded: list[list[EncodedText] | UserError] = []
        for request, ids in zip(requests, sources, strict=True):
            try:
                encoded.append(self._encode(request, ids, settings))
            except UserError as error:
                encoded.append(error)
        return encoded

    def _encode(
        self, request: Request, ids: list[int], settings: TranslationSettings
    ) -> list[EncodedText]:
        limit = self.max_len - 1  # the end symbol needs a position
        if self._needs_tag and ids and not self.tokenizers.num_tags(ids):
            known = map(self.tokenizers.tags.token, self.tokenizers.languages[:3])
            raise UserError(
                f"{request.text[:40]!r} has no target language: set `target_lang`, or let the text "
                f"begin with one of {', '.join(known)} …"
            )
        num_tags, num_context = len(self._source_tags), 0
        if len(ids) <= limit:
            ids, num_context = self.with_context(ids, request.context)
        parts = [ids] if ids else []
        if len(ids) > limit:
            num_tags += self.tokenizers.num_tags(ids[num_tags:])
            if request.phrases:
                raise UserError(
                    f"{request.text[:40]!r}… has {len(ids)} tokens and the model reads "
                    f"{limit}: it is translated in parts, in which phrases cannot be placed."
                )
            tags, body = ids[:num_tags], ids[num_tags:]
            tokens = self.tokenizers.source.tokens(body)
            bodies = long_texts.split_ids(body, tokens, limit - num_tags)
            parts = [tags + part for part in bodies]
        if not parts:
            return []
        texts = [self._encoded(part, settings, num_tags, num_context) for part in parts]
        return [self._with_output(texts[0], request), *texts[1:]]

    def _encoded(
        self, ids: list[int], settings: TranslationSettings, num_tags: int, num_context: int = 0
    ) -> EncodedText:
        tags, source = tuple(self.target_tags), (*ids, self._source_eos)
        return EncodedText(source, settings, tags, (), num_tags, num_context, len(tags))

    def _with_output(self, text: EncodedText, request: Request) -> EncodedText:
        """`text` with the prefix and phrases of `request`."""
        target = self.tokenizers.target
        prefix = (*text.prefix, *(target.encode(request.prefix) if request.prefix else ()))
        wanted = tuple(filter(None, (phrases.encode(target, p) for p in request.phrases)))
        text = dataclasses.replace(text, prefix=prefix, phrases=wanted)
        if text.min_output(wanted) > self.max_len:
            raise UserError(
                f"The prefix and phrases for {request.text[:40]!r} take "
                f"{text.min_output(wanted)} tokens, the model writes {self.max_len}."
            )
        return text


def warn(message: str) -> None:
    """Says something about the input, on standard error."""
    print(message, file=sys.stderr, flush=True)
