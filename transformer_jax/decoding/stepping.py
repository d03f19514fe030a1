"""One step of one or several models over their caches, and the loop that repeats it."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model import incremental

# Positions of a cache, as parts of the longest output. An output is about a third of the longest
# possible, so that most attention reads little more than there is; each size is a loop to compile.
STAGES = (1 / 6, 2 / 5, 1.0)
SMALLEST = 16

Cache = Any


class Stepper(Protocol):
    """What a search needs of a model; B sentences and K beams are in the cache's shapes."""

    @property
    def vocab_size(self) -> int:
        """V."""

    def step(self, cache: Cache, tokens: jax.Array) -> tuple[jax.Array, Cache]:
        """Logits `[V, B·K]` after tokens `[B·K]`."""

    def reorder(self, cache: Cache, parents: jax.Array) -> Cache:
        """Makes beam k of each sentence what beam `parents[b, k]` was."""

    def grow(self, cache: Cache, size: int) -> Cache:
        """Room for `size` positions."""

    def coverage(self, cache: Cache) -> jax.Array:
        """Attention that each source position has had, `[B, K, S]`; 1 where there is padding."""


@dataclasses.dataclass(frozen=True)
class ModelStepper:
    """A model, or several whose probabilities are averaged.

    Args:
      configs: of the models.
      weights: of each, from `incremental.prepare`.
    """

    configs: Sequence[ModelConfig]
    weights: Sequence[incremental.DecoderWeights]

    @property
    def vocab_size(self) -> int:
        return self.weights[0].output_table.shape[0]

    def begin(
        self,
        encoded: Sequence[jax.Array],
        source_mask: jax.Array,
        num_beams: int,
        size: int,
        coverage: bool = False,
        independent: bool = False,
    ) -> Cache:
        """Caches over the source, as each model has encoded it."""
        more = num_beams, size, coverage, independent
        return [
            incremental.init_cache(config, weights, x, source_mask, *more)
            for config, weights, x in zip(self.configs, self.weights, encoded, strict=True)
        ]

    def step(self, cache: Cache, tokens: jax.Array) -> tuple[jax.Array, Cache]:
        found = [
            incremental.decode_step(config, weights, own, tokens)
            for config, weights, own in zip(self.configs, self.weights, cache, strict=True)
        ]
        logits = [x for x, _ in found]
        new_cache = [own for _, own in found]
        if len(logits) == 1:
            return logits[0], new_cache
        log_probs = jnp.stack([jax.nn.log_softmax(x, axis=0) for x in logits])
        return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(logits)), new_cache

    def reorder(self, cache: Cache, parents: jax.Array) -> Cache:
        return [incremental.reorder_cache(own, parents) for own in cache]

    def grow(self, cache: Cache, size: int) -> Cache:
        return [incremental.grow_cache(own, size) for own in cache]

    def coverage(self, cache: Cache) -> jax.Array:
        total = sum(own.coverage for own in cache) / len(cache)
        return jnp.where(cache[0].source_mask[:, None, :], total, 1.0)


def cache_sizes(max_decode_len: int) -> list[int]:
    """Positions for which a cache has room, one after the other; at most `len(STAGES)`."""
    sizes = (8 * math.ceil(part * max_decode_len / 8) for part in STAGES)
    return sorted({max_decode_len, *(n for n in sizes if SMALLEST <= n < max_decode_len)})


def repeat(
    step: Callable[[Any], Any], unfinished: Callable[[Any], jax.Array], state: Any,
    stepper: Stepper, max_decode_len: int,
) -> Any:  # fmt: skip
    """Steps while `unfinished`, at most `max_decode_len` times, under `jit`.

    Attention reads the whole cache, so the cache begins small and grows along `cache_sizes`, each
    time only if there is work left.

    Args:
      step: state -> state.
      unfinished: state -> boolean.
      state: has `index` and `cache`.
      stepper: grows the cache.
      max_decode_len: steps at most.

    Returns:
      The last state, without its cache.
    """

    def run(state: Any, sizes: list[int]) -> Any:
        size, *larger = sizes

        def goes_on(state: Any) -> jax.Array:
            return (state.index < size) & unfinished(state)

        def grow(state: Any) -> Any:
            grown = stepper.grow(state.cache, larger[0])
            return run(dataclasses.replace(state, cache=grown), larger)

        def end(state: Any) -> Any:
            return dataclasses.replace(state, cache=None)

        state = jax.lax.while_loop(goes_on, step, state)
        return jax.lax.cond(unfinished(state), grow, end, state) if larger else end(state)

    return run(state, cache_sizes(max_decode_len))
