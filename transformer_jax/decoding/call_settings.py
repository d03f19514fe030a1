"""Search settings and numbers that a caller of Python gives as arguments, checked."""

import dataclasses
import operator
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from transformer_jax.config import Config, DecodeConfig, validate
from transformer_jax.decoding.requests import described
from transformer_jax.errors import UserError, UserTypeError, did_you_mean


def decode_config(config: Config, settings: Mapping[str, Any]) -> DecodeConfig:
    """`config.decode` with `settings` instead of its own.

    Raises:
      UserError: an unknown or impossible setting.
    """
    names = [field.name for field in dataclasses.fields(DecodeConfig)]
    for name in settings:
        if name not in names:
            raise UserTypeError(
                f"There is no search setting {name}{did_you_mean(name, names)} "
                f"There are {', '.join(names)}."
            )
    values = {k: v.item() if isinstance(v, np.generic) else v for k, v in settings.items()}
    decode = dataclasses.replace(config.decode, **values)
    try:
        validate(dataclasses.replace(config, decode=decode))
    except UserError as error:
        raise type(error)(_with_arguments(str(error), names)) from error
    vocab = config.model.target_vocab_size
    if any(not 0 <= i < vocab for i in decode.suppressed_ids):
        raise UserError(f"`suppressed_ids={decode.suppressed_ids}` must be ids below {vocab}.")
    return decode


def count(name: str, value: Any) -> int:
    """The value of an argument that is a number of something, at least 1.

    Raises:
      UserError: it is not; a TypeError too if it is no whole number.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UserTypeError(f"`{name}` is {described(value)}, not a whole number.")
    if value < 1:
        raise UserError(f"`{name}={value}` must be a number of at least 1.")
    return operator.index(value)


def num_hypotheses(n_best: Any, decode: DecodeConfig) -> int:
    """How many translations of a text a search is to give; `n_best` is None for one.

    Raises:
      UserError: the search does not give as many.
    """
    if n_best is None:
        return 1
    number = count("n_best", n_best)
    setting = {"beam": "beam_size", "mbr": "mbr_samples"}.get(decode.method)
    if setting and number > getattr(decode, setting):
        raise UserError(
            f"`n_best={number}` needs `{setting}` of at least {number}, not "
            f"{getattr(decode, setting)}."
        )
    return number


def _with_arguments(message: str, names: Collection[str]) -> str:
    """A message about a config, with the arguments `names` for the settings of its search."""

    def argument(match: re.Match[str]) -> str:
        return f"`{match[1]}`" if match[2] in names else match[0]

    value = r"\([^)]*\)|[^\s;,]*[^\s;,.]"
    return re.sub(rf"config\.decode\.((\w+)(=({value}))?)", argument, message)
