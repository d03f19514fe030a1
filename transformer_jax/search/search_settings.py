"""The settings of a search: the structure that is compiled, and numbers and limits by row."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import numpy as np

from transformer_jax.config import DecodeConfig

MIN_SUPPRESSED = 16  # room for suppressed ids; for more of them it doubles
NO_TOKEN = np.iinfo(np.int32).max  # pads suppressed ids


@dataclasses.dataclass(frozen=True)
class SearchStructure:
    """What a program is compiled for. Settings of one structure share their programs.

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
    has_min_len: bool
    has_suppressed_ids: bool
    has_repetition_penalty: bool
    has_coverage_penalty: bool


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
        has_min_len=bool(config.min_decode_len or config.min_decode_ratio),
        has_suppressed_ids=bool(config.suppressed_ids),
        has_repetition_penalty=config.repetition_penalty != 1.0,
        has_coverage_penalty=config.coverage_penalty != 0.0,
    )


@flax.struct.dataclass
class SearchValues:
    """Numbers of the search settings, one of each for every row."""

    length_penalty: jax.Array  # [R] float32, as are all but `top_k` and `seed`
    coverage_penalty: jax.Array
    repetition_penalty: jax.Array
    diversity_penalty: jax.Array
    temperature: jax.Array
    top_k: jax.Array  # [R] int32; 0: all tokens
    top_p: jax.Array
    min_p: jax.Array
    seed: jax.Array  # [R] uint32
    suppressed_ids: jax.Array | None = None  # [R, N] int32, padded with `NO_TOKEN`


def suppressed_size(count: int) -> int:
    """Columns for `count` suppressed ids: a power of two, so that few shapes are compiled."""
    return max(MIN_SUPPRESSED, 1 << (count - 1).bit_length()) if count else 0


def values_of(configs: Sequence[DecodeConfig], num_rows: int) -> SearchValues:
    """The numbers of each row's config; rows beyond them get those of the first.

    Args:
      configs: at least one, all of one structure.
      num_rows: at least as many.
    """
    types = {"top_k": np.int32, "seed": np.uint32}
    by_row = [*configs, *[configs[0]] * (num_rows - len(configs))]
    values: dict[str, Any] = {
        field.name: np.array(
            [getattr(config, field.name) for config in by_row], types.get(field.name, np.float32)
        )
        for field in dataclasses.fields(SearchValues)
        if field.name != "suppressed_ids"
    }
    longest = max(len(config.suppressed_ids) for config in configs)
    if longest:
        padded = np.full((num_rows, suppressed_size(longest)), NO_TOKEN, np.int32)
        for row, config in enumerate(by_row):
            padded[row, : len(config.suppressed_ids)] = config.suppressed_ids
        values["suppressed_ids"] = padded
    return SearchValues(**values)


@flax.struct.dataclass
class PhraseArrays:
    """Phrases that outputs have to contain, up to C in a row, each in one of up to F forms."""

    ids: jax.Array  # [R, C, F, L] tokens that have to follow each other, padded with -1
    ends_word: jax.Array  # [R, C, F] boolean: the form has to end where a word ends


@flax.struct.dataclass
class SearchConstraints:
    """What the output of each row has to satisfy; NumPy arrays until a program runs.

    A row is a sentence; in a search with beam groups, one group of a sentence.
    """

    max_lens: jax.Array  # [R] most tokens, the end symbol included; 0: the row is not used
    min_lens: jax.Array  # [R] fewest tokens, the end symbol included
    values: SearchValues
    num_hypotheses: jax.Array  # [R] how many will be read, for `stopping="exact"`
    prefix: jax.Array | None = None  # [R, P] tokens to begin with, padded with -1
    num_free: jax.Array | None = None  # [R] tokens of the prefix that cost nothing: language tags
    phrases: PhraseArrays | None = None
    seeds: jax.Array | None = None  # [R] uint32, for sampling
    is_allowed: jax.Array | None = None  # [R, C] boolean, of a subset of the vocabulary
