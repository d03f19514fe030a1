"""A corpus as token ids in flat memory-mapped arrays, cached on disk.

In: `Corpus` objects and a `TokenizerPair`. Out: `TokenizedCorpus`. The cache has one folder for
each set of corpora and tokenizers, and with subword sampling for each seed.
"""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax import paths
from transformer_jax.config import DataConfig
from transformer_jax.data import cache_manifest, context, remote_cache, token_links
from transformer_jax.data.permutation import make_key
from transformer_jax.data.sources import Corpus, cache_folder
from transformer_jax.data.token_links import TokenLinks
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError

CHUNK = 20_000  # sentence pairs tokenised at once
ATTEMPTS = 3  # to write an intact cache
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR)
ABANDONED = 7 * 24 * 3600  # seconds without a write after which no process is writing any more
FORMAT = "2"  # part of the cache key: change it when the files' meaning changes


@dataclasses.dataclass(frozen=True)
class TokenizedSide:
    """Sentences of one language: sentence `i` is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: np.ndarray  # [total] uint16 or int32
    offsets: np.ndarray  # [sentences + 1] int64

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence, `[sentences]`, its end symbol not included."""
        return np.diff(self.offsets)

    def __getitem__(self, i: int) -> np.ndarray:
        """Token ids of sentence `i`, int32 `[tokens]`."""
        return np.asarray(self.tokens[self.offsets[i] : self.offsets[i + 1]], np.int32)


@dataclasses.dataclass(frozen=True)
class TokenizedCorpus:
    """Source and target sides of one or several corpora; pair `i` is sentence `i` of each side."""

    source: TokenizedSide
    target: TokenizedSide
    corpus_sizes: tuple[int, ...]  # pairs of each corpus, in the order of the config
    fingerprint: str
    links: TokenLinks | None = None  # where they were asked for

    def __len__(self) -> int:
        return len(self.source.offsets) - 1


@dataclasses.dataclass(frozen=True)
class _Inputs:
    """Everything that token ids depend on."""

    corpora: Sequence[Corpus]
    tokenizers: TokenizerPair
    config: DataConfig
    seed: int | None
    has_links: bool

    @property
    def folder(self) -> Path:
        """The local folder of the cache; its name is a digest of the inputs."""
        digest = hashlib.blake2b(digest_size=16)
        for text in (FORMAT, self.tokenizers.fingerprint, str(self.config.target_language_tags)):
            digest.update(text.encode())
        if self.seed is not None:
            sampling = f"{self.config.subword_sampling} {self.config.max_len} {self.seed}"
            digest.update(sampling.encode())
        if self.has_links:
            digest.update(b"links")
        if self.config.context_sentences:
            size = f"context {self.config.context_sentences} {self.config.max_len}"
            digest.update(size.encode())
        for c in self.corpora:
            digest.update(f"{c.fingerprint} {c.source_lang} {c.target_lang}".encode())
        is_local = self.config.cache_dir and not paths.is_remote(self.config.cache_dir)
        root = Path(self.config.cache_dir if is_local else cache_folder())
        return root / "tokens" / digest.hexdigest()

    def context_adder(self) -> context.ContextAdder:
        """What finds the sentences before each source of a corpus."""
        count = self.config.context_sentences
        separator = self.tokenizers.context_separator() if count else -1
        return context.ContextAdder(count, separator, self.config.max_len - 1)

    def encode(
        self, texts: Sequence[str], side: int, chunk_number: int, num_tags: int
    ) -> list[list[int]]:
        """Token ids of the texts of a chunk, without the `num_tags` of their languages.

        `side` is 0 for the source, 1 for the target.
        """
        tokenizer = (self.tokenizers.source, self.tokenizers.target)[side]
        if self.seed is None:
            ids = tokenizer.encode_batch(texts)
        else:
            chunk_seed = int(make_key(self.seed, chunk_number, side) >> np.uint64(32))
            ids = tokenizer.sample_batch(texts, self.config.subword_sampling, chunk_seed)
            max_tokens = self.config.max_len - 1 - num_tags
            ids = [
                sampled if len(sampled) <= max_tokens else tokenizer.encode(text)
                for sampled, text in zip(ids, texts, strict=True)
            ]
        return ids


