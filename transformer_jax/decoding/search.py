"""Greedy and beam search over the explicit cache, as one jitted `while_loop`.

Unless `at_limit` says otherwise, a hypothesis that reaches its limit is made to end there, so that
every hypothesis returned ends with the end symbol and its score is that of force-decoding it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.config import DecodeConfig

# Below any score, and finite: sums and differences of it never make a NaN.
NEVER = -(2.0**100)

StepFn = Callable[[Any, jax.Array], tuple[jax.Array, Any]]


@flax.struct.dataclass
class BeamState:
    """Search in progress; K live and K finished hypotheses a sentence, best first."""

    index: jax.Array  # pieces written so far
    cache: Any
    live_tokens: jax.Array  # [B, K, T]
    live_log_probs: jax.Array  # [B, K]
    finished_tokens: jax.Array  # [B, K, T]
    finished_log_probs: jax.Array  # [B, K]
    finished_scores: jax.Array  # [B, K], after length penalty; NEVER where there is none
    finished_lengths: jax.Array  # [B, K]
    num_finished: jax.Array  # [B], ever found
    done: jax.Array  # [B]


@flax.struct.dataclass
class Hypotheses:
    """Result of a search, best first."""

    tokens: jax.Array  # [B, K, T], from the first piece to the end symbol, then padding
    scores: jax.Array  # [B, K], log-probability over length penalty
    log_probs: jax.Array  # [B, K], natural log-probability of all pieces and the end symbol
    lengths: jax.Array  # [B, K], pieces in `tokens`, the end symbol included
    steps: jax.Array  # decoder steps taken


def length_penalty(length: jax.Array, alpha: float, kind: str) -> jax.Array:
    """What a log-probability is divided by.

    Args:
      length: pieces, the end symbol included.
      alpha: exponent; 0 divides by 1.
      kind: `gnmt`, ((5 + length) / 6)^alpha (Wu et al., 2016, equation 14), or `power`,
        length^alpha. One alpha does not mean the same in both.
    """
    length = jnp.asarray(length, jnp.float32)
    return ((5.0 + length) / 6.0 if kind == "gnmt" else length) ** alpha


def gather_beams(tree: Any, beams: jax.Array) -> Any:
    """Picks `beams` `[B, J]` along the beam axis of leaves `[B, K, ...]`."""

    def pick(x):
        return jnp.take_along_axis(x, beams.reshape(beams.shape + (1,) * (x.ndim - 2)), axis=1)

    return jax.tree.map(pick, tree)


def reorder_cache(cache: dict[str, Any], beams: jax.Array) -> dict[str, Any]:
    """Makes row `b·K + k` of the self-attention cache what row `b·K + beams[b, k]` was."""
    num_rows, num_beams = beams.shape
    rows = (jnp.arange(num_rows)[:, None] * num_beams + beams).reshape(-1)  # --> [B*K]
    return {**cache, "self": jax.tree.map(lambda x: x[rows], cache["self"])}


def piece_log_probs(
    logits: jax.Array,
    index: jax.Array,
    limits: jax.Array,
    eos_id: int,
    prefix: Sequence[int],
    config: DecodeConfig,
) -> jax.Array:
    """Log-probabilities of the next piece, with `NEVER` for what may not come.

    In Hugging Face's order: suppressed pieces, renormalisation, forced prefix, forced end.

    Args:
      logits: `[B, K, V]`.
      index: pieces written so far.
      limits: `[B]` pieces a sentence may get.
      eos_id: the end symbol.
      prefix: pieces every hypothesis begins with, at no cost.
      config: `suppressed_ids`, `renormalize`, `at_limit`.
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    classes = jnp.arange(logits.shape[-1])
    if config.suppressed_ids:
        log_probs = log_probs.at[..., jnp.asarray(config.suppressed_ids)].set(NEVER)
        if config.renormalize:
            log_probs = jnp.maximum(jax.nn.log_softmax(log_probs, axis=-1), NEVER)
    if prefix:
        wanted = jnp.asarray(prefix)[jnp.minimum(index, len(prefix) - 1)]
        forced = jnp.where(classes == wanted, 0.0, NEVER)
        log_probs = jnp.where(index < len(prefix), forced, log_probs)
    if config.at_limit != "cut":
        at_limit = (index + 1 >= limits)[:, None, None]
        at_end = 0.0 if config.at_limit == "free_end" else log_probs
        log_probs = jnp.where(at_limit, jnp.where(classes == eos_id, at_end, NEVER), log_probs)
    return log_probs


