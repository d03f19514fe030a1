"""The files of a shard, and the sentences of many shards as one side of a corpus."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.data import cache_manifest
from transformer_jax.data.plans.batch_shapes import ranges
from transformer_jax.data.plans.lazy_sequence import LazySequence

SIDES = ("source", "target")
MAX_TOKENS = 2**16 - 1  # of a sentence; `data.max_len` is less
BLOCK = 64  # sentences between two known offsets


@dataclasses.dataclass(frozen=True)
class TokenShard:
    """A folder with the tokens of consecutive pairs of a corpus.

    It has `{source,target}_tokens.npy`, flat ids `[tokens]` as uint16 or int32, and
    `{source,target}_lengths.npy`, uint16 `[pairs]`; and a manifest with the digests of these.

    Attributes:
      folder: where it is.
      num_pairs: in it.
      fingerprint: digest of its manifest.
    """

    folder: Path
    num_pairs: int
    fingerprint: str

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each source and target, `[pairs]`, mapped into memory."""
        source, target = (_mapped(self.folder / f"{side}_lengths.npy") for side in SIDES)
        return source, target

    def side(self, side: str) -> "ShardSide":
        """The sentences of `source` or `target`."""
        tokens = np.load(self.folder / f"{side}_tokens.npy", mmap_mode="r")
        return ShardSide(tokens, _mapped(self.folder / f"{side}_lengths.npy"))

    @classmethod
    def open(cls, folder: Path) -> "TokenShard":
        """The shard in `folder`, as far as its manifest shows.

        Raises:
          FileNotFoundError: there is none.
          DamageError: its manifest is damaged, or a file has another size.
        """
        fingerprint = cache_manifest.check_sizes(folder)
        return cls(folder, len(_mapped(folder / "source_lengths.npy")), fingerprint)


def write_sides(folder: Path, sides: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Writes flat tokens and lengths of source and target into `folder`."""
    for name, (tokens, lengths) in zip(SIDES, sides, strict=True):
        np.save(folder / f"{name}_tokens.npy", tokens)
        np.save(folder / f"{name}_lengths.npy", lengths.astype(np.uint16))


def _mapped(file: Path) -> np.ndarray:
    # A view: indexing a memmap takes longer.
    return np.load(file, mmap_mode="r").view(np.ndarray)


def take(tokens: np.ndarray, lengths: np.ndarray, sentences: np.ndarray) -> np.ndarray:
    """Flat ids of some of the sentences that `tokens` and `lengths` are of."""
    lengths = lengths.astype(np.int64)
    first = (np.cumsum(lengths) - lengths)[sentences]
    chosen = lengths[sentences]
    return tokens[np.repeat(first, chosen) + ranges(chosen)]


class ShardSide:
    """The sentences of one side of a shard.

    Only every 64th offset is in memory: 8 bytes for each sentence would be more than most have.

    Args:
      tokens: flat ids.
      lengths: of each sentence.
    """

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray):
        self.tokens, self.lengths = tokens, lengths
        self._flat = tokens.view(np.ndarray)
        firsts = np.arange(0, len(lengths), BLOCK)
        sums = np.add.reduceat(lengths, firsts, dtype=np.int64) if len(lengths) else firsts
        self._block_offsets = np.concatenate([[0], np.cumsum(sums)])

    def __len__(self) -> int:
        return len(self.lengths)

    def sentences(self) -> Iterator[np.ndarray]:
        """The ids of each sentence, in order."""
        start = 0
        for length in self.lengths.tolist():
            yield self._flat[start : start + length]
            start += length

    def offsets(self, sentences: np.ndarray) -> np.ndarray:
        """Where each of these sentences starts in `tokens`, int64 of their shape `[n]`."""
        blocks = sentences // BLOCK
        places = (blocks * BLOCK)[:, None] + np.arange(BLOCK)
        before = self.lengths[np.minimum(places, len(self.lengths) - 1)]
        within = np.where(places < sentences[:, None], before, 0).sum(axis=1, dtype=np.int64)
        return self._block_offsets[blocks] + within

    def take(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat ids of these sentences, one after another, and their lengths, `[n]`."""
        lengths = self.lengths[sentences].astype(np.int64)
        first = self.offsets(sentences)
        return self._flat[np.repeat(first, lengths) + ranges(lengths)], lengths


class ShardedSide:
    """The sentences of one side of all shards; sentence `i` is the `i`-th over all of them.

    Args:
      shards: in order.
      side: `source` or `target`.
      keeps_open: whether all files are mapped now, because they may be removed later; otherwise
        they are when they are used.
    """

    def __init__(self, shards: Sequence[TokenShard], side: str, keeps_open: bool = False):
        self._first = np.concatenate([[0], np.cumsum([shard.num_pairs for shard in shards])])
        self._shards: Sequence[ShardSide]
        if keeps_open:
            self._shards = [shard.side(side) for shard in shards]
        else:
            self._shards = LazySequence(lambda i: shards[i].side(side), len(shards))

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, i: int) -> np.ndarray:
        """Token ids of sentence `i`, int32 `[tokens]`."""
        return self.take(np.asarray([i]))[0].astype(np.int32)

    def __iter__(self) -> Iterator[np.ndarray]:
        for side in self._shards:
            yield from side.sentences()

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence, int64 `[sentences]`; kept in memory, unlike the rest."""
        return np.concatenate([side.lengths for side in self._shards]).astype(np.int64)

    @property
    def tokens(self) -> np.ndarray:
        """All ids; a copy in memory, unless there is one shard."""
        if len(self._shards) == 1:
            return self._shards[0].tokens
        return np.concatenate([side.tokens for side in self._shards])

    def take(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat ids of these sentences, one after another, and their lengths, `[n]`."""
        shards = np.searchsorted(self._first, sentences, side="right") - 1
        used = np.unique(shards).tolist()
        if len(used) == 1:
            return self._shards[used[0]].take(sentences - self._first[used[0]])
        lengths = np.zeros(len(sentences), np.int64)
        parts = {}
        for shard in used:
            chosen = np.flatnonzero(shards == shard)
            local = sentences[chosen] - self._first[shard]
            tokens, lengths[chosen] = self._shards[shard].take(local)
            parts[shard] = chosen, tokens
        starts = np.cumsum(lengths) - lengths
        flat = np.empty(int(lengths.sum()), np.result_type(*(t for _, t in parts.values())))
        for chosen, tokens in parts.values():
            flat[np.repeat(starts[chosen], lengths[chosen]) + ranges(lengths[chosen])] = tokens
        return flat, lengths
