"""Prints all flags as Markdown: `python -m transformer_jax.commands > docs/flags.md`."""

import importlib
import json
from typing import Any

from absl import flags

from transformer_jax.commands.main import COMMANDS

FLAGS = flags.FLAGS
HEAD = """# Flags

The flags of every command. `python train.py`, `python eval.py` and so on are the same commands as
`transformer-jax train` and `transformer-jax eval`. Settings of a run are on
[a page of their own](settings.md).

This page is written by `python -m transformer_jax.commands > docs/flags.md`.
"""


def page() -> str:
    """The page, a table for each command."""
    parts = [HEAD]
    for command in COMMANDS:
        module = importlib.import_module(f"transformer_jax.commands.{command}")
        parts.append(f"## {command}\n\n{(module.__doc__ or '').strip()}\n")
        rows = ["| flag | default | meaning |\n", "| --- | --- | --- |\n"]
        rows += [_row(flag) for flag in _flags_of(module)]
        parts.append("".join(rows))
    return "\n".join(parts)


def _flags_of(module: Any) -> list[flags.Flag]:
    """The flags that a command defines; afterwards they are undefined again."""
    others = set(FLAGS)
    module.define_flags([])
    defined = [FLAGS[name] for name in FLAGS if name not in others]
    for flag in defined:
        delattr(FLAGS, flag.name)
    return defined


def _row(flag: flags.Flag) -> str:
    default = "" if flag.default is None else f"`{json.dumps(flag.default)}`"
    meaning = " ".join(flag.help.split()).replace("|", "\\|")
    return f"| `--{flag.name}` | {default} | {meaning} |\n"


if __name__ == "__main__":
    print(page(), end="")
