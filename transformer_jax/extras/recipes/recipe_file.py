"""Writes a config as a recipe: a Python file with `get_config()` and a comment at each setting."""

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any

from transformer_jax.config.fields import Config
from transformer_jax.config.setting import Setting, all_settings

_COLUMNS = 100


def recipe_text(
    config: Config, head: str, reasons: Mapping[str, str], code: Mapping[str, str]
) -> str:
    """The file as text; `get_config()` in it returns `config`.

    Settings that have their default value and no reason are left out.

    Args:
      config: what the recipe returns.
      head: the file's docstring, without quotation marks.
      reasons: path of a setting, such as `model.d_model` -> comment. Neighbours with the same
        comment share it.
      code: path of a setting -> Python expression that is written instead of its value. `HERE` in
        it is the folder of the recipe.
    """
    sections: dict[str, list[str]] = {"": []}
    last_reason: dict[str, str] = {}
    for setting in all_settings(Config):
        reason = reasons.get(setting.path, "")
        if setting.value(config) == setting.default and not reason and setting.path not in code:
            continue
        section, _, name = setting.path.rpartition(".")
        lines = sections.setdefault(section, [])
        if reason != last_reason.get(section):
            lines += [f"# {line}" for line in textwrap.wrap(reason, _COLUMNS - 14)]
        last_reason[section] = reason
        lines.append(f"{name}={code.get(setting.path) or _literal(setting, config)},")
    classes = {
        field.name: field.type.__name__ for field in _section_fields() if sections.get(field.name)
    }
    body = [f"        {line}" for line in sections[""]]
    for section, class_name in classes.items():
        body += [f"        {section}={class_name}("]
        body += [f"            {line}" for line in sections[section]] + ["        ),"]
    imports = ["from transformer_jax.config import ("]
    imports += [f"    {name}," for name in sorted(["Config", *classes.values()])] + [")"]
    uses_here = any("HERE" in expression for expression in code.values())
    parts = [f'"""{_escaped(head.strip())}\n"""', ""]
    if uses_here:
        parts += ["from pathlib import Path", ""]
    parts += imports
    if uses_here:
        parts += ["", "HERE = Path(__file__).resolve().parent"]
    parts += ["", "", "def get_config() -> Config:", "    return Config(", *body, "    )", ""]
    return "\n".join(parts)


def _section_fields() -> list[Any]:
    """The fields of `Config` that are sections of settings."""
    return [field for field in dataclasses.fields(Config) if dataclasses.is_dataclass(field.type)]


def _literal(setting: Setting, config: Config) -> str:
    """A setting's value in Python, large numbers with underscores."""
    value = setting.value(config)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def _escaped(text: str) -> str:
    """`text` as it may be written between three quotation marks."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
