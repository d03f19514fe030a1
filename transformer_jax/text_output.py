"""Files of text that the commands write."""

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from transformer_jax.errors import UserError


def as_line(text: str) -> str:
    """Text as exactly one line, whatever characters a model with byte pieces may write."""
    return " ".join(text.replace("\r", "\n").split("\n")) + "\n"


@contextlib.contextmanager
def writing(name: str) -> Iterator[Any]:
    """A text file that is written from its beginning; - is standard output."""
    if name == "-":
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        yield sys.stdout
        return
    with _open(name, "w") as out:
        yield out


def check_writable(name: str) -> None:
    """Leaves what the file holds.

    Raises:
      UserError: it cannot be written.
    """
    if name != "-":
        _open(name, "a").close()


def check_not_overwritten(output: str, inputs: Mapping[str, str], flag: str = "--output") -> None:
    """Checks that a file which is written is none of those which are read.

    Args:
      output: - is standard output.
      inputs: path of each flag or setting; - is standard input, "" is none.
      flag: that names the output.

    Raises:
      UserError: naming both flags.
    """
    if output == "-":
        return
    for name, path in inputs.items():
        if path and _is_same_file(output, path):
            raise UserError(
                f"{flag} and {name} are the same file, {output}; give the output another name."
            )


def _is_same_file(output: str, path: str) -> bool:
    """Whether both are one regular file, by any of its names."""
    if "://" in output or "://" in path:
        return output == path
    try:
        written = os.stat(output)
        read = os.fstat(sys.stdin.fileno()) if path == "-" else os.stat(path)
    except (OSError, ValueError):  # one of them is not there
        return False
    return stat.S_ISREG(written.st_mode) and os.path.samestat(written, read)


def _open(name: str, mode: str) -> Any:
    try:
        return epath.Path(name).open(mode, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror or error}.") from error
