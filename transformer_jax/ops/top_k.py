"""The best of many numbers without sorting them all."""

import jax
import jax.numpy as jnp

# Below any log-probability, and finite: sums and differences of it never make a NaN.
NEVER = -(2.0**100)

CHUNKS = range(64, 257)  # sizes a vocabulary is cut into
SMALL = 1024  # vocabularies up to here are not cut


def top_k_columns(x: jax.Array, offsets: jax.Array, count: int) -> tuple[jax.Array, ...]:
    """The `count` largest of `x[v, r, k] + offsets[r, k]` for each r, largest first.

    Of equal ones, that of the lower k is first, then that of the lower v.

    In two stages: the largest of every chunk of V, then the members of the `count` best chunks,
    among which the `count` largest must be.

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
        _, which = jax.lax.top_k(best.reshape(rows, -1), most)
        which = jnp.sort(which, axis=1)  # so that of equal members the first comes first
        k, c = which // chunks, which % chunks
        row = jnp.arange(rows)[:, None]
        members = x[c, :, row, k] + offsets[row, k][..., None]  # --> [R, most, chunk]
        first = k * size + c * chunk
    width = members.shape[-1]
    values, place = jax.lax.top_k(members.reshape(rows, -1), count)
    index = jnp.take_along_axis(first, place // width, axis=1) + place % width
    return values, index // size, index % size


def chunk_size(size: int) -> int:
    """Members of a chunk: a divisor of `size` if there is one, so that nothing is padded."""
    if size <= SMALL:
        return size
    return next((n for n in reversed(CHUNKS) if size % n == 0), 128)
