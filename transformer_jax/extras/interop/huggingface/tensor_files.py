"""Weight files of a Hugging Face directory, read one tensor at a time."""

import contextlib
import functools
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
import safetensors
from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import pickles, weight_files

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name. Each look-up reads the tensor from its file; nothing is kept.

    Args:
      readers: read the tensor of each name.
      shapes: of each tensor.
    """

    def __init__(
        self,
        readers: Mapping[str, Callable[[], np.ndarray]],
        shapes: Mapping[str, tuple[int, ...]],
    ):
        self._readers = readers
        self.shapes = shapes

    def with_prefix(self, prefix: str) -> "Tensors":
        """The same tensors, with `prefix` before their names."""
        return Tensors(
            {prefix + name: reader for name, reader in self._readers.items()},
            {prefix + name: shape for name, shape in self.shapes.items()},
        )

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
    """All tensors of `model.safetensors`, its parts, or `pytorch_model.bin`, as of `open_files`."""
    kind, parts = weight_files.find(folder)
    with open_files(folder, parts, kind == weight_files.PICKLE, allow_pickle) as tensors:
        yield tensors


@contextlib.contextmanager
def open_files(
    folder: epath.Path, parts: Sequence[str], is_pickle: bool, allow_pickle: bool
) -> Iterator[Tensors]:
    """All tensors of files. Pickles are converted to temporary files first.

    Args:
      folder: of the files.
      parts: their names.
      is_pickle: whether they are pickles, or else safetensors.
      allow_pickle: pickles are read, in another process.

    Raises:
      UserError: the files are missing, damaged, or a pickle, which `allow_pickle` does not permit.
    """
    if is_pickle and not allow_pickle:
        remote = paths.is_remote(folder)
        raise UserError(
            f"{folder / parts[0]} is a pickle, which can run any program when it is read. "
            f"{'Copy the folder to a disk and convert' if remote else 'Convert'} it once, safely: "
            f"transformer-jax convert {'FOLDER' if remote else shlex.quote(str(folder))}"
        )
    readers: dict[str, Callable[[], np.ndarray]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    with contextlib.ExitStack() as stack:
        local = {part: local_file(folder / part, stack) for part in parts}
        if is_pickle:
            local = _converted(local, stack)
        for part, path in local.items():
            for name, shape in _safetensors_shapes(folder / part, path).items():
                shapes[name] = shape
                readers[name] = functools.partial(_read_tensor, path, name)
        yield Tensors(readers, shapes)


def _converted(local: dict[str, str], stack: contextlib.ExitStack) -> dict[str, str]:
    """Paths of the pickles `local` as safetensors, which are removed when `stack` closes."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="transformer_jax_"))
    converted = {part: f"{folder}/{number}.safetensors" for number, part in enumerate(local)}
    pickles.convert_files({local[part]: path for part, path in converted.items()})
    return converted


def local_file(path: epath.Path, stack: contextlib.ExitStack) -> str:
    """A local path of the file; a remote file is copied, and removed when `stack` closes."""
    if not paths.is_remote(path):
        return str(path)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    copy = epath.Path(folder) / path.name
    path.copy(copy)
    return str(copy)


def _safetensors_shapes(path: epath.Path, local: str) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor of a file, which is `path` for users and at `local` on the disk."""
    shapes = {}
    try:
        with safetensors.safe_open(local, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118, `file` is not a mapping
                header = file.get_slice(name)
                if header.get_dtype() not in _DTYPES:
                    raise UserError(
                        f"{path}: {name} has the type {header.get_dtype()}; only "
                        f"{', '.join(_DTYPES)} are read. Convert the model to one of them."
                    )
                shapes[name] = tuple(header.get_shape())
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error
    return shapes


def _read_tensor(local: str, name: str) -> np.ndarray:
    # Opened each time: an open file stays in memory as far as it has been read.
    with safetensors.safe_open(local, framework="numpy") as file:
        return file.get_tensor(name)
