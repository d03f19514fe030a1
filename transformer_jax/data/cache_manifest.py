"""Sizes and digests of the files in a cache folder: what is read is what was written."""

import hashlib
import json
import os
from pathlib import Path

NAME = "manifest.json"


class DamageError(Exception):
    """Says in a few words what in a cache folder is not as it was written."""


def write(folder: Path) -> None:
    """Writes `manifest.json` for the files in `folder`, and waits until all are on the disk."""
    names = sorted(path.name for path in folder.iterdir())
    recorded = {
        name: {"size": (folder / name).stat().st_size, "blake2b": _digest(folder / name)}
        for name in names
    }
    (folder / NAME).write_text(json.dumps(recorded, indent=0) + "\n")
    for name in (*names, NAME):
        _sync(folder / name)
    _sync(folder)


def check(folder: Path) -> None:
    """Compares the files in `folder` with its manifest.

    Raises:
      FileNotFoundError: there is no such folder.
      DamageError: a file is missing or does not hold what was written.
    """
    if not folder.exists():
        raise FileNotFoundError(folder)
    name = NAME
    try:
        recorded = json.loads((folder / NAME).read_text())
        for name, was in recorded.items():
            size = (folder / name).stat().st_size
            if size != was["size"]:
                raise DamageError(f"{name} has {size} bytes instead of {was['size']}")
            if _digest(folder / name) != was["blake2b"]:
                raise DamageError(f"{name} does not hold what was written")
    except FileNotFoundError:
        if not folder.exists():  # removed by another process
            raise
        raise DamageError(f"{name} is missing") from None
    except OSError as error:
        raise DamageError(f"{name} cannot be read ({error})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamageError(f"{NAME} is not as it was written ({error})") from error


def sync_folder_of(path: Path) -> None:
    """Waits until the name of `path` is on the disk."""
    _sync(path.parent)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
