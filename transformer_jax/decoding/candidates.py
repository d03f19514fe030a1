"""Candidates of a beam search step: each beam's continuations by one token."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.decoding.hypotheses import gather_beams
from transformer_jax.decoding.processors import NextLogProbs, Prefixes
from transformer_jax.ops.top_k import NEVER, top_k_columns


@flax.struct.dataclass
class Candidates:
    """Continuations of a row's k beams by one token, N a row."""

    ranking: jax.Array  # [R, N] by which they are compared; NEVER: impossible
    log_probs: jax.Array  # [R, N] of all tokens
    parents: jax.Array  # [R, N] the beam that each continues
    tokens: jax.Array  # [R, N] the token that it adds


@flax.struct.dataclass
class Selection:
    """Candidates, and what becomes of them."""

    candidates: Candidates
    ends: jax.Array  # [R, N] whether it ends here
    finishes: jax.Array  # [R, N] whether it becomes a finished hypothesis
    num_missing: jax.Array  # [R, N] phrases that it lacks
    survivors: jax.Array  # [R, k] numbers of the candidates that become the new beams


def best_candidates(
    log_probs: jax.Array, beam_log_probs: jax.Array, cost: jax.Array | None = None
) -> Candidates:
    """The 2k best continuations of each row, best first.

    A beam ends in one way only, so at least k of 2k do not end.

    Args:
      log_probs: `[V, R, k]` of the next token.
      beam_log_probs: `[R, k]` of the beams.
      cost: `[V, R, 1]`, subtracted from the ranking only.
    """
    vocab, _, beams = log_probs.shape
    count = min(2 * beams, vocab * beams) if beams > 1 else 1
    ranked = log_probs if cost is None else log_probs - cost
    ranking, parents, tokens = top_k_columns(ranked, beam_log_probs, count)
    candidates = Candidates(jnp.maximum(ranking, NEVER), ranking, parents, tokens)
    if cost is None:
        return candidates
    totals = candidates_of(log_probs, beam_log_probs, parents, tokens).log_probs
    return dataclasses.replace(candidates, log_probs=totals)


def candidates_of(
    log_probs: jax.Array, beam_log_probs: jax.Array, parents: jax.Array, tokens: jax.Array
) -> Candidates:
    """Candidates with given `parents` and `tokens` `[R, N]`; a token of -1 is impossible."""
    row = jnp.arange(beam_log_probs.shape[0])[:, None]
    token_log_probs = log_probs[jnp.maximum(tokens, 0), row, parents]  # --> [R, N]
    totals = jnp.maximum(beam_log_probs[row, parents] + token_log_probs, NEVER)
    totals = jnp.where(tokens < 0, NEVER, totals)
    return Candidates(totals, totals, parents, tokens)


def force_tokens(
    candidates: Candidates, next_log_probs: NextLogProbs, beam_log_probs: jax.Array
) -> Candidates:
    """Replaces the candidates of rows whose next token is forced: one a beam, best first."""
    rows, beams = beam_log_probs.shape
    num_candidates = candidates.ranking.shape[1]
    totals = jnp.maximum(beam_log_probs + next_log_probs.forced_log_probs, NEVER)
    totals = _resize(totals, num_candidates, NEVER)  # --> [R, N]
    parents = _resize(jnp.broadcast_to(jnp.arange(beams), (rows, beams)), num_candidates, 0)
    totals, parents = gather_beams((totals, parents), jnp.argsort(-totals, axis=1))
    token = next_log_probs.forced_tokens[:, None]
    is_forced = token >= 0
    return Candidates(
        ranking=jnp.where(is_forced, totals, candidates.ranking),
        log_probs=jnp.where(is_forced, totals, candidates.log_probs),
        parents=jnp.where(is_forced, parents, candidates.parents),
        tokens=jnp.where(is_forced, token, candidates.tokens),
    )


def ends(candidates: Candidates, prefixes: Prefixes, eos_id: int, at_limit: str) -> jax.Array:
    """Whether each candidate ends, `[R, N]`: by the end symbol or, if `cut`, by its length."""
    is_end = candidates.tokens == eos_id
    if at_limit == "cut":
        is_end |= (prefixes.constraints.max_lens <= prefixes.index + 1)[:, None]
    return is_end


def append(tokens: jax.Array, candidates: Candidates, index: jax.Array) -> jax.Array:
    """All tokens of each candidate, `[R, N, T]`; `tokens` `[R, k, T]` are the beams'."""
    prefixes = gather_beams(tokens, candidates.parents)  # --> [R, N, T]
    return jax.lax.dynamic_update_index_in_dim(prefixes, candidates.tokens, index, axis=2)


def _resize(x: jax.Array, width: int, value: float) -> jax.Array:
    """`x` `[R, k]` cut, or padded with `value`, to `[R, width]`."""
    if x.shape[1] >= width:
        return x[:, :width]
    return jnp.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=value)
