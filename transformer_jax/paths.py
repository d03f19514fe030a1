"""Paths as users write them: `~`, and object stores (`gs://bucket/folder`).

A command expands each path once, when its flags are parsed, so that all of the program uses the
same folder. The rest of the package does not change paths.
"""

import contextlib
import dataclasses
import errno
import fnmatch
import importlib.util
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.config import Config, Setting, all_settings, split_paths
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from etils import epath

PathLike = str | os.PathLike[str]

TEMPORARY = "*incomplete.*"  # pattern of names; those of version 0.1 had no dot before it
REMOTE = "gs://"  # the only object store that is supported and tested
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Packages whose exceptions mean that the store cannot be reached or refuses a request.
_CLIENT_PACKAGES = ("gcsfs", "fsspec", "google", "aiohttp", "requests")


def is_remote(path: PathLike) -> bool:
    """Whether a path is in an object store, which has no folders, locks or appending."""
    return "://" in os.fspath(path)


def expand(path: PathLike, name: str = "path") -> str:
    """`path` with `~` and `~user` replaced by the home folder.

    Args:
      path: to expand.
      name: of the flag or setting, for messages.

    Raises:
      UserError: there is no such home folder.
    """
    text = os.fspath(path)
    if not text.startswith("~"):
        return text
    expanded = os.path.expanduser(text)
    if expanded == text:
        raise UserError(
            f"{name}={text}: {text.split('/')[0]} is no user's home folder here. Write ./{text} "
            "for a file or folder of that name."
        )
    return expanded


def expand_config(config: Config) -> Config:
    """`config` with `~` expanded in every setting that is a path."""
    return map_paths(config, lambda part, name: expand(part, name) if "~" in part else part)


def map_paths(config: Config, function: Callable[[str, str], str]) -> Config:
    """`config` with another path for each: `function` of the path and the name of its setting."""
    for setting in _path_settings(config):
        value = setting.value(config)
        parts = [function(part, f"config.{setting.path}") for part in _split(setting, value)]
        if parts != _split(setting, value):
            section, name = setting.path.split(".")
            changed = dataclasses.replace(getattr(config, section), **{name: ",".join(parts)})
            config = dataclasses.replace(config, **{section: changed})
    return config


def require(path: PathLike, name: str = "path") -> None:
    """Checks that the installed packages can open a path, and configures the store's client.

    Call it before a remote path is first used.

    Raises:
      UserError: an unknown kind of store, or a missing package.
    """
    text = os.fspath(path)
    if text.startswith("gs:") and not text.startswith(REMOTE):
        raise UserError(f"{name}={text}: a path in a bucket begins with {REMOTE}.")
    if not is_remote(text):
        return
    if not text.startswith(REMOTE):
        raise UserError(f"{name}={text}: only local paths and {REMOTE}… are supported.")
    if not importlib.util.find_spec("gcsfs"):
        raise UserError(
            f"{name}={text}: paths in Google Cloud Storage need gcsfs: pip install 'gcsfs>=2026.4'."
        )
    _configure_client()


def locate(config: Config, workdir: PathLike) -> tuple[Config, str]:
    """`config` and `workdir` with every path expanded and checked by `require`."""
    config, workdir = expand_config(config), expand(workdir, "workdir")
    require(workdir, "workdir")
    for setting in _path_settings(config):
        for part in _split(setting, setting.value(config)):
            require(part, f"config.{setting.path}")
    return config, workdir


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turns errors of the object store's client, which have many types, into `OSError`."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENT_PACKAGES:
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"the object store answered: {lines[0]}"
        raise OSError(errno.EIO, reason, REMOTE) from error


def matching(folder: PathLike, pattern: str) -> "list[epath.Path]":
    """What a folder has whose name matches, in the order of names; empty if there is no folder.

    As in a shell, `*` does not match the dot of a hidden name. (`epath.Path.glob` takes the name of
    the folder itself for a part of the pattern.)
    """
    from etils import epath

    place = epath.Path(folder)
    names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    matches = fnmatch.filter(names, pattern)
    return [place / name for name in matches if pattern[0] == "." or name[0] != "."]


def explain(error: OSError) -> str:
    """The reason of an error for a message, without number and file name."""
    if (
        isinstance(error, FileNotFoundError) and error.errno is None
    ):  # of gcsfs, which names an address
        return "there is no such bucket"
    return error.strerror or str(error)


def fetch_details(folder: PathLike) -> dict[str, dict[str, Any]]:
    """The store's metadata of each object in a remote folder: name in the folder -> fields.

    Fields are `size` in bytes, `md5Hash` in base64 (unless it was uploaded in parts) and more. It
    takes one request per 1,000 objects and downloads nothing.
    """
    store, root = _open_store(folder)
    with store_errors():
        objects = store.find(root, detail=True)
    return {name.removeprefix(f"{root}/"): details for name, details in objects.items()}


