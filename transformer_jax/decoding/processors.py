"""What may be written next: small functions of log-probabilities, composed in a fixed order.

Arrays are `[V, B, K]`, pieces first, as the decoder gives them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.decoding.search_settings import SearchStructure, SearchValues
from transformer_jax.ops.top_k import NEVER


@flax.struct.dataclass
class SearchConstraints:
    """What each sentence's output must keep to, as arrays; B sentences."""

    limits: Any  # [B] most pieces, the end symbol included; 0: the row is not used
    minimums: Any  # [B] fewest pieces, the end symbol included
    values: Any = None  # `SearchValues`: the numbers of the search settings
    num_hypotheses: Any = None  # [B] how many will be read, for `stopping="exact"`
    prefix: Any = None  # [B, P] pieces to begin with, -1 behind them
    phrases: Any = None  # [B, C, L] pieces that must appear in a row, -1 behind them
    word_ends: Any = None  # [B, C] boolean: the phrase must end where a word ends
    seeds: Any = None  # [B] uint32, for sampling


@flax.struct.dataclass
class Written:
    """What stands so far."""

    tokens: jax.Array  # [B, K, T]
    index: jax.Array  # pieces written
    constraints: SearchConstraints


Processor = Callable[[jax.Array, Written], jax.Array]


def repetition_penalty(logits: jax.Array, written: Written) -> jax.Array:
    """Divides positive logits of pieces that were written by the penalty, multiplies negative ones.

    From CTRL (Keskar et al., 2019, section 4.1).
    """
    values: Any = written.constraints.values
    penalty = jnp.asarray(values.repetition_penalty)[:, None, None]
    batch, beam, place = jnp.indices(written.tokens.shape, sparse=True)
    seen = place < written.index
    pieces = jnp.where(seen, written.tokens, written.tokens[..., :1])
    old = logits[pieces, batch, beam]
    new = jnp.where(old < 0, old * penalty, old / penalty)
    return logits.at[pieces, batch, beam].set(jnp.where(written.index == 0, old, new))


def no_repeat_ngrams(size: int) -> Processor:
    """Forbids the piece that would write a sequence of `size` pieces a second time."""

    def process(log_probs, written):
        tokens, index = written.tokens, written.index
        length = tokens.shape[-1]
        places = jnp.arange(length)
        same = places + size - 1 < index  # an n-gram that begins here is complete
        for i in range(size - 1):
            last = jnp.take(tokens, index - (size - 1) + i, axis=2, mode="clip")
            there = jnp.take(tokens, jnp.minimum(places + i, length - 1), axis=2)
            same = same & (there == last[..., None])
        ends = jnp.take(tokens, jnp.minimum(places + size - 1, length - 1), axis=2)
        batch, beam, _ = jnp.indices(tokens.shape, sparse=True)
        ends = jnp.where(same, ends, log_probs.shape[0])  # out of range: dropped
        return log_probs.at[ends, batch, beam].set(NEVER, mode="drop")

    return process


def minimum_length(eos_id: int) -> Processor:
    """Forbids the end symbol where the output would be shorter than its minimum."""

    def process(log_probs, written):
        short = written.index + 1 < written.constraints.minimums
        at_end = jnp.where(short[:, None], NEVER, log_probs[eos_id])
        return log_probs.at[eos_id].set(at_end)

    return process


def forbidden_tokens(values: SearchValues | None, vocab_size: int) -> jax.Array | None:
    """Whether each token is suppressed in a row, `[V, B]`; None where no row suppresses any."""
    if values is None or values.suppressed_ids is None:
        return None
    ids = jnp.asarray(values.suppressed_ids).T  # --> [N, B]
    return jnp.any(ids == jnp.arange(vocab_size)[:, None, None], axis=1)


def suppress(forbidden: jax.Array) -> Processor:
    """Forbids the tokens `[V, B]`."""

    def process(log_probs, written):
        del written
        return jnp.where(forbidden[..., None], NEVER, log_probs)

    return process


def renormalize(log_probs: jax.Array, written: Written) -> jax.Array:
    """Makes the probabilities of what may be written add up to 1."""
    del written
    return jnp.maximum(jax.nn.log_softmax(log_probs, axis=0), NEVER)


def log_prob_processors(
    structure: SearchStructure, eos_id: int, forbidden: jax.Array | None
) -> list[Processor]:
    """The active ones, in Hugging Face's order."""
    chosen: list[Processor] = []
    if structure.no_repeat_ngram_size:
        chosen.append(no_repeat_ngrams(structure.no_repeat_ngram_size))
    if structure.minimum_length:
        chosen.append(minimum_length(eos_id))
    if forbidden is not None:
        chosen.append(suppress(forbidden))
    if structure.renormalize:
        chosen.append(renormalize)
    return chosen


@flax.struct.dataclass
class Next:
    """What may come next."""

    log_probs: jax.Array  # [V, B, K], `NEVER` where a piece is forbidden
    forced: jax.Array  # [B] the only piece that may come; -1 where the choice is free
    forced_log_probs: jax.Array  # [B, K] of that piece
    finite: jax.Array  # [B, K] whether the logits are


@dataclasses.dataclass(frozen=True)
class Rules:
    """From logits to what may come next."""

    structure: SearchStructure
    eos_id: int
    free_prefix: int = 0  # first pieces of every prefix, language tags, that cost nothing
    forbidden: jax.Array | None = None  # [V, B] from `forbidden_tokens`

    def __call__(self, logits: jax.Array, written: Written) -> Next:
        """Logits `[V, B·K]` after what was written."""
        structure, constraints = self.structure, written.constraints
        shape = (logits.shape[0], *written.tokens.shape[:2])  # [V, B, K]
        if structure.repetition_penalty:
            logits = repetition_penalty(logits.reshape(shape), written).reshape(logits.shape)
        # Over two axes: with a last one of size 1, XLA's sum on CPU is several times slower.
        plain = jax.nn.log_softmax(logits, axis=0).reshape(shape)
        finite = ~jnp.isnan(plain[self.eos_id])  # one logit that is not makes all of them NaN
        plain = jnp.where(finite, plain, NEVER)
        log_probs = plain
        for process in log_prob_processors(structure, self.eos_id, self.forbidden):
            log_probs = process(log_probs, written)

        at_end = written.index + 1 >= constraints.limits
        if structure.at_limit == "cut":
            at_end = jnp.zeros_like(at_end)
        forced = jnp.where(at_end, self.eos_id, -1)
        ending = 0.0 if structure.at_limit == "free_end" else log_probs[self.eos_id]
        costs = jnp.broadcast_to(ending, log_probs.shape[1:])
        if constraints.prefix is not None:
            width = constraints.prefix.shape[1]
            wanted = jnp.take(constraints.prefix, jnp.minimum(written.index, width - 1), axis=1)
            wanted = jnp.where(written.index < width, wanted, -1)
            in_prefix = wanted >= 0
            forced = jnp.where(in_prefix, wanted, forced)
            given = plain[jnp.maximum(wanted, 0), jnp.arange(wanted.shape[0])]  # --> [B, K]
            given = jnp.where(written.index < self.free_prefix, 0.0, given)
            costs = jnp.where(in_prefix[:, None], given, costs)
        return Next(log_probs, forced, costs, finite)
