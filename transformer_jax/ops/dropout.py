"""Dropout whose random bits cost almost nothing.

JAX's generators write their bits to memory first, which on CPU takes longer than the layer itself.
Here each bit is a mixing function of the element's index and two seed words, which the compiler
fuses into the surrounding loop. `benchmarks/dropout.py` measures it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp


def _mix(x: jax.Array) -> jax.Array:
    """Bijective mixing of uint32: each input bit flips each output bit with probability 1/2.

    Shifts and multipliers are the published constants of Wellons' "lowbias32".
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def seed_words(rng: jax.Array) -> jax.Array:
    """Two uint32 words `[2]`, drawn from `rng` by JAX's generator, that determine all bits."""
    return jax.random.bits(rng, (2,), jnp.uint32)


class ElementIndex(NamedTuple):
    """Index of an element in two uint32 words; the arrays broadcast against each other."""

    low: jax.Array  # row-major in the trailing axes, which have at most 2^32 elements together
    high: jax.Array | None  # row-major in the other, leading axes; None: there are none


def element_index(shape: Sequence[int | None], coordinates: Sequence[jax.Array]) -> ElementIndex:
    """Indices of the elements of an array of `shape`, each with another pair of words.

    Args:
      shape: sizes; None: unknown, for the first axis only.
      coordinates: indices along each axis, integers that broadcast.
    """
    first_low, count = len(shape), 1
    while first_low and (size := shape[first_low - 1]) and count * size <= 2**32:
        first_low, count = first_low - 1, count * size

    def row_major(axes: range) -> jax.Array:
        index = jnp.zeros((), jnp.uint32)
        for axis in axes:
            index = index * jnp.uint32(shape[axis] or 0) + coordinates[axis].astype(jnp.uint32)
        return index

    low = row_major(range(first_low, len(shape)))
    return ElementIndex(low, row_major(range(first_low)) if first_low else None)


def keep(seeds: jax.Array, rate: float, index: ElementIndex) -> jax.Array:
    """True with probability `1 - rate` for each element, a function of `index` and `seeds`.

    The second seed word enters between two rounds of mixing, so that arrays from different keys are
    not shifted copies of each other. The high word of the index changes it in steps of 2^32 divided
    by the golden ratio.
    """
    second = seeds[1]
    if index.high is not None:
        second = second + index.high * jnp.uint32(0x9E3779B9)
    bits = _mix(_mix(index.low ^ seeds[0]) + second)
    return bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def keep_mask(rng: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """Boolean array of `shape`, True with probability `1 - rate`, independent by element."""
    coordinates = [jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(len(shape))]
    return keep(seed_words(rng), rate, element_index(shape, coordinates))


def dropout(x: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
    """Zeroes elements of `x` (any shape) with probability `rate`, scales the rest by 1/(1 - rate).

    Args:
      x: array.
      rate: probability in [0, 1).
      rng: PRNG key; None: no dropout.

    Raises:
      ValueError: another rate, such as a percentage.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"the rate of dropout must be in [0, 1), is {rate}")
    if rng is None or rate == 0.0:
        return x
    keep = keep_mask(rng, rate, x.shape)
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))
