"""A model as one safetensors file, sealed by a digest of all its bytes.

Its tensors are the parameters. One JSON object in its metadata has all else: the config, the
tokenizers, the model card, and what is known of the model. The object begins with the digest, so
the digest is always in the same place.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
from etils import epath
from safetensors.numpy import save_file

from transformer_jax import __version__, paths
from transformer_jax.config import Config, ModelConfig, from_json, to_json
from transformer_jax.data import shortlist as shortlist_lib
from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import layout
from transformer_jax.extras.interop.huggingface import tensor_files
from transformer_jax.extras.interop.model_facts import ModelFacts
from transformer_jax.model.transformer import Params, param_shapes
from transformer_jax.translator import calibration as calibration_lib
from transformer_jax.translator.calibration import Calibration
from transformer_jax.translator.pretrained import Pretrained, Shapes
from transformer_jax.workdir.directory_kinds import BUNDLE_BEGIN, BUNDLE_KEY, HEADER_START

VERSION = 1
_NO_DIGEST = b"0" * 64  # in its place while the digest is computed
_CHUNK = 1 << 20
# What is raised where content has other types or sizes than `write` gives it.
_CONTENT_ERRORS = (
    UserError,
    safetensors.SafetensorError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_TOKENIZER_FILES = ("tokenizer.json", "shared.model", "source.model", "target.model")


def write(
    path: Path,
    config: Config,
    tokenizers: TokenizerPair,
    params: Params,
    facts: ModelFacts,
    card: str = "",
    calibration: Calibration | None = None,
    shortlist: Callable[[], Shortlist] | None = None,
) -> str:
    """Writes a bundle; the file gets its name when it is complete.

    Args:
      path: of the file, which does not exist.
      config, tokenizers, params: the model. Parameters keep their type.
      facts: about the model.
      card: the text of its model card.
      calibration: of the model, if it was calibrated.
      shortlist: gives that of the model; None: it has none.

    Returns:
      The SHA-256 digest of the file.

    Raises:
      UserError: the file exists, or cannot be written.
    """
    check_new(path)
    manifest = {
        "sha256": _NO_DIGEST.decode(),
        "version": VERSION,
        "written_by": f"transformer_jax {__version__}",
        "facts": dataclasses.asdict(facts),
        "card": card,
        "calibration": calibration_lib.to_json(calibration) if calibration else None,
        "config": json.loads(to_json(config)),
        "tokenizers": _tokenizer_files(tokenizers),
    }
    leaves = jax.tree_util.tree_leaves_with_path(params)
    tensors = {_name(key): np.asarray(leaf, order="C") for key, leaf in leaves}
    if shortlist is not None:
        text = shortlist_lib.to_text(shortlist(), tokenizers)
        tensors[shortlist_lib.NAME] = np.frombuffer(text.encode(), np.uint8)
    try:
        with paths.new_path(path) as temporary:
            temporary.touch()
            mode = stat.S_IMODE(temporary.stat().st_mode)
            save_file(tensors, temporary, {BUNDLE_KEY: json.dumps(manifest)})
            temporary.chmod(mode)  # safetensors lets only the owner read its files
            _seal(temporary)
            with temporary.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}.") from error
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error
    return digest


def check_new(path: Path) -> None:
    """Raises a `UserError` if the file exists."""
    if path.exists():
        raise UserError(f"`output={path}` exists; name a new file.")


def read_config(path: epath.PathLike) -> Config:
    """The config of the model in a bundle; the digest is checked by `read_model`.

    Raises:
      UserError: the file is damaged, or of a later version.
    """
    with _report_damage(path):
        return _config(path, _read_manifest(path))


def read_facts(path: epath.PathLike) -> ModelFacts:
    """What is known of the model in a bundle.

    Raises:
      UserError: the file is damaged, or of a later version.
    """
    with _report_damage(path):
        return ModelFacts.from_json(_read_manifest(path)["facts"])


def read_model(
    path: epath.PathLike, allow_pickle: bool = False, shapes: Shapes = param_shapes
) -> Pretrained:
    """The model in a bundle.

    Args:
      path: of the file.
      allow_pickle: has no effect, because a bundle has no pickle.
      shapes: of the parameters, as they are read.

    Raises:
      UserError: the file is not as it was written, or of a later version.
    """
    with contextlib.ExitStack() as stack:
        local = tensor_files.local_file(epath.Path(path), stack)
        _check_seal(path, local)
        stack.enter_context(_report_damage(path, local))
        manifest = _read_manifest(local)
        config = _config(path, manifest)
        tokenizers = _tokenizers(path, manifest["tokenizers"])
        file: Any = stack.enter_context(safetensors.safe_open(local, framework="numpy"))
        _check_sizes(path, config.model, file)
        target = shapes(config.model)
        leaves = jax.tree_util.tree_leaves_with_path(target)
        for name in set(_parameters(file)) - {_name(key) for key, _ in leaves}:
            raise _damage(path, f"{name} is not a parameter of its model")
        params = jax.tree_util.tree_map_with_path(
            lambda key, leaf: _read_array(path, file, _name(key), leaf), target
        )
        facts = ModelFacts.from_json(manifest["facts"])
        text = manifest.get("calibration")  # earlier versions wrote none
        calibration = calibration_lib.from_json(text, f"{path}, calibration") if text else None
        shortlist = None
        if shortlist_lib.NAME in file.keys():  # noqa: SIM118, no dict
            text = file.get_tensor(shortlist_lib.NAME).tobytes().decode()
            load = functools.partial(
                shortlist_lib.from_text, text, tokenizers, f"{path}, shortlist"
            )
            shortlist = functools.cache(load)
        return Pretrained(config, tokenizers, params, facts.step, calibration, shortlist)


def _parameters(file: Any) -> list[str]:
    """Names of the parameters in a file of safetensors."""
    return [name for name in file.keys() if name != shortlist_lib.NAME]  # noqa: SIM118, no dict


def _name(key: jax.tree_util.KeyPath) -> str:
    """Name of a parameter, such as `encoder_norm/norm/scale`."""
    return jax.tree_util.keystr(key, simple=True, separator="/")


def _tokenizer_files(tokenizers: TokenizerPair) -> dict[str, str]:
    """The files of the tokenizers by name, in base64."""
    with tempfile.TemporaryDirectory(prefix="transformer_jax_") as folder:
        tokenizers.save(epath.Path(folder))
        files = sorted(Path(folder).iterdir())
        return {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}


def _tokenizers(path: epath.PathLike, files: dict[str, str]) -> TokenizerPair:
    with tempfile.TemporaryDirectory(prefix="transformer_jax_") as folder:
        for name, data in dict(files).items():
            if name not in _TOKENIZER_FILES:
                raise _damage(path, f"{name[:60]!r} is no name of a tokenizer's file")
            (Path(folder) / name).write_bytes(base64.b64decode(data))
        try:
            return TokenizerPair.load(epath.Path(folder))
        except UserError as error:
            raise UserError(str(error).replace(folder, str(path))) from error


def _config(path: epath.PathLike, manifest: dict[str, Any]) -> Config:
    return paths.expand_config(from_json(json.dumps(manifest["config"]), f"{path}, config"))


def _check_sizes(path: epath.PathLike, model: ModelConfig, file: Any) -> None:
    """Refuses a model that is larger than the file, which could take all memory."""
    shapes = [file.get_slice(name).get_shape() for name in _parameters(file)]
    for name, limit in {
        "d_model": max((max(shape, default=0) for shape in shapes), default=0),
        "num_encoder_layers": len(shapes),
        "num_decoder_layers": len(shapes),
    }.items():
        if (value := getattr(model, name)) > limit:
            raise _damage(path, f"config.model.{name} is {value}, more than its parameters allow")


def _read_array(
    path: epath.PathLike, file: Any, name: str, target: jax.ShapeDtypeStruct
) -> jax.Array:
    """A parameter on the devices; its shape is checked before it is read."""
    shape = tuple(file.get_slice(name).get_shape())
    if shape != target.shape:
        raise _damage(path, f"{name} has the shape {shape}, but its config implies {target.shape}")
    return layout.put(file.get_tensor(name), target)


def _read_manifest(path: epath.PathLike) -> dict[str, Any]:
    """The object in the metadata; reads no tensors, so that remote files are not copied."""
    path = epath.Path(path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(HEADER_START), "little")
        header = json.loads(file.read(min(size, path.stat().length)))
    manifest = json.loads(header["__metadata__"][BUNDLE_KEY])
    if manifest["version"] != VERSION:
        raise UserError(
            f"{path} was written by {manifest['written_by']}, in a form that this version does "
            "not know; install that version or a later one."
        )
    return manifest


def _digest(path: epath.Path) -> tuple[bytes, bytes]:
    """The digest in a file, and the SHA-256 of the file without it."""
    with path.open("rb") as file:
        start = file.read(HEADER_START + len(BUNDLE_BEGIN))
        stored = file.read(len(_NO_DIGEST))
        computed = hashlib.sha256(start + _NO_DIGEST)
        while chunk := file.read(_CHUNK):
            computed.update(chunk)
    return stored, computed.hexdigest().encode()


def _seal(path: Path) -> None:
    """Writes the digest of a file into its place, and waits until the disk has the file."""
    stored, computed = _digest(epath.Path(path))
    if stored != _NO_DIGEST:  # a safetensors that writes its header otherwise
        raise UserError(
            f"The installed safetensors {safetensors.__version__} writes metadata in another order "
            "than bundles need; install another version."
        )
    with path.open("r+b") as file:
        file.seek(HEADER_START + len(BUNDLE_BEGIN))
        file.write(computed)
        file.flush()
        os.fsync(file.fileno())


def _check_seal(path: epath.PathLike, local: epath.PathLike | None = None) -> None:
    """Refuses a file of which any byte has changed."""
    stored, computed = _digest(epath.Path(local or path))
    if stored != computed:
        raise _damage(path, "it does not contain what was written")


@contextlib.contextmanager
def _report_damage(path: epath.PathLike, local: epath.PathLike | None = None) -> Iterator[None]:
    """Turns errors about the content into one sentence; if bytes have changed, it says that."""
    try:
        yield
    except MemoryError as error:
        raise UserError(f"{path} needs more memory than this machine has free.") from error
    except _CONTENT_ERRORS as error:
        _check_seal(path, local)
        if isinstance(error, UserError):
            raise
        raise _damage(path, " ".join(str(error).split())) from error


def _damage(path: epath.PathLike, reason: str) -> UserError:
    return UserError(
        f"{path} is damaged: {reason}. Copy it again from the original, or bundle the model again."
    )
