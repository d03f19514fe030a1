"""Embeddings, with a gradient that is the same in every run.

The gradient of a table sums over all positions that read a row. XLA's float32 scatter-add has no
fixed order on a GPU, and it is slow where ids repeat.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer_jax.ops.arguments import require_integers
from transformer_jax.ops.derivatives import with_gradient

CHUNK = 512  # positions whose one-hot rows are in memory at once


def embed(table: jax.Array, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Rows of `table` `[V, M]` by `ids`, integers of any shape: `[*ids.shape, M]` in `dtype`.

    The gradient of `table` is summed in float32 in a fixed order, by the fastest form for the
    platform for which the program is compiled.

    Raises:
      ValueError: ids that are no integers.
    """
    require_integers(ids=ids)

    def rows(table: jax.Array, ids: jax.Array) -> jax.Array:
        return table[ids].astype(dtype)

    def forward(table: jax.Array, ids: jax.Array) -> tuple[jax.Array, None]:
        return rows(table, ids), None

    return with_gradient(rows, forward, _backward)(table, ids)


def _backward(
    table: jax.Array, ids: jax.Array, residuals: None, d_out: jax.Array
) -> tuple[jax.Array, None]:
    flat_ids, flat_d_out = ids.reshape(-1), d_out.reshape(-1, table.shape[1])

    size = table.shape[0]
    d_table = jax.lax.platform_dependent(
        flat_ids,
        flat_d_out,
        cpu=functools.partial(sums_by_scatter, size=size),
        tpu=functools.partial(sums_by_product, size=size),
        default=functools.partial(sums_by_sorting, size=size),
    )
    return d_table.astype(table.dtype), None


def sums_by_scatter(ids: jax.Array, values: jax.Array, size: int) -> jax.Array:
    """Sums of `values` `[N, M]` by their `ids` `[N]`: float32 `[size, M]`.

    For CPU, where XLA adds positions in order.
    """
    zeros = jnp.zeros((size, values.shape[1]), jnp.float32)
    return zeros.at[ids].add(values.astype(jnp.float32))


def sums_by_product(ids: jax.Array, values: jax.Array, size: int) -> jax.Array:
    """The same sums as a product with one-hot rows, `CHUNK` positions at a time; for TPU."""
    padding = -len(ids) % min(CHUNK, len(ids))
    ids = jnp.pad(ids, (0, padding), constant_values=-1).reshape(-1, min(CHUNK, len(ids)))
    values = jnp.pad(values, ((0, padding), (0, 0))).reshape(*ids.shape, -1)
    # The default precision on TPU rounds float32 values to bfloat16.
    precision = "highest" if values.dtype == jnp.float32 else None

    def add(total, chunk):
        chunk_ids, chunk_values = chunk
        one_hot = jax.nn.one_hot(chunk_ids, size, dtype=values.dtype)
        sums = jnp.einsum(
            "nv,nm->vm",
            one_hot,
            chunk_values,
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        return total + sums, None

    return jax.lax.scan(add, jnp.zeros((size, values.shape[-1]), jnp.float32), (ids, values))[0]


def sums_by_sorting(ids: jax.Array, values: jax.Array, size: int) -> jax.Array:
    """The same sums by a segmented scan over positions sorted by id; for GPU and other platforms.

    Sorting makes positions of one id adjacent. The scan leaves the sum of each id at its last
    position. It is written from there, so no two positions write to the same row.
    """
    order = jnp.argsort(ids, stable=True)
    ids, values = ids[order], values[order].astype(jnp.float32)
    starts = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])

    def join(left, right):
        left_starts, left_sums = left
        right_starts, right_sums = right
        sums = right_sums + jnp.where(right_starts[:, None], 0.0, left_sums)
        return left_starts | right_starts, sums

    _, sums = jax.lax.associative_scan(join, (starts, values))
    ends = jnp.concatenate([starts[1:], jnp.ones(1, bool)])
    # Incomplete sums are written beyond the table, each to another row, and dropped.
    rows = jnp.where(ends, ids, size + jnp.arange(len(ids), dtype=ids.dtype))
    zeros = jnp.zeros((size, values.shape[1]), jnp.float32)
    return zeros.at[rows].set(sums, mode="drop", unique_indices=True)
