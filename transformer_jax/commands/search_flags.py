"""Flags of the commands that translate: one for each setting of `DecodeConfig`."""

import dataclasses
from typing import Any

from absl import flags

from transformer_jax.config import DecodeConfig, Setting, all_settings
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS
DEFINERS = {int: flags.DEFINE_integer, float: flags.DEFINE_float, bool: flags.DEFINE_bool}


def define() -> None:
    """Defines the flags; each replaces `config.decode.NAME` of the model."""
    for setting in all_settings(DecodeConfig):
        _define(setting)


def given() -> dict[str, Any]:
    """The settings of `DecodeConfig` that the command line gives."""
    settings = {}
    for field in dataclasses.fields(DecodeConfig):
        value = FLAGS[field.name].value
        if value is None:
            continue
        if isinstance(value, list):
            try:
                value = tuple(int(x) for x in value)
            except ValueError as error:
                raise UserError(f"--{field.name} takes ids, such as 3,17.") from error
        settings[field.name] = value
    return settings


def _define(setting: Setting) -> None:
    """A flag whose range is checked with the other settings, by `validate`."""
    if setting.choices:
        flags.DEFINE_enum(setting.path, None, setting.choices, setting.rules.meaning)
    else:
        definer = DEFINERS.get(setting.type, flags.DEFINE_list)
        definer(setting.path, None, setting.rules.meaning)
