"""Ancestral sampling: independent outputs, each a function of its sentence, number and seed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.decoding.hypotheses import Hypotheses, length_penalty
from transformer_jax.decoding.processors import (
    Rules,
    SearchConstraints,
    Written,
    forbidden_tokens,
)
from transformer_jax.decoding.search_settings import SearchStructure, SearchValues
from transformer_jax.decoding.stepping import Stepper, repeat
from transformer_jax.ops.top_k import NEVER, chunk_size


def keep_top_k(log_probs: jax.Array, count: jax.Array) -> jax.Array:
    """Forbids all but the `count` likeliest tokens, and those as likely as the last of them.

    Args:
      log_probs: `[V, B, K]`.
      count: `[B]`; 0 keeps all.
    """
    bits = _ordered(log_probs)
    wanted = jnp.where(count > 0, jnp.minimum(count, bits.shape[0]), bits.shape[0])[:, None]

    def enough(bound):
        return jnp.sum(bits >= bound, axis=0, dtype=jnp.int32) >= wanted

    ends = _ordered(jnp.float32(-jnp.inf)), _ordered(jnp.float32(jnp.inf))
    return jnp.where(bits >= _largest(enough, *ends, log_probs.shape[1:]), log_probs, NEVER)


def keep_top_p(log_probs: jax.Array, mass: jax.Array) -> jax.Array:
    """Forbids all but the likeliest pieces that together have at least `mass` of the probability.

    Nucleus sampling (Holtzman et al., 2020). Pieces as likely as the last one kept are kept too.

    Args:
      log_probs: `[V, B, K]`, of which probabilities add up to 1.
      mass: `[B]`, above 0; 1 keeps all.
    """
    probs = jnp.exp(log_probs)
    bits = _ordered(probs)

    def enough(bound):
        return jnp.sum(jnp.where(bits >= bound, probs, 0.0), axis=0) >= mass[:, None]

    ends = jnp.int32(0), _ordered(jnp.float32(2.0))
    bound = _largest(enough, *ends, log_probs.shape[1:])
    kept = (bits >= jnp.minimum(bound, jnp.max(bits, axis=0))) | (mass >= 1.0)[:, None]
    return jnp.where(kept, log_probs, NEVER)


def keep_min_p(log_probs: jax.Array, share: jax.Array) -> jax.Array:
    """Forbids pieces less likely than `share` of the likeliest one (Nguyen et al., 2024).

    Args:
      log_probs: `[V, B, K]`.
      share: `[B]`; 0 keeps all.
    """
    bound = jnp.max(log_probs, axis=0) + jnp.log(share)[:, None]
    return jnp.where(log_probs >= bound, log_probs, NEVER)


def _ordered(x: jax.Array) -> jax.Array:
    """Integers in the order of the float32 `x`."""
    bits = jax.lax.bitcast_convert_type(x + 0.0, jnp.int32)  # -0.0 becomes 0.0
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _largest(enough: Callable, low: jax.Array, high: jax.Array, shape: Any) -> jax.Array:
    """The largest bound `[B, K]` that is `enough`, by bisection; no sort.

    Args:
      enough: bounds `[B, K]` -> boolean, True up to some bound.
      low: is enough.
      high: is not.
      shape: of the bounds.
    """

    def halve(_, bounds):
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow
        is_enough = enough(middle)
        return jnp.where(is_enough, middle, low), jnp.where(is_enough, high, middle)

    bounds = jnp.full(shape, low), jnp.full(shape, high)
    return jax.lax.fori_loop(0, 32, halve, bounds)[0]


def warp(log_probs: jax.Array, values: SearchValues) -> jax.Array:
    """Distribution that is sampled from: temperature, then top-k, top-p and min-p.

    A rule that no row uses is skipped when the program runs.
    """
    temperature, top_k, top_p, min_p = (
        jnp.asarray(x) for x in (values.temperature, values.top_k, values.top_p, values.min_p)
    )
    log_probs = jnp.maximum(log_probs / temperature[:, None], NEVER)
    rules = (
        (top_k > 0, lambda x: keep_top_k(x, top_k)),
        (top_p < 1.0, lambda x: keep_top_p(jax.nn.log_softmax(x, axis=0), top_p)),
        (min_p > 0.0, lambda x: keep_min_p(x, min_p)),
    )
    for is_used, rule in rules:
        log_probs = jax.lax.cond(jnp.any(is_used), rule, lambda x: x, log_probs)
    return log_probs


def draw(log_probs: jax.Array, uniform: jax.Array) -> jax.Array:
    """Pieces `[B, K]` of log-probabilities `[V, B, K]`, which need not add up to 1.

    By inversion in two stages, of chunks and within one, so one number `uniform` `[B, K]` of
    [0, 1) makes a choice.
    """
    vocab, rows, beams = log_probs.shape
    chunk = chunk_size(vocab)
    probs = jnp.exp(log_probs - jnp.max(log_probs, axis=0))
    if vocab % chunk:
        probs = jnp.pad(probs, ((0, -vocab % chunk), (0, 0), (0, 0)))
    probs = probs.reshape(-1, chunk, rows, beams)
    sums = jnp.cumsum(jnp.sum(probs, axis=1), axis=0)  # --> [chunks, B, K]
    target = uniform * sums[-1]
    which = jnp.argmax(sums > target, axis=0)  # the first; 0 where rounding leaves none
    which = jnp.where(target < sums[-1], which, sums.shape[0] - 1)
    row, beam = jnp.arange(rows)[:, None], jnp.arange(beams)
    before = jnp.where(which > 0, sums[jnp.maximum(which - 1, 0), row, beam], 0.0)
    members = probs[which, :, row, beam]  # --> [B, K, chunk]
    inner = jnp.cumsum(members, axis=-1)
    place = jnp.sum(inner <= (target - before)[..., None], axis=-1)
    # Rounding may point behind the last member that has any probability.
    last = chunk - 1 - jnp.argmax(members[..., ::-1] > 0, axis=-1)
    return which * chunk + jnp.minimum(place, last)


@flax.struct.dataclass
class SampleState:
    """Sampling in progress."""

    index: jax.Array
    cache: Any
    tokens: jax.Array  # [B, K, T]
    log_probs: jax.Array  # [B, K], under the model, before `warp`
    lengths: jax.Array  # [B, K]; 0 while it goes on
    done: jax.Array  # [B]
    finite: jax.Array  # [B] whether all logits were


@dataclasses.dataclass(frozen=True)
class Sampling:
    """`beam_size` independent outputs of each sentence.

    The k-th is drawn by a generator made of the setting `seed`, the sentence's own seed and k, so
    that it does not depend on what else is in the batch.

    Args:
      stepper: of the model.
      constraints: of each sentence, with `seeds` and `values`.
      ids: start, end and padding.
      structure: of the settings, whose numbers are in `constraints.values`.
      max_decode_len: pieces at most, T.
      free_prefix: first pieces of each prefix that cost nothing.
    """

    stepper: Stepper
    constraints: SearchConstraints
    ids: SpecialIds
    structure: SearchStructure
    max_decode_len: int
    free_prefix: int = 0

    def run(self, cache: Any) -> Hypotheses:
        """Samples from a fresh cache, in the order of their numbers."""
        shape = self.constraints.limits.shape[0], self.structure.beam_size
        values: Any = self.constraints.values
        rules = Rules(
            self.structure, self.ids.target_eos, self.free_prefix,
            forbidden_tokens(values, self.stepper.vocab_size),
        )  # fmt: skip
        # All at once, so that the generator is compiled once and outside the loop.
        uniform = self._uniform()
        start = SampleState(
            index=jnp.zeros((), jnp.int32),
            cache=cache,
            tokens=jnp.full((*shape, self.max_decode_len), self.ids.target_pad, jnp.int32),
            log_probs=jnp.zeros(shape, jnp.float32),
            lengths=jnp.zeros(shape, jnp.int32),
            done=self.constraints.limits <= 0,
            finite=jnp.ones(shape[:1], bool),
        )

        def step(state: SampleState) -> SampleState:
            return self._step(state, rules, uniform[state.index])

        end = repeat(step, lambda state: ~jnp.all(state.done), start, self.stepper,
                     self.max_decode_len)  # fmt: skip
        used = (self.constraints.limits > 0)[:, None]
        alpha = jnp.asarray(values.length_penalty)[:, None]
        lengths = jnp.maximum(end.lengths, 1)
        scores = end.log_probs / length_penalty(lengths, alpha, self.structure.length_penalty_kind)
        scores = jnp.where(used & _is_possible(end.log_probs), scores, NEVER)
        return Hypotheses(end.tokens, scores, end.log_probs, end.lengths, end.index, end.finite)

    def _step(self, state: SampleState, rules: Rules, uniform: jax.Array) -> SampleState:
        last = jnp.take(state.tokens, jnp.maximum(state.index - 1, 0), axis=2)
        last = jnp.where(state.index == 0, self.ids.decoder_start, last).reshape(-1)
        logits, cache = self.stepper.step(state.cache, last)
        following = rules(logits, Written(state.tokens, state.index, self.constraints))
        values: Any = self.constraints.values
        pieces = draw(warp(following.log_probs, values), uniform)
        row, beam = jnp.arange(pieces.shape[0])[:, None], jnp.arange(pieces.shape[1])
        own = following.log_probs[pieces, row, beam]
        is_forced = following.forced[:, None] >= 0
        pieces = jnp.where(is_forced, following.forced[:, None], pieces)
        own = jnp.where(is_forced, following.forced_log_probs, own)
        ended = state.lengths > 0
        pieces = jnp.where(ended, self.ids.target_pad, pieces)
        ends = pieces == self.ids.target_eos
        if self.structure.at_limit == "cut":
            ends |= (state.index + 1 >= self.constraints.limits)[:, None]
        lengths = jnp.where(ends & ~ended, state.index + 1, state.lengths)
        log_probs = state.log_probs + jnp.where(ended, 0.0, own)
        over = (lengths > 0) | ~_is_possible(log_probs)
        return SampleState(
            index=state.index + 1,
            cache=cache,
            tokens=jax.lax.dynamic_update_index_in_dim(
                state.tokens, pieces.astype(jnp.int32), state.index, axis=2
            ),
            log_probs=log_probs,
            lengths=lengths,
            done=state.done | jnp.all(over, axis=1),
            finite=state.finite & jnp.all(following.finite, axis=1),
        )

    def _uniform(self) -> jax.Array:
        """One number for each place of each output, `[T, B, K]`."""

        def one(index, setting, seed, number):
            rng = jax.random.key(setting)
            for part in (seed, number, index):
                rng = jax.random.fold_in(rng, part)
            return jax.random.uniform(rng)

        values: Any = self.constraints.values
        draw_all = jax.vmap(one, (None, None, None, 0))  # --> [K]
        draw_all = jax.vmap(draw_all, (None, 0, 0, None))  # --> [B, K]
        draw_all = jax.vmap(draw_all, (0, None, None, None))  # --> [T, B, K]
        return draw_all(
            jnp.arange(self.max_decode_len), jnp.asarray(values.seed),
            jnp.asarray(self.constraints.seeds), jnp.arange(self.structure.beam_size),
        )  # fmt: skip


def _is_possible(log_probs: jax.Array) -> jax.Array:
    """Whether no forbidden token was drawn, as happens where all are forbidden."""
    return log_probs > NEVER / 2
