"""cuDNN's fused attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`."""

import dataclasses

import jax
import jax.numpy as jnp

from transformer_jax.ops import platforms
from transformer_jax.ops.attention.call import Extras, Settings, combined_mask, expand


def refuses(
    query: jax.Array, key: jax.Array, extras: Extras, settings: Settings, platform: str
) -> str | None:
    """Why cuDNN cannot serve a call, or None."""
    dim = query.shape[-1]
    if platform != "gpu":
        return f"it needs an NVIDIA GPU, and this is a {platform}"
    capability = getattr(platforms.local_devices()[0], "compute_capability", None)
    if capability is not None and float(capability) < 8.0:
        return f"it needs compute capability 8.0, and this GPU has {capability}"
    if query.dtype not in (jnp.float16, jnp.bfloat16):
        return f"it computes in float16 or bfloat16, and the query is {query.dtype}"
    if extras.seeds is not None:
        return "it has no dropout that others could repeat"
    if dim > 128 or dim % 8:
        return f"head_dim must be a multiple of 8 and at most 128, and is {dim}"
    has_bias = any(x is not None for x in (extras.mask, extras.bias, extras.query_segment_ids))
    if has_bias and (query.shape[1] % 2 or key.shape[1] % 2):
        return f"beside a mask or bias it needs even lengths, not {query.shape[1]}, {key.shape[1]}"
    return None


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, extras: Extras, settings: Settings
) -> jax.Array:
    """Lengths and causality go to the kernel; other masks become a bias that it adds."""
    sizes = query.shape[1], key.shape[1]
    mask = combined_mask(extras, settings, *sizes)
    beside = combined_mask(
        extras._replace(key_lengths=None), dataclasses.replace(settings, causal=False), *sizes
    )
    lengths, empty = extras.key_lengths, None
    if mask is not None:
        # A row without any key is given the first one, which neither lengths nor causality then
        # hide, and its output is set to zero: the kernel never divides by zero.
        empty = ~jnp.any(expand(mask), axis=-1, keepdims=True)  # [B or 1, H or 1, T or 1, 1]
        lengths = None if lengths is None else jnp.maximum(lengths, 1).astype(jnp.int32)
        if beside is not None:
            beside = beside | (empty & (jnp.arange(sizes[1]) == 0))
    out = jax.nn.dot_product_attention(
        query,
        key,
        value,
        None if extras.bias is None else _full(extras.bias.astype(query.dtype), sizes),
        None if beside is None else _full(beside, sizes),
        scale=settings.scale,
        is_causal=settings.causal,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )
    if empty is None:
        return out
    return jnp.where(jnp.swapaxes(empty, 1, 2), jnp.zeros((), out.dtype), out)


def _full(x: jax.Array, sizes: tuple[int, int]) -> jax.Array:
    """`x` broadcast along queries and keys, as the kernel wants it: `[B or 1, H or 1, T, S]`."""
    x = expand(x)
    return jnp.broadcast_to(x, (*x.shape[:2], *sizes))
