"""Which token may be next: small functions of log-probabilities, applied in a fixed order.

Arrays are `[V, R, k]`: V tokens, R rows of k hypotheses. The vocabulary comes first because the
decoder's products have their weights as the left operand (`model.incremental`).
"""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.ops.top_k import NEVER
from transformer_jax.search.search_settings import (
    SearchConstraints,
    SearchStructure,
    SearchValues,
)

FREE = -1  # in place of a forced token


@flax.struct.dataclass
class Prefixes:
    """The tokens decoded so far, with the constraints of their rows."""

    tokens: jax.Array  # [R, k, T]; only the first `index` of T count
    index: jax.Array  # position of the next token
    constraints: SearchConstraints


@flax.struct.dataclass
class NextLogProbs:
    """Log-probabilities of the next token, and the rows in which it is not free."""

    log_probs: jax.Array  # [V, R, k]; `NEVER` where a token is forbidden
    forced_tokens: jax.Array  # [R] the only token allowed, or `FREE`
    forced_log_probs: jax.Array  # [R, k] of that token
    finite: jax.Array  # [R, k] False where a logit was NaN
    # [V, R, 1], at least 0: subtracted when continuations are ranked, not from their
    # log-probabilities (the diversity penalty of beam groups).
    ranking_cost: jax.Array | None = None


Processor = Callable[[jax.Array, Prefixes], jax.Array]


@dataclasses.dataclass(frozen=True)
class LogitsProcessors:
    """Turns logits into log-probabilities of the next token, in Hugging Face's order.

    The repetition penalty changes logits. Then log-probabilities are masked: repeated n-grams,
    minimum length, suppressed tokens, further ones. Renormalisation is last.

    Args:
      structure: says which of them are active.
      eos_id: the end symbol.
      suppressed: `[V, R]` boolean, from `suppressed_mask`.
      further: processors besides those of the settings.
    """

    structure: SearchStructure
    eos_id: int
    suppressed: jax.Array | None = None
    further: tuple[Processor, ...] = ()

    def __call__(self, logits: jax.Array, prefixes: Prefixes) -> NextLogProbs:
        """Applies them to `logits` `[V, R·k]`."""
        shape = (logits.shape[0], *prefixes.tokens.shape[:2])  # [V, R, k]
        if self.structure.has_repetition_penalty:
            logits = repetition_penalty(logits.reshape(shape), prefixes).reshape(logits.shape)
        # Over two axes: with a last one of size 1, XLA's sum on CPU is several times slower.
        unmasked = jax.nn.log_softmax(logits, axis=0).reshape(shape)
        finite = ~jnp.isnan(unmasked[self.eos_id])  # one NaN among the logits makes all NaN
        unmasked = jnp.where(finite, unmasked, NEVER)
        log_probs = unmasked
        for process in self._masks():
            log_probs = process(log_probs, prefixes)
        return self._force(log_probs, unmasked, finite, prefixes)

    def _masks(self) -> list[Processor]:
        """The active processors of log-probabilities."""
        processors: list[Processor] = []
        if self.structure.no_repeat_ngram_size:
            processors.append(no_repeat_ngrams(self.structure.no_repeat_ngram_size))
        if self.structure.has_min_len:
            processors.append(minimum_length(self.eos_id))
        if self.suppressed is not None:
            processors.append(suppress(self.suppressed))
        processors += self.further
        if self.structure.renormalize:
            processors.append(renormalize)
        return processors

    def _force(
        self, log_probs: jax.Array, unmasked: jax.Array, finite: jax.Array, prefixes: Prefixes
    ) -> NextLogProbs:
        """Forces the end symbol at the length limit, and the tokens of a given prefix.

        A prefix costs its log-probability before masks; language tags in it cost nothing.
        """
        constraints, index = prefixes.constraints, prefixes.index
        at_limit = index + 1 >= constraints.max_lens
        if self.structure.at_limit == "cut":
            at_limit = jnp.zeros_like(at_limit)
        forced = jnp.where(at_limit, self.eos_id, FREE)
        end_cost = 0.0 if self.structure.at_limit == "free_end" else log_probs[self.eos_id]
        costs = jnp.broadcast_to(end_cost, log_probs.shape[1:])  # --> [R, k]
        if constraints.prefix is not None:
            width = constraints.prefix.shape[1]
            given = jnp.take(constraints.prefix, jnp.minimum(index, width - 1), axis=1)  # --> [R]
            in_prefix = (index < width) & (given >= 0)
            forced = jnp.where(in_prefix, given, forced)
            given_costs = unmasked[jnp.maximum(given, 0), jnp.arange(given.shape[0])]  # --> [R, k]
            if constraints.num_free is not None:
                is_free = index < constraints.num_free
                given_costs = jnp.where(is_free[:, None], 0.0, given_costs)
            costs = jnp.where(in_prefix[:, None], given_costs, costs)
        return NextLogProbs(log_probs, forced, costs, finite)


