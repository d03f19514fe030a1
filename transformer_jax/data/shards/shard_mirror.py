"""Local copies of shards in an object store: made when they are used, removed when disk is short.

Arrays are mapped into memory, so a shard that is used has to be a local file. Processes of one
machine share the copies. A copy that is removed stays readable where it is mapped.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from etils import epath

from transformer_jax import paths
from transformer_jax.data import cache_manifest
from transformer_jax.data.shards.shard_files import ShardSide, TokenShard
from transformer_jax.errors import UserError

T = TypeVar("T")
CHUNK = 8 << 20  # bytes copied at once
_LOCK = threading.Lock()  # one download at a time, so that threads do not copy the same shard
_AHEAD = ThreadPoolExecutor(1, "shards")


@dataclasses.dataclass(frozen=True)
class MirroredShard(TokenShard):
    """A shard in an object store; `folder` is where its copy is, while there is one.

    Attributes:
      remote: the shard's address.
      max_bytes: of all copies next to this one.
    """

    remote: str = ""
    max_bytes: int = 0

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        return self._with_copy(super().lengths)

    def side(self, side: str) -> ShardSide:
        return self._with_copy(functools.partial(super().side, side))

    def _with_copy(self, read: Callable[[], T]) -> T:
        """What `read` returns; the copy may be removed by another process in between."""
        while True:
            self.fetch()
            with contextlib.suppress(FileNotFoundError):
                return read()

    def fetch(self) -> None:
        """Copies the shard, unless there is a copy.

        Raises:
          UserError: the shard is missing in the store, or damaged.
        """
        with _LOCK:
            with contextlib.suppress(FileNotFoundError):  # another process may remove it
                os.utime(self.folder)  # the time of its last use
                return
            remote = epath.Path(self.remote)
            try:
                with paths.store_errors(), paths.new_path(self.folder, is_cache=True) as temporary:
                    temporary.mkdir()
                    copy_folder(remote, temporary)
                    cache_manifest.check(temporary)
            except (FileNotFoundError, cache_manifest.DamageError) as error:
                raise UserError(
                    f"The shard {self.remote} is damaged ({error}). Prepare the folder again, "
                    "which makes only what is missing or damaged, and copy it to the store."
                ) from error
            _remove_oldest(self.folder, self.max_bytes)


def fetch_some_ahead(shards: Sequence[object], numbers: Sequence[int]) -> None:
    """Copies those of the shards that are used soon, in the background."""
    for number in numbers:
        shard = shards[number]
        if isinstance(shard, MirroredShard):
            _AHEAD.submit(shard.fetch)  # an error comes again when the shard is used


def copy_folder(remote: epath.Path, folder: Path) -> None:
    """Copies the files of a folder in an object store."""
    for path in remote.iterdir():
        copy_file(path, folder / path.name)


def copy_file(remote: epath.Path, path: Path) -> None:
    """Copies a file of an object store."""
    with remote.open("rb") as reader, path.open("wb") as writer:
        shutil.copyfileobj(reader, writer, CHUNK)


def _remove_oldest(newest: Path, max_bytes: int) -> None:
    """Removes copies until the others fit; `newest` stays."""
    copies = []
    for folder in newest.parent.parent.glob("*/*/"):
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            if not folder.name.startswith(".") and folder.is_dir():
                size = sum(file.stat().st_size for file in folder.iterdir())
                copies.append((folder.stat().st_mtime, size, folder))
    total = sum(size for _, size, _ in copies)
    for _, size, folder in sorted(copies):
        if total <= max_bytes:
            return
        if folder != newest:
            paths.remove_at_once(folder)
            total -= size
