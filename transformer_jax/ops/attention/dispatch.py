"""`dot_product_attention`, computed by the fastest implementation for the call."""

import functools
import importlib.resources
import json
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from transformer_jax.errors import UserError
from transformer_jax.ops import platforms
from transformer_jax.ops.arguments import require_shapes
from transformer_jax.ops.attention import blockwise, cudnn, formula, pallas_tpu
from transformer_jax.ops.attention.call import Extras, Settings
from transformer_jax.ops.attention.sharding import over_mesh
from transformer_jax.ops.derivatives import with_gradient
from transformer_jax.ops.dropout import seed_words


class UnsupportedAttentionError(UserError, ValueError):
    """The requested implementation cannot compute the call."""


def with_gradient_alone(name: str, attend: Callable[..., jax.Array]) -> Callable:
    """`attend` of a kernel that has no derivatives except its gradient, and says so."""

    def refuse(primals, tangents):
        del primals, tangents
        raise UnsupportedAttentionError(
            f"attention={name} has gradients, but no forward mode and no second derivatives; use "
            "xla, or blockwise for long rows"
        )

    def wrapped(*arguments: Any) -> jax.Array:
        *arrays, settings = arguments

        def kernel(*arrays):
            return attend(*arrays, settings)

        plain = jax.custom_jvp(kernel)
        forward = jax.custom_jvp(lambda *arrays: jax.vjp(kernel, *arrays))
        gradient = jax.custom_jvp(lambda residuals, d_out: residuals(d_out))
        for function in (plain, forward, gradient):
            function.defjvp(refuse)

        def backward(*arguments):
            *_, residuals, d_out = arguments
            return gradient(residuals, d_out)

        return with_gradient(plain, forward, backward)(*arrays)

    return wrapped


ATTEND = {
    "reference": formula.reference,
    "xla": formula.xla,
    "blockwise": blockwise.attend,
    "cudnn": with_gradient_alone("cudnn", cudnn.attend),
    "pallas_tpu": with_gradient_alone("pallas_tpu", pallas_tpu.attend),
}
_REFUSES = {"cudnn": cudnn.refuses, "pallas_tpu": pallas_tpu.refuses}
IMPLEMENTATIONS = ("auto", *ATTEND)

_log = logging.getLogger(__name__)


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    distance_bias: jax.Array | None = None,
    causal: bool = False,
    query_segment_ids: jax.Array | None = None,
    key_segment_ids: jax.Array | None = None,
    key_lengths: jax.Array | None = None,
    dropout_rate: float = 0.0,
    rng: jax.Array | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    implementation: str = "auto",
) -> jax.Array:
    """softmax(q·k / sqrt(D)) v ("Attention Is All You Need", section 3.2.1).

    If a mesh is set (`jax.set_mesh`), the batch is sharded over its axes `data` and `fsdp` and the
    heads over `tensor`, as far as they divide. Inside `shard_map` and `pmap` the call computes on
    the device's shard.

    Args:
      query: `[B, T, H, D]`.
      key: `[B, S, G, D]`; G divides H, and each key head has H / G consecutive query heads.
      value: `[B, S, G, D]`.
      mask: boolean, True = may attend, broadcastable to `[B, H, T, S]`; all masks are combined.
      bias: added to the scaled scores, broadcastable to `[B, H, T, S]`.
      distance_bias: `[H, T + S - 1]`, finite; query t and key s get the entry `s - t + T - 1`.
      causal: position t sees keys 0 .. t only.
      query_segment_ids: `[B, T]`; with key_segment_ids, attention stays inside a segment.
      key_segment_ids: `[B, S]`; 0 is padding.
      key_lengths: `[B]`; keys from there on are padding.
      dropout_rate: on the weights, with `rng`; its bits are the same in all implementations.
      rng: PRNG key; None means no dropout.
      scale: defaults to 1 / sqrt(D).
      softcap: bound c of the scaled scores x before the bias, as c·tanh(x / c); 0: none.
      implementation: `reference` (all in float32), `xla` (the complete score matrix), `blockwise`
        (memory linear in length), `cudnn` (NVIDIA GPUs, 16 bits), `pallas_tpu` (TPUs), or `auto`
        (the fastest by `table`).

    Returns:
      `[B, T, H, D]` in the type of `query`; rows with nothing to attend to are zeros, and so are
      their gradients.

    Raises:
      ValueError: implementation unknown, shapes or types that do not fit, one segment id alone.
      UnsupportedAttentionError: the implementation cannot compute the call.
    """
    seeds = None if rng is None or dropout_rate == 0.0 else seed_words(rng)
    extras = Extras(
        mask, bias, distance_bias, query_segment_ids, key_segment_ids, key_lengths, seeds
    )
    _check_arguments(query, key, value, extras)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    settings = Settings(causal, scale, dropout_rate, query.shape[2], softcap)
    name = _resolve(implementation, query, key, extras, settings)
    return over_mesh(ATTEND[name])(query, key, value, extras, settings)


