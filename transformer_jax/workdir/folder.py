"""The folder of one run: its config, tokenizer and what it was trained on.

A work directory moves between machines and is all that evaluation, decoding and export need.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config, all_settings, from_json, to_json
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.workdir import directory_kinds

_IS_LOCKED = (errno.EAGAIN, errno.EACCES)  # what `flock` says where another process has the lock
REPORT = "report.html"
WORKDIR = "$WORKDIR"  # in paths of `config.json`: the folder that the file is in
# Orbax's: of a checkpoint that is not committed, on a disk; in one that is, in an object store.
TMP_SUFFIX, COMMIT_FILE = ".orbax-checkpoint-tmp", "commit_success.txt"


def read_config(workdir: epath.PathLike) -> Config:
    """The config of the run in `workdir`, its paths expanded.

    Raises:
      UserError: where there is none; it says what the path is instead.
    """
    paths.require(workdir, "work directory")
    path = epath.Path(workdir) / "config.json"
    if not path.exists():
        raise UserError(f"{workdir} {directory_kinds.describe(workdir)}.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: it is not UTF-8. Copy it again.") from error
    if '"train"' not in text:  # other tools have a config.json too
        refuse_other_tools(workdir)
    config = paths.expand_config(from_json(text, str(path)))
    here = _absolute(workdir)
    return paths.map_paths(config, lambda part, _: part.replace(WORKDIR, here, 1))


def refuse_other_tools(workdir: epath.PathLike) -> None:
    """Raises a `UserError` if a path is a file, or a folder with a model of another tool."""
    if epath.Path(workdir).is_file():
        raise UserError(f"{workdir} is a file; name the folder of a run, new or to resume.")
    other = directory_kinds.describe_other_tools(workdir)
    if other:
        raise UserError(f"{workdir} {other}.")


def read_tokenizers(workdir: epath.PathLike) -> TokenizerPair:
    return TokenizerPair.load(epath.Path(workdir) / "tokenizer")


def write_config(workdir: epath.PathLike, config: Config) -> None:
    """Writes `config.json`, in which paths in the work directory remain true when it is moved."""
    here = f"{_absolute(workdir)}/"

    def relative(part: str, _: str) -> str:
        is_inside = f"{_absolute(part)}/".startswith(here) if part else False
        return f"{WORKDIR}/{os.path.relpath(_absolute(part), here)}" if is_inside else part

    config = paths.map_paths(config, relative)
    paths.write_atomically(epath.Path(workdir) / "config.json", to_json(config))


def _absolute(path: epath.PathLike) -> str:
    return os.fspath(path).rstrip("/") if paths.is_remote(path) else os.path.abspath(path)


def has_checkpoints(workdir: epath.PathLike) -> bool:
    """Whether a run in `workdir` would resume instead of starting."""
    return bool(committed_steps(workdir))


def committed_steps(workdir: epath.PathLike) -> list[int]:
    """Steps of the complete checkpoints in `workdir`, rising.

    On a disk Orbax renames a checkpoint when it is complete. In an object store nothing can be
    renamed, and `commit_success.txt` is written last.
    """
    folder = epath.Path(workdir) / "checkpoints"
    if not folder.exists():
        return []
    complete = [path for path in folder.iterdir() if path.name.isdigit()]
    if paths.is_remote(folder):
        complete = [path for path in complete if (path / COMMIT_FILE).exists()]
    return sorted(int(path.name) for path in complete)


def uncommitted_checkpoints(workdir: epath.PathLike) -> list[epath.Path]:
    """Folders of incomplete checkpoints in `workdir`."""
    folder = epath.Path(workdir) / "checkpoints"
    if not paths.is_remote(folder):
        return paths.matching(folder, f"*{TMP_SUFFIX}*")
    committed = committed_steps(workdir)
    folders = folder.iterdir() if folder.exists() else ()
    return [path for path in folders if path.name.isdigit() and int(path.name) not in committed]


def check_resumable(workdir: epath.PathLike, config: Config) -> None:
    """Refuses a config that does not continue the run in `workdir`.

    Raises:
      UserError: naming each setting that differs but may not.
    """
    if not has_checkpoints(workdir):
        return  # nothing would be lost
    stored = read_config(workdir)
    changed = [
        f"config.{setting.path} was {setting.value(stored)!r}, is {setting.value(config)!r}"
        for setting in all_settings(Config)
        if not setting.resumable and setting.value(stored) != setting.value(config)
    ]
    if changed:
        raise UserError(
            f"{workdir} holds a run with other settings ({'; '.join(changed)}); "
            "use another `workdir`, or the settings it was started with."
        )


def check_same_data(workdir: epath.PathLike, fingerprints: dict[str, str]) -> None:
    """Refuses to resume on other data than the run in `workdir` was started on.

    Args:
      workdir: of the run.
      fingerprints: of the `corpus` and the `tokenizer`.

    Raises:
      UserError: naming what differs from when the run was started.
    """
    recorded = read_data_record(workdir)
    if recorded is None or not has_checkpoints(workdir):
        return
    for name, fingerprint in fingerprints.items():
        if recorded.get(name) != fingerprint:
            raise UserError(
                f"The training {name} is not the one that the run in {workdir} was started on; "
                "restore it, or use another `workdir`."
            )


def read_data_record(workdir: epath.PathLike) -> dict[str, Any] | None:
    """`data.json`: fingerprints of corpus and tokenizer, and the settings of the tokenizer.

    Raises:
      UserError: it is damaged.
    """
    path = epath.Path(workdir) / "data.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); restore it from a copy.") from error


def write_data_record(workdir: epath.PathLike, record: dict[str, Any]) -> None:
    """Writes `data.json`."""
    paths.write_atomically(epath.Path(workdir) / "data.json", json.dumps(record) + "\n")


def lock_holder(workdir: epath.PathLike) -> str | None:
    """Which process trains in `workdir` now; None: none does, or the file system has no locks."""
    if paths.is_remote(workdir):
        from transformer_jax.workdir import bucket_lock

        return bucket_lock.holder(workdir)
    try:
        file = (Path(workdir) / ".lock").open(encoding="utf-8")
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until the file is closed
        except OSError as error:
            return file.read().strip() if error.errno in _IS_LOCKED else None
    return None


@contextlib.contextmanager
def lock(workdir: epath.PathLike) -> Iterator[None]:
    """Makes the work directory and keeps other runs out of it, until the process ends at latest.

    On a disk it is a lock of the file system, in an object store an object (`bucket_lock.py`).

    Raises:
      UserError: where another process trains there, or it cannot be written.
    """
    if paths.is_remote(workdir):
        from transformer_jax.workdir import bucket_lock

        with bucket_lock.lock(workdir):
            yield
        return
    refuse_other_tools(workdir)
    with _open_locked(Path(workdir) / ".lock") as file:
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {started}\n")
        file.flush()
        yield


def _open_locked(path: Path) -> TextIO:
    """Opens and locks a file, and makes its folder."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path.parent} cannot be written: {error.strerror}.") from error
        try:
            _lock_file(file)
        except OSError as error:
            if error.errno in _IS_LOCKED:
                with file:
                    file.seek(0)
                    raise UserError(
                        f"Another process trains in {path.parent} ({file.read().strip()}); wait "
                        "for it or end it, or use another `workdir`."
                    ) from None
            logging.warning(
                "%s has no locks (%s): make sure that no other process trains there",
                path.parent,
                error.strerror,
            )
            return file
        # Another process, whose start has failed, may have removed the file before it was locked.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _lock_file(file: TextIO) -> None:
    """Locks a file for this process; waits for one that only looks, as `lock_holder` does."""
    for _ in range(5):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.01)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
