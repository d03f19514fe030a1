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
def writing(name: str) -> Iterator[Any]:
    """Opens a text file and replaces what it holds; - is standard output.

    A file in an object store appears once all of it is written. An error leaves the former one.
    """
    if name == "-":
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        yield sys.stdout
        return
    if not paths.is_remote(name):
        with _open(name, "w") as out:
            yield out
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
        _open(name, "a").close()
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


def _open(name: str, mode: str) -> Any:
    try:
        return epath.Path(name).open(mode, encoding="utf-8")
    except OSError as error:
        raise _unwritable(name, error) from error


def _unwritable(name: str, error: OSError) -> UserError:
    return UserError(f"{name} cannot be written: {paths.explain(error)}.")
