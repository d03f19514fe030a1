"""Files of text that the commands write."""

import contextlib
import sys
from collections.abc import Iterator
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


def _open(name: str, mode: str) -> Any:
    try:
        return epath.Path(name).open(mode, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror or error}.") from error