def tokenize_corpora(
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    config: DataConfig,
    seed: int | None = None,
    has_links: bool = False,
) -> TokenizedCorpus:
    """Returns the corpora as token ids, from the cache if it has them and is intact.

    Args:
      corpora: what to tokenise.
      tokenizers: of both sides.
      config: where the cache is, whether languages are tagged, and the rate of subword sampling.
      seed: of subword sampling; None: each word in its best segmentation. A sentence that sampling
        makes longer than `config.max_len` gets its best segmentation too.
      has_links: whether tokens are aligned too.

    Raises:
      UserError: where the cache cannot be written, or is damaged each time.
    """
    inputs = _Inputs(corpora, tokenizers, config, seed, has_links)
    # Sampled tokens serve one epoch only, so they are not shared between machines.
    is_shared = seed is None and paths.is_remote(config.cache_dir)
    if is_shared:
        remote_cache.fetch(config.cache_dir, inputs.folder)
    corpus = _read_or_create(inputs)
    if is_shared:
        remote_cache.publish(config.cache_dir, inputs.folder)
    return corpus


def remove(
    corpora: Sequence[Corpus], tokenizers: TokenizerPair, config: DataConfig, seed: int
) -> None:
    """Removes the tokens that were sampled with `seed`; open memory maps stay readable."""
    _remove_folder(_Inputs(corpora, tokenizers, config, seed, False).folder)


def _read_or_create(inputs: _Inputs) -> TokenizedCorpus:
    folder, damage = inputs.folder, ""
    for attempt in range(ATTEMPTS + 1):
        try:
            return _read(folder)
        except FileNotFoundError:
            pass  # not written yet, or just removed by another run
        except cache_manifest.DamageError as error:
            damage = f" ({error})"
            logging.warning("the token cache %s is damaged%s; writing it again", folder, damage)
        if attempt < ATTEMPTS:
            with _write_errors(folder.parent):
                if damage:
                    _remove_folder(folder)
                _create(folder, inputs)
    raise UserError(
        f"The token cache {folder} was written {ATTEMPTS} times and is damaged each time{damage}: "
        "set config.data.cache_dir to a folder on another disk."
    )


def _read(folder: Path) -> TokenizedCorpus:
    cache_manifest.check(folder)
    links = None
    if (folder / "links_tokens.npy").exists():
        links = TokenLinks(*_flat_arrays(folder, "links"))
    sizes = np.load(folder / "corpus_sizes.npy")
    return TokenizedCorpus(
        TokenizedSide(*_flat_arrays(folder, "source")),
        TokenizedSide(*_flat_arrays(folder, "target")),
        tuple(map(int, sizes)),
        folder.name,
        links,
    )


