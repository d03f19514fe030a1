"""Prints all settings as Markdown: `python -m transformer_jax.config > docs/settings.md`."""

import json
from typing import Any

from transformer_jax.config.fields import Config
from transformer_jax.config.setting import Setting, all_settings, section_rules

HEAD = """# Settings

Every setting of a run. A recipe sets them in Python, the command line by
`--config.SECTION.NAME=VALUE`. A run keeps them in `config.json`. On the command line, truth values
are `True` and `False`, and several values are in brackets:
`--config.data.train_languages='("en-de","en-fr")'`.

"On resume" says whether a run may resume with another value. This page is written by
`python -m transformer_jax.config > docs/settings.md`.
"""
COLUMNS = ("setting", "default", "choices or range", "on resume", "meaning")


def page() -> str:
    """The page, a table for each section."""
    tables: dict[str, list[Setting]] = {}
    for setting in all_settings(Config):
        section = setting.path.rpartition(".")[0]
        tables.setdefault(section, []).append(setting)
    rules = section_rules(Config)
    parts = [HEAD]
    for section, settings in tables.items():
        if section:
            parts.append(f"## {section}\n\n{rules[section].meaning}\n")
        rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, settings)]
        parts.append("".join(f"| {' | '.join(row)} |\n" for row in rows))
    return "\n".join(parts)


def _row(setting: Setting) -> tuple[str, ...]:
    choices = ("True", "False") if setting.type is bool else setting.choices
    allowed = ", ".join(f"`{choice}`" for choice in choices) or setting.range_text()
    resumable = "yes" if setting.resumable else "no"
    name = setting.path.rpartition(".")[2]
    return f"`{name}`", _value(setting.default), allowed, resumable, setting.rules.meaning


def _value(value: Any) -> str:
    """A default as it is written on the command line."""
    return f"`{json.dumps(value) if value == '' else value}`"


if __name__ == "__main__":
    print(page(), end="")
