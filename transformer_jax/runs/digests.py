"""Digests of a checkpoint's files, kept with them, and of arrays in memory.

Orbax notices a missing file, but neither flipped bytes nor every shortened file. In an object store
the digest is the MD5 that the store itself has computed of each object it received. A listing shows
it, so that nothing is downloaded, neither to write the digests nor to compare them. (Its CRC-32C
would not do: TensorStore's files end with their own, and so all have the same.)
"""

import base64
import concurrent.futures
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from etils import epath

from transformer_jax import paths

NAME = "digests.json"
# Orbax writes these while it commits, after the digests; no parameter is in them.
_COMMIT_FILES = ("_CHECKPOINT_METADATA", "commit_success.txt")
_CHUNK = 1 << 20
_NUM_THREADS = 8
_MD5 = "md5:"  # begins a digest of the kind that object stores compute; the others are BLAKE2b


def write(folder: epath.Path) -> None:
    """Writes `digests.json` for every file that is below `folder` now."""
    is_remote = paths.is_remote(folder)
    names = sorted(paths.fetch_details(folder)) if is_remote else _names(folder, "")
    names = [name for name in names if name not in (*_COMMIT_FILES, NAME)]
    digests = _digests(folder, dict.fromkeys(names, _MD5 if is_remote else ""))
    (folder / NAME).write_text(json.dumps(digests, indent=0) + "\n")


def find_damage(folder: epath.Path, parts: Iterable[str] = ()) -> str | None:
    """What is wrong with the files of `folder`, in a few words; None where all are as written.

    Args:
      folder: of one checkpoint.
      parts: names of folders in it that are looked at; (): everything.
    """
    if not (folder / NAME).exists():
        return f"it has no {NAME}: it was cut short, or an older version wrote it"
    try:
        recorded: dict[str, str] = json.loads((folder / NAME).read_text())
        if (folder / _COMMIT_FILES[0]).exists():
            json.loads((folder / _COMMIT_FILES[0]).read_text())
    except (ValueError, OSError) as error:
        return f"its {NAME} or {_COMMIT_FILES[0]} cannot be read ({error})"
    parts = tuple(f"{part}/" for part in parts)
    wanted = [name for name in recorded if not parts or name.startswith(parts)]
    found = _digests(folder, {name: recorded[name] for name in wanted})
    missing = [name for name in wanted if name not in found]
    if missing:
        return f"{missing[0]} is missing"
    changed = [name for name in wanted if found[name] != recorded[name]]
    return f"{changed[0]} does not hold what was written" if changed else None


def of_arrays(tree: Any) -> str:
    """Digest of a tree of arrays: of names, shapes, types and values, on any device.

    One array at a time is copied to the host.
    """

    def one(leaf: tuple[Any, Any]) -> bytes:
        path, array = leaf
        host = np.ascontiguousarray(array)
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{jax.tree_util.keystr(path)} {host.dtype} {host.shape}".encode())
        digest.update(host.reshape(-1).view(np.uint8).data)
        return digest.digest()

    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return hashlib.blake2b(b"".join(map(one, leaves)), digest_size=16).hexdigest()


def has(folder: epath.Path, part: str) -> bool:
    """Whether a folder `part` was written in `folder`, even if it is missing now."""
    if (folder / part).exists():
        return True
    try:
        return f'"{part}/' in (folder / NAME).read_text()
    except OSError:
        return False


def _names(folder: epath.Path, prefix: str) -> list[str]:
    names = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            names += _names(path, f"{prefix}{path.name}/")
        else:
            names.append(prefix + path.name)
    return names


def _digests(folder: epath.Path, recorded: dict[str, str]) -> dict[str, str]:
    """Digests of those files of `recorded` that are there, each of the kind recorded for it."""
    stored: dict[str, str] = {}
    if paths.is_remote(folder):
        details = paths.fetch_details(folder)
        names = [name for name in recorded if name in details]
        # Objects that were uploaded in parts may have none.
        stored = {name: _MD5 + d["md5Hash"] for name, d in details.items() if "md5Hash" in d}
    else:
        names = [name for name in recorded if (folder / name).exists()]

    def digest(name: str) -> str:
        is_md5 = recorded[name].startswith(_MD5)
        # One that was copied from a disk to a store, or back, has to be read.
        return stored[name] if is_md5 and name in stored else _digest(folder / name, is_md5)

    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))


def _digest(path: epath.Path, is_md5: bool) -> str:
    digest = hashlib.md5(usedforsecurity=False) if is_md5 else hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if is_md5:
        return _MD5 + base64.b64encode(digest.digest()).decode()
    return digest.hexdigest()
