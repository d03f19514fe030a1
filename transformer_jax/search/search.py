"""The search that a structure names: beam search, in groups or with phrases, or sampling."""

import jax
import jax.numpy as jnp

from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.search.beam import BeamSearch, SelectBest, Selector
from transformer_jax.search.beam_groups import (
    GroupedDecoder,
    SelectInGroups,
    merge_groups,
    repeat_constraints,
)
from transformer_jax.search.decoder import Cache, Decoder
from transformer_jax.search.hypotheses import Hypotheses
from transformer_jax.search.phrase_selection import SelectWithPhrases
from transformer_jax.search.processors import (
    LogitsProcessors,
    Processor,
    suppressed_mask,
)
from transformer_jax.search.sampling import Sampling
from transformer_jax.search.search_settings import SearchConstraints, SearchStructure


def search(
    decoder: Decoder,
    cache: Cache,
    constraints: SearchConstraints,
    ids: SpecialIds,
    structure: SearchStructure,
    max_decode_len: int,
    starts_word: jax.Array | None = None,
    processors: tuple[Processor, ...] = (),
) -> Hypotheses:
    """Searches for the outputs of B sentences, under `jit`.

    Args:
      decoder: of the model.
      cache: before the first step, of B sentences and K = `structure.beam_size` beams.
      constraints: of each sentence.
      ids: start, end and padding.
      structure: the static part of the settings; their numbers are in `constraints.values`.
      max_decode_len: T, most tokens of an output.
      starts_word: `[V]` boolean, True for tokens that start a new word; after a phrase that has to
        end where a word ends, only these may follow. None: all may.
      processors: of log-probabilities, besides those of the settings.

    Returns:
      K outputs of each sentence.
    """
    if structure.is_sampling:
        chain = _logits_processors(decoder, constraints, ids, structure, processors)
        return Sampling(decoder, chain, constraints, ids, structure, max_decode_len).run(cache)

    selector: Selector
    if constraints.phrases is None:
        selector = SelectBest(ids.target_eos, structure.at_limit)
    else:
        selector = SelectWithPhrases(ids.target_eos, structure.at_limit, starts_word)
    groups = structure.beam_groups
    if groups > 1:  # each is a row of its own
        decoder = GroupedDecoder(decoder, groups)
        selector = SelectInGroups(selector, groups)
        constraints = repeat_constraints(constraints, groups)
    state = BeamSearch(
        decoder,
        _logits_processors(decoder, constraints, ids, structure, processors),
        selector,
        constraints,
        ids,
        structure,
        beams=structure.beam_size // groups,
        max_decode_len=max_decode_len,
    ).run(cache)
    finished = merge_groups(state.finished, groups)  # [R, k, ...] --> [B, K, ...], sorted again
    return Hypotheses(
        tokens=finished.tokens,
        scores=finished.scores,
        log_probs=finished.log_probs,
        lengths=finished.lengths,
        steps=state.index,
        finite=jnp.all(state.finite.reshape(-1, groups), axis=1),  # [R] --> [B]
    )


def _logits_processors(
    decoder: Decoder,
    constraints: SearchConstraints,
    ids: SpecialIds,
    structure: SearchStructure,
    processors: tuple[Processor, ...],
) -> LogitsProcessors:
    suppressed = suppressed_mask(constraints.values, decoder.vocab_size)
    return LogitsProcessors(structure, ids.target_eos, suppressed, processors)