def _flat_arrays(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, mapped into memory, and the offsets of each sentence or pair."""
    tokens = np.load(folder / f"{name}_tokens.npy", mmap_mode="r")
    return tokens, np.load(folder / f"{name}_offsets.npy")


def _create(folder: Path, inputs: _Inputs) -> None:
    """Writes to a temporary folder and renames it, so that no process reads an incomplete cache."""
    _remove_abandoned(folder.parent)
    with paths.new_path(folder, is_cache=True) as temporary:
        temporary.mkdir()
        _write(temporary, inputs)
        cache_manifest.write(temporary)
    cache_manifest.sync_folder_of(folder)


@contextlib.contextmanager
def _write_errors(root: Path) -> Iterator[None]:
    """Turns errors of a disk that is full or read-only into a message to the user."""
    try:
        yield
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        raise UserError(
            f"The token cache {root} cannot be written ({error.strerror}): free some space, or set "
            "config.data.cache_dir to another folder."
        ) from error


def _remove_folder(folder: Path) -> None:
    temporary = paths.temporary_next_to(folder)
    try:
        os.rename(folder, temporary)  # at once, so that no process reads a part of it
    except FileNotFoundError:
        return
    shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(root: Path) -> None:
    """Removes temporary folders of processes that were killed."""
    for path in root.glob(paths.TEMPORARY):
        try:
            written = max(p.stat().st_mtime for p in (path, *path.iterdir()))
        except OSError:
            continue
        if time.time() - written > ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _write(folder: Path, inputs: _Inputs) -> None:
    """Tokenises the corpora chunk by chunk and writes the arrays."""
    writers = (
        _SideWriter(folder, "source", inputs.tokenizers.source.vocab_size),
        _SideWriter(folder, "target", inputs.tokenizers.target.vocab_size),
    )
    corpus_sizes = []
    chunk_number = 0
    for corpus in inputs.corpora:
        logging.info("tokenising %s", corpus.name)
        prefixes: tuple[list[int], list[int]] = ([], [])
        if inputs.config.target_language_tags:
            prefixes = inputs.tokenizers.language_tags(corpus.source_lang, corpus.target_lang)
        size = 0
        with_context = inputs.context_adder()
        for chunk in _chunks(corpus.read()):
            for side, texts in enumerate(zip(*chunk, strict=True)):
                tags = prefixes[side]
                ids = inputs.encode(texts, side, chunk_number, len(tags))
                if side == 0:
                    writers[side].add(list(with_context(ids, tags)))
                else:
                    writers[side].add([tags + one if one else [] for one in ids])
            chunk_number += 1
            size += len(chunk)
        corpus_sizes.append(size)
    for writer in writers:
        writer.close()
    np.save(folder / "corpus_sizes.npy", np.asarray(corpus_sizes, np.int64))
    if inputs.has_links:
        _write_links(folder, inputs)


def _write_links(folder: Path, inputs: _Inputs) -> None:
    """Aligns the tokens that `folder` has."""
    logging.info("aligning the tokens of %s pairs", np.load(folder / "corpus_sizes.npy").sum())
    sides = [TokenizedSide(*_flat_arrays(folder, name)) for name in ("source", "target")]
    sentences = [[side[i] for i in range(len(side.offsets) - 1)] for side in sides]
    # Targets are of the sentences alone, so that those before them have no links.
    before = np.zeros(len(sentences[0]), np.uint16)
    if inputs.config.context_sentences:
        separator = inputs.tokenizers.context_separator()
        before[:] = [context.num_before(ids, separator) for ids in sentences[0]]
        sentences[0] = [ids[n:] for ids, n in zip(sentences[0], before, strict=True)]
    links = token_links.align(sentences[0], sentences[1], inputs.tokenizers)
    links.tokens[:, 0] += np.repeat(before, np.diff(links.offsets))
    np.save(folder / "links_tokens.npy", links.tokens)
    np.save(folder / "links_offsets.npy", links.offsets)


def _chunks(pairs: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    while chunk := list(itertools.islice(pairs, CHUNK)):
        yield chunk


class _SideWriter:
    """Writes the sentences of one side; their number is known only at the end."""

    def __init__(self, folder: Path, side: str, vocab_size: int):
        self._dtype = np.uint16 if vocab_size <= 2**16 else np.int32
        self._folder, self._side = folder, side
        self._raw_path = folder / f"{side}.raw"
        self._raw = self._raw_path.open("wb")
        self._lengths: list[np.ndarray] = []

    def add(self, sentences: list[list[int]]) -> None:
        self._lengths.append(np.fromiter(map(len, sentences), np.int64, len(sentences)))
        flat = np.fromiter(itertools.chain.from_iterable(sentences), self._dtype)
        self._raw.write(flat.tobytes())

    def close(self) -> None:
        """Writes offsets and tokens as `.npy` files."""
        self._raw.close()
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(self._lengths))])
        np.save(self._folder / f"{self._side}_offsets.npy", offsets.astype(np.int64))
        # A memory map, so that a large corpus is copied without being read into memory.
        tokens = np.empty(0, self._dtype)
        if offsets[-1]:
            tokens = np.memmap(self._raw_path, self._dtype, "r")
        np.save(self._folder / f"{self._side}_tokens.npy", tokens)
        self._raw_path.unlink()
