"""Settings of other tools in YAML."""

from collections.abc import Mapping
from typing import Any

import yaml
from etils import epath

from transformer_jax.errors import UserError


def read(path: epath.Path, tool: str) -> dict[str, Any]:
    """The settings in a file.

    Args:
      path: of the file.
      tool: whose settings it has, for messages.

    Raises:
      UserError: it holds something else.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not YAML: {reason}.") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold settings of {tool}, NAME: VALUE.")
    return tree


def get(settings: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A setting by its name, such as `model.encoder.type`; `default` where it is missing."""
    value: Any = settings
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return default if value is None else value


def check(path: epath.Path, settings: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Checks settings against the values that are supported.

    Args:
      path: of their file.
      settings: to check.
      known: values of each name; the first is what a missing setting means.

    Raises:
      UserError: naming a setting that has another value.
    """
    for name, values in known.items():
        value = get(settings, name, values[0])
        if value not in values:
            raise UserError(f"{path}: {name}={value!r} is not supported.")
