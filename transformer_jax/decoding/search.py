"""The search that a structure names: beam search, in groups or with phrases, or sampling."""

import jax
import jax.numpy as jnp

from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.decoding.beam import BeamSearch, SelectBest, Selector
from transformer_jax.decoding.beam_groups import (
    GroupedDecoder,
    SelectInGroups,
    merge_groups,
    repeat_constraints,
)
from transformer_jax.decoding.decoder import Cache, Decoder
from transformer_jax.decoding.hypotheses import Hypotheses
from transformer_jax.decoding.phrase_selection import SelectWithPhrases
from transformer_jax.decoding.processors import (
    LogitsProcessors,
    Processor,
    suppressed_mask,
)
from transformer_jax.decoding.sampling import Sampling
from transformer_jax.decoding.search_settings import SearchConstraints, SearchStructure


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
    groups = structure.beam_groups
    row_decoder, row_constraints = decoder, constraints
    if groups > 1:  # each is a row of its own
        row_decoder = GroupedDecoder(decoder, groups)
        row_constraints = repeat_constraints(constraints, groups)
    suppressed = suppressed_mask(row_constraints.values, decoder.vocab_size)
    logits_processors = LogitsProcessors(structure, ids.target_eos, suppressed, processors)
    if structure.is_sampling:
        return Sampling(
            decoder, logits_processors, constraints, ids, structure, max_decode_len
        ).run(cache)

    selector: Selector
    if constraints.phrases is None:
        selector = SelectBest(ids.target_eos, structure.at_limit)
    else:
        selector = SelectWithPhrases(ids.target_eos, structure.at_limit, starts_word)
    final_state = BeamSearch(
        row_decoder,
        logits_processors,
        SelectInGroups(selector, groups) if groups > 1 else selector,
        row_constraints,
        ids,
        structure,
        beams=structure.beam_size // groups,
        max_decode_len=max_decode_len,
    ).run(cache)
    finished, finite = final_state.finished, final_state.finite
    if groups > 1:
        finished = merge_groups(finished, groups)  # [R, k, ...] --> [B, K, ...]
        finite = jnp.all(finite.reshape(-1, groups), axis=1)  # [R] --> [B]
    return Hypotheses(
        tokens=finished.tokens,
        scores=finished.scores,
        log_probs=finished.log_probs,
        lengths=finished.lengths,
        steps=final_state.index,
        finite=finite,
    )
