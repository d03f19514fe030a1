"""The flags `--config` and `--config.SECTION.NAME`, by `ml_collections`."""

import dataclasses
import difflib
import importlib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from transformer_jax import paths
from transformer_jax.config import Config
from transformer_jax.errors import UserError


def define_recipe(argv: Sequence[str]) -> list[str]:
    """Defines `--config=RECIPE`; returns `argv` with the recipe as the path of a file.

    Raises:
      UserError: there is no such recipe.
    """
    _ml_collections().DEFINE_config_file(
        "config",
        help_string="Recipe: a file, or the name of a built-in one. `python -m "
        "transformer_jax.config` lists the settings that --config.SECTION.NAME=VALUE changes.",
    )
    flags.mark_flag_as_required("config")
    arguments = list(argv)
    for i, argument in enumerate(arguments):
        if argument in ("--config", "-config") and i + 1 < len(arguments):
            arguments[i + 1] = _recipe_path(arguments[i + 1])
        elif argument.startswith(("--config=", "-config=")):
            arguments[i] = f"--config={_recipe_path(argument.partition('=')[2])}"
    return arguments


def define_config(config: Config, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines `--config.SECTION.NAME` for the config of a trained model."""
    _ml_collections().DEFINE_config_dataclass("config", config, flag_values=flag_values)


def check_overrides(argv: Sequence[str]) -> None:
    """Refuses `--config.a.b` for which there is no setting; absl would show its own frames."""
    for argument in argv:
        name = argument.lstrip("-").split("=")[0]
        if not argument.startswith("-") or not name.startswith("config."):
            continue
        cls: Any = Config
        for part in name.split(".")[1:]:
            fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
            types = {field.name: field.type for field in fields}
            if part not in types:
                close = difflib.get_close_matches(part, types, 1)
                hint = f"; did you mean {close[0]}?" if close else "."
                raise UserError(f"There is no setting {name}{hint}")
            cls = types[part]


def _ml_collections() -> Any:
    """`ml_collections.config_flags`, which by itself has no parser for `Literal` fields."""
    from ml_collections import config_flags

    config_flags.register_flag_parser_for_type(typing.Literal, flags.ArgumentParser())
    return config_flags


def _recipe_path(name: str) -> str:
    """The file of a recipe: a path, the name of a built-in one, or configs/NAME.py anywhere."""
    path = Path(paths.expand(name, "--config"))
    if path.is_file():
        return str(path)
    (folder,) = importlib.import_module("transformer_jax.configs").__path__
    built_in = {p.stem: p for p in Path(folder).glob("*.py") if p.stem != "__init__"}
    if path.parent in (Path("."), Path("configs")) and path.stem in built_in:
        return str(built_in[path.stem])
    raise UserError(f"There is no recipe {path}; built in are {', '.join(sorted(built_in))}.")
