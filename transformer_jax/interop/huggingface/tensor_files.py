"""Weight files of a Hugging Face directory, from which one tensor is read at a time."""

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
    """Tensors by name; each look-up reads the tensor and keeps nothing of it."""

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
      UserError: where there are none, they are damaged, or would need a pickle without permission.
    """
    kind, files = _files(folder)
    readers: dict[str, Callable[[], np.ndarray]] = {}
    with contextlib.ExitStack() as stack:
        for part in files:
            path = folder / part
            if not path.exists():
                raise UserError(f"{folder} has no {part}.")
            if kind == "pytorch_model.bin" and not allow_pickle:
                raise UserError(
                    f"{path} is a pickle, which may hold a program; allow it explicitly "
                    "(allow_pickle) if you trust its source, or save the model as "
                    "model.safetensors."
                )
            read = _open_pickle if kind == "pytorch_model.bin" else _open_safetensors
            readers |= read(path, _local(path, stack), stack)
        yield Tensors(readers)


def _files(folder: epath.Path) -> tuple[str, list[str]]:
    """Name of the model's one file, and the files that are there: that, or its parts."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).exists():
            return name, [name]
        index = folder / f"{name}.index.json"
        if index.exists():
            return name, _parts(index)
    raise UserError(f"{folder} has no model.safetensors (and no pytorch_model.bin).")


def _parts(index: epath.Path) -> list[str]:
    """Names of the files that hold a model together.

    Raises:
      UserError: a name that is not of a file in the folder of the index.
    """
    parts = set(read_json(index)["weight_map"].values())
    for part in parts:
        if not isinstance(part, str) or part in ("", "..") or Path(part).name != part:
            raise UserError(
                f"{index} names the file {part!r}; the parts of a model must be in its folder."
            )
    return sorted(parts)


def _local(path: epath.Path, stack: contextlib.ExitStack) -> str:
    """The file's path on this machine; a remote one is copied until `stack` is closed."""
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
    for name in file.keys():  # noqa: SIM118, which is no mapping
        dtype = file.get_slice(name).get_dtype()
        if dtype not in _DTYPES:
            raise UserError(f"{path}: {name} has numbers of type {dtype}.")
    return {name: functools.partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118


def _open_pickle(
    path: epath.Path, local: str, stack: contextlib.ExitStack
) -> dict[str, Callable[[], np.ndarray]]:
    del stack  # torch keeps what it has mapped
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} can only be read with torch; install it (pip install "
            "'transformer-jax[interop]'), or save the model as model.safetensors."
        ) from error
    try:
        # Files of before torch 1.6 cannot be mapped into memory.
        mmap = zipfile.is_zipfile(local)
        stored = torch.load(local, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch names no base of what it raises on damage
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is damaged ({reason}); copy it again.") from error
    if not all(isinstance(tensor, torch.Tensor) for tensor in stored.values()):
        raise UserError(f"{path} holds something else than tensors by name.")

    def read(name: str) -> np.ndarray:
        return np.array(stored[name].float().numpy())  # a copy: the file may change

    return {name: functools.partial(read, name) for name in stored}
