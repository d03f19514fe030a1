"""Tokenises a block of text and writes it as a shard; runs in any process."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax import paths
from transformer_jax.config import DataConfig
from transformer_jax.config.data_fields import parse_augment
from transformer_jax.config.pair_kinds import FILTERS
from transformer_jax.data import cache_manifest, context, noise
from transformer_jax.data.plans.pair_selection import select_shard
from transformer_jax.data.plans.permutation import make_key
from transformer_jax.data.shards.filter_report import FilterReport
from transformer_jax.data.shards.filters import NO_FILTERS, PairFilter
from transformer_jax.data.shards.shard_files import MAX_TOKENS, take, write_sides
from transformer_jax.data.shards.text_blocks import TextBlock
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair

SHARD_PAIRS = 500_000  # of the text; filters leave fewer
CHUNK = 20_000  # sentence pairs tokenised at once; divides SHARD_PAIRS
CHUNKS_OF_CORPUS = 10**7  # numbers of chunks that belong to one corpus

FlatSide = tuple[np.ndarray, np.ndarray]  # tokens, and the length of each sentence


@dataclasses.dataclass(frozen=True)
class ShardWriter:
    """Writes the shards of one corpus.

    Attributes:
      tokenizers: of both sides.
      config: language tags, context, subword sampling and noise.
      languages: of source and target.
      seed: of subword sampling and noise; None: neither. A sentence that they make longer than
        `config.max_len` has neither, too.
      number: of the corpus in the run, from 0; what is drawn depends on it.
      filters: of the pairs.
      num_threads: of the tokenizer.
    """

    tokenizers: TokenizerPair
    config: DataConfig
    languages: tuple[str, str]
    seed: int | None = None
    number: int = 0
    filters: PairFilter = NO_FILTERS
    num_threads: int = 1

    def write(self, folder: Path, block: TextBlock) -> None:
        """Writes the pairs of `block` as the shard `folder`, all at once."""
        report = FilterReport()
        sources, targets = self._filter_texts(block, report)
        sides = self._encode(block, sources, targets)
        if any(FILTERS[name].reads_tokens for name in self.filters.names):
            sides = self._filter_tokens(sides, sources, targets, report)
        with paths.new_path(folder, is_cache=True) as temporary:
            temporary.mkdir()
            write_sides(temporary, sides)
            if self.filters:
                report.write(temporary)
            cache_manifest.write(temporary)
        cache_manifest.sync_folder_of(folder)

    def _filter_texts(self, block: TextBlock, report: FilterReport) -> tuple[list[str], list[str]]:
        """The texts that the filters of texts leave."""
        sources, targets = block.texts()
        report.num_pairs = len(sources)
        if not self.filters:
            return sources, targets
        reasons = self.filters.reasons(sources, targets, block.number)
        report.add(reasons, sources, targets)
        kept = [i for i, reason in enumerate(reasons) if not reason]
        return [sources[i] for i in kept], [targets[i] for i in kept]

    def _filter_tokens(
        self, sides: list[FlatSide], sources: list[str], targets: list[str], report: FilterReport
    ) -> list[FlatSide]:
        """The tokens that the filters of lengths leave."""
        names, config = self.filters.names, self.config
        lengths = [side[1] for side in sides]
        max_len = config.max_len if "length" in names else MAX_TOKENS + 1
        max_ratio = config.max_ratio if "ratio" in names else 0.0
        kept = select_shard(lengths[0], lengths[1], max_len, max_ratio).pairs
        is_long = np.maximum(*lengths).astype(np.int64) + 1 > max_len
        is_empty = np.minimum(*lengths) == 0  # which is for the filter of that name
        is_kept = is_empty
        is_kept[kept] = True
        reasons = np.where(is_kept, "", np.where(is_long, "length", "ratio")).tolist()
        report.add(reasons, sources, targets)
        chosen = np.flatnonzero(is_kept)
        return [(take(tokens, of_side, chosen), of_side[chosen]) for tokens, of_side in sides]

    def _encode(self, block: TextBlock, sources: list[str], targets: list[str]) -> list[FlatSide]:
        """Flat ids and lengths of source and target; an empty sentence has no ids at all."""
        tags: tuple[list[int], list[int]] = ([], [])
        if self.config.target_language_tags:
            tags = self.tokenizers.language_tags(*self.languages)
        tags = self.tokenizers.with_prefix(tags, self.config.source_prefix)
        first_chunk = self.number * CHUNKS_OF_CORPUS + block.number * (SHARD_PAIRS // CHUNK)
        with_context = self._context_adder(block)
        both = []
        for side, texts in enumerate((sources, targets)):
            tokenizer = (self.tokenizers.source, self.tokenizers.target)[side]
            flat = _FlatIds(tokenizer.vocab_size)
            for i, chunk in enumerate(_chunks(texts)):
                ids = self._ids(tokenizer, chunk, (first_chunk + i, side), len(tags[side]))
                if side == 0 and self.config.context_sentences:
                    ids = list(with_context(ids, tags[0]))
                elif tags[side]:
                    ids = [tags[side] + sentence if sentence else [] for sentence in ids]
                flat.add(ids)
            both.append(flat.arrays())
        return both

    def _context_adder(self, block: TextBlock) -> context.ContextAdder:
        """What finds the sentences before each source; it knows those before the block."""
        count = self.config.context_sentences
        separator = self.tokenizers.context_separator() if count else -1
        adder = context.ContextAdder(count, separator, self.config.max_len - 1)
        if block.before:
            list(adder(self.tokenizers.source.encode_batch(block.before), []))
        return adder

    def _ids(
        self, tokenizer: Tokenizer, texts: Sequence[str], name: tuple[int, int], num_tags: int
    ) -> list[list[int]]:
        """Token ids of a chunk, without tags; with a seed, with noise and subword sampling.

        Args:
          tokenizer: of the side.
          texts: of the chunk.
          name: number of the chunk, and 0 for sources, 1 for targets, which have no noise.
          num_tags: tokens that come before those of each text.
        """
        if self.seed is None:
            return tokenizer.encode_batch(texts, self.num_threads)
        seed = int(make_key(self.seed, *name) >> np.uint64(32))
        noisy, (_, side) = texts, name
        if self.config.augment and side == 0:
            noisy = noise.add_to_some(texts, parse_augment(self.config.augment), seed)
        if self.config.subword_sampling:
            drawn = tokenizer.sample_batch(noisy, self.config.subword_sampling, seed)
        else:
            drawn = tokenizer.encode_batch(noisy, self.num_threads)
        max_tokens = self.config.max_len - 1 - num_tags
        return [
            ids if len(ids) <= max_tokens else tokenizer.encode(text)
            for ids, text in zip(drawn, texts, strict=True)
        ]


class _FlatIds:
    """Collects sentences as flat arrays."""

    def __init__(self, vocab_size: int):
        self._dtype = np.uint16 if vocab_size <= 2**16 else np.int32
        self._ids: list[np.ndarray] = [np.zeros(0, self._dtype)]
        self._lengths: list[np.ndarray] = [np.zeros(0, np.uint16)]

    def add(self, sentences: list[list[int]]) -> None:
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        if len(lengths) and lengths.max() > MAX_TOKENS:  # too long for any `max_len`
            sentences = [sentence[:MAX_TOKENS] for sentence in sentences]
            lengths = np.minimum(lengths, MAX_TOKENS)
        flat = itertools.chain.from_iterable(sentences)
        self._ids.append(np.fromiter(flat, self._dtype, int(lengths.sum())))
        self._lengths.append(lengths.astype(np.uint16))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids and lengths of all sentences."""
        return np.concatenate(self._ids), np.concatenate(self._lengths)


def _chunks(texts: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(texts), CHUNK):
        yield texts[first : first + CHUNK]
