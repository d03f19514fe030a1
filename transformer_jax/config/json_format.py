"""`config.json`: a config as text and back, and the meaning of older files."""

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from typing import Any

from transformer_jax.config.fields import Config
from transformer_jax.config.setting import all_settings
from transformer_jax.errors import UserError, UserTypeError, did_you_mean

# Values that settings had before they got choices.
FORMER_VALUES: dict[str, dict[Any, Any]] = {"train.remat": {False: "none", True: "full"}}


def to_json(config: Config) -> str:
    """The config as indented JSON."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str = "config.json") -> Config:
    """Inverse of `to_json`. Settings that the text lacks get their former or default values.

    Raises:
      UserError: the text is not JSON, or a setting is unknown or of another type.
    """
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error}.") from error
    former = {setting.path: setting.former for setting in all_settings(Config)}
    return _build(Config, tree, where, former)


def _build(cls: Any, tree: Any, where: str, former: dict[str, Any], prefix: str = "") -> Any:
    if not isinstance(tree, dict):
        raise UserError(f"{where}: {prefix.rstrip('.') or 'the file'} must be an object.")
    kinds = {field.name: field.type for field in dataclasses.fields(cls)}
    for name in tree:
        if name not in kinds:
            hint = did_you_mean(prefix + name, [prefix + kind for kind in kinds])
            raise UserError(f"{where}: there is no setting {prefix}{name}{hint}")
    values = {name: former[prefix + name] for name in kinds if prefix + name in former}
    for name, value in tree.items():
        path = prefix + name
        if dataclasses.is_dataclass(kinds[name]):
            values[name] = _build(kinds[name], value, where, former, f"{path}.")
        else:
            if type(value) is bool:
                value = FORMER_VALUES.get(path, {}).get(value, value)
            values[name] = typed(kinds[name], value, f"{where}: {path}")
    return cls(**values)


def keep_former_defaults(
    config: Config, stored: Config, report: Callable[[str], None] = lambda _: None
) -> Config:
    """`config` for a run that resumes, whose config is `stored`.

    Where `stored` has a former default and `config` today's, the run keeps what it was started
    with, and `report` gets a sentence. Other differences stay; `check_resumable` judges them.
    """
    for setting in all_settings(Config):
        default, kept = setting.default, setting.value(stored)
        # Versions of the plan were defaults one after another.
        is_former = kept == setting.former or setting.path == "data.plan_version"
        if is_former and setting.value(config) == default != kept:
            report(
                f"config.{setting.path} stays {kept}, as the run was started; "
                f"new runs have {default}"
            )
            section, name = setting.path.split(".")
            changed = dataclasses.replace(getattr(config, section), **{name: kept})
            config = dataclasses.replace(config, **{section: changed})
    return config


def typed(kind: Any, value: Any, name: str) -> Any:
    """`value` as a field of type `kind`: lists become tuples, integers floats.

    Raises:
      UserTypeError: the value is of another type. That it is one of the choices is not checked.
    """
    if typing.get_origin(kind) is typing.Literal:
        kind = str
    for option in kind.__args__ if isinstance(kind, types.UnionType) else (kind,):
        if typing.get_origin(option) is tuple:
            if isinstance(value, list | tuple):
                item = typing.get_args(option)[0]
                return tuple(typed(item, v, f"{name}[{i}]") for i, v in enumerate(value))
        elif option is float and type(value) is int:
            return float(value)
        elif type(value) is option:
            return value
    raise UserTypeError(f"{name}={value!r} is not of type {getattr(kind, '__name__', kind)}.")
