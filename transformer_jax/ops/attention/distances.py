"""Biases that depend on the distance between query and key only: T5's relative positions, ALiBi.

A bias is one number for each distance, so it needs `T + S - 1` numbers for each head, not `T · S`.
"""

import jax
import jax.numpy as jnp

from transformer_jax.ops import platforms
from transformer_jax.ops.derivatives import with_gradient


def by_distance(values: jax.Array, rows: int, columns: int) -> jax.Array:
    """The matrix with one value for each diagonal.

    Args:
      values: `[..., rows + columns - 1]`, of the differences column - row from `1 - rows` on.
      rows: of the matrix, for example queries.
      columns: of the matrix, for example keys.

    Returns:
      `[..., rows, columns]`; its element (i, j) is `values[..., j - i + rows - 1]`.
    """

    def matrix(values: jax.Array) -> jax.Array:
        def row(index: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(values, index, columns, axis=-1)

        return jax.vmap(row, out_axes=-2)(rows - 1 - jnp.arange(rows))

    def backward(values: jax.Array, residuals: None, d_out: jax.Array) -> tuple[jax.Array]:
        return (sum_by_distance(d_out),)

    return with_gradient(matrix, lambda values: (matrix(values), None), backward)(values)


def sum_by_distance(x: jax.Array) -> jax.Array:
    """Sums of the diagonals of `x` `[..., rows, columns]`: `[..., rows + columns - 1]`.

    In the order of the values of `by_distance`, of which this is the gradient.
    """
    *leading, rows, columns = x.shape
    if platforms.current() == "cpu":
        # As fast as a sum over rows. On a GPU the order of the additions would be left to chance.
        start = jnp.zeros((*leading, rows + columns - 1), x.dtype)

        def add_row(index: jax.Array, sums: jax.Array) -> jax.Array:
            row = jax.lax.dynamic_index_in_dim(x, index, axis=-2, keepdims=False)
            first = rows - 1 - index
            old = jax.lax.dynamic_slice_in_dim(sums, first, columns, axis=-1)
            return jax.lax.dynamic_update_slice_in_dim(sums, old + row, first, axis=-1)

        return jax.lax.fori_loop(0, rows, add_row, start)
    # From the last row on, each row one place to the right of the one before: in rows that are
    # longer by `rows` the elements of a diagonal are `rows + columns - 1` places apart.
    wide = jnp.pad(x[..., ::-1, :], [(0, 0)] * (x.ndim - 1) + [(0, rows)])
    flat = wide.reshape(*leading, -1)[..., : rows * (rows + columns - 1)]
    return flat.reshape(*leading, rows, rows + columns - 1).sum(axis=-2)
