"""Weight files of a Hugging Face directory, read one tensor at a time."""

import contextlib
import functools
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.interop.huggingface.settings import read_json

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name. Each look-up reads the tensor from its file; nothing is kept."""

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]):
        self._readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        return self._readers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._readers  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


@contextlib.contextmanager
def open_tensors(folder: epath.Path, allow_pickle: bool) -> Iterator[Tensors]:
    """All tensors of `model.safetensors`, its parts, or `pytorch_model.bin`.

    Raises:
      UserError: the files are missing, damaged, or a pickle, which `allow_pickle` does not permit.
    """
    kind, files = _files(folder)
    readers: dict[str, Callable[[], np.ndarray]] = {}
    with contextlib.ExitStack() as stack:
        for part in files:
            path = folder / part
            if not path.exists():
                raise UserError(
                    f"{folder} has no {part}; copy the model again, with all its files."
                )
            if kind == "pytorch_model.bin" and not allow_pickle:
                raise UserError(
                    f"{path} is a pickle, which can run any program. If you trust its source, set "
                    "allow_pickle; otherwise save the model as model.safetensors."
                )
            read = _open_pickle if kind == "pytorch_model.bin" else _open_safetensors
            readers |= read(path, _local(path, stack), stack)
        yield Tensors(readers)


def _files(folder: epath.Path) -> tuple[str, list[str]]:
    """The usual name of the model's file, and the files that hold it: this one, or its parts."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).exists():
            return name, [name]
        index = folder / f"{name}.index.json"
        if index.exists():
            return name, _parts(index)
    raise UserError(f"{folder} has no model.safetensors (and no pytorch_model.bin).")


def _parts(index: epath.Path) -> list[str]:
    """Names of the files that an index lists.

    Raises:
      UserError: a name is not that of a file in the folder of the index.
    """
    parts = set(read_json(index)["weight_map"].values())
    for part in parts:
        if not isinstance(part, str) or part in ("", "..") or Path(part).name != part:
            raise UserError(
                f"{index} names the file {part!r}; the parts of a model must be in its folder."
            )
    return sorted(parts)


def _local(path: epath.Path, stack: contextlib.ExitStack) -> str:
    """A local path of the file; a remote file is copied, and removed when `stack` closes."""
    if "://" not in str(path):
        return str(path)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    copy = epath.Path(folder) / path.name
    path.copy(copy)
    return str(copy)


def _open_safetensors(
    path: epath.Path, local: str, stack: contextlib.ExitStack
) -> dict[str, Callable[[], np.ndarray]]:
    try:
        file: Any = stack.enter_context(safetensors.safe_open(local, framework="numpy"))
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error
    for name in file.keys():  # noqa: SIM118, `file` is not a mapping
        dtype = file.get_slice(name).get_dtype()
        if dtype not in _DTYPES:
            raise UserError(
                f"{path}: {name} has the type {dtype}; only {', '.join(_DTYPES)} are read. Convert "
                "the model to one of them."
            )
    return {name: functools.partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118


def _open_pickle(
    path: epath.Path, local: str, stack: contextlib.ExitStack
) -> dict[str, Callable[[], np.ndarray]]:
    del stack  # torch itself keeps the file mapped
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} can only be read with torch; install it (pip install "
            "'transformer-jax[interop]'), or save the model as model.safetensors."
        ) from error
    try:
        # Files from before torch 1.6 cannot be mapped into memory.
        mmap = zipfile.is_zipfile(local)
        stored = torch.load(local, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch raises many types of errors for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is damaged ({reason}); copy it again.") from error
    if not all(isinstance(tensor, torch.Tensor) for tensor in stored.values()):
        raise UserError(
            f"{path} must contain tensors by name and nothing else; save the model's state_dict."
        )

    def read(name: str) -> np.ndarray:
        return np.array(stored[name].float().numpy())  # a copy: the file may change

    return {name: functools.partial(read, name) for name in stored}
