"""Prints the help of all commands as Markdown.

python -m transformer_jax.commands > docs/commands.md
"""

import importlib
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from transformer_jax.commands import command_help, command_line
from transformer_jax.commands.main import COMMANDS

HEAD = """# Commands and their flags

`transformer-jax COMMAND` runs anywhere; `python -m transformer_jax COMMAND` is the same. In a clone
`python train.py`, `eval.py`, `decode.py`, `export.py` and `serve.py` are too. `transformer-jax
COMMAND --help` prints what this page has of the command, with the defaults of the model that
`--workdir=DIR` names.

Every [setting](settings.md) is the flag `--config.SECTION.NAME=VALUE` of the commands that train or
read a model.

This page is written by `python -m transformer_jax.commands > docs/commands.md`.
"""
SHARED_TEXT = {
    command_help.SEARCH: "Each setting of [`decode`](settings.md#decode) is a flag too.\n",
    command_help.PROCESSES: "It takes the flags of [several processes](#several-processes).\n",
}
BAR = r"\|"  # in a table of Markdown


def page() -> str:
    """The page: a section for each command, then the flags that several commands share."""
    parts = [HEAD]
    processes: list[flags.Flag] = []
    for command in COMMANDS:
        with command_help.defined_flags(command) as defined:
            groups = command_help.flag_groups(defined)
            parts += _command(command, groups)
            processes = groups.get(command_help.PROCESSES, processes)
    parts += [f"## {command_help.PROCESSES}\n", _table(processes)]
    return "\n".join(parts)


def _command(command: str, groups: dict[str, list[flags.Flag]]) -> Iterator[str]:
    text = importlib.import_module(command_line.module_of(command)).HELP
    yield f"## {command}\n\n{command_help.wrapped(text.about, width=100)}\n"
    lines = [f"transformer-jax {command} {text.usage}"]
    for purpose, line in text.examples:
        lines += ["", f"# {purpose}", command_help.shell_lines(line, 96, "")]
    yield "\n".join(["```sh", *lines, "```", ""])
    if text.words and text.words.choices:
        yield "\n".join(f"- `{name}`: {what}" for name, what in text.words.choices.items()) + "\n"
    if "Flags" in groups:
        yield _table(groups["Flags"])
    for title, shared in SHARED_TEXT.items():
        if title in groups:
            yield shared
    if text.fields:
        fields = ", ".join(f"`{name}`" for name in text.fields)
        yield command_help.wrapped(f"Settings that are changed most often: {fields}.", width=100)
        yield ""
    links = (f"[`{Path(page).name}`]({Path(page).name}) ({what})" for page, what in text.pages)
    yield command_help.wrapped(f"More: {', '.join(links)}.\n", width=100) + "\n"


def _table(rows: list[flags.Flag]) -> str:
    lines = ["| flag | default | meaning |", "| --- | --- | --- |"]
    for flag in rows:
        value = "" if flag.boolean else f"={command_help.value_name(flag)}"
        default = command_help.default_text(flag.default)
        cells = f"`--{flag.name}{value}`", default and f"`{default}`", command_help.meaning(flag)
        lines.append("| " + " | ".join(cell.replace("|", BAR) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
