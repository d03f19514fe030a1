"""Ancestral sampling: independent outputs, each a function of its sentence, number and seed."""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.ops.top_k import NEVER, chunk_size
from transformer_jax.search.decoder import Cache, Decoder, decode_loop
from transformer_jax.search.hypotheses import Hypotheses, length_penalty
from transformer_jax.search.processors import LogitsProcessors, Prefixes
from transformer_jax.search.search_settings import (
    SearchConstraints,
    SearchStructure,
    SearchValues,
)


def keep_top_k(log_probs: jax.Array, count: jax.Array) -> jax.Array:
    """Forbids all but the `count` likeliest tokens, and those as likely as the last of them.

    Args:
      log_probs: `[V, B, K]`.
      count: `[B]`; 0 keeps all.
    """
    bits = _ordered_bits(log_probs)
    wanted = jnp.where(count > 0, jnp.minimum(count, bits.shape[0]), bits.shape[0])[:, None]

    def keeps_enough(bound: jax.Array) -> jax.Array:
        return jnp.sum(bits >= bound, axis=0, dtype=jnp.int32) >= wanted

    low, high = _ordered_bits(jnp.float32(-jnp.inf)), _ordered_bits(jnp.float32(jnp.inf))
    bound = _largest_bound(keeps_enough, low, high, log_probs.shape[1:])
    return jnp.where(bits >= bound, log_probs, NEVER)


def keep_top_p(log_probs: jax.Array, mass: jax.Array) -> jax.Array:
    """Forbids all but the likeliest tokens that together have at least `mass` of the probability.

    Nucleus sampling (Holtzman et al., 2020). Tokens as likely as the last one kept are kept too.

    Args:
      log_probs: `[V, B, K]`, of which the probabilities sum to 1.
      mass: `[B]`, above 0; 1 keeps all.
    """
    probs = jnp.exp(log_probs)
    bits = _ordered_bits(probs)

    def keeps_enough(bound: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(bits >= bound, probs, 0.0), axis=0) >= mass[:, None]

    low, high = jnp.int32(0), _ordered_bits(jnp.float32(2.0))
    bound = _largest_bound(keeps_enough, low, high, log_probs.shape[1:])
    kept = (bits >= jnp.minimum(bound, jnp.max(bits, axis=0))) | (mass >= 1.0)[:, None]
    return jnp.where(kept, log_probs, NEVER)


def keep_min_p(log_probs: jax.Array, share: jax.Array) -> jax.Array:
    """Forbids tokens less likely than `share` of the likeliest one (Nguyen et al., 2024).

    Args:
      log_probs: `[V, B, K]`.
      share: `[B]`; 0 keeps all.
    """
    bound = jnp.max(log_probs, axis=0) + jnp.log(share)[:, None]
    return jnp.where(log_probs >= bound, log_probs, NEVER)


def _ordered_bits(x: jax.Array) -> jax.Array:
    """Integers in the order of the float32 `x`."""
    bits = jax.lax.bitcast_convert_type(x + 0.0, jnp.int32)  # -0.0 becomes 0.0
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _largest_bound(
    keeps_enough: Callable[[jax.Array], jax.Array],
    low: jax.Array,
    high: jax.Array,
    shape: tuple[int, ...],
) -> jax.Array:
    """The largest bound `[B, K]` that keeps enough, by bisection, without a sort.

    Args:
      keeps_enough: of bounds `[B, K]`, True up to some bound.
      low: keeps enough.
      high: does not.
      shape: of the bounds.
    """

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow
        is_enough = keeps_enough(middle)
        return jnp.where(is_enough, middle, low), jnp.where(is_enough, high, middle)

    bounds = jnp.full(shape, low), jnp.full(shape, high)
    return jax.lax.fori_loop(0, 32, halve, bounds)[0]


def warp(log_probs: jax.Array, values: SearchValues) -> jax.Array:
    """The distribution `[V, B, K]` to sample from: temperature, then top-k, top-p and min-p.

    A rule that no row uses is skipped when the program runs.
    """
    top_k, top_p, min_p = values.top_k, values.top_p, values.min_p
    log_probs = jnp.maximum(log_probs / values.temperature[:, None], NEVER)
    rules = (
        (top_k > 0, lambda x: keep_top_k(x, top_k)),
        (top_p < 1.0, lambda x: keep_top_p(jax.nn.log_softmax(x, axis=0), top_p)),
        (min_p > 0.0, lambda x: keep_min_p(x, min_p)),
    )
    for is_used, rule in rules:
        log_probs = jax.lax.cond(jnp.any(is_used), rule, lambda x: x, log_probs)
    return log_probs