def repetition_penalty(logits: jax.Array, prefixes: Prefixes) -> jax.Array:
    """Divides positive logits of tokens in the prefix by the penalty, multiplies negative ones.

    CTRL (Keskar et al., 2019, section 4.1).
    """
    penalty = prefixes.constraints.values.repetition_penalty[:, None, None]
    row, beam, position = jnp.indices(prefixes.tokens.shape, sparse=True)
    tokens = jnp.where(position < prefixes.index, prefixes.tokens, prefixes.tokens[..., :1])
    old = logits[tokens, row, beam]  # --> [R, k, T]
    new = jnp.where(old < 0, old * penalty, old / penalty)
    return logits.at[tokens, row, beam].set(jnp.where(prefixes.index == 0, old, new))


def no_repeat_ngrams(size: int) -> Processor:
    """Forbids a token that would repeat a sequence of `size` tokens."""

    def process(log_probs: jax.Array, prefixes: Prefixes) -> jax.Array:
        tokens, index = prefixes.tokens, prefixes.index
        length = tokens.shape[-1]
        starts = jnp.arange(length)
        matches = starts + size - 1 < index  # an n-gram that starts here is complete
        for i in range(size - 1):
            last = jnp.take(tokens, index - (size - 1) + i, axis=2, mode="clip")
            earlier = jnp.take(tokens, jnp.minimum(starts + i, length - 1), axis=2)
            matches = matches & (earlier == last[..., None])  # --> [R, k, T]
        ends = jnp.take(tokens, jnp.minimum(starts + size - 1, length - 1), axis=2)
        row, beam, _ = jnp.indices(tokens.shape, sparse=True)
        ends = jnp.where(matches, ends, log_probs.shape[0])  # out of range: dropped
        return log_probs.at[ends, row, beam].set(NEVER, mode="drop")

    return process


def minimum_length(eos_id: int) -> Processor:
    """Forbids the end symbol while the output is shorter than its minimum."""

    def process(log_probs: jax.Array, prefixes: Prefixes) -> jax.Array:
        is_short = prefixes.index + 1 < prefixes.constraints.min_lens
        end = jnp.where(is_short[:, None], NEVER, log_probs[eos_id])
        return log_probs.at[eos_id].set(end)

    return process


def suppressed_mask(values: SearchValues, vocab_size: int) -> jax.Array | None:
    """Whether each token is suppressed in each row, `[V, R]`; None where no row suppresses any."""
    if values.suppressed_ids is None:
        return None
    ids = values.suppressed_ids.T  # --> [N, R]
    return jnp.any(ids == jnp.arange(vocab_size)[:, None, None], axis=1)


def suppress(suppressed: jax.Array) -> Processor:
    """Forbids the tokens where `suppressed` `[V, R]` is True."""

    def process(log_probs: jax.Array, prefixes: Prefixes) -> jax.Array:
        del prefixes
        return jnp.where(suppressed[..., None], NEVER, log_probs)

    return process


def renormalize(log_probs: jax.Array, prefixes: Prefixes) -> jax.Array:
    """Makes the probabilities of the allowed tokens sum to 1."""
    del prefixes
    return jnp.maximum(jax.nn.log_softmax(log_probs, axis=0), NEVER)
