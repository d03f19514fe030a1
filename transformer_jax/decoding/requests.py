"""What is asked for a line of text, and the parts of it that a model can read."""

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding import long_texts, phrases
from transformer_jax.decoding.phrases import Phrase
from transformer_jax.errors import UserError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Request:
    """A text to translate.

    Raises:
      UserError: phrases that are no list of strings.
    """

    text: str
    prefix: str = ""  # what the translation begins with
    phrases: Sequence[str] = ()  # what must appear in it; one string is one phrase
    # Its number in a file, for messages; None: messages name its place in the list of texts.
    line: int | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        phrases = (self.phrases,) if isinstance(self.phrases, str) else self.phrases
        if not isinstance(phrases, Sequence) or isinstance(phrases, bytes):
            raise UserError(f"phrases={phrases!r} must be a list of strings.")
        object.__setattr__(self, "phrases", tuple(phrases))  # so that requests can be hashed


def read_requests(items: Iterable[Any]) -> Iterator[Request | UserError]:
    """Requests of texts or requests; for an item that holds something else than text, its error."""
    for item in items:
        request = item if isinstance(item, Request) else Request(item)
        try:
            for value in (request.text, request.prefix, *request.phrases):
                check_text(value)
            yield request
        except UserError as error:
            yield error


def windows(
    items: Iterable[T], size: int, ready: Callable[[], bool] | None = None
) -> Iterator[list[T]]:
    """Lists of `size` items, or fewer where the next item would have to be waited for.

    Args:
      items: read as lists are asked for.
      size: at least 1.
      ready: whether the next item can be had at once; None: always.
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
      UserError: it is not.
    """
    if not isinstance(value, str):
        hint = "; decode it first." if isinstance(value, bytes) else "."
        raise UserError(f"of type {type(value).__name__}, not a string{hint}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"no valid text: character {error.start} is U+{ord(value[error.start]):04X}, half of "
            "a surrogate pair."
        ) from error


def item_error(error: UserError, number: int, name: str = "texts") -> UserError:
    """`error` with the place of its item, counted from 1, in the list `name`."""
    return UserError(f"{name}[{number - 1}] (line {number}): {error}")


def line_numbers(items: Sequence[Request | UserError], first: int) -> list[int]:
    """The number of each item in the user's input; of an item without one, counted from `first`."""
    numbers = (getattr(item, "line", None) for item in items)
    return [first + i if number is None else number for i, number in enumerate(numbers)]


@dataclasses.dataclass(frozen=True)
class Part:
    """A text, or as much of it as the model reads at once, as ids."""

    source: tuple[int, ...]  # language tag and end symbol included
    prefix: tuple[int, ...] = ()  # language tag included
    phrases: tuple[Phrase, ...] = ()
    num_tags: int = 0  # at the beginning of `source`

    @property
    def seed(self) -> int:
        """A number of 32 bits that depends on the source alone."""
        return zlib.crc32(np.asarray(self.source, np.int32).tobytes())

    @property
    def needed(self) -> int:
        """Tokens of output that prefix and phrases may take, the end symbol included."""
        if not self.prefix and not self.phrases:
            return 0
        return len(self.prefix) + sum(len(p.ids) for p in self.phrases) + 1


class RequestEncoder:
    """Turns requests into parts.

    Args:
      tokenizers: of the model.
      prefixes: language tags before source and target.
      max_len: tokens that the model reads and writes, the end symbol included.
      source_eos: end symbol of a source.
    """

    def __init__(
        self,
        tokenizers: TokenizerPair,
        prefixes: tuple[list[int], list[int]],
        max_len: int,
        source_eos: int,
    ):
        self.tokenizers, self.max_len = tokenizers, max_len
        self._prefixes, self._source_eos = prefixes, source_eos

    @property
    def free_prefix(self) -> int:
        """Tokens of every prefix that are language tags."""
        return len(self._prefixes[1])

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text behind its tag, without the end symbol; [] where it is empty."""
        encoded = self.tokenizers.source.encode_batch(texts)
        return [[*self._prefixes[0], *ids] if ids else [] for ids in encoded]

    def empty_part(self) -> Part:
        """An empty text, with the language tags that every part has."""
        tags, prefix = self._prefixes
        return Part((*tags, self._source_eos), tuple(prefix), (), len(tags))

    def encode(self, requests: Sequence[Request]) -> list[list[Part] | UserError]:
        """Parts of each request: none for an empty text, several for one that is too long.

        A request whose phrases or prefix cannot be kept has an error instead.
        """
        sources = self.source_ids([request.text for request in requests])
        found: list[list[Part] | UserError] = []
        for request, ids in zip(requests, sources, strict=True):
            try:
                found.append(self._encode(request, ids))
            except UserError as error:
                found.append(error)
        return found

    def _encode(self, request: Request, ids: list[int]) -> list[Part]:
        limit = self.max_len - 1  # the end symbol needs a place
        tags = len(self._prefixes[0])
        tokens = [ids] if ids else []
        if len(ids) > limit:
            tags += self.tokenizers.begins_with_tag(ids[tags:])
            tokens = self._split(ids, limit, tags)
            if request.phrases:
                raise UserError(
                    f"{request.text[:40]!r}… has {len(ids)} tokens and the model reads "
                    f"{limit}: it is translated in parts, in which phrases cannot be placed."
                )
        return self._parts(request, tokens, tags)

    def _split(self, ids: list[int], limit: int, tags: int) -> list[list[int]]:
        """Parts of at most `limit`, each behind the first `tags` ids."""
        body = ids[tags:]
        names = self.tokenizers.source.tokens(body)
        return [ids[:tags] + part for part in long_texts.split_ids(body, names, limit - tags)]

    def _parts(self, request: Request, tokens: list[list[int]], tags: int) -> list[Part]:
        parts = []
        for number, ids in enumerate(tokens):
            prefix = list(self._prefixes[1])
            wanted: list[Phrase | None] = []
            if number == 0:
                target = self.tokenizers.target
                if request.prefix:
                    prefix += target.encode(request.prefix)
                wanted = [phrases.encode(target, p) for p in request.phrases]
            part = Part((*ids, self._source_eos), tuple(prefix), tuple(filter(None, wanted)), tags)
            if part.needed > self.max_len:
                raise UserError(
                    f"The prefix and phrases for {request.text[:40]!r} take {part.needed} tokens, "
                    f"the model writes {self.max_len}."
                )
            parts.append(part)
        return parts
