"""The commands, their lines before absl parses them, and flags whose values have names in help."""

import itertools
import re
from collections.abc import Sequence

from absl import flags

from transformer_jax.config import split_paths
from transformer_jax.errors import UserError

flags.disclaim_key_flags()  # those that are defined here belong to the module that calls
# Each is a module of this package with `HELP`, `define_flags` and `run`. Importing it does not load
# JAX.
COMMANDS = {
    "init": "Look at your own corpus, and write a recipe that fits it.",
    "train": "Train a translator, or resume a run that was interrupted.",
    "prepare": "Filter and tokenise a large corpus once, on all cores or many machines.",
    "eval": "Score a model on a test set, and compare it with another system.",
    "shortlist": "Learn which target tokens belong to those of a source, for faster decoding.",
    "decode": "Translate lines of text, or score given translations.",
    "translate-corpus": "Translate many large files, also on the machines of a Ray cluster.",
    "distill": "Train a small model on what one or several trained models write.",
    "export": "Write a model in the format of another tool.",
    "bundle": "Write a model as one file, with digests and a model card.",
    "convert": "Make a published model's pytorch_model.bin readable without pickle.",
    "serve": "Serve models over HTTP: for programs, and as a page.",
    "data": "Fetch a public data set, verify it, and write it as text files.",
    "plot": "Draw attention, learning curves and more; write report.html.",
    "runs": "List runs with their state, step and scores.",
}


def module_of(command: str) -> str:
    """Name of the module of a command."""
    return f"transformer_jax.commands.{command.replace('-', '_')}"


HELP_FLAGS = {"--help", "-help", "-h"}
# What absl says of a wrong flag -> what a command says.
_SENTENCES = (
    (
        r"Unknown command line flag '([\w-]+)'\. Did you mean: (\w+).*",
        r"There is no flag --\1; did you mean --\2?",
    ),
    (r"Unknown command line flag '(.+?)'.*", r"There is no flag --\1."),
    (r"Missing value for flag (--\S+)", r"\1=VALUE lacks its value."),
    (r"flag (--.*): invalid literal for int\(\).*", r"\1 is not a whole number."),
    (r"flag (--.*): could not convert string to float.*", r"\1 is not a number."),
    (r"flag (--.*): value should be one of <(.*)>", r"\1 must be one of \2."),
    (r"flag (--.*): \('Non-boolean argument.*", r"\1 must be true or false."),
    (r"flag (--.*): .* is not (an )?integer >= (.*)", r"\1 must be >= \3."),
    (r"flag (--.*): .* is not a positive integer", r"\1 must be >= 1."),
    (r"flag (--.*): .* is not a non-negative integer", r"\1 must be >= 0."),
)


class TextParser(flags.ArgumentParser):
    """Any text; `value_name` is what `--help` writes for it, such as LANG."""

    def __init__(self, value_name: str):
        super().__init__()
        self.value_name = value_name


class PathParser(TextParser):
    """A path, in which a command expands `~`, and which a shell completes. It may end in more, as
    in DIR@CHECKPOINT."""


class PathsParser(flags.ListParser):
    """Paths with commas between them."""

    def __init__(self, value_name: str):
        super().__init__()
        self.value_name = value_name

    def parse(self, argument: str | list[str]) -> list[str]:
        return split_paths(argument) if isinstance(argument, str) and argument else [*argument]


def define_text(name: str, default: str | None, value_name: str, meaning: str) -> None:
    """Defines a flag whose value has a name in `--help`."""
    flags.DEFINE(TextParser(value_name), name, default, meaning)


def define_path(name: str, default: str | None, value_name: str, meaning: str) -> None:
    """Defines a flag whose value is a path, named such as FILE in `--help`."""
    flags.DEFINE(PathParser(value_name), name, default, meaning)


def define_paths(name: str, default: list[str] | None, value_name: str, meaning: str) -> None:
    """Defines a flag whose value is a list of paths, named such as DIR,DIR in `--help`."""
    flags.DEFINE(PathsParser(value_name), name, default, meaning)


def wants_help(argv: Sequence[str]) -> bool:
    """Whether the command is to explain itself instead of running."""
    return not HELP_FLAGS.isdisjoint(argv)


def with_flag_files(argv: Sequence[str]) -> list[str]:
    """`argv` with the flags of each file that `--flagfile=FILE` names.

    Raises:
      UserError: there is no such file.
    """
    try:
        return [argv[0], *flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)]
    except flags.Error as error:
        reason = " ".join(str(error).split()).removeprefix("ERROR:: ")
        raise UserError(f"--flagfile: {reason}.") from error


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


def sentence(error: Exception) -> str:
    """What is wrong with a flag, from absl's error."""
    text = " ".join(str(error).split())
    for pattern, replacement in _SENTENCES:
        if re.fullmatch(pattern, text):
            return re.sub(pattern, replacement, text).replace("|", ", ")
    return text
