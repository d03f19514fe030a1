"""The shards of a corpus in a folder: reads those that are intact, and makes the others.

A shard depends on its block of text and on nothing else, so a run that was killed continues with
the shards it has not, and a damaged one is made again alone. `corpus.json`, which is written last,
has the number of shards.
"""

import collections
import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from transformer_jax import paths
from transformer_jax.data import cache_manifest
from transformer_jax.data.shards import duplicates
from transformer_jax.data.shards.filter_report import FilterReport
from transformer_jax.data.shards.shard_files import TokenShard
from transformer_jax.data.shards.shard_writer import ShardWriter
from transformer_jax.data.shards.text_blocks import TextBlock
from transformer_jax.data.workers import Workers
from transformer_jax.errors import UserError

ATTEMPTS = 3  # to write an intact shard
CORPUS = "corpus.json"
# Bytes of a corpus whose digests are compared at each start; a larger one is compared by size.
CHECKED_BYTES = 1 << 30

Blocks = Callable[[], Iterator[TextBlock]]


def open_shards(
    folder: Path, blocks: Blocks, writer: ShardWriter, workers: Workers
) -> list[TokenShard]:
    """The shards in `folder`; those that are missing or damaged are made first.

    Args:
      folder: of the corpus; its name says what is in it.
      blocks: returns the text of all shards, in order; read only if one has to be made.
      writer: makes a shard of a block.
      workers: the processes.

    Raises:
      UserError: damaged text, or shards that are damaged each time they are written.
    """
    damage = ""
    for attempt in range(ATTEMPTS + 1):
        damaged: dict[str, str] = {}
        try:
            return read_shards(folder, damaged)
        except FileNotFoundError:
            pass  # not made yet, or just removed by another run
        for name, damage in damaged.items():
            shard = folder / name
            if not shard.exists():  # to be made, or to be made again after a kill
                continue
            logging.warning("the token cache %s is damaged (%s); writing it again", shard, damage)
            paths.remove_at_once(shard)
        if attempt < ATTEMPTS:
            _make_missing(folder, blocks, writer, workers)
    raise UserError(
        f"The token cache {folder} was written {ATTEMPTS} times and is damaged each time"
        f"{f' ({damage})' if damage else ''}: "
        "set config.data.cache_dir to a folder on another disk."
    )


def read_shards(folder: Path, damaged: dict[str, str] | None = None) -> list[TokenShard]:
    """The shards in `folder`.

    Args:
      folder: of the corpus.
      damaged: gets the names of shards that are damaged, and the damage.

    Raises:
      FileNotFoundError: the corpus is not complete, or a shard is missing or damaged.
    """
    damaged = {} if damaged is None else damaged
    try:
        names = shard_names((folder / CORPUS).read_text(encoding="utf-8"))
    except ValueError as error:
        damaged[CORPUS] = str(error)
        raise FileNotFoundError(folder) from error
    shards = []
    for name in names:
        try:
            shards.append(TokenShard.open(folder / name))
        except cache_manifest.DamageError as error:
            damaged[name] = str(error)
        except FileNotFoundError:
            damaged[name] = "it is missing"
    size = sum(file.stat().st_size for name in names for file in (folder / name).glob("*.npy"))
    if size <= CHECKED_BYTES:
        for shard in shards:
            try:
                cache_manifest.check(shard.folder)
            except cache_manifest.DamageError as error:
                damaged[shard.folder.name] = str(error)
    if damaged:
        raise FileNotFoundError(folder)
    return shards


def remove_damaged(folders: Iterable[Path], workers: Workers) -> None:
    """Removes the shards whose files are not as they were written, so that they are made again.

    Args:
      folders: of corpora; all files are read.
      workers: the processes.
    """
    shards = [
        path.parent
        for folder in folders
        for path in sorted(folder.glob(f"*/{cache_manifest.NAME}"))
    ]
    for shard, damage in zip(shards, workers(_damage_of, shards), strict=True):
        if damage:
            logging.warning("the shard %s is damaged (%s); writing it again", shard, damage)
            paths.remove_at_once(shard)


def _damage_of(shard: Path) -> str:
    try:
        cache_manifest.check(shard)
    except cache_manifest.DamageError as error:
        return str(error)
    return ""


def is_complete(folder: Path) -> bool:
    """Whether all shards of a corpus are there; they may be damaged."""
    try:
        names = shard_names((folder / CORPUS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return all((folder / name).exists() for name in names)


def shard_names(corpus: str) -> list[str]:
    """Names of the folders of a corpus, given the text of its `corpus.json`.

    Raises:
      ValueError: it is damaged.
    """
    try:
        return [shard_name(number) for number in range(int(json.loads(corpus)["shards"]))]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{CORPUS} is damaged ({error})") from error


def shard_name(number: int) -> str:
    """Name of a shard's folder."""
    return f"{number:05}"


@dataclasses.dataclass(frozen=True)
class _MakeShard:
    """Makes the shard of a block in `folder`."""

    folder: Path
    writer: ShardWriter

    def __call__(self, block: TextBlock) -> None:
        self.writer.write(self.folder / shard_name(block.number), block)


def read_report(shards: list[TokenShard]) -> FilterReport:
    """What the filters have dropped."""
    report = FilterReport()
    for shard in shards:
        report.merge(FilterReport.read(shard.folder))
    return report


def _make_missing(folder: Path, blocks: Blocks, writer: ShardWriter, workers: Workers) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    num_shards = 0

    def missing() -> Iterator[TextBlock]:
        nonlocal num_shards
        for block in blocks():
            num_shards += 1
            if not (folder / shard_name(block.number)).exists():
                yield block

    repeated = folder / "duplicates"
    (kind, *_) = [*{"duplicates", "near_duplicates"}.intersection(writer.filters.names), ""]
    if kind:
        duplicates.find(repeated, blocks, kind == "near_duplicates", workers)
        filters = dataclasses.replace(writer.filters, duplicates=repeated)
        writer = dataclasses.replace(writer, filters=filters)
    collections.deque(workers(_MakeShard(folder, writer), missing()), maxlen=0)
    with paths.new_path(folder / CORPUS, is_cache=True) as temporary:
        temporary.write_text(json.dumps({"shards": num_shards}) + "\n", encoding="utf-8")
        cache_manifest.sync(temporary)
    cache_manifest.sync_folder_of(folder / CORPUS)
