"""Sentence pairs in order, from any source."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from etils import epath

from transformer_jax.data.shards.text_blocks import (
    TextBlock,
    blocks_of_pairs,
    join_blocks,
    read_file_blocks,
)
from transformer_jax.errors import UserTypeError

COUNTED = 100_000  # pairs that are counted at once


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sentence pairs in order.

    Attributes:
      name: for messages.
      source_lang, target_lang: the direction.
      read: returns a new iterator over (source, target).
      fingerprint: digest of the content.
      files: of source and target, or the one with both texts; none if it is not text files.
      parts: corpora that it consists of, one after another; none of a single one.
      prepared: folder with its shards, where `prepare` has made them.
      num_pairs: where it is known without reading them.
    """

    name: str
    source_lang: str
    target_lang: str
    read: Callable[[], Iterator[tuple[str, str]]]
    fingerprint: str
    files: tuple[epath.Path, ...] = ()
    parts: tuple["Corpus", ...] = ()
    prepared: Path | None = None
    num_pairs: int | None = None

    @classmethod
    def of_pairs(
        cls, pairs: Iterable[tuple[str, str]], source_lang: str, target_lang: str
    ) -> "Corpus":
        """The corpus of pairs that a Python program has; it reads them once and keeps them.

        Raises:
          UserError: an item is no pair of texts; a TypeError too.
        """
        kept, digest = [], hashlib.blake2b(digest_size=16)
        for number, pair in enumerate(pairs):
            if not (isinstance(pair, tuple | list) and [*map(type, pair)] == [str, str]):
                raise UserTypeError(
                    f"`train_pairs`: item {number} is {pair!r:.60}, not a source and a target text."
                )
            kept.append((pair[0], pair[1]))
            digest.update(repr(kept[-1]).encode("utf-8", "surrogatepass"))
        read = functools.partial(iter, kept)
        return cls("train_pairs", source_lang, target_lang, read, digest.hexdigest())

    def blocks(self, num_pairs: int, num_before: int = 0) -> Iterator[TextBlock]:
        """The text in blocks of `num_pairs`, each with the last `num_before` sources before it."""
        if self.parts:
            return self._blocks_of_parts(num_pairs, num_before)
        if self.files:
            return read_file_blocks(self.files, num_pairs, num_before)
        return blocks_of_pairs(self.name, self.read(), num_pairs, num_before)

    def count(self) -> int:
        """Number of pairs."""
        if self.num_pairs is not None:
            return self.num_pairs
        return sum(block.num_pairs for block in self.blocks(COUNTED))

    def _blocks_of_parts(self, num_pairs: int, num_before: int) -> Iterator[TextBlock]:
        blocks = (part.blocks(num_pairs, num_before) for part in self.parts)
        # A block has the sources before it of one place only, so it cannot begin in two files.
        joined_pairs = 1 if num_before else num_pairs
        return join_blocks(itertools.chain.from_iterable(blocks), joined_pairs)
