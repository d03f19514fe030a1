"""Digests of text files, which are kept in the cache, so that no start reads all text again."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence

from etils import epath

from transformer_jax import paths

SETTLED_SECONDS = 2.0  # a file that was changed later may change again within the clock's step


def digest(files: Sequence[epath.Path]) -> str:
    """Digest of the content of one file or several.

    That of local files is kept, and used as long as their sizes, inodes and times of change are
    the same.
    """
    if any(paths.is_remote(file) for file in files):
        return _compute(files)
    names = [os.path.abspath(file) for file in files]
    name = hashlib.blake2b("\0".join(names).encode(), digest_size=16).hexdigest()
    record = paths.cache_folder() / "digests" / f"{name}.json"
    state = [_state(name) for name in names]
    try:
        kept = json.loads(record.read_text(encoding="utf-8"))
        if kept["state"] == state:
            return str(kept["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none is kept, or it is damaged
    content = _compute(files)
    settled = time.time() - max(os.stat(name).st_mtime for name in names) > SETTLED_SECONDS
    if settled and [_state(name) for name in names] == state:
        with contextlib.suppress(OSError):  # the digest is right without a record
            record.parent.mkdir(parents=True, exist_ok=True)
            paths.write_atomically(record, json.dumps({"state": state, "digest": content}))
    return content


def _state(name: str) -> list[int]:
    stat = os.stat(name)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def _compute(files: Sequence[epath.Path]) -> str:
    content = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                content.update(block)
        content.update(b"\0")
    return content.hexdigest()
