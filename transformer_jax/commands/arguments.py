"""Command lines before absl parses them."""

import itertools
from collections.abc import Sequence

HELP_FLAGS = {"--help", "-help", "-h"}


def wants_help(argv: Sequence[str]) -> bool:
    """Whether the command is to explain itself instead of running."""
    return not HELP_FLAGS.isdisjoint(argv)


def value_of(argv: Sequence[str], name: str) -> str | None:
    """The last value of a flag, given as `--name=value` or `--name value`; None: not given."""
    prefixes = (f"--{name}=", f"-{name}=")
    given = [
        (i, argument.partition("=")[2])
        for i, argument in enumerate(argv)
        if argument.startswith(prefixes)
    ]
    given += [
        (i, value)
        for i, (argument, value) in enumerate(itertools.pairwise(argv))
        if argument in (f"--{name}", f"-{name}")
    ]
    return max(given)[1] if given else None


def without(argv: Sequence[str], name: str) -> list[str]:
    """`argv` without a flag that has a value."""
    kept, is_value = [], False
    for argument in argv:
        if is_value:
            is_value = False
        elif argument in (f"--{name}", f"-{name}"):
            is_value = True
        elif not argument.startswith((f"--{name}=", f"-{name}=")):
            kept.append(argument)
    return kept


def words_as_flags(argv: Sequence[str], name: str) -> list[str]:
    """`argv` with each word before the first flag as `--name=word`.

    So `plot curves --workdir=DIR` is `plot --picture=curves --workdir=DIR`.
    """
    words = list(itertools.takewhile(lambda argument: not argument.startswith("-"), argv[1:]))
    return [argv[0], *(f"--{name}={word}" for word in words), *argv[1 + len(words) :]]
