"""A corpus as token ids in shards on disk, in a cache.

In: `Corpus` objects and a `TokenizerPair`. Out: `TokenizedCorpus`. The cache has a folder for each
corpus and tokenizer, and for each seed of drawn tokens (`epoch_data`). So a corpus that is added to
a run is the only one that is tokenised.
"""

import contextlib
import dataclasses
import errno
import hashlib
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from transformer_jax import paths
from transformer_jax.config import DataConfig
from transformer_jax.config.pair_kinds import FILTERS
from transformer_jax.data import cache_manifest, context, noise, token_links
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.prepared_folder import PreparedFolder
from transformer_jax.data.shards import shard_store
from transformer_jax.data.shards.filters import PairFilter, TestTexts
from transformer_jax.data.shards.shard_files import ShardedSide, TokenShard
from transformer_jax.data.shards.shard_writer import SHARD_PAIRS, ShardWriter
from transformer_jax.data.shards.text_blocks import TextBlock
from transformer_jax.data.sources import open_corpora
from transformer_jax.data.token_links import TokenLinks
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.data.workers import IN_THIS_PROCESS, Workers
from transformer_jax.errors import UserError

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR)
ABANDONED = 7 * 24 * 3600  # seconds without a write after which no process is writing any more
FORMAT = "3"  # part of the cache key: change it when the files' meaning changes


class Sentences(Protocol):
    """The sentences of one language as token ids."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence, `[sentences]`, its end symbol not included."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> np.ndarray:
        """Token ids of sentence `i`, int32 `[tokens]`."""
        ...

    def __iter__(self) -> Iterator[np.ndarray]: ...

    def take(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat ids of these sentences, one after another, and their lengths, `[n]`."""
        ...


@dataclasses.dataclass(frozen=True)
class TokenizedCorpus:
    """Source and target sides of one or several corpora; pair `i` is sentence `i` of each side.

    Attributes:
      source, target: the sides.
      corpus_sizes: pairs of each corpus, in the order of the config.
      fingerprint: changes when the tokens do.
      links: where they were asked for.
      shards: of each corpus; none of a corpus in memory.
    """

    source: Sentences
    target: Sentences
    corpus_sizes: tuple[int, ...]
    fingerprint: str
    links: TokenLinks | None = None
    shards: tuple[list[TokenShard], ...] = ()

    def __len__(self) -> int:
        return len(self.source)


@dataclasses.dataclass(frozen=True)
class _Inputs:
    """Everything that the token ids of a corpus depend on."""

    corpus: Corpus
    number: int  # of the corpus in the run
    tokenizers: TokenizerPair
    config: DataConfig
    seed: int | None
    test_texts: TestTexts | None
    workers: Workers

    @property
    def filters(self) -> PairFilter:
        """What is left out of the corpus."""
        languages = self.corpus.source_lang, self.corpus.target_lang
        config = self.config
        limits = {
            name: getattr(config, name) for one in config.filters for name in FILTERS[one].settings
        }
        return PairFilter(
            config.filters,
            languages,
            config.filter_function,
            self.test_texts,
            tuple(sorted(limits.items())),
        )

    @property
    def folder(self) -> Path:
        """The local folder of the corpus; its name is a digest of the inputs."""
        if self.corpus.prepared:
            return self.corpus.prepared
        digest = hashlib.blake2b(digest_size=16)
        for text in (FORMAT, self.tokenizers.fingerprint, str(self.config.target_language_tags)):
            digest.update(text.encode())
        if self.config.augment:
            digest.update(f"augment {noise.VERSION} {self.config.augment}".encode())
            digest.update(f"{self.seed} {self.number}".encode())
        if self.seed is not None:
            sampling = f"{self.config.subword_sampling} {self.config.max_len} {self.seed}"
            digest.update(f"{sampling} {self.number}".encode())
        if self.config.source_prefix:
            digest.update(f"prefix {self.config.source_prefix}".encode())
        if self.config.context_sentences:
            size = f"context {self.config.context_sentences} {self.config.max_len}"
            digest.update(size.encode())
        if self.filters:
            limits = f"{self.config.max_len} {self.config.max_ratio}"
            digest.update(f"{self.filters.fingerprint} {limits}".encode())
        c = self.corpus
        digest.update(f"{c.fingerprint} {c.source_lang} {c.target_lang}".encode())
        return folder_of(self.config) / "tokens" / digest.hexdigest()

    def shards(self) -> list[TokenShard]:
        """The shards of the corpus, which are made if they are not there."""
        folder = self.folder
        writer = ShardWriter(
            self.tokenizers,
            self.config,
            (self.corpus.source_lang, self.corpus.target_lang),
            self.seed,
            self.number,
            self.filters,
        )
        num_before = self.config.context_sentences

        def blocks() -> Iterator[TextBlock]:
            logging.info("tokenising %s", self.corpus.name)
            return self.corpus.blocks(SHARD_PAIRS, num_before)

        with write_errors(folder.parent):
            _remove_abandoned(folder.parent)
            # Sampling seeds a generator of each process; one thread after another uses it. And the
            # processes of a pool would compete with the training, and keep it from ending.
            workers = IN_THIS_PROCESS if self.seed is not None else self.workers
            return shard_store.open_shards(folder, blocks, writer, workers)


def folder_of(config: DataConfig) -> Path:
    """The local folder of the caches of a run: tokens, links, and plans."""
    is_local = config.cache_dir and not paths.is_remote(config.cache_dir)
    return Path(config.cache_dir if is_local else paths.cache_folder())


