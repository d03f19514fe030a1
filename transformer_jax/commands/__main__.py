"""Prints all flags as Markdown: `python -m transformer_jax.commands > docs/commands.md`."""

import dataclasses
import importlib
import json
import re
from collections.abc import Iterator

from absl import flags

from transformer_jax.commands.main import COMMANDS
from transformer_jax.config import DecodeConfig

HEAD = """# Commands and their flags

`transformer-jax COMMAND` runs anywhere; in a clone, `python train.py` and the other scripts do the
same. `transformer-jax COMMAND --help` lists the flags too. Every [setting](settings.md) is the flag
`--config.SECTION.NAME=VALUE` of `train`, `eval`, `decode` and `export`.

This page is written by `python -m transformer_jax.commands > docs/commands.md`.
"""
SHARED = "transformer_jax.commands.process_flags"
SHARED_TITLE = "Several processes: train, eval, decode"
BAR = r"\|"  # in a table of Markdown
FLAGS = flags.FLAGS


def page() -> str:
    """The page, a table for each command."""
    parts = [HEAD]
    shared: dict[str, flags.Flag] = {}
    for command in COMMANDS:
        before = set(FLAGS)
        module = importlib.import_module(f"transformer_jax.commands.{command}")
        imported = set(FLAGS)
        module.define_flags([command])
        shared |= {flag.name: flag for flag in FLAGS.flags_by_module_dict().get(SHARED, ())}
        rows = [FLAGS[name] for name in FLAGS if name not in imported | set(shared)]
        if command == "decode":
            fields = {field.name for field in dataclasses.fields(DecodeConfig)}
            rows = [flag for flag in rows if flag.name not in fields]
        parts += _table(command, rows)
        if command == "decode":
            parts.append("Each setting of [`decode`](settings.md#decode) is a flag too.\n")
        for name in set(FLAGS) - before:
            delattr(FLAGS, name)
    parts += _table(SHARED_TITLE, list(shared.values()))
    return "\n".join(parts)


def _table(title: str, rows: list[flags.Flag]) -> Iterator[str]:
    yield f"## {title}\n"
    lines = ["| flag | default | meaning |", "| --- | --- | --- |"]
    for flag in rows:
        default = "" if flag.default in (None, [], "") else f"`{json.dumps(flag.default)}`"
        meaning = re.sub(r"^<(.*?)>: ", r"`\1`. ", " ".join(flag.help.split()))
        lines.append(f"| `--{flag.name}` | {default} | {meaning.replace('|', BAR)} |")
    yield "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
