"""Converts `pytorch_model.bin` to safetensors, in a process of its own.

A pickle can run any program when it is read. torch reads it with `weights_only=True`, in a process
that ends afterwards and has no network where the system permits that.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import safetensors
from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import yaml_settings
from transformer_jax.extras.interop.huggingface import hub, pickle_process, weight_files
from transformer_jax.extras.interop.huggingface.settings import write_json
from transformer_jax.extras.interop.joeynmt import files as joeynmt_files
from transformer_jax.workdir import directory_kinds

# Variables that the process needs to find Python's packages; it sees no others.
_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")

# Status of the process -> what is said.
_FAILURES = {
    pickle_process.DAMAGED: "{path} is damaged, or no model ({reason}); copy it again.",
    pickle_process.NO_TORCH: "{path} is a pickle, which only torch 2.6 or newer reads safely; "
    "install it where you convert: pip install 'torch>=2.6'.",
    pickle_process.BROKEN_TORCH: "{path} is a pickle, which torch reads, and the installed torch "
    "cannot be imported ({reason}); install it again: pip install --force-reinstall torch.",
    pickle_process.UNSAFE: "{path} is damaged, or no model: a pickle that holds more than tensors "
    "may run programs. It was not loaded; do not load it with other tools either.",
    pickle_process.UNREADABLE: "{path} cannot be read: {reason}.",
    pickle_process.UNWRITABLE: "{path} was read, but its tensors cannot be written: {reason}.",
    pickle_process.NO_MEMORY: "{path} needs more memory than this machine has free; convert it on "
    "a larger one.",
}


def convert_directory(path: epath.PathLike, say: Callable[[str], None] = print) -> None:
    """Writes `model.safetensors`, or its parts, next to the `pytorch_model.bin` of a directory, and
    `best.safetensors` next to the `best.ckpt` of a model of JoeyNMT.

    The pickles stay as they are. An error leaves no new file.

    Args:
      path: a directory, or the name of a model on the Hugging Face Hub.
      say: gets the name of each file that was written.

    Raises:
      UserError: the path is no such model; there is no pickle, it is damaged, or torch is missing.
    """
    folder = hub.locate(path)
    if paths.is_remote(folder):
        raise UserError(f"{folder} must be a local folder; copy the model first.")
    if directory_kinds.is_run(folder):
        raise UserError(f"{folder} is a work directory, which all commands read as it is.")
    if directory_kinds.is_joeynmt(folder):
        settings = yaml_settings.read(folder / directory_kinds.JOEYNMT_CONFIG, "JoeyNMT")
        kind = joeynmt_files.checkpoint(folder, settings).name
        is_pickle, pickles = kind.endswith(joeynmt_files.PICKLES), [kind]
    elif directory_kinds.is_hugging_face(folder):
        kind, pickles = weight_files.find(folder)
        is_pickle = kind == weight_files.PICKLE
    else:
        raise UserError(f"{folder} {directory_kinds.describe(folder)}.")
    if not is_pickle:
        say(f"{folder} has {kind}: there is nothing to convert")
        return
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".convert") as temporary:
            _convert(folder, pickles, epath.Path(temporary))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.") from error
    for part in pickles:
        say(f"wrote {folder / _new_name(part)}; transformer-jax does not read {part} any more")


def _convert(folder: epath.Path, pickles: list[str], temporary: epath.Path) -> None:
    """Converts into `temporary`, then moves the new files and their index into `folder`."""
    written = {part: temporary / _new_name(part) for part in pickles}
    convert_files({str(folder / part): str(to) for part, to in written.items()})
    names = {to.name: _names(to) for to in written.values()}
    for to in written.values():
        to.replace(folder / to.name)
    is_one_file = pickles == [weight_files.PICKLE] or directory_kinds.is_joeynmt(folder)
    if not is_one_file:  # last: it makes the parts a model
        weight_map = {name: part for part, inside in names.items() for name in inside}
        size = sum((folder / part).stat().length for part in names)
        index = folder / f"{weight_files.SAFETENSORS}.index.json"
        write_json(index, {"metadata": {"total_size": size}, "weight_map": weight_map})


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
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode == 0:
        return
    lines = done.stdout.split("\n")[:-1]
    path = next((line for line in reversed(lines) if line in targets), next(iter(targets)))
    status = pickle_process.NO_MEMORY if done.returncode == -signal.SIGKILL else done.returncode
    last = lines if status in _FAILURES else done.stderr.splitlines()
    reason = (last[-1:] or [f"status {done.returncode}"])[0]
    sentence = _FAILURES.get(
        status, "{path} was not converted: the program that reads it failed ({reason})."
    )
    raise UserError(sentence.format(path=path, reason=reason))


def _new_name(part: str) -> str:
    """`model-00001-of-00002.safetensors` for `pytorch_model-00001-of-00002.bin`."""
    return f"{Path(part).stem.removeprefix('pytorch_')}.safetensors"


def _names(path: epath.Path) -> Iterable[str]:
    with safetensors.safe_open(str(path), framework="numpy") as file:
        return list(file.keys())