def move_folder(source: PathLike, target: PathLike) -> None:
    """Renames a folder. Objects of a remote one are copied inside the store, then deleted."""
    if not is_remote(source):
        os.rename(source, target)
        return
    store, root = _open_store(source)
    with store_errors():
        for name in store.find(root):
            store.cp_file(name, _without_scheme(target) + name.removeprefix(root))
        store.rm(root, recursive=True)


def write(path: PathLike, data: bytes, must_be_new: bool = False) -> None:
    """Writes a remote object by one request, which is atomic.

    Args:
      path: of the object.
      data: its new content.
      must_be_new: refuse to replace an object; the store checks this atomically.

    Raises:
      FileExistsError: the object exists, with `must_be_new`.
      OSError: it cannot be written.
    """
    store, name = _open_store(path)
    with store_errors():
        store.pipe_file(name, data, mode="create" if must_be_new else "overwrite")


def cache_folder() -> Path:
    """The user's cache folder for this package."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "transformer_jax"


def write_atomically(path: PathLike, content: str | bytes) -> None:
    """Writes a file so that readers see the old content or all of the new one.

    Args:
      path: of the file.
      content: the new one; text is written as UTF-8.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):  # each write to an object store is atomic
        write(path, data)
        return
    with new_path(path, makes_parents=False) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def new_path(path: PathLike, is_cache: bool = False, makes_parents: bool = True) -> Iterator[Path]:
    """Yields a temporary local path, and gives what is written there the name `path` at the end.

    An error removes it and the folders that were made for it, and leaves what `path` was before.

    Args:
      path: a file, which may exist; or a folder, which is new or empty. An empty one is filled, not
        replaced: it may be the current folder or a mount point.
      is_cache: whether another process may write the same folder; the first one is kept.
      makes_parents: whether to make the folder that it is in.
    """
    path = Path(path)
    if path.is_dir():
        path = path.resolve()  # `.` has no name
    is_filled = path.is_dir() and not is_cache and not any(path.iterdir())
    temporary = temporary_next_to(path / "new" if is_filled else path)
    new_parents = [parent for parent in temporary.parents if not parent.exists()]
    if makes_parents:
        temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        try:
            if is_filled:
                _fill(path, temporary)
            else:
                os.replace(temporary, path)
        except OSError:
            if not (is_cache and os.path.exists(path)):
                raise
    except BaseException as error:
        if isinstance(error, OSError) and (
            error.errno in NO_ROOM or error.filename == os.fspath(temporary)
        ):
            error.filename = os.fspath(path)  # writing to an open file fails without any name
        _remove(temporary)
        with contextlib.suppress(OSError):  # something is in it
            for parent in new_parents:
                parent.rmdir()
        raise
    _remove(temporary)  # of a cache that another process has written first


def remove_at_once(path: Path) -> None:
    """Removes a local file or folder, which may be missing; no process reads a part of it."""
    temporary = temporary_next_to(path)
    try:
        os.rename(path, temporary)
    except FileNotFoundError:
        return
    _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _fill(folder: Path, temporary: Path) -> None:
    """Moves what is in a folder inside of `folder`, which holds nothing else, into `folder`."""
    if [*folder.iterdir()] != [temporary]:  # another process has written there
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
    for entry in [*temporary.iterdir()]:
        entry.rename(folder / entry.name)


def temporary_next_to(path: PathLike) -> Path:
    """A new hidden name in the folder of a local path; `TEMPORARY` matches it."""
    return Path(path).with_name(f".incomplete.{uuid.uuid4().hex}")


def _open_store(path: PathLike) -> tuple[Any, str]:
    """The store's client, and the path in the client's form."""
    import fsspec

    # With the arguments of etils, so that fsspec returns the same client.
    return fsspec.filesystem("gcs", finalize_on_close=True), _without_scheme(path)


def _without_scheme(path: PathLike) -> str:
    return os.fspath(path).removeprefix(REMOTE).rstrip("/")


def _path_settings(config: Config) -> list[Setting]:
    """The settings that are paths in this config."""
    kinds = ["one", "several"]
    if config.data.source != "tfds":  # whose splits are names
        kinds.append("corpora")
    return [setting for setting in all_settings(Config) if setting.rules.path_kind in kinds]


def _split(setting: Setting, value: str) -> list[str]:
    """The paths in a setting."""
    return [value.strip()] if setting.rules.path_kind == "one" else split_paths(value)


def _configure_client() -> None:
    """Makes etils and Orbax read the store's current state by gcsfs."""
    import fsspec

    # If TensorFlow is installed, etils would load it for gs://.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # By default listings are cached for ever, but other processes write too.
    for protocol in ("gs", "gcs"):
        fsspec.config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)
    # It logs every error with its traceback before it raises it.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
