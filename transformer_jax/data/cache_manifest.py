"""Sizes and digests of the files in a cache folder, so that damage is noticed before reading."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "manifest.json"


class DamageError(Exception):
    """A file of a cache folder is missing or has changed; the message names it."""


def write(folder: Path) -> None:
    """Writes `manifest.json` for the files in `folder`, and syncs all of them to the disk."""
    names = sorted(path.name for path in folder.iterdir())
    recorded = {
        name: {"size": (folder / name).stat().st_size, "blake2b": _digest(folder / name)}
        for name in names
    }
    (folder / NAME).write_text(json.dumps(recorded, indent=0) + "\n", encoding="utf-8")
    for name in (*names, NAME):
        sync(folder / name)
    sync(folder)


def check(folder: Path) -> None:
    """Compares the files in `folder` with its manifest.

    Raises:
      FileNotFoundError: `folder` does not exist.
      DamageError: a file is missing or has changed.
    """
    for name, expected in _check_sizes(folder).items():
        with _damage(folder, name):
            if _digest(folder / name) != expected["blake2b"]:
                raise DamageError(f"{name} has changed since it was written")


def check_sizes(folder: Path) -> str:
    """Compares the sizes of the files in `folder` with its manifest, whose digest it returns.

    Raises:
      FileNotFoundError: `folder` does not exist.
      DamageError: a file is missing or has another size.
    """
    _check_sizes(folder)
    return _digest(folder / NAME)


def _check_sizes(folder: Path) -> dict[str, dict[str, Any]]:
    if not folder.exists():
        raise FileNotFoundError(folder)
    with _damage(folder, NAME):
        recorded: dict[str, dict[str, Any]] = json.loads(
            (folder / NAME).read_text(encoding="utf-8")
        )
    for name, expected in _items(recorded):
        with _damage(folder, name):
            size = (folder / name).stat().st_size
            if size != expected["size"]:
                raise DamageError(f"{name} has {size} bytes instead of {expected['size']}")
    return recorded


def _items(recorded: dict[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(recorded, dict):
        raise DamageError(f"{NAME} is not a manifest")
    return list(recorded.items())


@contextlib.contextmanager
def _damage(folder: Path, name: str) -> Iterator[None]:
    """Turns errors of reading file `name` into `DamageError`."""
    try:
        yield
    except FileNotFoundError:
        if not folder.exists():  # removed by another process
            raise
        raise DamageError(f"{name} is missing") from None
    except OSError as error:
        raise DamageError(f"{name} cannot be read ({error})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamageError(f"{NAME} is not a manifest ({error})") from error


def sync_folder_of(path: Path) -> None:
    """Waits until the name of `path` is on the disk."""
    sync(path.parent)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def sync(path: Path) -> None:
    """Waits until the content of `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
