"""Refuses arguments that would broadcast, or be rounded, to what no caller means."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def require_shapes(**arrays: tuple[jax.Array | None, Sequence[int]]) -> None:
    """Checks arrays by name, each with the shape that it has to have; None is not checked.

    Raises:
      ValueError: naming the first that has another shape.
    """
    for name, (x, shape) in arrays.items():
        if x is not None and tuple(x.shape) != tuple(shape):
            raise ValueError(f"{name} must be {list(shape)}, is {list(x.shape)}")


def require_integers(**arrays: jax.Array) -> None:
    """Checks the types of arrays by name.

    Raises:
      ValueError: naming the first that has no integers.
    """
    for name, x in arrays.items():
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(f"{name} must be integers, is {x.dtype}")
