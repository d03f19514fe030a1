"""A corpus as token ids in flat memory-mapped arrays, made once for each corpus and tokenizer.

With subword sampling, once for each seed too.
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
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax import paths
from transformer_jax.config import DataConfig
from transformer_jax.data import cache_manifest, remote_cache
from transformer_jax.data.permutation import make_key
from transformer_jax.data.sources import Corpus, cache_folder
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError

CHUNK = 20_000  # sentence pairs tokenised at once
ATTEMPTS = 3  # to make a cache that is intact
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR)
ABANDONED = 7 * 24 * 3600  # seconds without a write: nobody is at it any more
FORMAT = "2"  # part of the key: change it when the files' meaning changes


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
        return np.asarray(self.tokens[self.offsets[i] : self.offsets[i + 1]], np.int32)


@dataclasses.dataclass(frozen=True)
class TokenizedCorpus:
    """Both sides of one or several corpora, pair `i` of one being pair `i` of the other."""

    source: TokenizedSide
    target: TokenizedSide
    corpus_sizes: tuple[int, ...]  # pairs of each corpus, in the order of the config
    fingerprint: str

    def __len__(self) -> int:
        return len(self.source.offsets) - 1


def tokenize_corpora(
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    config: DataConfig,
    seed: int | None = None,
) -> TokenizedCorpus:
    """The corpora as token ids, from the cache if the same was tokenised before and is intact.

    Args:
      corpora: what to tokenise.
      tokenizers: of both sides.
      config: where the cache is, and whether languages are tagged.
      seed: of subword sampling; None: each word as the tokenizer cuts it best. A sentence that
        sampling makes longer than `config.max_len` stays as that would be.

    Raises:
      UserError: where the cache cannot be written, or is damaged each time.
    """
    folder = _folder(corpora, tokenizers, config, seed)
    # What is sampled serves one epoch only.
    shared = seed is None and paths.is_remote(config.cache_dir)
    if shared:
        remote_cache.fetch(config.cache_dir, folder)
    found = _read_or_make(folder, corpora, tokenizers, config, seed)
    if shared:
        remote_cache.publish(config.cache_dir, folder)
    return found


def _read_or_make(
    folder: Path,
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    config: DataConfig,
    seed: int | None,
) -> TokenizedCorpus:
    damage = ""
    for attempts_left in reversed(range(ATTEMPTS + 1)):
        try:
            return _read(folder)
        except FileNotFoundError:
            pass  # not made yet, or just forgotten by another run
        except cache_manifest.DamageError as error:
            damage = f" ({error})"
            logging.warning("the token cache %s is damaged%s; made anew", folder, damage)
        if attempts_left:
            with _write_errors(folder.parent):
                if damage:
                    _discard(folder)
                _make(folder, corpora, tokenizers, config, seed)
    raise UserError(
        f"The token cache {folder} was made {ATTEMPTS} times and is damaged again{damage}: set "
        "config.data.cache_dir to a folder on another disk."
    )


def _make(
    folder: Path,
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    config: DataConfig,
    seed: int | None,
) -> None:
    """Makes a cache aside, then renames it: one half-written or concurrent is never read."""
    _remove_abandoned(folder.parent)
    aside = _aside(folder)
    aside.mkdir(parents=True)
    try:
        _write(aside, corpora, tokenizers, config, seed)
        cache_manifest.write(aside)
        try:
            os.rename(aside, folder)
        except OSError:
            if not folder.exists():
                raise
        cache_manifest.sync_folder_of(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _write_errors(root: Path) -> Iterator[None]:
    """Turns what keeps a cache from being written into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        raise UserError(
            f"The token cache {root} cannot be written ({error.strerror}): make room, or set "
            "config.data.cache_dir to another folder."
        ) from error


def remove(
    corpora: Sequence[Corpus], tokenizers: TokenizerPair, config: DataConfig, seed: int
) -> None:
    """Removes what sampling with `seed` gave from the cache; who reads it now can go on."""
    _discard(_folder(corpora, tokenizers, config, seed))


def _discard(folder: Path) -> None:
    aside = _aside(folder)
    try:
        os.rename(folder, aside)  # so that no part of it is found
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f"incomplete.{uuid.uuid4().hex}")


