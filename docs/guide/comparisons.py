"""Compares a right line with a common mistake; pages 9 and 10 of the guide use it."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A right function, a wrong one, and a check that only the right one passes."""

    title: str
    right: Callable
    wrong: Callable
    check: Callable[[Callable], None]


def compare(title: str, right: Callable, wrong: Callable, check: Callable) -> Mistake:
    """Runs `check` on both functions and prints the message with which the wrong one fails.

    Raises:
      AssertionError: the right function fails, or the wrong one passes.
    """
    check(right)
    try:
        check(wrong)
    except AssertionError as error:
        print("caught:", str(error).strip().splitlines()[0])
    else:
        raise AssertionError(f"{title}: the check does not notice the mistake")
    return Mistake(title, right, wrong, check)


def expect(condition: bool | jax.Array, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    """Normally distributed numbers, the same for each seed."""
    return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)
