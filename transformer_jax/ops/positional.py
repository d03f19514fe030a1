"""Position encodings of "Attention Is All You Need" (section 3.5), and their successors.

Sinusoids are added to embeddings. `apply_rotary` turns queries and keys. `relative_buckets` and
`alibi_slopes` are for biases that are added to scores.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

SINUSOIDS = ("interleaved", "halves", "tensor2tensor")


def sinusoids(
    length: int, d_model: int, layout: str = "interleaved", base: float = 10_000.0
) -> np.ndarray:
    """Table of fixed encodings `[length, d_model]` float32, computed in float64.

    `interleaved` (the paper): `PE[p, 2i] = sin(p / base^(2i/M))`, `PE[p, 2i+1] = cos` of the same.
    `halves` (Hugging Face Marian): the same values, all sines first, then all cosines.
    `tensor2tensor`: sines, then cosines, with the exponent `i / (M/2 - 1)`.

    Raises:
      ValueError: d_model is odd or the layout is unknown.
    """
    if d_model % 2:
        raise ValueError(f"sinusoids need an even d_model, got {d_model}")
    if layout not in SINUSOIDS:
        raise ValueError(f"layout must be one of {SINUSOIDS}, got {layout!r}")
    half = d_model // 2
    steps = max(half - 1, 1) if layout == "tensor2tensor" else half
    rates = float(base) ** (-np.arange(half) / steps)
    angles = np.arange(length)[:, None] * rates[None, :]
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1 if layout == "interleaved" else 1)
    return table.reshape(length, d_model).astype(np.float32)


def apply_rotary(x: jax.Array, positions: jax.Array, base: float = 10_000.0) -> jax.Array:
    """Rotates the halves of each head by angles that grow with position (RoFormer, 2021).

    Args:
      x: `[B, T, H, D]` queries or keys, D even.
      positions: integers that broadcast to `[B, T]`.
      base: the largest wavelength divided by 2 pi.

    Returns:
      `[B, T, H, D]` in the type of `x`.

    Raises:
      ValueError: an odd D, positions that do not broadcast.
    """
    half = x.shape[-1] // 2
    if x.shape[-1] % 2:
        raise ValueError(f"rotary positions need an even head_dim, got {x.shape[-1]}")
    if positions.ndim > 2 or jnp.broadcast_shapes(positions.shape, x.shape[:2]) != x.shape[:2]:
        raise ValueError(
            f"positions must broadcast to {list(x.shape[:2])}, are {list(positions.shape)}"
        )
    rates = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions.astype(jnp.float32)[..., None, None] * rates[None, None, None]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def relative_buckets(
    distances: np.ndarray, bidirectional: bool, num_buckets: int, max_distance: int
) -> np.ndarray:
    """Bucket of each distance between a query and a key (T5: Raffel et al. 2020, section 2.1).

    The first half of the buckets has one distance each, the others logarithmically more, up to
    max_distance.

    Args:
      distances: position of the key minus that of the query, integers of any shape.
      bidirectional: keys after the query have half of the buckets; otherwise they are in bucket 0.
      num_buckets: in all.
      max_distance: from there on, all distances are in the last bucket.

    Returns:
      int32, of the shape of `distances`.

    Raises:
      ValueError: too few buckets, or a max_distance for which the formula has no value.
    """
    first = np.zeros(distances.shape, np.int32)
    if bidirectional:
        num_buckets //= 2
        first[distances > 0] = num_buckets
        distances = np.abs(distances)
    else:
        distances = np.maximum(-distances, 0)
    num_exact = num_buckets // 2
    if num_exact < 1 or max_distance < 1 or max_distance == num_exact:
        raise ValueError(
            f"a direction needs at least 2 buckets, and a max_distance that is not half of them, "
            f"got {num_buckets} and {max_distance}"
        )
    # In float32, as the published models computed it: a boundary may depend on rounding.
    ratios = np.maximum(distances, 1).astype(np.float32) / np.float32(num_exact)
    octaves = np.log(ratios) / np.float32(math.log(max_distance / num_exact))
    wide = num_exact + (octaves * np.float32(num_buckets - num_exact)).astype(np.int32)
    wide = np.minimum(wide, num_buckets - 1)
    return (first + np.where(distances < num_exact, distances, wide)).astype(np.int32)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """What each head subtracts for each position of distance, `[H]` float32 (ALiBi: Press 2022).

    A geometric sequence from 2^(-8/n) for the n heads of a power of two. Other numbers take the
    slopes of the power of two below, then every second one of twice that.

    Raises:
      ValueError: there is no head.
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-8.0 * (2 * i + 1) / (2 * power)) for i in range(num_heads - power)]
    return np.asarray(slopes, np.float32)
