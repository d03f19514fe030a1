"""A model as one file: config, tokenizers and parameters, with a digest of each member.

The file is a zip archive whose members are stored without compression, so other tools can open it.
Each parameter is a member in NumPy's `.npy` format. It is read once, directly into its array.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax import __version__, paths
from transformer_jax.config import Config, from_json, to_json
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Params, init_params

MANIFEST, CONFIG, README = "manifest.json", "config.json", "README.md"
FORMAT, VERSION = "transformer_jax bundle", 1
_DATE = (1980, 1, 1, 0, 0, 0)  # the same model gives the same file


class Bundle(NamedTuple):
    """Content of a bundle."""

    config: Config
    tokenizers: TokenizerPair
    params: Params
    manifest: dict[str, Any]


def write(
    path: Path,
    config: Config,
    tokenizers: TokenizerPair,
    params: Params,
    readme: str,
    facts: dict[str, Any],
) -> str:
    """Writes a bundle; the file gets its name when it is complete.

    Args:
      path: of the file, which does not exist.
      config, tokenizers, params: the model.
      readme: becomes README.md.
      facts: about the model, JSON-able, such as its step and scores; for the manifest.

    Returns:
      The SHA-256 digest of the file.

    Raises:
      UserError: the file exists, or cannot be written.
    """
    check_new(path)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                digests = _write_members(archive, config, tokenizers, params, readme)
                manifest = {
                    "format": FORMAT,
                    "version": VERSION,
                    "written_by": f"transformer_jax {__version__}",
                    **facts,
                    "sha256": digests,
                }
                text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
                archive.writestr(zipfile.ZipInfo(MANIFEST, _DATE), text)
            file.flush()
            os.fsync(file.fileno())
        with temporary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        temporary.rename(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return digest


def check_new(path: Path) -> None:
    """Raises a `UserError` if the file exists."""
    if path.exists():
        raise UserError(f"`output={path}` exists; name a new file.")


def read_manifest(path: epath.PathLike) -> dict[str, Any]:
    """The manifest of a bundle: `step`, `scores`, digests and more.

    Raises:
      UserError: the file is damaged, or no bundle.
    """
    with _opened(path) as (_, manifest):
        return manifest


def read_config(path: epath.PathLike) -> Config:
    """The config of the model in a bundle.

    Raises:
      UserError: the file is damaged, or no bundle.
    """
    with _opened(path) as (archive, manifest):
        return _config(path, _read(path, archive, manifest, CONFIG))


def read(path: epath.PathLike) -> Bundle:
    """The model in a bundle; its parameters are on JAX's default device.

    Raises:
      UserError: the file is damaged, or no bundle; it names the member that differs from what was
        written.
    """
    with _opened(path) as (archive, manifest):
        others = [name for name in archive.namelist() if not name.startswith("params/")]
        content = {
            name: _read(path, archive, manifest, name) for name in others if name != MANIFEST
        }
        config = _config(path, content[CONFIG])
        with tempfile.TemporaryDirectory(prefix="transformer_jax_") as folder:
            for name, data in content.items():
                if name.startswith("tokenizer/"):
                    (Path(folder) / Path(name).name).write_bytes(data)
            tokenizers = TokenizerPair.load(epath.Path(folder))
        target = jax.eval_shape(lambda: init_params(config.model, jax.random.key(0)))
        leaves = jax.tree_util.tree_leaves_with_path(target)
        expected = {_member(key) for key, _ in leaves}
        for name in set(archive.namelist()) - set(others) - expected:
            raise _damage(path, f"{name} is not a parameter of its model")
        params = jax.tree_util.tree_map_with_path(
            lambda key, leaf: _read_array(path, archive, manifest, _member(key), leaf), target
        )
    return Bundle(config, tokenizers, params, manifest)


def _write_members(
    archive: zipfile.ZipFile,
    config: Config,
    tokenizers: TokenizerPair,
    params: Params,
    readme: str,
) -> dict[str, str]:
    """Writes all members except the manifest; returns the SHA-256 digest of each."""
    content = {README: readme.encode(), CONFIG: to_json(config).encode()}
    with tempfile.TemporaryDirectory(prefix="transformer_jax_") as folder:
        tokenizers.save(epath.Path(folder))
        for path in sorted(Path(folder).iterdir()):
            content[f"tokenizer/{path.name}"] = path.read_bytes()
    digests = {}
    for name, data in content.items():
        archive.writestr(zipfile.ZipInfo(name, _DATE), data)
        digests[name] = hashlib.sha256(data).hexdigest()
    for key, leaf in jax.tree_util.tree_leaves_with_path(params):
        info = zipfile.ZipInfo(_member(key), _DATE)
        with archive.open(info, "w", force_zip64=True) as file:
            hashed = _HashedFile(file)
            array = np.ascontiguousarray(leaf, np.float32)  # one at a time on the host
            np.lib.format.write_array(hashed, array, allow_pickle=False)
        digests[info.filename] = hashed.digest.hexdigest()
    return digests


class _HashedFile:
    """A file whose content is hashed while it is read or written."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


