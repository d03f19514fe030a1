"""Copies of tokenised corpora in an object store, for machines that share no disk.

The arrays of a tokenised corpus are mapped into memory, so each machine works with a local copy.
With a remote `data.cache_dir` the first machine uploads what it has made, and others download it.
"""

import json
import logging
import os
import shutil
import uuid
from pathlib import Path

from etils import epath

from transformer_jax import paths
from transformer_jax.data import cache_manifest
from transformer_jax.data.cache_manifest import NAME as MANIFEST

_CHUNK = 8 << 20  # bytes


def fetch(cache_dir: str, folder: Path) -> None:
    """Makes the local `folder` from its copy in `cache_dir`, where that is there and intact.

    Removes a damaged copy, so that `publish` replaces it.
    """
    remote = _copy_of(cache_dir, folder)
    if folder.exists() or not (remote / MANIFEST).exists():
        return
    aside = folder.with_name(f"incomplete.{uuid.uuid4().hex}")
    aside.mkdir(parents=True)
    try:
        try:
            with paths.store_errors():
                for name in (*_names((remote / MANIFEST).read_text()), MANIFEST):
                    _copy(remote / name, epath.Path(aside / name))
            cache_manifest.check(aside)
        except (FileNotFoundError, ValueError, cache_manifest.DamageError) as error:
            logging.warning("the token cache %s is damaged (%s); made anew", remote, error)
            (remote / MANIFEST).unlink(missing_ok=True)
            return
        try:
            os.rename(aside, folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def publish(cache_dir: str, folder: Path) -> None:
    """Copies the local `folder` to `cache_dir`, where it is not yet or not completely."""
    remote = _copy_of(cache_dir, folder)
    with paths.store_errors():
        manifest = (folder / MANIFEST).read_text()
        if (remote / MANIFEST).exists() and (remote / MANIFEST).read_text() == manifest:
            return
        for name in (*_names(manifest), MANIFEST):  # the manifest last
            _copy(epath.Path(folder / name), remote / name)


def _names(manifest: str) -> list[str]:
    """The files that a manifest lists.

    Raises:
      ValueError: it is no manifest, or names a file in another folder.
    """
    recorded = json.loads(manifest)
    if not isinstance(recorded, dict) or any(Path(name).name != name for name in recorded):
        raise ValueError(f"{MANIFEST} is not as it was written")
    return list(recorded)


def _copy_of(cache_dir: str, folder: Path) -> epath.Path:
    return epath.Path(cache_dir) / folder.parent.name / folder.name


def _copy(source: epath.Path, target: epath.Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, _CHUNK)
