"""The flags `--config` and `--config.SECTION.NAME`, by `ml_collections`."""

import dataclasses
import importlib
import importlib.util
import sys
import traceback
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from transformer_jax import paths
from transformer_jax.commands import command_line
from transformer_jax.config import Config, from_json
from transformer_jax.errors import UserError, but_there_is, did_you_mean

RECIPE_TEXT = (
    "Recipe of a new run: a Python file with get_config(), or the name of a built-in one, {names}. "
    "A run that resumes without it has the settings it was started with."
)


class NoRecipeError(UserError):
    """There is no recipe and no run. The flags are defined, so that they can be checked first."""


class _IntegerOrNone(flags.IntegerParser):
    """Also reads None, for settings of type `int | None`; `validate` refuses it for others."""

    def parse(self, argument: str | int | None) -> int | None:
        return None if argument in ("None", None) else super().parse(argument)


def define_for_training(
    argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS
) -> list[str]:
    """Defines `--config` for a run that starts or resumes; returns `argv` without the recipe.

    Raises:
      NoRecipeError: no recipe is named and there is no run; the flags are defined.
      UserError: there is no such recipe.
    """
    recipe, workdir = command_line.value_of(argv, "config"), command_line.value_of(argv, "workdir")
    rest = command_line.without(argv, "config")
    config = _stored_config(workdir) if recipe is None else read_recipe(recipe)
    names = ", ".join(built_in_recipes())
    define_config(config or Config(), rest, flag_values, RECIPE_TEXT.format(names=names))
    if config is None and not command_line.wants_help(argv):
        similar = but_there_is(workdir) if workdir else ""
        where = f"{workdir} has no run to resume{similar}. " if workdir else ""
        raise NoRecipeError(
            f"{where}Name a recipe with --config=RECIPE, a file or one of {names}; "
            "`transformer-jax init` writes one for your corpus."
        )
    return rest


def define_config(
    config: Config,
    argv: Sequence[str],
    flag_values: flags.FlagValues = flags.FLAGS,
    help_text: str = "",
) -> None:
    """Defines `--config.SECTION.NAME` for each setting that `argv` changes."""
    from ml_collections import config_flags

    # By itself it has no parser for `Literal` fields; `validate` checks the choices.
    config_flags.register_flag_parser_for_type(typing.Literal, flags.ArgumentParser())
    config_flags.register_flag_parser_for_type(int, _IntegerOrNone())
    config_flags.DEFINE_config_dataclass(
        "config", config, help_string=help_text, flag_values=flag_values, sys_argv=list(argv)
    )


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
                raise UserError(f"There is no setting {name}{did_you_mean(part, types)}")
            cls = types[part]
        if dataclasses.is_dataclass(cls):
            raise UserError(f"{name} is a section; set one of its settings, {name}.NAME=VALUE.")


def built_in_recipes() -> dict[str, Path]:
    """The files of the built-in recipes by name."""
    (folder,) = importlib.import_module("transformer_jax.configs").__path__
    files = sorted(Path(folder).glob("*.py"))
    return {path.stem: path for path in files if path.stem != "__init__"}


def is_recipe_name(word: str) -> bool:
    """Whether a word names a recipe: a built-in one or a Python file."""
    return word.endswith(".py") or word in built_in_recipes()


def read_recipe(name: str) -> Config:
    """The config of a recipe: a file, the name of a built-in one, or configs/NAME.py anywhere.

    A recipe can import files of its own folder.

    Raises:
      UserError: there is no such recipe, or it fails: the sentence has the line.
    """
    path = _recipe_path(name)
    if path.suffix == ".json":
        return from_json(path.read_text(encoding="utf-8"), str(path))
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        config = _call_get_config(path)
    except UserError:
        raise
    except Exception as error:  # whatever the recipe's code raises
        raise UserError(_failure(error, folder)) from error
    finally:
        sys.path.remove(folder)
    if not isinstance(config, Config):
        raise UserError(
            f"get_config() of {path} returns {type(config).__name__}, not a "
            "transformer_jax.config.Config."
        )
    return config


def _call_get_config(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("recipe", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is no recipe: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules["recipe"] = module  # dataclasses in a recipe look there
    spec.loader.exec_module(module)
    if not callable(getattr(module, "get_config", None)):
        raise UserError(
            f"{path} has no get_config(); a recipe defines one that returns a "
            "transformer_jax.config.Config."
        )
    return module.get_config()


def _failure(error: Exception, folder: str) -> str:
    """One sentence with the last line of the recipe's folder that the error passed through."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}: `{(error.text or '').strip()}`"
    frames = traceback.extract_tb(error.__traceback__)
    (*_, frame) = [
        frame for frame in frames if Path(frame.filename).resolve().parent == Path(folder)
    ] or frames
    return f"{frame.filename}, line {frame.lineno}: `{frame.line}` fails: {reason}."


def _recipe_path(name: str) -> Path:
    path = Path(paths.expand(name, "--config"))
    if path.is_file():
        return path
    built_in = built_in_recipes()
    if path.parent in (Path("."), Path("configs")) and path.stem in built_in:
        return built_in[path.stem]
    if path.is_dir():
        files = [path / name for name in ("recipe.py", "config.json") if (path / name).is_file()]
        advice = f"; name {files[0]}." if files else " without a recipe.py."
        raise UserError(f"--config={path} is a folder{advice}")
    hint = did_you_mean(path.stem, built_in)
    if hint == "." and (similar := but_there_is(path)):
        hint = f"{similar}."
    raise UserError(
        f"There is no recipe {path}{hint} Built in are "
        f"{', '.join(built_in)}. `transformer-jax init` writes one for your corpus."
    )


def _stored_config(workdir: str | None) -> Config | None:
    """The config of the run in a work directory; None: there is no run."""
    if not workdir:
        return None
    from etils import epath

    from transformer_jax.workdir import folder as workdir_lib

    workdir = paths.expand(workdir, "--workdir")
    paths.require(workdir, "--workdir")
    workdir_lib.refuse_other_tools(workdir)
    has_config = (epath.Path(workdir) / "config.json").exists()
    return workdir_lib.read_config(workdir) if has_config else None
