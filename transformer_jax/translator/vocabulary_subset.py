"""The part of the target vocabulary that a batch may need, by the model's shortlist.

Inside the search of such a batch a token is its place in `VocabularySubset.ids`. So the output
projection, its softmax and the choice of the best tokens have C columns instead of V.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.model.decoder_weights import DecoderWeights
from transformer_jax.search.search_settings import NO_TOKEN, SearchConstraints
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.phrases import Phrase
from transformer_jax.translator.requests import EncodedText

# C is one of these parts of V, so that each shape of a batch has few programs.
PARTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
_ALIGNED = 128  # C is a multiple of it, except V itself


@flax.struct.dataclass
class VocabularySubset:
    """Which tokens the outputs of a batch may have; NumPy arrays until a program runs."""

    ids: jax.Array  # [devices that share the batch, C] tokens of the vocabulary, those of SPECIAL
    # first; the rest is filled with the first one
    is_allowed: jax.Array  # [R, C] boolean: those that each row may choose from


def sizes(vocab_size: int) -> list[int]:
    """The values of C for a vocabulary, rising; the last one has all tokens."""
    aligned = (math.ceil(vocab_size * part / _ALIGNED) * _ALIGNED for part in PARTS)
    return sorted({min(size, vocab_size) for size in aligned})


def special_ids(ids: SpecialIds) -> list[int]:
    """The tokens that a search itself needs; they are the first of every subset."""
    return sorted({ids.target_eos, ids.target_pad, ids.decoder_start})


def renumbered_ids(ids: SpecialIds) -> SpecialIds:
    """The special ids inside the search of a subset."""
    place = special_ids(ids).index
    return dataclasses.replace(
        ids,
        target_eos=place(ids.target_eos),
        target_pad=place(ids.target_pad),
        decoder_start=place(ids.decoder_start),
    )


def of_batch(
    shortlist: Shortlist,
    texts: Sequence[EncodedText],
    phrases: Sequence[Sequence[Phrase]],
    ids: SpecialIds,
    vocab_size: int,
    batch: Batch,
    num_devices: int,
) -> VocabularySubset:
    """The tokens that the texts of a batch may need.

    A row may choose from those of its source, its prefix and its phrases, and the end symbol.
    So its output does not depend on the other rows.

    Args:
      shortlist: of the model.
      texts: of the first rows.
      phrases: that the output of each text has to contain.
      ids: special ids.
      vocab_size: V.
      batch: its `rows` are R, and C is at least its `least_tokens`.
      num_devices: that share the batch by rows.
    """
    is_allowed: Any = np.zeros((batch.rows, vocab_size), bool)
    is_allowed[:, ids.target_eos] = True
    for row, (text, row_phrases) in enumerate(zip(texts, phrases, strict=True)):
        shortlist.mark(text.source, is_allowed[row])
        forms = [form.ids for phrase in row_phrases for form in phrase.forms]
        is_allowed[row, [*text.prefix, *itertools.chain.from_iterable(forms)]] = True
    special = special_ids(ids)
    is_needed = is_allowed.any(axis=0)
    is_needed[special] = False
    needed = np.flatnonzero(is_needed)
    wanted = max(batch.least_tokens, len(special) + len(needed))
    subset = np.full(next(n for n in sizes(vocab_size) if n >= wanted), special[0], np.int32)
    subset[: len(special)] = special
    subset[len(special) : len(special) + len(needed)] = needed
    is_allowed = is_allowed[:, subset]
    is_allowed[:, len(special) + len(needed) :] = False  # what fills it up
    tiled: Any = np.tile(subset, (num_devices, 1))
    return VocabularySubset(tiled, is_allowed)


def _places(subset: np.ndarray, vocab_size: int) -> np.ndarray:
    """`[V]`: the place of each token in a subset; -1: it is not there."""
    places = np.full(vocab_size, -1, np.int32)
    places[subset[::-1]] = np.arange(len(subset), dtype=np.int32)[::-1]  # the first of equal ones
    return places


def renumber(
    constraints: SearchConstraints, subset: VocabularySubset, vocab_size: int
) -> SearchConstraints:
    """The constraints inside the search of `subset`.

    Args:
      constraints: NumPy arrays, with tokens of the vocabulary.
      subset: has all tokens of prefixes and phrases.
      vocab_size: V.
    """
    places: Any = _places(np.asarray(subset.ids[0]), vocab_size)

    def placed(ids: Any, padding: int) -> Any:
        """`ids` as places; `padding` where there is no token, or none of the subset."""
        is_token = (ids >= 0) & (ids < vocab_size)
        at = places[np.where(is_token, ids, 0)]
        return np.where(is_token & (at >= 0), at, padding).astype(np.int32)

    values, phrases, prefix = constraints.values, constraints.phrases, constraints.prefix
    if values.suppressed_ids is not None:
        suppressed = placed(values.suppressed_ids, NO_TOKEN)
        values = dataclasses.replace(values, suppressed_ids=suppressed)
    if phrases is not None:
        phrases = dataclasses.replace(phrases, ids=placed(phrases.ids, -1))
    if prefix is not None:
        prefix = placed(prefix, -1)
    return dataclasses.replace(
        constraints,
        values=values,
        phrases=phrases,
        prefix=prefix,
        is_allowed=subset.is_allowed,
    )


def select_weights(weights: DecoderWeights, ids: jax.Array) -> DecoderWeights:
    """The weights of a decoder that knows the tokens `ids` `[C]` alone."""

    def rows(table: jax.Array | None) -> jax.Array | None:
        return None if table is None else jnp.take(table, ids, axis=0, mode="clip")

    table = rows(weights.table)
    assert table is not None
    return dataclasses.replace(
        weights, table=table, output=rows(weights.output), output_bias=rows(weights.output_bias)
    )
