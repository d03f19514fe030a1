"""Ancestral sampling: independent outputs, each a function of its sentence, number and seed."""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.config import DecodeConfig
from transformer_jax.data.loader import SpecialIds
from transformer_jax.decoding.hypotheses import Hypotheses, penalty
from transformer_jax.decoding.processors import Demands, Rules, Written
from transformer_jax.decoding.stepping import Stepper, repeat
from transformer_jax.ops.top_k import NEVER, chunk_size, top_k_columns


def keep_top_k(log_probs: jax.Array, count: int) -> jax.Array:
    """Forbids all but the `count` likeliest pieces, and those as likely as the last of them.

    Args:
      log_probs: `[V, B, K]`.
      count: at least 1.
    """
    vocab, rows, beams = log_probs.shape
    flat = log_probs.reshape(vocab, rows * beams, 1)
    best, _, _ = top_k_columns(flat, jnp.zeros(flat.shape[1:]), min(count, vocab))
    return _keep_from(log_probs, best[:, -1].reshape(rows, beams))


def keep_top_p(log_probs: jax.Array, mass: float) -> jax.Array:
    """Forbids all but the likeliest pieces that together have at least `mass` of the probability.

    Nucleus sampling (Holtzman et al., 2020). The bound is found by bisection over the bits of
    float32, not by sorting; pieces as likely as the last one kept are kept too.

    Args:
      log_probs: `[V, B, K]`, of which probabilities add up to 1.
      mass: above 0, below 1.
    """
    probs = jnp.exp(log_probs)

    # Non-negative floats are ordered as their bits are.
    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        bound = jax.lax.bitcast_convert_type(middle, jnp.float32)
        enough = jnp.sum(jnp.where(probs >= bound, probs, 0.0), axis=0) >= mass
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    shape = log_probs.shape[1:]
    low = jnp.zeros(shape, jnp.int32)
    high = jnp.full(shape, jax.lax.bitcast_convert_type(jnp.float32(2.0), jnp.int32))
    low, _ = jax.lax.fori_loop(0, 31, halve, (low, high))
    bound = jax.lax.bitcast_convert_type(low, jnp.float32)
    likeliest = jnp.max(probs, axis=0)
    return jnp.where(probs >= jnp.minimum(bound, likeliest), log_probs, NEVER)


def keep_min_p(log_probs: jax.Array, share: float) -> jax.Array:
    """Forbids pieces less likely than `share` of the likeliest one (Nguyen et al., 2024)."""
    return _keep_from(log_probs, jnp.max(log_probs, axis=0) + jnp.log(share))


def _keep_from(log_probs: jax.Array, bound: jax.Array) -> jax.Array:
    return jnp.where(log_probs >= bound, log_probs, NEVER)


def warp(log_probs: jax.Array, config: DecodeConfig) -> jax.Array:
    """Distribution that is sampled from: temperature, then top-k, top-p and min-p."""
    if config.temperature != 1.0:
        log_probs = jnp.maximum(log_probs / config.temperature, NEVER)
    if config.top_k:
        log_probs = keep_top_k(log_probs, config.top_k)
    if config.top_p < 1.0:
        log_probs = keep_top_p(jax.nn.log_softmax(log_probs, axis=0), config.top_p)
    if config.min_p:
        log_probs = keep_min_p(log_probs, config.min_p)
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
    """`config.beam_size` independent outputs of each sentence.

    The k-th is drawn by a generator made of `config.seed`, the sentence's own seed and k, so that
    it does not depend on what else is in the batch.

    Args:
      stepper: of the model.
      demands: of each sentence, with `seeds`.
      ids: start, end and padding.
      config: everything else.
      max_decode_len: pieces at most, T.
      free_prefix: first pieces of each prefix that cost nothing.
    """

    stepper: Stepper
    demands: Demands
    ids: SpecialIds
    config: DecodeConfig
    max_decode_len: int
    free_prefix: int = 0

    def run(self, cache: Any) -> Hypotheses:
        """Samples from a fresh cache, in the order of their numbers."""
        shape = self.demands.limits.shape[0], self.config.beam_size
        start = SampleState(
            index=jnp.zeros((), jnp.int32),
            cache=cache,
            tokens=jnp.full((*shape, self.max_decode_len), self.ids.target_pad, jnp.int32),
            log_probs=jnp.zeros(shape, jnp.float32),
            lengths=jnp.zeros(shape, jnp.int32),
            done=self.demands.limits <= 0,
            finite=jnp.ones(shape[:1], bool),
        )
        end = repeat(self._step, lambda state: ~jnp.all(state.done), start, self.stepper,
                     self.max_decode_len)  # fmt: skip
        used = (self.demands.limits > 0)[:, None]
        scores = end.log_probs / penalty(jnp.maximum(end.lengths, 1), self.config)
        scores = jnp.where(used & _is_possible(end.log_probs), scores, NEVER)
        return Hypotheses(end.tokens, scores, end.log_probs, end.lengths, end.index, end.finite)

    def _step(self, state: SampleState) -> SampleState:
        last = jnp.take(state.tokens, jnp.maximum(state.index - 1, 0), axis=2)
        last = jnp.where(state.index == 0, self.ids.decoder_start, last).reshape(-1)
        logits, cache = self.stepper.step(state.cache, last)
        rules = Rules(self.config, self.ids.target_eos, self.free_prefix)
        following = rules(logits, Written(state.tokens, state.index, self.demands))
        pieces = draw(warp(following.log_probs, self.config), self._uniform(state.index))
        row, beam = jnp.arange(pieces.shape[0])[:, None], jnp.arange(pieces.shape[1])
        own = following.log_probs[pieces, row, beam]
        is_forced = following.forced[:, None] >= 0
        pieces = jnp.where(is_forced, following.forced[:, None], pieces)
        own = jnp.where(is_forced, following.forced_log_probs, own)
        ended = state.lengths > 0
        pieces = jnp.where(ended, self.ids.target_pad, pieces)
        ends = pieces == self.ids.target_eos
        if self.config.at_limit == "cut":
            ends |= (state.index + 1 >= self.demands.limits)[:, None]
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

    def _uniform(self, index: jax.Array) -> jax.Array:
        """One number for each output at this place, `[B, K]`."""

        def one(seed, number):
            rng = jax.random.key(self.config.seed)
            for part in (seed, number, index):
                rng = jax.random.fold_in(rng, part)
            return jax.random.uniform(rng)

        numbers = jnp.arange(self.config.beam_size)
        return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(self.demands.seeds, numbers)


def _is_possible(log_probs: jax.Array) -> jax.Array:
    """Whether no forbidden token was drawn, as happens where all are forbidden."""
    return log_probs > NEVER / 2
