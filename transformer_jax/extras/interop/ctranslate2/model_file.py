"""Names, shapes and numbers of the variables in a CTranslate2 `model.bin`; no weights are kept."""

import dataclasses
import math
import struct
from typing import BinaryIO

from etils import epath

from transformer_jax.errors import UserError

# Of the binary format, which ctranslate2 still reads; config.json came with the last one.
VERSIONS = (4, 5, 6)


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable of the model.

    Attributes:
      shape: () of a number.
      content: its bytes, little-endian; empty where it is no number.
    """

    shape: tuple[int, ...]
    content: bytes = b""

    @property
    def number(self) -> int:
        """The value of a whole number."""
        return int.from_bytes(self.content, "little", signed=True)


def read_variables(path: epath.Path) -> dict[str, Variable]:
    """The variables by name; those that share a weight have the same shape.

    Raises:
      UserError: the file is damaged, or of another version of the format.
    """
    try:
        with path.open("rb") as file:
            return _read_variables(file, path)
    except (struct.error, UnicodeDecodeError, MemoryError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error


def has_config(path: epath.Path) -> bool:
    """Whether settings are in `config.json`, and not in a file that `read_variables` can read."""
    with path.open("rb") as file:
        return _number(file, "I") == VERSIONS[-1]


def _read_variables(file: BinaryIO, path: epath.Path) -> dict[str, Variable]:
    version = _number(file, "I")
    if version not in VERSIONS:
        raise UserError(
            f"{path} has version {version} of CTranslate2's format, and {VERSIONS[0]} to "
            f"{VERSIONS[-1]} can be read; convert the model again with a current ctranslate2."
        )
    kind = _text(file)
    if kind != "TransformerSpec":
        raise UserError(f"{path} is a {kind}; only translation models (TransformerSpec) are read.")
    _number(file, "I")  # revision
    variables = {}
    for _ in range(_number(file, "I")):
        name = _text(file)
        shape = tuple(_number(file, "I") for _ in range(_number(file, "B")))
        _number(file, "B")  # type
        size = _number(file, "I")
        if math.prod(shape) == 1:
            variables[name] = Variable(shape, file.read(size))
        else:
            file.seek(size, 1)
            variables[name] = Variable(shape)
    for _ in range(_number(file, "I")):
        alias, name = _text(file), _text(file)
        if name in variables:
            variables[alias] = variables[name]
    return variables


def _number(file: BinaryIO, kind: str) -> int:
    kind = "<" + kind
    (value,) = struct.unpack(kind, file.read(struct.calcsize(kind)))
    return value


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "H"))[:-1].decode()  # it ends with a zero byte
