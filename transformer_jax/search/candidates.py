"""Candidates of a step of beam search: continuations of the beams by one token.

Letters of shapes are those of `beam`.
"""

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.ops.top_k import NEVER, top_k_columns
from transformer_jax.search.hypotheses import gather_beams
from transformer_jax.search.processors import FREE, NextLogProbs, Prefixes

# In place of the next token of a phrase that is met. Its candidate is impossible: it may become a
# beam at NEVER, whose logits do not count.
NO_TOKEN = -1


@flax.struct.dataclass
class Candidates:
    """Continuations of a row's k beams by one token."""

    # [R, N] log-probability minus ranking cost, by which they are compared; NEVER is impossible.
    ranking: jax.Array
    log_probs: jax.Array  # [R, N] of the entire hypothesis; at least NEVER
    parents: jax.Array  # [R, N] the beam that each continues
    tokens: jax.Array  # [R, N] the token that it adds


@flax.struct.dataclass
class Selection:
    """The candidates of a step, and what becomes of each."""

    candidates: Candidates
    is_end: jax.Array  # [R, N] the hypothesis ends with this token
    is_accepted: jax.Array  # [R, N] it ends, is possible and ranks high enough: it is finished
    num_missing: jax.Array  # [R, N] phrases that it does not contain
    survivors: jax.Array  # [R, k] indices into N of the candidates that become the new beams


def best_candidates(next_log_probs: NextLogProbs, beam_log_probs: jax.Array) -> Candidates:
    """The best N = 2k continuations of each row, best first; with one beam, N = 1.

    Only one continuation of each beam is the end symbol, so at least k of 2k do not end with it.

    Args:
      next_log_probs: of the next token.
      beam_log_probs: `[R, k]`.
    """
    log_probs, cost = next_log_probs.log_probs, next_log_probs.ranking_cost
    vocab, _, beams = log_probs.shape
    num_candidates = min(2 * beams, vocab * beams) if beams > 1 else 1
    # The largest of ranked + beam_log_probs, of all V * k continuations of a row.
    ranked = log_probs if cost is None else log_probs - cost  # a cost is at least 0
    ranking, parents, tokens = top_k_columns(
        ranked, beam_log_probs, num_candidates
    )  # --> [R, N] each
    ranking = jnp.maximum(ranking, NEVER)
    if cost is None:
        totals = ranking
    else:
        totals = total_log_probs(log_probs, beam_log_probs, parents, tokens)
    return Candidates(ranking=ranking, log_probs=totals, parents=parents, tokens=tokens)


def total_log_probs(
    log_probs: jax.Array, beam_log_probs: jax.Array, parents: jax.Array, tokens: jax.Array
) -> jax.Array:
    """Log-probabilities `[R, N]` of beams with a token added; NEVER where it is `NO_TOKEN`.

    Args:
      log_probs: `[V, R, k]` of the next token.
      beam_log_probs: `[R, k]`.
      parents: `[R, N]`, the beams.
      tokens: `[R, N]`, the tokens added.
    """
    row = jnp.arange(beam_log_probs.shape[0])[:, None]
    token_log_probs = log_probs[jnp.maximum(tokens, 0), row, parents]  # --> [R, N]
    totals = jnp.maximum(beam_log_probs[row, parents] + token_log_probs, NEVER)
    return jnp.where(tokens == NO_TOKEN, NEVER, totals)


def force_tokens(
    candidates: Candidates, next_log_probs: NextLogProbs, beam_log_probs: jax.Array
) -> Candidates:
    """Replaces the candidates of rows with a forced token: that token after each beam, best first.

    Args:
      candidates: of which there are at least as many as beams.
      next_log_probs: with the forced tokens.
      beam_log_probs: `[R, k]`.
    """
    rows, beams = beam_log_probs.shape
    num_candidates = candidates.ranking.shape[1]
    assert num_candidates >= beams
    missing = ((0, 0), (0, num_candidates - beams))
    totals = jnp.maximum(beam_log_probs + next_log_probs.forced_log_probs, NEVER)  # [R, k]
    totals = jnp.pad(totals, missing, constant_values=NEVER)  # --> [R, N]
    parents = jnp.pad(jnp.broadcast_to(jnp.arange(beams), (rows, beams)), missing)  # --> [R, N]
    totals, parents = gather_beams((totals, parents), jnp.argsort(-totals, axis=1))
    token = next_log_probs.forced_tokens[:, None]  # --> [R, 1]
    is_forced = token != FREE
    return Candidates(
        ranking=jnp.where(is_forced, totals, candidates.ranking),
        log_probs=jnp.where(is_forced, totals, candidates.log_probs),
        parents=jnp.where(is_forced, parents, candidates.parents),
        tokens=jnp.where(is_forced, token, candidates.tokens),
    )


def find_ends(candidates: Candidates, prefixes: Prefixes, eos_id: int, at_limit: str) -> jax.Array:
    """Whether each candidate ends, `[R, N]`.

    It ends with the end symbol, or, where `at_limit` is `cut`, by reaching `max_lens`.
    """
    is_end = candidates.tokens == eos_id
    if at_limit == "cut":
        is_end |= (prefixes.constraints.max_lens <= prefixes.index + 1)[:, None]
    return is_end


def append_tokens(tokens: jax.Array, candidates: Candidates, index: jax.Array) -> jax.Array:
    """All tokens of each candidate, `[R, N, T]`, from those of the beams, `[R, k, T]`."""
    parent_tokens = gather_beams(tokens, candidates.parents)  # --> [R, N, T]
    return jax.lax.dynamic_update_index_in_dim(parent_tokens, candidates.tokens, index, axis=2)