def _resolve(
    implementation: str, query: jax.Array, key: jax.Array, extras: Extras, settings: Settings
) -> str:
    """The implementation that computes a call, never `auto`."""
    platform = platforms.current()
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    if implementation == "auto":
        implementation = choose(query, key, extras, settings, platform)
    elif reason := _refusal(implementation, query, key, extras, settings, platform):
        raise UnsupportedAttentionError(
            f"attention={implementation} cannot compute this call: {reason}; use auto"
        )
    call_kind = kind(query, extras, settings)
    _log_once(implementation, platform, query.shape, key.shape, str(query.dtype), call_kind)
    return implementation


def _check_arguments(query: jax.Array, key: jax.Array, value: jax.Array, extras: Extras) -> None:
    for name, x in {"query": query, "key": key, "value": value}.items():
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"{name} must be floating-point, is {x.dtype}")
    if query.ndim != 4 or key.ndim != 4 or key.shape != value.shape:
        raise ValueError(
            f"query must be [B, T, H, D], key and value [B, S, G, D], got {query.shape}, "
            f"{key.shape}, {value.shape}"
        )
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(f"batch or head size differ between {query.shape} and {key.shape}")
    if query.shape[2] % key.shape[2]:
        raise ValueError(f"{key.shape[2]} key heads do not divide {query.shape[2]} query heads")
    if (extras.query_segment_ids is None) != (extras.key_segment_ids is None):
        raise ValueError("query_segment_ids and key_segment_ids go together")
    if extras.mask is not None and extras.mask.dtype != jnp.bool_:
        raise ValueError(
            f"mask must be boolean, True = may attend, is {extras.mask.dtype}; numbers that are "
            "added to scores go into bias"
        )
    (batch, length, heads, _), size = query.shape, key.shape[1]
    require_shapes(
        distance_bias=(extras.distance_bias, (heads, length + size - 1)),
        query_segment_ids=(extras.query_segment_ids, (batch, length)),
        key_segment_ids=(extras.key_segment_ids, (batch, size)),
        key_lengths=(extras.key_lengths, (batch,)),
    )
    scores = batch, heads, length, size
    for name in ("mask", "bias"):
        x = getattr(extras, name)
        if x is not None and not _broadcasts(x.shape, scores):
            raise ValueError(f"{name} must broadcast to {list(scores)}, is {list(x.shape)}")


def _broadcasts(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to `other`; sizes may be symbols of an export."""
    pairs = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) <= len(other) and all(size in (1, full) for size, full in pairs)


def _refusal(
    implementation: str,
    query: jax.Array,
    key: jax.Array,
    extras: Extras,
    settings: Settings,
    platform: str,
) -> str | None:
    """Why an implementation cannot compute a call; None: it can."""
    refuses = _REFUSES.get(implementation)
    return None if refuses is None else refuses(query, key, extras, settings, platform)


def kind(query: jax.Array, extras: Extras, settings: Settings) -> str:
    """Kind of a call in the table: `step`, `packed`, `causal` or `full`."""
    if query.shape[1] == 1:
        return "step"
    if extras.query_segment_ids is not None or extras.mask is not None:
        return "packed"
    return "causal" if settings.causal else "full"


@functools.cache
def table() -> dict:
    """Platform -> kind of call -> rows `[largest S, implementations, fastest first]`, S ascending.

    `benchmarks/attention.py --write_table` measures and writes the rows of its device. Those of CPU
    are measured, those of GPU and TPU are not (`docs/attention.md`).
    """
    text = importlib.resources.files(__package__).joinpath("table.json").read_text(encoding="utf-8")
    return json.loads(text)


def choose(
    query: jax.Array, key: jax.Array, extras: Extras, settings: Settings, platform: str
) -> str:
    """The first implementation in the table's row that can compute the call.

    A platform without rows, such as AMD's GPUs, uses the rows of NVIDIA's GPUs without cuDNN. An
    export may have symbols in the place of lengths; these cannot be cut into blocks.
    """
    if any(map(jax.export.is_symbolic_dim, (*query.shape, *key.shape))):
        return "xla"
    rows = table().get(platform, table()["gpu"])[kind(query, extras, settings)]
    names = next(names for longest, names in rows if longest is None or key.shape[1] <= longest)
    for name in names:
        if _refusal(name, query, key, extras, settings, platform) is None:
            return name
    return "blockwise"


@functools.cache
def _log_once(
    implementation: str,
    platform: str,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    dtype: str,
    call_kind: str,
) -> None:
    _log.info(
        "attention on %s: %s for query %s, key %s, %s, %s",
        platform,
        implementation,
        query_shape,
        key_shape,
        dtype,
        call_kind,
    )
