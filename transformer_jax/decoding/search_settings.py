"""Search settings in two parts: what shapes a compiled program, and the numbers it reads."""

import dataclasses
from typing import Any

import flax.struct
import numpy as np

from transformer_jax.config import DecodeConfig

MIN_SUPPRESSED = 16  # room for suppressed ids; for more of them it doubles
NO_TOKEN = np.iinfo(np.int32).max  # pads suppressed ids


@dataclasses.dataclass(frozen=True)
class SearchStructure:
    """What a program is compiled for. Two settings of one structure share their programs.

    A rule that is not active is not compiled, so it costs no time.
    """

    is_sampling: bool
    beam_size: int  # of sampling: samples
    stopping: str
    length_penalty_kind: str
    at_limit: str
    beam_groups: int
    no_repeat_ngram_size: int
    renormalize: bool
    minimum_length: bool  # these and all below: whether the rule is active
    suppressed_ids: bool
    repetition_penalty: bool
    coverage_penalty: bool


def structure_of(config: DecodeConfig) -> SearchStructure:
    """The structure of `config`."""
    is_sampling = config.method != "beam"
    return SearchStructure(
        is_sampling=is_sampling,
        beam_size=config.beam_size,
        stopping="" if is_sampling else "first_k" if config.beam_size == 1 else config.stopping,
        length_penalty_kind=config.length_penalty_kind,
        at_limit=config.at_limit,
        beam_groups=config.beam_groups,
        no_repeat_ngram_size=config.no_repeat_ngram_size,
        renormalize=config.renormalize,
        minimum_length=bool(config.min_decode_len or config.min_decode_ratio),
        suppressed_ids=bool(config.suppressed_ids),
        repetition_penalty=config.repetition_penalty != 1.0,
        coverage_penalty=config.coverage_penalty != 0.0,
    )


@flax.struct.dataclass
class SearchValues:
    """Numbers of the search settings, one of each a row; B rows."""

    length_penalty: Any  # [B] float32, as are all but `top_k` and `seed`
    coverage_penalty: Any
    repetition_penalty: Any
    diversity_penalty: Any
    temperature: Any
    top_k: Any  # [B] int32; 0: all tokens
    top_p: Any
    min_p: Any
    seed: Any  # [B] uint32
    suppressed_ids: Any = None  # [B, N] int32, padded with `NO_TOKEN`


def values_of(config: DecodeConfig, rows: int) -> SearchValues:
    """The numbers of `config` for each of `rows` rows."""
    names = [field.name for field in dataclasses.fields(SearchValues)]
    types = {"top_k": np.int32, "seed": np.uint32}
    found: dict[str, Any] = {
        name: np.full(rows, getattr(config, name), types.get(name, np.float32))
        for name in names
        if name != "suppressed_ids"
    }
    ids = config.suppressed_ids
    if ids:
        size = max(MIN_SUPPRESSED, 1 << (len(ids) - 1).bit_length())
        padded = np.full((rows, size), NO_TOKEN, np.int32)
        padded[:, : len(ids)] = ids
        found["suppressed_ids"] = padded
    return SearchValues(**found)
