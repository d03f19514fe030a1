"""Position encodings of "Attention Is All You Need" (section 3.5), their variants, and rotary."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig

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


def sinusoid_table(config: ModelConfig) -> np.ndarray:
    """Sinusoids of positions 0 .. max_len - 1 of a model, `[max_len, M]` float32."""
    offset = config.position_offset
    table = sinusoids(
        config.max_len + offset, config.d_model, config.positional, config.positional_base
    )
    return table[offset:]


def apply_rotary(x: jax.Array, positions: jax.Array, base: float = 10_000.0) -> jax.Array:
    """Rotates the halves of each head by angles that grow with position (RoFormer, 2021).

    Args:
      x: `[B, T, H, D]` queries or keys, D even.
      positions: `[B, T]` or `[1, T]` integers.
      base: the largest wavelength divided by 2 pi.

    Returns:
      `[B, T, H, D]` in the type of `x`.
    """
    half = x.shape[-1] // 2
    if x.shape[-1] % 2:
        raise ValueError(f"rotary positions need an even head_dim, got {x.shape[-1]}")
    rates = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions.astype(jnp.float32)[:, :, None, None] * rates  # --> [B, T, 1, D/2]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
