"""The decoder as a search sees it: one step of a model or an ensemble, and the decoding loop."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model import decoder_weights, incremental
from transformer_jax.ops.top_k import NEVER

# Positions of a cache, as parts of the longest output. An output is about a third of the longest
# possible, so that most attention reads little more than is filled; each size is a loop to compile.
STAGES = (1 / 6, 2 / 5, 1.0)
SMALLEST = 16

Cache = Any  # a pytree that only its decoder looks into
State = TypeVar("State")  # a dataclass with fields `index` and `cache`


class Decoder(Protocol):
    """What a search needs of a model. The cache knows its B sentences and K beams."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the target vocabulary, V."""

    def step(self, cache: Cache, tokens: jax.Array) -> tuple[jax.Array, Cache]:
        """Logits `[V, B·K]` of the token after `tokens` `[B·K]`, and the new cache."""

    def reorder(self, cache: Cache, parents: jax.Array) -> Cache:
        """Makes beam k of each sentence what beam `parents[b, k]` was; `parents` is `[B, K]`."""

    def grow(self, cache: Cache, size: int) -> Cache:
        """The same cache with room for `size` positions."""

    def coverage(self, cache: Cache) -> jax.Array:
        """Attention summed over the output, `[B, K, S]`; 1 where the source is padding."""


@dataclasses.dataclass(frozen=True)
class ModelDecoder:
    """A model, or an ensemble whose probabilities are averaged.

    Args:
      configs: sizes of each model.
      weights: of each model's decoder, from `decoder_weights.prepare`.
      allowed: `[V, B·K]` boolean, the tokens that a hypothesis may have; None: all. Each model's
        probabilities sum to 1 over them, so they do not depend on the other rows of a subset of the
        vocabulary.
    """

    configs: Sequence[ModelConfig]
    weights: Sequence[decoder_weights.DecoderWeights]
    allowed: jax.Array | None = None

    @property
    def vocab_size(self) -> int:
        return self.weights[0].output_table.shape[0]

    def init_cache(
        self,
        encoded: Sequence[jax.Array],
        source_mask: jax.Array,
        num_beams: int,
        size: int,
        coverage: bool = False,
        independent: bool = False,
    ) -> Cache:
        """One cache a model; arguments as of `incremental.init_cache`, `encoded` by model."""
        return [
            incremental.init_cache(
                config, weights, x, source_mask, num_beams, size, coverage, independent
            )
            for config, weights, x in zip(self.configs, self.weights, encoded, strict=True)
        ]

    def step(self, cache: Cache, tokens: jax.Array) -> tuple[jax.Array, Cache]:
        steps = [
            incremental.decode_step(config, weights, model_cache, tokens)
            for config, weights, model_cache in zip(self.configs, self.weights, cache, strict=True)
        ]
        logits = [self._masked(model_logits) for model_logits, _ in steps]
        new_cache = [model_cache for _, model_cache in steps]
        if len(logits) == 1:
            return logits[0], new_cache
        return mean_log_probs(logits, axis=0), new_cache

    def _masked(self, logits: jax.Array) -> jax.Array:
        return logits if self.allowed is None else jnp.where(self.allowed, logits, NEVER)

    def reorder(self, cache: Cache, parents: jax.Array) -> Cache:
        return [incremental.reorder_cache(model_cache, parents) for model_cache in cache]

    def grow(self, cache: Cache, size: int) -> Cache:
        return [incremental.grow_cache(model_cache, size) for model_cache in cache]

    def coverage(self, cache: Cache) -> jax.Array:
        mean = sum(model_cache.coverage for model_cache in cache) / len(cache)
        return jnp.where(cache[0].source_mask[:, None, :], mean, 1.0)


def mean_log_probs(logits: Sequence[jax.Array], axis: int) -> jax.Array:
    """Log of the mean of several models' probabilities.

    Element by element: a reduction over a stack of them takes XLA for CPU several times as long.

    Args:
      logits: of each model, all of one shape.
      axis: of the vocabulary.
    """
    log_probs = [jax.nn.log_softmax(x, axis=axis) for x in logits]
    highest = functools.reduce(jnp.maximum, log_probs)
    mean = sum(jnp.exp(x - highest) for x in log_probs) / len(logits)
    return highest + jnp.log(mean)


def cache_sizes(max_decode_len: int) -> list[int]:
    """Sizes that a cache has one after the other, in positions; at most `len(STAGES)`."""
    sizes = (8 * math.ceil(part * max_decode_len / 8) for part in STAGES)
    return sorted({max_decode_len, *(n for n in sizes if SMALLEST <= n < max_decode_len)})


def decode_loop(
    step: Callable[[State], State],
    unfinished: Callable[[State], jax.Array],
    state: State,
    decoder: Decoder,
    max_decode_len: int,
) -> State:
    """Repeats `step` while `unfinished`, at most `max_decode_len` times, under `jit`.

    Attention reads the entire cache. So the cache starts small and grows along `cache_sizes`, each
    time only if the search is not finished.

    Args:
      step: from one state to the next.
      unfinished: boolean scalar of a state.
      state: before the first step, its cache of the first of `cache_sizes`.
      decoder: grows the cache.
      max_decode_len: most steps.

    Returns:
      The last state, without its cache.
    """

    def run(state: Any, sizes: list[int]) -> Any:
        size, *larger = sizes

        def continues(state: Any) -> jax.Array:
            return (state.index < size) & unfinished(state)

        def grow(state: Any) -> Any:
            cache = decoder.grow(state.cache, larger[0])
            return run(dataclasses.replace(state, cache=cache), larger)

        def drop_cache(state: Any) -> Any:
            return dataclasses.replace(state, cache=None)

        state = jax.lax.while_loop(continues, step, state)
        if not larger:
            return drop_cache(state)
        return jax.lax.cond(unfinished(state), grow, drop_cache, state)

    return run(state, cache_sizes(max_decode_len))
