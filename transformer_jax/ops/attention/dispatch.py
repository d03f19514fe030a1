"""`dot_product_attention`: one call, served by the implementation that fits it best."""

import functools
import importlib.resources
import json
import logging

import jax

from transformer_jax.errors import UserError
from transformer_jax.ops import platforms
from transformer_jax.ops.attention import blockwise, cudnn, formula, pallas_tpu
from transformer_jax.ops.attention.call import Extras, Settings
from transformer_jax.ops.attention.sharding import over_mesh
from transformer_jax.ops.dropout import seed_words

_ATTEND = {
    "reference": formula.reference,
    "xla": formula.xla,
    "blockwise": blockwise.attend,
    "cudnn": cudnn.attend,
    "pallas_tpu": pallas_tpu.attend,
}
_REFUSES = {"cudnn": cudnn.refuses, "pallas_tpu": pallas_tpu.refuses}
IMPLEMENTATIONS = ("auto", *_ATTEND)

_log = logging.getLogger(__name__)


class UnsupportedAttentionError(UserError, ValueError):
    """The implementation that was named cannot serve the call."""


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    causal: bool = False,
    query_segment_ids: jax.Array | None = None,
    key_segment_ids: jax.Array | None = None,
    key_lengths: jax.Array | None = None,
    dropout_rate: float = 0.0,
    rng: jax.Array | None = None,
    scale: float | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """softmax(q·k / sqrt(D)) v ("Attention Is All You Need", section 3.2.1).

    Where a mesh is set (`jax.set_mesh`), the batch is taken as sharded over its axes `data` and
    `fsdp` and the heads over `tensor`, as far as they divide; inside `shard_map` and `pmap` the
    call works on what the device holds.

    Args:
      query: `[B, T, H, D]`.
      key: `[B, S, G, D]`, G dividing H: each key head serves H / G query heads in a row.
      value: `[B, S, G, D]`.
      mask: boolean, True = may attend, broadcastable to `[B, H, T, S]`; all masks hold together.
      bias: added to the scaled scores, broadcastable to `[B, H, T, S]`.
      causal: position t sees keys 0 .. t only.
      query_segment_ids: `[B, T]`; with key_segment_ids, attention stays inside a segment.
      key_segment_ids: `[B, S]`; 0 is padding.
      key_lengths: `[B]`; keys from there on are padding.
      dropout_rate: on the weights, with `rng`; the same bits whatever the implementation.
      rng: PRNG key; None means no dropout.
      scale: defaults to 1 / sqrt(D).
      implementation: `reference` (float32 throughout), `xla` (the whole score matrix),
        `blockwise` (memory linear in length), `cudnn` (NVIDIA GPUs, 16 bits), `pallas_tpu` (TPUs),
        or `auto`: the first that can serve, of a table by device, kind of mask and number of keys;
        its rows for CPU are measured, those for GPU and TPU are not.

    Returns:
      `[B, T, H, D]` in the type of `query`; rows with nothing to attend to are zeros, and so are
      their gradients.

    Raises:
      ValueError: unknown implementation, shapes that do not fit, only one of the two segment ids.
      UnsupportedAttentionError: the implementation named cannot serve the call; it says why.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation must be one of {IMPLEMENTATIONS}, got {implementation!r}")
    _check_shapes(query, key, value)
    if (query_segment_ids is None) != (key_segment_ids is None):
        raise ValueError("query_segment_ids and key_segment_ids go together")
    seeds = None if rng is None or dropout_rate == 0.0 else seed_words(rng)
    extras = Extras(mask, bias, query_segment_ids, key_segment_ids, key_lengths, seeds)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    settings = Settings(causal, scale, dropout_rate, query.shape[2])
    platform = platforms.current()
    if implementation == "auto":
        implementation = choose(query, key, extras, settings, platform)
    elif reason := _refusal(implementation, query, key, extras, settings, platform):
        raise UnsupportedAttentionError(
            f"attention={implementation} cannot serve this call: {reason}; use auto"
        )
    what = kind(query, extras, settings)
    _log_once(implementation, platform, query.shape, key.shape, str(query.dtype), what)
    return over_mesh(_ATTEND[implementation])(query, key, value, extras, settings)


def _check_shapes(query, key, value) -> None:
    if query.ndim != 4 or key.ndim != 4 or key.shape != value.shape:
        raise ValueError(
            f"query must be [B, T, H, D], key and value [B, S, G, D], got {query.shape}, "
            f"{key.shape}, {value.shape}"
        )
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(f"batch or head size differ between {query.shape} and {key.shape}")
    if query.shape[2] % key.shape[2]:
        raise ValueError(f"{key.shape[2]} key heads do not divide {query.shape[2]} query heads")


def _refusal(implementation, query, key, extras, settings, platform) -> str | None:
    refuses = _REFUSES.get(implementation)
    return None if refuses is None else refuses(query, key, extras, settings, platform)


def kind(query: jax.Array, extras: Extras, settings: Settings) -> str:
    """The table's name for a kind of call: `step`, `packed`, `causal` or `full`."""
    if query.shape[1] == 1:
        return "step"
    if extras.query_segment_ids is not None or extras.mask is not None:
        return "packed"
    return "causal" if settings.causal else "full"


@functools.cache
def table() -> dict:
    """Platform -> kind -> rows `[largest S, implementations, best first]`, by rising S.

    `benchmarks/attention.py --write_table` writes the rows of the device it ran on;
    `docs/attention.md` says which have been measured.
    """
    text = importlib.resources.files(__package__).joinpath("table.json").read_text()
    return json.loads(text)


def choose(query, key, extras: Extras, settings: Settings, platform: str) -> str:
    """The first implementation of the table's row for this call that can serve it.

    A platform without rows, such as AMD's GPUs, takes those for NVIDIA's, but for cuDNN.
    """
    rows = table().get(platform, table()["gpu"])[kind(query, extras, settings)]
    names = next(names for longest, names in rows if longest is None or key.shape[1] <= longest)
    for name in names:
        if _refusal(name, query, key, extras, settings, platform) is None:
            return name
    return "blockwise"


@functools.cache
def _log_once(implementation, platform, query_shape, key_shape, dtype, what) -> None:
    _log.info(
        "attention on %s: %s for query %s, key %s, %s, %s",
        platform, implementation, query_shape, key_shape, dtype, what,
    )  # fmt: skip
