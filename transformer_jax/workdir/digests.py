"""Digests of a checkpoint's files, kept with them, and of arrays in memory.

Orbax notices a missing file, but neither flipped bytes nor every shortened file. In an object store
the digest is the MD5 that the store itself has computed of each object it received. A listing shows
it, so nothing is downloaded, neither to write the digests nor to compare them. (Its CRC-32C does
not serve: each file of TensorStore ends with its CRC-32C, which makes that of all files equal.)
"""

import base64
import concurrent.futures
import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from etils import epath

from transformer_jax import paths

NAME = "digests.json"
# Orbax writes these while it commits, after the digests. They contain no parameters.
_COMMIT_FILES = ("_CHECKPOINT_METADATA", "commit_success.txt")
_CHUNK = 1 << 20
_NUM_THREADS = 8
_MD5 = "md5:"  # prefix of digests as object stores compute them; the others are BLAKE2b


def write(folder: epath.Path) -> None:
    """Writes `digests.json` for every file that is in `folder` or its folders now."""
    digests = _of_files(folder, (*_COMMIT_FILES, NAME))
    (folder / NAME).write_text(json.dumps(digests, indent=0) + "\n", encoding="utf-8")


def find_damage(folder: epath.Path, parts: Iterable[str] = ()) -> str | None:
    """What is wrong with the files of `folder`, in a few words; None if all are as written.

    Args:
      folder: of one checkpoint.
      parts: names of the folders in it to check; (): everything.
    """
    if not (folder / NAME).exists():
        return f"it has no {NAME}: it was cut short, or an older version wrote it"
    try:
        recorded: dict[str, str] = json.loads((folder / NAME).read_text(encoding="utf-8"))
        if (folder / _COMMIT_FILES[0]).exists():
            json.loads((folder / _COMMIT_FILES[0]).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        return f"its {NAME} or {_COMMIT_FILES[0]} cannot be read ({error})"
    folders = tuple(f"{part}/" for part in parts)
    if folders:
        recorded = {name: d for name, d in recorded.items() if name.startswith(folders)}
    present = _digests(folder, recorded)
    missing = [name for name in recorded if name not in present]
    if missing:
        return f"{missing[0]} is missing"
    changed = [name for name in recorded if present[name] != recorded[name]]
    return f"{changed[0]} does not contain what was written" if changed else None


def find_missing(folder: epath.Path) -> str | None:
    """A file of `folder` that is missing, in a few words; reads no contents, unlike `find_damage`.

    Args:
      folder: of one checkpoint.
    """
    try:
        recorded = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        return f"its {NAME} cannot be read ({error})"
    present = paths.fetch_details(folder) if paths.is_remote(folder) else _names(folder, "")
    return next((f"{name} is missing" for name in recorded if name not in present), None)


def of_arrays(tree: Any) -> str:
    """Digest of names, shapes, types and values of a tree of arrays, on any device."""
    import jax  # files are checked without it

    digests = []
    for path, array in jax.tree_util.tree_flatten_with_path(tree)[0]:
        on_host = np.ascontiguousarray(array)  # one array at a time
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{jax.tree_util.keystr(path)} {on_host.dtype} {on_host.shape}".encode())
        digest.update(on_host.reshape(-1).view(np.uint8).data)
        digests.append(digest.digest())
    return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()


def of_file(path: epath.Path) -> str:
    """Digest of a file's content."""
    return _digest(path, is_md5=False)


def of_model(path: epath.Path, without: str) -> str:
    """Digest of a model's file, or of the files in its folder without documents.

    Args:
      path: of the model.
      without: name of a file in the folder that does not count.
    """
    if not path.is_dir():
        return of_file(path)
    files = _of_files(path, (without,))
    listed = sorted(item for item in files.items() if not item[0].endswith(".md"))
    return hashlib.blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()


def has(folder: epath.Path, part: str) -> bool:
    """Whether a folder `part` was written in `folder`, even if it is missing now."""
    if (folder / part).exists():
        return True
    try:
        return f'"{part}/' in (folder / NAME).read_text(encoding="utf-8")
    except OSError:
        return False


def _names(folder: epath.Path, prefix: str) -> list[str]:
    """Names of all files in `folder` and its folders, each after `prefix`."""
    names = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            names += _names(path, f"{prefix}{path.name}/")
        else:
            names.append(prefix + path.name)
    return names


def _of_files(folder: epath.Path, without: Collection[str]) -> dict[str, str]:
    """Name -> digest of all files in `folder` and its folders, without some names."""
    is_remote = paths.is_remote(folder)
    names = sorted(paths.fetch_details(folder)) if is_remote else _names(folder, "")
    names = [name for name in names if name not in without]
    return _digests(folder, dict.fromkeys(names, _MD5 if is_remote else ""))


def _digests(folder: epath.Path, recorded: dict[str, str]) -> dict[str, str]:
    """Digests of the files of `recorded` that exist, each of the kind recorded for it."""
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
        # A file that was copied from a disk to a store, or back, has to be read.
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