def beam_search(
    step_fn: StepFn,
    cache: dict[str, Any],
    limits: jax.Array,
    *,
    max_decode_len: int,
    start_id: int,
    eos_id: int,
    pad_id: int,
    config: DecodeConfig,
    num_hypotheses: int = 1,
    prefix: Sequence[int] = (),
) -> Hypotheses:
    """Best continuations of the start symbol; beam_size 1 is greedy search.

    Stopping rules: `first_k` ends a sentence once K hypotheses have finished (CTranslate2 with
    patience 1, Hugging Face with `early_stopping=True`); `hf_default` once the worst of K finished
    ones beats the best live one at its present length; `exact` once the worst of the
    `num_hypotheses` best beats what any live one could still reach.

    Args:
      step_fn: (cache, tokens `[B·K]`) -> (logits `[B·K, V]`, cache).
      cache: from `init_cache`, with B·K rows in its self-attention part.
      limits: `[B]` pieces a sentence may get, the end symbol included, at most max_decode_len.
      max_decode_len: T, static.
      start_id: first decoder input.
      eos_id: ends a hypothesis.
      pad_id: fills `tokens` behind the end.
      config: beam size, length penalty and stopping rule.
      num_hypotheses: hypotheses that will be read from the result, at most K.
      prefix: pieces that every hypothesis begins with; they cost nothing, and count as length.

    Returns:
      `Hypotheses` with K a sentence; `scores` are NEVER where fewer were found.
    """
    num_rows, beams = limits.shape[0], config.beam_size
    stopping = "first_k" if beams == 1 else config.stopping
    num_hypotheses = min(num_hypotheses, beams)
    row = jnp.arange(num_rows)[:, None]

    def penalty(length):
        return length_penalty(length, config.length_penalty, config.length_penalty_kind)

    tokens = jnp.full((num_rows, beams, max_decode_len), pad_id, jnp.int32)
    never = jnp.full((num_rows, beams), NEVER, jnp.float32)
    start = BeamState(
        index=jnp.zeros((), jnp.int32),
        cache=cache,
        live_tokens=tokens,
        # All beams start alike: only the first may grow.
        live_log_probs=never.at[:, 0].set(0.0),
        finished_tokens=tokens,
        finished_log_probs=never,
        finished_scores=never,
        finished_lengths=jnp.zeros((num_rows, beams), jnp.int32),
        num_finished=jnp.zeros((num_rows,), jnp.int32),
        done=limits <= 0,
    )

    def expand(state: BeamState):
        """The 2K best continuations: log-probabilities, parents, pieces, and the new cache."""
        last = jax.lax.dynamic_index_in_dim(
            state.live_tokens, jnp.maximum(state.index - 1, 0), axis=2, keepdims=False
        )
        last = jnp.where(state.index == 0, start_id, last).reshape(-1)  # --> [B*K]
        logits, new_cache = step_fn(state.cache, last)
        vocab = logits.shape[-1]
        log_probs = piece_log_probs(
            logits.reshape(num_rows, beams, vocab), state.index, limits, eos_id, prefix, config
        )
        totals = jnp.maximum(state.live_log_probs[:, :, None] + log_probs, NEVER)
        # 2K candidates hold K that go on, since each parent ends in one way only.
        best, flat = jax.lax.top_k(totals.reshape(num_rows, -1), min(2 * beams, beams * vocab))
        return best, flat // vocab, flat % vocab, new_cache

    def finish(state: BeamState, best, candidates, ends):
        """Takes those of the K best candidates that end into the finished hypotheses."""
        ends = ends & (jnp.arange(best.shape[1]) < beams) & (best > NEVER)
        scores = jnp.where(ends, best / penalty(state.index + 1), NEVER)
        scores = jnp.where(state.done[:, None], NEVER, scores)
        pool_scores = jnp.concatenate([state.finished_scores, scores], axis=1)
        pool = (
            jnp.concatenate([state.finished_tokens, candidates], axis=1),
            jnp.concatenate([state.finished_log_probs, best], axis=1),
            jnp.concatenate(
                [state.finished_lengths, jnp.full(best.shape, state.index + 1)], axis=1
            ),
        )
        top_scores, order = jax.lax.top_k(pool_scores, beams)
        top_tokens, top_log_probs, top_lengths = gather_beams(pool, order)
        found = jnp.sum(scores > NEVER, axis=1, dtype=jnp.int32)
        return dataclasses.replace(
            state,
            finished_tokens=top_tokens,
            finished_log_probs=top_log_probs,
            finished_scores=top_scores,
            finished_lengths=top_lengths,
            num_finished=state.num_finished + found,
        )

    def is_done(state: BeamState):
        best_live = state.live_log_probs[:, 0]
        if stopping == "first_k":
            enough = state.num_finished >= beams
        elif stopping == "hf_default":
            enough = state.finished_scores[:, -1] >= best_live / penalty(state.index)
        else:
            # A log-probability only falls; over a longer hypothesis's penalty it may still rise.
            reachable = best_live / penalty(limits)
            enough = state.finished_scores[:, num_hypotheses - 1] >= reachable
        return state.done | enough | (best_live <= NEVER)

    def step(state: BeamState) -> BeamState:
        best, parents, pieces, new_cache = expand(state)
        candidates = jnp.take_along_axis(state.live_tokens, parents[:, :, None], axis=1)
        candidates = jax.lax.dynamic_update_index_in_dim(candidates, pieces, state.index, axis=2)
        ends = pieces == eos_id
        if config.at_limit == "cut":
            ends |= (state.index + 1 >= limits)[:, None]
        state = finish(state, best, candidates, ends)
        live, order = jax.lax.top_k(jnp.where(ends, NEVER, best), beams)
        survivors = parents[row, order]
        if beams > 1:
            new_cache = reorder_cache(new_cache, survivors)
        state = dataclasses.replace(
            state,
            index=state.index + 1,
            cache=new_cache,
            live_tokens=gather_beams(candidates, order),
            live_log_probs=live,
        )
        return dataclasses.replace(state, done=is_done(state))

    def unfinished(state: BeamState):
        return (state.index < max_decode_len) & ~jnp.all(state.done)

    end = jax.lax.while_loop(unfinished, step, start)
    return Hypotheses(
        tokens=end.finished_tokens,
        scores=end.finished_scores,
        log_probs=end.finished_log_probs,
        lengths=end.finished_lengths,
        steps=end.index,
    )
