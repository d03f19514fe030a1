"""cuDNN's fused attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`."""

import dataclasses

import jax
import jax.numpy as jnp

from transformer_jax.ops import platforms
from transformer_jax.ops.attention.call import Extras, Settings, combined_mask, expand
from transformer_jax.ops.attention.distances import by_distance


def refuses(
    query: jax.Array, key: jax.Array, extras: Extras, settings: Settings, platform: str
) -> str | None:
    """Why cuDNN cannot compute a call; None: it can."""
    dim = query.shape[-1]
    if platform != "gpu":
        return f"it needs an NVIDIA GPU, and this is a {platform}"
    capability = getattr(platforms.local_devices()[0], "compute_capability", None)
    if capability is not None and float(capability) < 8.0:
        return f"it needs compute capability 8.0, and this GPU has {capability}"
    largest = 256 if capability is not None and float(capability) >= 9.0 else 128
    if query.dtype not in (jnp.float16, jnp.bfloat16):
        return f"it computes in float16 or bfloat16, and the query is {query.dtype}"
    if settings.softcap:
        return f"it has no bound of scores (softcap={settings.softcap:g})"
    if extras.seeds is not None:
        return "it has no dropout with the bits of the other implementations"
    if dim > largest or dim % 8:
        return f"head_dim must be a multiple of 8 and at most {largest}, and is {dim}"
    if query.shape[1] % 2 or key.shape[1] % 2:
        # JAX takes absent biases for present ones when it checks this.
        return f"its gradient needs even lengths, not {query.shape[1]} and {key.shape[1]}"
    if key.shape[1] % 128 == 64 and _has_arrays(extras):
        # On Hopper it gives the 64 keys that it adds for its tiles a score of 0, so that
        # exp(0 - log-sum-exp) overflows: https://github.com/pytorch/pytorch/issues/196678
        return (
            f"with a mask or bias of {key.shape[1]} keys, an odd multiple of 64, its gradient can "
            "be NaN"
        )
    return None


def _has_arrays(extras: Extras) -> bool:
    """Whether the kernel reads an array of masks or biases; it has arguments for the rest."""
    arrays = extras.mask, extras.bias, extras.distance_bias, extras.query_segment_ids
    return any(array is not None for array in arrays)


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, extras: Extras, settings: Settings
) -> jax.Array:
    """Attention `[B, T, H, D]`; the arguments are as in `dot_product_attention`.

    The kernel has arguments for lengths and causality. Other masks become a bias.
    """
    sizes = query.shape[1], key.shape[1]
    mask = combined_mask(extras, settings, *sizes)
    other_mask = combined_mask(
        extras._replace(key_lengths=None), dataclasses.replace(settings, causal=False), *sizes
    )
    lengths, empty = extras.key_lengths, None
    if mask is not None:
        # A row without any key gets the first one, which lengths and causality then allow. So the
        # kernel never divides by zero. The row's output is set to zero afterwards.
        empty = ~jnp.any(expand(mask), axis=-1, keepdims=True)  # [B or 1, H or 1, T or 1, 1]
        lengths = None if lengths is None else jnp.maximum(lengths, 1).astype(jnp.int32)
        if other_mask is not None:
            other_mask = other_mask | (empty & (jnp.arange(sizes[1]) == 0))
    out = jax.nn.dot_product_attention(
        query,
        key,
        value,
        _bias(extras, query.dtype, sizes),
        None if other_mask is None else _full(other_mask, sizes),
        scale=settings.scale,
        is_causal=settings.causal,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )
    if empty is None:
        return out
    return jnp.where(jnp.swapaxes(empty, 1, 2), jnp.zeros((), out.dtype), out)


def _bias(extras: Extras, dtype: jnp.dtype, sizes: tuple[int, int]) -> jax.Array | None:
    """Both biases of a call together, `[B or 1, H or 1, T, S]`; None: none."""
    bias = None if extras.bias is None else _full(extras.bias, sizes)
    if extras.distance_bias is not None:
        by_head = by_distance(extras.distance_bias, *sizes)[None]
        bias = by_head if bias is None else bias + by_head
    return None if bias is None else bias.astype(dtype)


def _full(x: jax.Array, sizes: tuple[int, int]) -> jax.Array:
    """`x` broadcast along queries and keys, `[B or 1, H or 1, T, S]`, as the kernel needs it."""
    x = expand(x)
    return jnp.broadcast_to(x, (*x.shape[:2], *sizes))