def tokenize_corpora(
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    config: DataConfig,
    seed: int | None = None,
    has_links: bool = False,
    workers: Workers | None = None,
) -> TokenizedCorpus:
    """Returns the corpora as token ids, from the cache if it has them and is intact.

    Args:
      corpora: what to tokenise.
      tokenizers: of both sides.
      config: where the cache is, whether languages are tagged, subword sampling and noise.
      seed: of subword sampling and noise; None: neither.
      has_links: whether tokens are aligned too.
      workers: the processes; None: as many as the config says.

    Raises:
      UserError: where the cache cannot be written, or is damaged each time.
    """
    # Drawn tokens serve one epoch only, so they are not shared between machines.
    is_shared = seed is None and paths.is_remote(config.cache_dir)
    parts = []
    all_inputs = _inputs(corpora, tokenizers, config, seed, workers)
    for inputs in all_inputs:
        if inputs.corpus.prepared:
            parts.append(_prepared_shards(inputs.corpus.prepared, config))
            continue
        if is_shared:
            from transformer_jax.data import remote_cache

            remote_cache.fetch(config.cache_dir, inputs.folder)
        parts.append(inputs.shards())
        if is_shared:
            remote_cache.publish(config.cache_dir, inputs.folder)
    shards = [shard for part in parts for shard in part]
    names = [inputs.folder.name for inputs in all_inputs]
    digest = hashlib.blake2b("".join(names).encode(), digest_size=16)
    corpus = TokenizedCorpus(
        # Drawn tokens are removed after some epochs.
        ShardedSide(shards, "source", keeps_open=seed is not None),
        ShardedSide(shards, "target", keeps_open=seed is not None),
        tuple(sum(shard.num_pairs for shard in part) for part in parts),
        names[0] if len(names) == 1 else digest.hexdigest(),
        shards=tuple(parts),
    )
    if not has_links:
        return corpus
    return dataclasses.replace(corpus, links=_links(corpus, tokenizers, config))


def _prepared_shards(folder: Path, config: DataConfig) -> list[TokenShard]:
    """The shards of a corpus of `prepare`."""
    prepared = PreparedFolder.open(config.train)
    (corpus,) = [corpus for corpus in prepared.corpora if corpus.folder == folder]
    return list(prepared.shards(corpus, int(config.local_gib * 2**30)))


def _inputs(
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    config: DataConfig,
    seed: int | None,
    workers: Workers | None = None,
) -> list[_Inputs]:
    tests = None
    if "test_leaks" in config.filters and config.source != "prepared":
        held_out = (c for split in ("validation", "test") for c in open_corpora(config, split))
        tests = TestTexts.of(pair for corpus in held_out for pair in corpus.read())
    workers = workers or Workers.of(config.num_workers)
    return [
        _Inputs(corpus, number, tokenizers, config, seed, tests, workers)
        for number, corpus in enumerate(corpora)
    ]


def remove(
    corpora: Sequence[Corpus], tokenizers: TokenizerPair, config: DataConfig, seed: int
) -> None:
    """Removes the tokens that were drawn with `seed`; open memory maps stay readable."""
    for inputs in _inputs(corpora, tokenizers, config, seed):
        paths.remove_at_once(inputs.folder)


@contextlib.contextmanager
def write_errors(root: Path | None) -> Iterator[None]:
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


def _temporary_folders(root: Path) -> Iterator[Path]:
    """Those in the folder of the cache, and in the folders of corpora."""
    for folder in (root, *(root.iterdir() if root.exists() else ())):
        # The folder of a drawn epoch may be removed at the same time.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield from [*folder.glob(paths.TEMPORARY)]


def _remove_abandoned(root: Path) -> None:
    """Removes temporary folders of processes that were killed."""
    for path in _temporary_folders(root):
        try:
            written = max(p.stat().st_mtime for p in (path, *path.iterdir()))
        except OSError:
            continue
        if time.time() - written > ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _links(corpus: TokenizedCorpus, tokenizers: TokenizerPair, config: DataConfig) -> TokenLinks:
    """Links between the tokens of all corpora, which are aligned together; from the cache."""
    folder = folder_of(config) / "links" / corpus.fingerprint
    if config.source == "prepared":
        in_folder = PreparedFolder.open(config.train).links(corpus.fingerprint)
        folder = in_folder if in_folder.exists() else folder
    try:
        cache_manifest.check(folder)
    except FileNotFoundError:
        pass
    except cache_manifest.DamageError as error:
        logging.warning("the token cache %s is damaged (%s); writing it again", folder, error)
        paths.remove_at_once(folder)
    if not folder.exists():
        links = _align(corpus, tokenizers, config)
        with write_errors(folder.parent), paths.new_path(folder, is_cache=True) as temporary:
            temporary.mkdir()
            np.save(temporary / "tokens.npy", links.tokens)
            np.save(temporary / "offsets.npy", links.offsets)
            cache_manifest.write(temporary)
    tokens = np.load(folder / "tokens.npy", mmap_mode="r")
    return TokenLinks(tokens, np.load(folder / "offsets.npy"))


def _align(corpus: TokenizedCorpus, tokenizers: TokenizerPair, config: DataConfig) -> TokenLinks:
    logging.info("aligning the tokens of %s pairs", len(corpus))
    sentences = [list(side) for side in (corpus.source, corpus.target)]
    # Targets are of the sentences alone, so that those before them have no links.
    before = np.zeros(len(sentences[0]), np.uint16)
    if config.context_sentences:
        separator = tokenizers.context_separator()
        before[:] = [context.num_before(ids, separator) for ids in sentences[0]]
        sentences[0] = [ids[n:] for ids, n in zip(sentences[0], before, strict=True)]
    links = token_links.align(sentences[0], sentences[1], tokenizers)
    links.tokens[:, 0] += np.repeat(before, np.diff(links.offsets))
    return links
