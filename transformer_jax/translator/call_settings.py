"""What a caller of Python gives as arguments, checked: settings, numbers, lists, models."""

import dataclasses
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from transformer_jax.config import Config, DecodeConfig, validate
from transformer_jax.errors import UserError, UserTypeError, did_you_mean
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.requests import Request, described
from transformer_jax.translator.translation_settings import TranslationSettings


def translation_settings(
    config: Config,
    settings: Mapping[str, Any],
    *,
    n_best: int | None,
    target_lang: str,
    source_lang: str,
    attention: AttentionChoice | None,
) -> TranslationSettings:
    """The settings of a call.

    Args:
      config: of the model, with its default search settings.
      settings: fields of `DecodeConfig` that replace the config's.
      n_best: translations of each text; None: one.
      target_lang: of a multilingual model.
      source_lang: of a multilingual model that needs it.
      attention: to come with the best translation.

    Raises:
      UserError: an unknown or impossible setting.
    """
    decode = decode_config(config, settings)
    number = num_hypotheses(n_best, decode)
    check_type("attention", attention, AttentionChoice | None, "an AttentionChoice")
    return TranslationSettings(decode, number, target_lang, source_lang, attention)


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


def check_type(name: str, value: Any, kind: Any, wanted: str) -> None:
    """Raises a `UserError` that is a TypeError if an argument is not of the type `kind`."""
    if not isinstance(value, kind):
        raise UserTypeError(f"`{name}` is {described(value)}, not {wanted}.")


def check_list(name: str, value: Any, of: str) -> None:
    """Raises a `UserError` that is a TypeError if an argument is no iterable, or one text."""
    if isinstance(value, str | bytes | os.PathLike | Request) or not isinstance(value, Iterable):
        raise UserTypeError(f"`{name}` is {described(value)}, not a list of {of}.")


def functions(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """The functions of an argument.

    Raises:
      UserError: it is no list of functions; a TypeError too.
    """
    check_list(name, value, "functions")
    items = tuple(value)
    for index, item in enumerate(items):
        check_type(f"{name}[{index}]", item, Callable, "a function")
    return items


def ensemble_members(ensemble: Any) -> list[tuple[str | os.PathLike[str], str]]:
    """(path, checkpoint) of each further model of an ensemble.

    Raises:
      UserError: one is neither a path nor such a pair; a TypeError too.
    """
    check_list("ensemble", ensemble, "models")
    members = []
    for index, one in enumerate(ensemble):
        path, checkpoint = one if isinstance(one, tuple | list) and len(one) == 2 else (one, "best")
        check_type(f"ensemble[{index}]", path, str | os.PathLike, "a path or a (path, checkpoint)")
        members.append((path, str(checkpoint)))
    return members


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
