"""Paths as users write them: `~`, and object stores (`gs://bucket/folder`).

A command expands each path once, when its flags are parsed, so that every part of the program sees
the same folder. The rest of the package takes paths as they are.
"""

import contextlib
import dataclasses
import errno
import importlib.util
import logging
import os
import uuid
from collections.abc import Iterator
from typing import Any

from transformer_jax.config import Config
from transformer_jax.errors import UserError

REMOTE = "gs://"  # the one object store that checkpoints (TensorStore) and the tests know
# Packages whose exceptions mean that the store could not be reached, or refused.
_CLIENT_PACKAGES = ("gcsfs", "fsspec", "google", "aiohttp", "requests")
# Settings that hold one path, and those that hold several, separated by commas.
_SETTINGS = (("data", "data_dir"), ("data", "cache_dir"), ("train", "init_from"))
_SETTINGS_OF_SEVERAL = (("data", "tokenizer_model"),)
_SETTINGS_OF_FILES = (("data", "train"), ("data", "validation"), ("data", "test"))


def is_remote(path: Any) -> bool:
    """Whether a path is in an object store, which has no folders, locks or appending."""
    return "://" in os.fspath(path)


def expand(path: Any, name: str = "path") -> str:
    """`path` with `~` and `~user` replaced by the home folder.

    Args:
      path: text, or anything with `__fspath__`.
      name: of the flag or setting, for messages.

    Raises:
      UserError: where there is no such home folder.
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
    """`config` with every path among its settings expanded."""
    for section, field in _path_settings(config):
        tree = getattr(config, section)
        value = getattr(tree, field)
        if "~" in value:
            name = f"config.{section}.{field}"
            parts = [value] if (section, field) in _SETTINGS else value.split(",")
            value = ",".join(expand(part.strip(), name) for part in parts)
            tree = dataclasses.replace(tree, **{field: value})
            config = dataclasses.replace(config, **{section: tree})
    return config


def require(path: Any, name: str = "path") -> None:
    """Checks that a path can be opened by what is installed; call it before anything starts.

    Also configures the store's client, so call it before a remote path is first used.

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
            f"{name}={text}: paths in Google Cloud Storage need further packages; "
            "pip install 'transformer-jax[gcs]'"
        )
    _configure_client()


def locate(config: Config, workdir: Any) -> tuple[Config, str]:
    """`config` and `workdir` with every path expanded, once all of them can be opened."""
    config, workdir = expand_config(config), expand(workdir, "workdir")
    require(workdir, "workdir")
    for section, field in _path_settings(config):
        for part in getattr(getattr(config, section), field).split(","):
            require(part.strip(), f"config.{section}.{field}")
    return config, workdir


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turns errors of the object store's client, which are of many kinds, into `OSError`."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENT_PACKAGES:
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"the object store answered: {lines[0]}"
        raise OSError(errno.EIO, reason, REMOTE) from error


def explain(error: OSError) -> str:
    """What a message says of an error: the reason alone, without number and name."""
    if isinstance(error, FileNotFoundError) and error.errno is None:  # gcsfs gives an address
        return "there is no such bucket"
    return error.strerror or str(error)


def fetch_details(folder: Any) -> dict[str, dict[str, Any]]:
    """What the store knows of each object below a remote folder, by its name there.

    Each has `size` in bytes, `md5Hash` in base64 (unless it was uploaded in parts) and more. One
    request per 1,000 objects; nothing is downloaded.
    """
    store, root = _open_store(folder)
    with store_errors():
        found = store.find(root, detail=True)
    return {name.removeprefix(f"{root}/"): details for name, details in found.items()}


def move_folder(source: Any, target: Any) -> None:
    """Renames a folder. A remote one's objects are copied inside the store, then deleted."""
    if not is_remote(source):
        os.rename(source, target)
        return
    store, root = _open_store(source)
    with store_errors():
        for name in store.find(root):
            store.cp_file(name, _without_scheme(target) + name.removeprefix(root))
        store.rm(root, recursive=True)


def write(path: Any, data: bytes, must_be_new: bool = False) -> None:
    """Writes a remote object by one request, which the store carries out completely or not at all.

    Args:
      path: of the object.
      data: all that it is to hold.
      must_be_new: whether the store is to refuse where it is there, which it checks atomically.

    Raises:
      FileExistsError: where it is there but must not be.
      OSError: any other reason why it could not be written.
    """
    store, name = _open_store(path)
    with store_errors():
        store.pipe_file(name, data, mode="create" if must_be_new else "overwrite")


def write_atomically(path: Any, text: str) -> None:
    """Writes `path` so that a reader finds the old text or the new one, never a part.

    Args:
      path: an `epath.Path`.
      text: all that it is to hold.
    """
    if is_remote(path):  # where each write is atomic
        write(path, text.encode())
        return
    aside = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _open_store(path: Any) -> tuple[Any, str]:
    """The client of the store that `path` is in, and the path as the client wants it."""
    import fsspec

    # As etils opens it, so that both are one object.
    return fsspec.filesystem("gcs", finalize_on_close=True), _without_scheme(path)


def _without_scheme(path: Any) -> str:
    return os.fspath(path).removeprefix(REMOTE).rstrip("/")


def _path_settings(config: Config) -> Iterator[tuple[str, str]]:
    yield from (*_SETTINGS, *_SETTINGS_OF_SEVERAL)
    if config.data.source == "files":
        yield from _SETTINGS_OF_FILES


def _configure_client() -> None:
    """Makes etils and Orbax see the store as it is now, whatever else is installed."""
    import fsspec

    # With TensorFlow installed, etils would load it for gs://.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # Listings are remembered for good by default, but other processes write too.
    for protocol in ("gs", "gcs"):
        fsspec.config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)
    # It logs each error with its frames before it raises it.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