def _remove_abandoned(root: Path) -> None:
    """Removes what processes that were killed have left behind."""
    for path in root.glob("incomplete.*"):
        try:
            written = max(p.stat().st_mtime for p in (path, *path.iterdir()))
        except OSError:
            continue
        if time.time() - written > ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _read(folder: Path) -> TokenizedCorpus:
    cache_manifest.check(folder)
    sizes = np.load(folder / "corpus_sizes.npy")
    sides = [
        TokenizedSide(_map(folder / f"{side}_tokens.npy"), np.load(folder / f"{side}_offsets.npy"))
        for side in ("source", "target")
    ]
    return TokenizedCorpus(sides[0], sides[1], tuple(int(n) for n in sizes), folder.name)


def _folder(
    corpora: Sequence[Corpus], tokenizers: TokenizerPair, config: DataConfig, seed: int | None
) -> Path:
    digest = hashlib.blake2b(digest_size=16)
    for part in (FORMAT, tokenizers.fingerprint, str(config.target_language_tags)):
        digest.update(part.encode())
    if seed is not None:
        digest.update(f"{config.subword_sampling} {config.max_len} {seed}".encode())
    for corpus in corpora:
        digest.update(f"{corpus.fingerprint} {corpus.source_lang} {corpus.target_lang}".encode())
    is_local = config.cache_dir and not paths.is_remote(config.cache_dir)
    root = Path(config.cache_dir if is_local else cache_folder())
    return root / "tokens" / digest.hexdigest()


def _map(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r")


def _write(
    folder: Path,
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    config: DataConfig,
    seed: int | None,
) -> None:
    writers = [_SideWriter(folder, "source", tokenizers.source.vocab_size),
               _SideWriter(folder, "target", tokenizers.target.vocab_size)]  # fmt: skip
    sizes = []
    chunks_seen = itertools.count()
    for corpus in corpora:
        logging.info("tokenising %s", corpus.name)
        before: tuple[list[int], list[int]] = ([], [])
        if config.target_language_tags:
            before = tokenizers.prefixes(corpus.source_lang, corpus.target_lang)
        count = 0
        for chunk in _chunks(corpus.read()):
            number = next(chunks_seen)
            for side, texts in enumerate(zip(*chunk, strict=True)):
                tokenizer = (tokenizers.source, tokenizers.target)[side]
                if seed is None:
                    ids = tokenizer.encode_batch(texts)
                else:
                    own_seed = int(make_key(seed, number, side) >> np.uint64(32))
                    ids = tokenizer.sample_batch(texts, config.subword_sampling, own_seed)
                    longest = config.max_len - 1 - len(before[side])
                    ids = [i if len(i) <= longest else tokenizer.encode(text)
                           for i, text in zip(ids, texts, strict=True)]  # fmt: skip
                # A tag alone would make an empty sentence look like one with content.
                writers[side].add([before[side] + i if i else i for i in ids])
            count += len(chunk)
        sizes.append(count)
    for writer in writers:
        writer.close()
    np.save(folder / "corpus_sizes.npy", np.asarray(sizes, np.int64))


def _chunks(pairs: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    while chunk := list(itertools.islice(pairs, CHUNK)):
        yield chunk


class _SideWriter:
    """Appends sentences to a raw file, then gives it the header of a `.npy`."""

    def __init__(self, folder: Path, side: str, vocab_size: int):
        self._dtype = np.uint16 if vocab_size <= 2**16 else np.int32
        self._folder, self._side = folder, side
        self._raw = (folder / f"{side}.raw").open("wb")
        self._lengths: list[np.ndarray] = []

    def add(self, sentences: list[list[int]]) -> None:
        self._lengths.append(np.fromiter(map(len, sentences), np.int64, len(sentences)))
        flat = np.fromiter(itertools.chain.from_iterable(sentences), self._dtype)
        self._raw.write(flat.tobytes())

    def close(self) -> None:
        self._raw.close()
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(self._lengths))])
        np.save(self._folder / f"{self._side}_offsets.npy", offsets.astype(np.int64))
        raw = self._folder / f"{self._side}.raw"
        with (self._folder / f"{self._side}_tokens.npy").open("wb") as out:
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(self._dtype)),
                      "fortran_order": False, "shape": (int(offsets[-1]),)}  # fmt: skip
            np.lib.format.write_array_header_1_0(out, header)
            with raw.open("rb") as body:
                shutil.copyfileobj(body, out)
        raw.unlink()
