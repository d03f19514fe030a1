"""Text files that the commands write."""

import contextlib
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError

_CHUNK = 8 << 20  # bytes


def as_line(text: str) -> str:
    """The text as exactly one line; a model with byte tokens may write line breaks."""
    return " ".join(text.replace("\r", "\n").split("\n")) + "\n"


@contextlib.contextmanager
def writing(name: str, at_once: bool = False) -> Iterator[Any]:
    """Opens a text file and replaces what it holds; - is standard output.

    The file appears once all of it is written. An error leaves the former one.

    Args:
      name: path of the file.
      at_once: write a local file in place, so that it has what was written before an error.
    """
    if name == "-":
        yield sys.stdout
        return
    if not paths.is_remote(name):
        try:
            with _open(name, "w") if at_once or _is_in_place(name) else _replacing(name) as out:
                yield out
        except OSError as error:
            # Writing to an open file fails without any name.
            if error.filename == os.path.realpath(name) or error.errno in paths.NO_ROOM:
                raise _unwritable(name, error) from error
            raise
        return
    # An upload cannot always be cancelled, so nothing is sent before the end.
    with tempfile.NamedTemporaryFile(prefix="transformer_jax_") as file:
        text = io.TextIOWrapper(file, encoding="utf-8")
        yield text
        text.flush()
        file.seek(0)
        try:
            with paths.store_errors(), epath.Path(name).open("wb") as target:
                shutil.copyfileobj(file, target, _CHUNK)
        except OSError as error:
            kept = f"{file.name}.txt"
            os.link(file.name, kept)
            raise UserError(
                f"{name} cannot be written: {paths.explain(error)}. Its content is kept in {kept}."
            ) from error


def check_writable(name: str) -> None:
    """Checks that a file can be written, without changing it.

    Raises:
      UserError: it cannot.
    """
    if name == "-":
        return
    if not paths.is_remote(name):
        is_new = not os.path.exists(name)
        _open(name, "a").close()
        if is_new:
            os.unlink(name)
        return
    probe = epath.Path(f"{name}.probe")  # opening the file to append would empty it
    try:
        with paths.store_errors():
            probe.write_bytes(b"")
            probe.unlink()
    except OSError as error:
        raise _unwritable(name, error) from error


def check_not_overwritten(output: str, inputs: Mapping[str, str], flag: str = "--output") -> None:
    """Refuses an output file that is also an input.

    Args:
      output: path; - is standard output.
      inputs: flag or setting -> path; - is standard input, empty is none.
      flag: name of the output's flag.

    Raises:
      UserError: names both flags.
    """
    if output == "-":
        return
    for name, path in inputs.items():
        if path and _is_same_file(output, path):
            raise UserError(
                f"{flag} and {name} are the same file, {output}; give the output another name."
            )


def _is_same_file(output: str, path: str) -> bool:
    """Whether both paths lead to one regular file."""
    if paths.is_remote(output) or paths.is_remote(path):
        return output == path
    try:
        written = os.stat(output)
        other = os.fstat(sys.stdin.fileno()) if path == "-" else os.stat(path)
    except (OSError, ValueError, AttributeError):  # one of them does not exist
        return False
    return stat.S_ISREG(written.st_mode) and os.path.samestat(written, other)


def _is_in_place(name: str) -> bool:
    """Whether a local file cannot be replaced: a device, a pipe, or in a folder that is closed."""
    path = os.path.realpath(name)
    is_closed = os.path.exists(path) and not os.access(os.path.dirname(path), os.W_OK)
    return is_closed or (os.path.exists(path) and not os.path.isfile(path))


@contextlib.contextmanager
def _replacing(name: str) -> Iterator[Any]:
    path = os.path.realpath(name)  # what a symbolic link leads to is replaced, not the link
    with (
        paths.new_path(path, makes_parents=False) as temporary,
        temporary.open("w", encoding="utf-8") as out,
    ):
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        yield out


def _open(name: str, mode: str) -> Any:
    try:
        return epath.Path(name).open(mode, encoding="utf-8")
    except OSError as error:
        raise _unwritable(name, error) from error


def _unwritable(name: str, error: OSError) -> UserError:
    return UserError(f"{name} cannot be written: {paths.explain(error)}.")
