"""Copies of tokenised corpora in an object store, for machines that share no disk.

Arrays of a tokenised corpus are memory-mapped, so each machine needs a local copy. With a remote
`data.cache_dir` the first machine uploads its cache, and others download it.
"""

import json
import logging
import shutil
from pathlib import Path

from etils import epath

from transformer_jax import paths
from transformer_jax.data import cache_manifest
from transformer_jax.data.cache_manifest import NAME as MANIFEST
from transformer_jax.data.shards.shard_store import CORPUS, is_complete, shard_names

_CHUNK = 8 << 20  # bytes


def fetch(cache_dir: str, folder: Path) -> None:
    """Downloads the shards of a corpus that `folder` lacks from their copy in `cache_dir`.

    Invalidates damaged copies, so that `publish` replaces them.
    """
    remote = _remote_folder(cache_dir, folder)
    if is_complete(folder) or not (remote / CORPUS).exists():
        return
    with paths.store_errors():
        corpus = (remote / CORPUS).read_text(encoding="utf-8")
    for name in shard_names(corpus):
        _fetch_shard(remote / name, folder / name)
    with paths.new_path(folder / CORPUS, is_cache=True) as temporary:
        temporary.write_text(corpus, encoding="utf-8")


def _fetch_shard(remote: epath.Path, folder: Path) -> None:
    if folder.exists() or not (remote / MANIFEST).exists():
        return
    try:
        with paths.new_path(folder, is_cache=True) as temporary:
            temporary.mkdir()
            _download(remote, temporary)
    except cache_manifest.DamageError as error:
        logging.warning("the token cache %s is damaged (%s); writing it again", remote, error)
        (remote / MANIFEST).unlink(missing_ok=True)


def _download(remote: epath.Path, folder: Path) -> None:
    """Copies a token cache into `folder`.

    Raises:
      DamageError: the copy in the store is damaged.
    """
    try:
        with paths.store_errors():
            names = _names((remote / MANIFEST).read_text(encoding="utf-8"))
            for name in (*names, MANIFEST):
                _copy(remote / name, epath.Path(folder / name))
    except (FileNotFoundError, ValueError) as error:
        raise cache_manifest.DamageError(str(error)) from error
    cache_manifest.check(folder)


def publish(cache_dir: str, folder: Path) -> None:
    """Uploads the shards of a corpus to `cache_dir`, unless complete copies are there."""
    remote = _remote_folder(cache_dir, folder)
    corpus = (folder / CORPUS).read_text(encoding="utf-8")
    with paths.store_errors():
        for name in shard_names(corpus):
            _publish_shard(folder / name, remote / name)
        if (
            not (remote / CORPUS).exists()
            or (remote / CORPUS).read_text(encoding="utf-8") != corpus
        ):
            _copy(epath.Path(folder / CORPUS), remote / CORPUS)


def _publish_shard(folder: Path, remote: epath.Path) -> None:
    manifest = (folder / MANIFEST).read_text(encoding="utf-8")
    if (remote / MANIFEST).exists() and (remote / MANIFEST).read_text(encoding="utf-8") == manifest:
        return
    # The manifest last: it marks the copy as complete.
    for name in (*_names(manifest), MANIFEST):
        _copy(epath.Path(folder / name), remote / name)


def _names(manifest: str) -> list[str]:
    """Names of the files that a manifest lists.

    Raises:
      ValueError: the text is not a manifest, or names a file in another folder.
    """
    recorded = json.loads(manifest)
    if not isinstance(recorded, dict) or any(Path(name).name != name for name in recorded):
        raise ValueError(f"{MANIFEST} is not a manifest")
    return list(recorded)


def _remote_folder(cache_dir: str, folder: Path) -> epath.Path:
    return epath.Path(cache_dir) / folder.parent.name / folder.name


def _copy(source: epath.Path, target: epath.Path) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer, _CHUNK)
