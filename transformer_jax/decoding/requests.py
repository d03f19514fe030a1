"""What is asked for a line of text, and the parts of it that a model can read."""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding import long_texts
from transformer_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Request:
    """A text to translate."""

    text: str
    prefix: str = ""  # what the translation begins with
    phrases: tuple[str, ...] = ()  # what must appear in it


@dataclasses.dataclass(frozen=True)
class Part:
    """A text, or as much of it as the model reads at once, as ids."""

    source: tuple[int, ...]  # language tag and end symbol included
    prefix: tuple[int, ...] = ()  # language tag included
    phrases: tuple[tuple[int, ...], ...] = ()
    num_tags: int = 0  # at the beginning of `source`

    @property
    def seed(self) -> int:
        """A number of 32 bits that depends on the source alone."""
        return zlib.crc32(np.asarray(self.source, np.int32).tobytes())

    @property
    def needed(self) -> int:
        """Pieces of output that prefix and phrases may take, the end symbol included."""
        if not self.prefix and not self.phrases:
            return 0
        return len(self.prefix) + sum(map(len, self.phrases)) + 1


class RequestEncoder:
    """Turns requests into parts.

    Args:
      tokenizers: of the model.
      prefixes: language tags before source and target.
      max_len: pieces that the model reads and writes, the end symbol included.
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
        """Pieces of every prefix that are language tags."""
        return len(self._prefixes[1])

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text behind its tag, without the end symbol; [] where it is empty."""
        encoded = self.tokenizers.source.encode_batch(texts)
        return [[*self._prefixes[0], *ids] if ids else [] for ids in encoded]

    def encode(self, requests: Sequence[Request]) -> list[list[Part]]:
        """Parts of each request: none for an empty text, several for one that is too long.

        Raises:
          UserError: where phrases or a prefix cannot be kept.
        """
        sources = self.source_ids([request.text for request in requests])
        limit = self.max_len - 1  # the end symbol needs a place
        found = []
        for request, ids in zip(requests, sources, strict=True):
            tags = len(self._prefixes[0])
            pieces = [ids] if ids else []
            if len(ids) > limit:
                tags += self.tokenizers.begins_with_tag(ids[tags:])
                pieces = self._split(ids, limit, tags)
                if request.phrases:
                    raise UserError(
                        f"{request.text[:40]!r}… has {len(ids)} pieces and the model reads "
                        f"{limit}: it is translated in parts, in which phrases cannot be placed."
                    )
            found.append(self._parts(request, pieces, tags))
        return found

    def _split(self, ids: list[int], limit: int, tags: int) -> list[list[int]]:
        """Parts of at most `limit`, each behind the first `tags` ids."""
        body = ids[tags:]
        names = self.tokenizers.source.pieces(body)
        return [ids[:tags] + part for part in long_texts.split_ids(body, names, limit - tags)]

    def _parts(self, request: Request, pieces: list[list[int]], tags: int) -> list[Part]:
        parts = []
        for number, ids in enumerate(pieces):
            prefix = list(self._prefixes[1])
            phrases: tuple[tuple[int, ...], ...] = ()
            if number == 0:
                target = self.tokenizers.target
                if request.prefix:
                    prefix += target.encode(request.prefix)
                phrases = tuple(tuple(target.encode(p)) for p in request.phrases)
            part = Part((*ids, self._source_eos), tuple(prefix), tuple(filter(None, phrases)), tags)
            if part.needed > self.max_len:
                raise UserError(
                    f"The prefix and phrases for {request.text[:40]!r} take {part.needed} pieces, "
                    f"the model writes {self.max_len}."
                )
            parts.append(part)
        return parts