def draw(log_probs: jax.Array, uniform: jax.Array) -> jax.Array:
    """Samples tokens `[B, K]` from log-probabilities `[V, B, K]`, which need not be normalised.

    Inverts the cumulative distribution in two stages, of chunks and within one. So one number
    `uniform` `[B, K]` of [0, 1) decides.
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
    position = jnp.sum(inner <= (target - before)[..., None], axis=-1)
    # Rounding may point after the last member that has any probability.
    last = chunk - 1 - jnp.argmax(members[..., ::-1] > 0, axis=-1)
    return which * chunk + jnp.minimum(position, last)


@flax.struct.dataclass
class SampleState:
    """Sampling in progress."""

    index: jax.Array  # position of the next token
    cache: Cache
    tokens: jax.Array  # [B, K, T]
    log_probs: jax.Array  # [B, K], under the model, before `warp`
    lengths: jax.Array  # [B, K]; 0 until the output has ended
    done: jax.Array  # [B]
    finite: jax.Array  # [B] False once a logit was NaN


@dataclasses.dataclass(frozen=True)
class Sampling:
    """`beam_size` independent outputs of each sentence (ancestral sampling).

    The random numbers of output k depend on the setting `seed`, the sentence's own seed and k
    alone. So they do not depend on the rest of the batch.

    Args:
      decoder: gives logits.
      processors: turn logits into log-probabilities of the next token.
      constraints: of each sentence, with `seeds`.
      ids: start, end and padding.
      structure: the static part of the settings; their numbers are in `constraints.values`.
      max_decode_len: T, most tokens of an output.
    """

    decoder: Decoder
    processors: LogitsProcessors
    constraints: SearchConstraints
    ids: SpecialIds
    structure: SearchStructure
    max_decode_len: int

    def run(self, cache: Cache) -> Hypotheses:
        """Samples from a fresh cache; outputs are in the order of their numbers."""
        constraints = self.constraints
        # All at once, so that the generator is compiled once and outside the loop.
        uniform = self._uniform()
        end = decode_loop(
            lambda state: self._step(state, uniform[state.index]),
            lambda state: ~jnp.all(state.done),
            self._init_state(cache),
            self.decoder,
            self.max_decode_len,
        )
        is_used = (constraints.max_lens > 0)[:, None]
        alpha = constraints.values.length_penalty[:, None]
        lengths = jnp.maximum(end.lengths, 1)
        scores = end.log_probs / length_penalty(lengths, alpha, self.structure.length_penalty_kind)
        scores = jnp.where(is_used & _is_possible(end.log_probs), scores, NEVER)
        return Hypotheses(end.tokens, scores, end.log_probs, end.lengths, end.index, end.finite)

    def _init_state(self, cache: Cache) -> SampleState:
        shape = self.constraints.max_lens.shape[0], self.structure.beam_size  # [B, K]
        return SampleState(
            index=jnp.zeros((), jnp.int32),
            cache=cache,
            tokens=jnp.full((*shape, self.max_decode_len), self.ids.target_pad, jnp.int32),
            log_probs=jnp.zeros(shape, jnp.float32),
            lengths=jnp.zeros(shape, jnp.int32),
            done=self.constraints.max_lens <= 0,
            finite=jnp.ones(shape[:1], bool),
        )

    def _step(self, state: SampleState, uniform: jax.Array) -> SampleState:
        """Extends every output by one token, drawn with `uniform` `[B, K]`."""
        last = jnp.take(state.tokens, jnp.maximum(state.index - 1, 0), axis=2)  # --> [B, K]
        last = jnp.where(state.index == 0, self.ids.decoder_start, last)
        logits, cache = self.decoder.step(state.cache, last.reshape(-1))  # [V, B * K]
        prefixes = Prefixes(state.tokens, state.index, self.constraints)
        next_log_probs = self.processors(logits, prefixes)  # [V, B, K]
        tokens = draw(warp(next_log_probs.log_probs, self.constraints.values), uniform)
        row, beam = jnp.arange(tokens.shape[0])[:, None], jnp.arange(tokens.shape[1])
        token_log_probs = next_log_probs.log_probs[tokens, row, beam]
        forced = next_log_probs.forced_tokens[:, None]
        tokens = jnp.where(forced >= 0, forced, tokens)
        token_log_probs = jnp.where(forced >= 0, next_log_probs.forced_log_probs, token_log_probs)
        has_ended = state.lengths > 0
        tokens = jnp.where(has_ended, self.ids.target_pad, tokens)
        ends = tokens == self.ids.target_eos
        if self.structure.at_limit == "cut":
            ends |= (state.index + 1 >= self.constraints.max_lens)[:, None]
        lengths = jnp.where(ends & ~has_ended, state.index + 1, state.lengths)
        log_probs = state.log_probs + jnp.where(has_ended, 0.0, token_log_probs)
        is_over = (lengths > 0) | ~_is_possible(log_probs)
        return SampleState(
            index=state.index + 1,
            cache=cache,
            tokens=jax.lax.dynamic_update_index_in_dim(
                state.tokens, tokens.astype(jnp.int32), state.index, axis=2
            ),
            log_probs=log_probs,
            lengths=lengths,
            done=state.done | jnp.all(is_over, axis=1),
            finite=state.finite & jnp.all(next_log_probs.finite, axis=1),
        )

    def _uniform(self) -> jax.Array:
        """One random number for each position of each output, `[T, B, K]`."""

        def one(index, setting, seed, number):
            rng = jax.random.key(setting)
            for part in (seed, number, index):
                rng = jax.random.fold_in(rng, part)
            return jax.random.uniform(rng)

        draw_all = jax.vmap(one, (None, None, None, 0))  # --> [K]
        draw_all = jax.vmap(draw_all, (None, 0, 0, None))  # --> [B, K]
        draw_all = jax.vmap(draw_all, (0, None, None, None))  # --> [T, B, K]
        return draw_all(
            jnp.arange(self.max_decode_len),
            self.constraints.values.seed,
            self.constraints.seeds,
            jnp.arange(self.structure.beam_size),
        )


def _is_possible(log_probs: jax.Array) -> jax.Array:
    """Whether no forbidden token was drawn, as happens where all are forbidden."""
    return log_probs > NEVER / 2
