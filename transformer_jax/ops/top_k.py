"""The largest of many numbers, without sorting them all."""

import jax
import jax.numpy as jnp

# Below any log-probability, and finite: sums and differences of it never make a NaN.
NEVER = -(2.0**100)

CHUNKS = range(64, 257)  # sizes of the chunks of a vocabulary
SMALL = 1024  # vocabularies up to this size are one chunk


def top_k_columns(x: jax.Array, offsets: jax.Array, count: int) -> tuple[jax.Array, ...]:
    """The `count` largest of `x[v, r, k] + offsets[r, k]` for each r, largest first.

    Of equal numbers, the one with the lower k comes first, then the one with the lower v.

    There are two stages: the largest number of every chunk of V, then the members of the `count`
    chunks with the largest numbers. All results are among these members.

    Args:
      x: `[V, R, K]`.
      offsets: `[R, K]`.
      count: at most V·K.

    Returns:
      Values, their k, and their v, each `[R, count]`.
    """
    size, rows, beams = x.shape
    chunk = chunk_size(size)
    if size % chunk:
        x = jnp.pad(x, ((0, -size % chunk), (0, 0), (0, 0)), constant_values=2 * NEVER)
    chunks = x.shape[0] // chunk
    x = x.reshape(chunks, chunk, rows, beams)
    if chunks == 1:
        members = x[0] + offsets  # --> [V, R, K]
        first = jnp.broadcast_to(jnp.arange(beams) * size, (rows, beams))
        members = members.transpose(1, 2, 0)  # --> [R, K, V]
    else:
        best = (jnp.max(x, axis=1) + offsets).transpose(1, 2, 0)  # --> [R, K, chunks]
        most = min(count, beams * chunks)
        _, best_chunks = jax.lax.top_k(best.reshape(rows, -1), most)
        best_chunks = jnp.sort(best_chunks, axis=1)  # of equal members the first comes first
        k, c = best_chunks // chunks, best_chunks % chunks
        row = jnp.arange(rows)[:, None]
        members = x[c, :, row, k] + offsets[row, k][..., None]  # --> [R, most, chunk]
        first = k * size + c * chunk
    width = members.shape[-1]
    values, position = jax.lax.top_k(members.reshape(rows, -1), count)
    index = jnp.take_along_axis(first, position // width, axis=1) + position % width
    return values, index // size, index % size


def chunk_size(size: int) -> int:
    """Members of a chunk: a divisor of `size` if one is in range, so that nothing is padded."""
    if size <= SMALL:
        return size
    return next((n for n in reversed(CHUNKS) if size % n == 0), 128)
