"""The exception for errors that users can fix: a wrong input, file, argument or setting."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """One sentence for the user: what happened, where, and what to do.

    The package writes names of arguments in backquotes, as `` `n_best=0` must be at least 1 ``.
    The commands print the sentence without a traceback, with the flags of those names instead:
    `--n_best=0 must be at least 1`. They exit with status 2.
    """


class UserTypeError(UserError, TypeError):
    """A `UserError` about an object of the wrong type, which `except TypeError` catches too."""


# What JAX's errors contain where a device has too little memory; they have no class for it.
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of JAX says that a device has too little memory."""
    return OUT_OF_MEMORY in str(error)


def missing_package(error: ModuleNotFoundError, extra: str) -> UserError:
    """The error where a package is not installed that an extra of this one has."""
    return UserError(
        f"The package {error.name} is missing; the extra [{extra}] of this package has it: "
        f"pip install 'transformer-jax[{extra}]'."
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: `; did you mean X?`, or a full stop."""
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else "."


def but_there_is(path: str | os.PathLike[str]) -> str:
    """What a sentence adds where its folder has no such name, but a similar one."""
    path = Path(path)
    try:
        names = os.listdir(path.parent)
    except OSError:  # there is no such folder either, or it is not readable
        return ""
    if path.name in names:
        return ""
    close = difflib.get_close_matches(path.name, names, 1)
    return f", but there is {path.parent / close[0]}" if close else ""
