"""Converts `pytorch_model.bin` to safetensors, in a process of its own.

A pickle can run any program when it is read. torch reads it with `weights_only=True`, in a process
that ends afterwards and has no network where the system permits that.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import safetensors
from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.interop.huggingface import hub, pickle_process, weight_files
from transformer_jax.interop.huggingface.settings import write_json

# Variables that the process needs to find Python's packages; it sees no others.
_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")


def convert_directory(path: epath.PathLike, say: Callable[[str], None] = print) -> None:
    """Writes `model.safetensors`, or its parts, next to the `pytorch_model.bin` of a directory.

    The pickles stay as they are. An error leaves no new file.

    Args:
      path: a directory, or the name of a model on the Hugging Face Hub.
      say: gets the name of each file that was written.

    Raises:
      UserError: there is no pickle, it is damaged, or torch is missing.
    """
    folder = hub.locate(path)
    if "://" in str(folder):
        raise UserError(f"{folder} must be a local folder; copy the model first.")
    kind, pickles = weight_files.find(folder)
    if kind != weight_files.PICKLE:
        say(f"{folder} has {kind}: there is nothing to convert")
        return
    suffix = uuid.uuid4().hex
    written = {part: folder / f".{_new_name(part)}.{suffix}" for part in pickles}
    try:
        convert_files({str(folder / part): str(to) for part, to in written.items()})
        names = {_new_name(part): _names(to) for part, to in written.items()}
        for part, temporary in written.items():
            temporary.replace(folder / _new_name(part))
        if pickles != [weight_files.PICKLE]:  # last: it makes the parts a model
            weight_map = {name: part for part, inside in names.items() for name in inside}
            size = sum((folder / part).stat().length for part in names)
            index = folder / f"{weight_files.SAFETENSORS}.index.json"
            write_json(index, {"metadata": {"total_size": size}, "weight_map": weight_map})
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.") from error
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)
    for part in pickles:
        say(f"wrote {folder / _new_name(part)}; {part} is no longer needed")


def convert_files(targets: dict[str, str]) -> None:
    """Converts local files in one process.

    Args:
      targets: path of each pickle -> path of the safetensors file to write.

    Raises:
      UserError: torch is missing, or a pickle is damaged or holds more than tensors.
    """
    arguments = [path for pair in targets.items() for path in pair]
    done = subprocess.run(
        # -P: modules of the current folder must not replace torch or what it imports.
        [sys.executable, "-P", pickle_process.__file__, *arguments],
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return
    first = next(iter(targets))
    if done.returncode == pickle_process.NO_TORCH:
        raise UserError(
            f"{first} is a pickle, which only torch 2.6 or newer reads safely; install it where "
            "you convert: pip install 'transformer-jax[interop]'."
        )
    if done.returncode == pickle_process.UNSAFE:
        raise UserError(
            f"{first} is damaged, or no model: a pickle that holds more than tensors may run "
            "programs. It was not loaded; do not load it with other tools either."
        )
    if done.returncode < 0:
        raise UserError(
            f"The conversion of {first} was ended by signal {-done.returncode}, perhaps for lack "
            "of memory; nothing was written."
        )
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    reason = lines[-1] if lines else f"the process ended with status {done.returncode}"
    raise UserError(f"{first} is damaged, or no model ({reason}); copy it again.")


def _new_name(part: str) -> str:
    """`model-00001-of-00002.safetensors` for `pytorch_model-00001-of-00002.bin`."""
    return f"{Path(part).stem.removeprefix('pytorch_')}.safetensors"


def _names(path: epath.Path) -> Iterable[str]:
    with safetensors.safe_open(str(path), framework="numpy") as file:
        return list(file.keys())
