"""Search settings that a caller of Python gives as arguments."""

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

from transformer_jax.config import Config, DecodeConfig, validate
from transformer_jax.errors import UserError, UserTypeError


def decode_config(config: Config, settings: Mapping[str, Any]) -> DecodeConfig:
    """`config.decode` with `settings` instead of its own.

    Raises:
      UserError: an unknown or impossible setting.
    """
    names = [field.name for field in dataclasses.fields(DecodeConfig)]
    for name in settings:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}? There" if close else "there"
            raise UserTypeError(
                f"There is no search setting {name}; {hint} are {', '.join(names)}."
            )
    decode = dataclasses.replace(config.decode, **settings)
    try:
        validate(dataclasses.replace(config, decode=decode))
    except UserError as error:
        raise type(error)(_with_arguments(str(error), names)) from error
    vocab = config.model.target_vocab_size
    if any(not 0 <= i < vocab for i in decode.suppressed_ids):
        raise UserError(f"`suppressed_ids={decode.suppressed_ids}` must be ids below {vocab}.")
    return decode


def check_n_best(count: Any, decode: DecodeConfig) -> None:
    """Checks that a search gives `count` translations of a text.

    Raises:
      UserError: it does not.
    """
    if not isinstance(count, int) or count < 1:
        raise UserError(f"`n_best={count!r}` must be a number of at least 1.")
    setting = {"beam": "beam_size", "mbr": "mbr_samples"}.get(decode.method)
    if setting and count > getattr(decode, setting):
        raise UserError(
            f"`n_best={count}` needs `{setting}` of at least {count}, not "
            f"{getattr(decode, setting)}."
        )


def _with_arguments(message: str, names: Collection[str]) -> str:
    """A message about a config, with the arguments `names` for the settings of its search."""

    def argument(match: re.Match[str]) -> str:
        return f"`{match[1]}`" if match[2] in names else match[0]

    value = r"\([^)]*\)|[^\s;,]*[^\s;,.]"
    return re.sub(rf"config\.decode\.((\w+)(=({value}))?)", argument, message)