@contextlib.contextmanager
def _opened(path: epath.PathLike) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
    """The archive and its manifest; errors of the archive inside the block are reported."""
    try:
        with epath.Path(path).open("rb") as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if MANIFEST not in names:
                raise UserError(f"{path} is a zip archive, but not a bundle of this package.")
            manifest = json.loads(archive.read(MANIFEST))
            _check_members(path, archive, manifest)
            yield archive, manifest
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise _damage(path, " ".join(str(error).split()) or "it was cut short") from error


def _check_members(path: epath.PathLike, archive: zipfile.ZipFile, manifest: Any) -> None:
    """Checks that the archive has the members of its manifest, and that this version reads it."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path} is a zip archive, but not a bundle of this package.")
    if manifest.get("version") != VERSION:
        raise UserError(
            f"{path} was written by {manifest.get('written_by')}, in a form that this version does "
            "not know; install that version or a later one."
        )
    digests = manifest.get("sha256")
    if not isinstance(digests, dict):
        raise _damage(path, f"its {MANIFEST} has no digests")
    names = archive.namelist()
    for name in {*digests, CONFIG} - set(names):
        raise _damage(path, f"{name} is missing")
    for info in archive.infolist():
        if info.filename not in digests and info.filename != MANIFEST:
            raise _damage(path, f"{info.filename} was added to it")
        if names.count(info.filename) > 1:
            raise _damage(path, f"it has {info.filename} more than once")
        if info.compress_type != zipfile.ZIP_STORED:
            raise _damage(path, f"{info.filename} was compressed")


def _read(
    path: epath.PathLike, archive: zipfile.ZipFile, manifest: dict[str, Any], name: str
) -> bytes:
    """A member, checked."""
    data = archive.read(name)
    if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
        raise _changed(path, name)
    return data


def _read_array(
    path: epath.PathLike,
    archive: zipfile.ZipFile,
    manifest: dict[str, Any],
    name: str,
    target: jax.ShapeDtypeStruct,
) -> jax.Array:
    """A parameter, checked, on the default device."""
    if name not in manifest["sha256"]:
        raise _damage(path, f"{name} is missing")
    with archive.open(name) as file:
        hashed = _HashedFile(file)
        try:
            array = np.lib.format.read_array(hashed, allow_pickle=False)
            hashed.read()  # to the end of the member
        except ValueError as error:  # the header was changed
            raise _changed(path, name) from error
    if hashed.digest.hexdigest() != manifest["sha256"][name]:
        raise _changed(path, name)
    if array.shape != target.shape:
        raise _damage(
            path, f"{name} has the shape {array.shape}, but its config implies {target.shape}"
        )
    return jnp.asarray(array, target.dtype)


def _config(path: epath.PathLike, data: bytes) -> Config:
    return paths.expand_config(from_json(data.decode(), f"{path}, {CONFIG}"))


def _member(key: jax.tree_util.KeyPath) -> str:
    """Name of a parameter's member."""
    names = (jax.tree_util.keystr((part,), simple=True) for part in key)
    return f"params/{'/'.join(names)}.npy"


def _changed(path: epath.PathLike, name: str) -> UserError:
    return _damage(path, f"{name} does not contain what was written")


def _damage(path: epath.PathLike, reason: str) -> UserError:
    return UserError(
        f"{path} is damaged: {reason}. Copy it again from the original, or bundle the model again."
    )
