"""The decoder one position at a time: `prepare`, `init_cache`, `decode_step`, `grow_cache`.

The same function as `Transformer.decode`, arranged for few rows and large weights: weights are laid
out once as the left operand of their products, `[out, in]`, and activations are `[M, N]`, features
first, so that a weight is read as it lies in memory and never copied.

Beams are not moved in memory. Every beam of a sentence writes its key and value into a slot of its
own at each position, all beams are queries over all slots, and `ancestors` says which slots are a
beam's past; reordering beams reorders those few integers. Independent hypotheses (samples, greedy
search) are never reordered: each has a cache row of its own and reads nothing else.
"""

from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model.layers import ACTIVATIONS, compute_dtype
from transformer_jax.model.transformer import position_table
from transformer_jax.ops import positional
from transformer_jax.ops.attention.softmax import exponentials, hiding

Tree = dict[str, Any]


def prepare(config: ModelConfig, params: Tree) -> Tree:
    """The decoder's weights in the type of the computation, laid out for `decode_step`.

    Args:
      config: of the model.
      params: of `Transformer`.
    """
    dtype = compute_dtype(config)

    def dense(*parts: Tree) -> Tree:
        """One product for all parts, whose outputs follow each other."""
        kernels, biases = [], []
        for part in parts:
            width = part["bias"].size
            kernels.append(part["kernel"].reshape(-1, width).T)
            biases.append(part["bias"].reshape(width, 1))
        return {
            "kernel": jnp.concatenate(kernels).astype(dtype),  # [out, in]
            "bias": jnp.concatenate(biases).astype(dtype),  # [out, 1]
        }

    def norm(part: Tree) -> Tree:
        return {name: part["norm"][name][:, None] for name in ("scale", "bias")}  # [M, 1]

    layers = []
    for number in range(config.num_decoder_layers):
        layer = params[f"decoder_layers_{number}"]
        own, cross = layer["self_attention"], layer["cross_attention"]
        feed = layer["feed_forward"]
        layers.append({
            "self": dense(own["query"], own["key"], own["value"]),
            "self_out": dense(own["out"]),
            "cross": dense(cross["query"]),
            "source": dense(cross["key"], cross["value"]),
            "cross_out": dense(cross["out"]),
            "up": dense(feed["up"]),
            "down": dense(feed["down"]),
            **{f"{n}_norm": norm(layer[f"{n}_norm"])
               for n in ("self_attention", "cross_attention", "feed_forward")},
        })  # fmt: skip
    weights: Tree = {"layers": layers, "table": params["target_embedding"].astype(dtype)}
    if config.positional in positional.SINUSOIDS:
        weights["positions"] = jnp.asarray(position_table(config)).astype(dtype)
    elif config.positional == "learned":
        weights["positions"] = params["embed_target"]["positions"].astype(dtype)
    if config.norm_position == "pre":
        weights["norm"] = norm(params["decoder_norm"])
    if config.tie_embeddings == "none":
        weights["output"] = params["output_embedding"].astype(dtype)
    if config.output_bias:
        weights["output_bias"] = params["output_bias"].astype(jnp.float32)[:, None]
    return weights


def init_cache(
    config: ModelConfig,
    weights: Tree,
    encoded: jax.Array,
    source_mask: jax.Array,
    num_beams: int,
    size: int,
    coverage: bool = False,
    independent: bool = False,
) -> Tree:
    """Cache before the first step.

    Args:
      config: of the model.
      weights: from `prepare`.
      encoded: `[B, S, M]`.
      source_mask: `[B, S]` boolean, True where `encoded` is no padding.
      num_beams: hypotheses a sentence, K.
      size: positions the cache holds, T.
      coverage: add up the last layer's attention to the source, averaged over heads.
      independent: hypotheses are never reordered.

    Returns:
      `index` (positions written so far), `ancestors` `[B, K, T]` (whose slot holds a position of
      this beam), `self` (per layer key `[B, H, D, T·K]` and value `[B, H, T·K, D]`), `cross` (per
      layer key `[B, H, D, S]` and value `[B, H, S, D]`, computed once), `source_mask`, and
      `coverage` `[B, K, S]` where asked for. Independent hypotheses have no `ancestors`, and `self`
      as B·K sentences of one beam: key `[B·K, H, D, T]` and value `[B·K, H, T, D]`.
    """
    config = config.for_decoder()
    heads, dim = config.num_heads, config.resolved_head_dim
    rows, length = source_mask.shape
    dtype = compute_dtype(config)
    cross = []
    for layer in weights["layers"]:
        source = layer["source"]
        both = jnp.einsum("bsm,nm->bsn", encoded.astype(dtype), source["kernel"])
        both = (both + source["bias"][:, 0]).reshape(rows, length, 2, heads, dim)
        cross.append({
            "key": both[:, :, 0].transpose(0, 2, 3, 1),
            "value": both[:, :, 1].transpose(0, 2, 1, 3),
        })  # fmt: skip
    own_rows, slots = (rows * num_beams, 1) if independent else (rows, num_beams)
    empty = {
        "key": jnp.zeros((own_rows, heads, dim, size * slots), dtype),
        "value": jnp.zeros((own_rows, heads, size * slots, dim), dtype),
    }
    cache = {
        "index": jnp.zeros((), jnp.int32),
        "self": [dict(empty) for _ in weights["layers"]],
        "cross": cross,
        "source_mask": source_mask,
    }
    if not independent:
        cache["ancestors"] = jnp.zeros((rows, num_beams, size), jnp.int32)
    if coverage:
        cache["coverage"] = jnp.zeros((rows, num_beams, length), jnp.float32)
    return cache


def grow_cache(cache: Tree, size: int) -> Tree:
    """The same with room for `size` positions."""
    slots = cache["ancestors"].shape[1] if "ancestors" in cache else 1
    old = cache["self"][0]["value"].shape[2] // slots

    def pad(x, axis, more):
        return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)])

    more = size - old
    grown: Tree = {
        "self": [
            {"key": pad(c["key"], 3, more * slots), "value": pad(c["value"], 2, more * slots)}
            for c in cache["self"]
        ]
    }
    if "ancestors" in cache:
        grown["ancestors"] = pad(cache["ancestors"], 2, more)
    return {**cache, **grown}


def reorder_cache(cache: Tree, parents: jax.Array) -> Tree:
    """Makes beam k of each sentence what beam `parents[b, k]` was; not for independent ones."""
    if "ancestors" not in cache:
        raise ValueError("independent hypotheses cannot be reordered")
    moved: Tree = {}
    for name in ("ancestors", "coverage"):
        if name in cache:
            moved[name] = jnp.take_along_axis(cache[name], parents[:, :, None], axis=1)
    return {**cache, **moved}


def decode_step(
    config: ModelConfig, weights: Tree, cache: Tree, tokens: jax.Array
) -> tuple[jax.Array, Tree]:
    """Logits of the next token.

    Args:
      config: of the model.
      weights: from `prepare`.
      cache: of B sentences and K beams.
      tokens: `[B·K]`, the last of each hypothesis.

    Returns:
      `[V, B·K]` float32, and the new cache.
    """
    config = config.for_decoder()
    index = cache["index"]
    rows = cache["source_mask"].shape[0]
    new_cache = {**cache, "index": index + 1}
    if "ancestors" in cache:
        own_rows = rows
        _, slots, size = cache["ancestors"].shape
        ancestors = cache["ancestors"].at[:, :, index].set(jnp.arange(slots))
        is_past = (jnp.arange(size) <= index)[:, None]
        is_own = ancestors[..., None] == jnp.arange(slots)
        is_past = (is_past & is_own).reshape(rows, 1, slots, size * slots)
        new_cache["ancestors"] = ancestors
    else:
        own_rows, slots = tokens.shape[0], 1
        is_past = jnp.arange(cache["self"][0]["value"].shape[2]) <= index
    own_bias = hiding(is_past)
    source_bias = hiding(cache["source_mask"][:, None, None, :])

    x = weights["table"][tokens]  # --> [N, M]
    if config.scale_embeddings:
        x = x * jnp.asarray(config.d_model**0.5, x.dtype)
    if "positions" in weights:
        x = x + weights["positions"][index]
    x = jax.lax.optimization_barrier(x.T)  # --> [M, N]

    new_self: list[Tree] = []
    attention: Any = None
    for layer, own, cross in zip(weights["layers"], cache["self"], cache["cross"], strict=True):

        def attend_self(h, layer=layer, own=own):
            query, key, value = _heads(config, _dense(layer["self"], h), own_rows, 3)
            if config.positional == "rotary":
                query, key = (
                    positional.apply_rotary(y, index[None, None], config.positional_base)
                    for y in (query, key)
                )
            start = index * slots
            new_self.append({
                "key": jax.lax.dynamic_update_slice_in_dim(
                    own["key"], key.swapaxes(2, 3), start, axis=3),
                "value": jax.lax.dynamic_update_slice_in_dim(
                    own["value"], value, start, axis=2),
            })  # fmt: skip
            out, _ = _attend(query, new_self[-1], own_bias, may_be_empty=False)
            return _dense(layer["self_out"], out)

        def attend_source(h, layer=layer, cross=cross):
            nonlocal attention
            (query,) = _heads(config, _dense(layer["cross"], h), rows, 1)
            out, attention = _attend(query, cross, source_bias)
            return _dense(layer["cross_out"], out)

        def feed_forward(h, layer=layer):
            return _dense(layer["down"], ACTIVATIONS[config.activation](_dense(layer["up"], h)))

        x = _residual(config, x, layer["self_attention_norm"], attend_self)
        x = _residual(config, x, layer["cross_attention_norm"], attend_source)
        x = _residual(config, x, layer["feed_forward_norm"], feed_forward)
    if "norm" in weights:
        x = _norm(config, weights["norm"], x)
    output = weights["output" if "output" in weights else "table"]
    logits = jnp.matmul(output, x, preferred_element_type=jnp.float32)
    if "output_bias" in weights:
        logits = logits + weights["output_bias"]
    new_cache["self"] = new_self
    if "coverage" in cache:
        exps, total = attention
        new_cache["coverage"] = cache["coverage"] + jnp.mean(exps / total, axis=1)
    return logits, new_cache


def _dense(part: Tree, x: jax.Array) -> jax.Array:
    return part["kernel"] @ x + part["bias"]


def _norm(config: ModelConfig, part: Tree, x: jax.Array) -> jax.Array:
    """LayerNorm over the features `[M, N]`, in float32."""
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=0, keepdims=True)
    variance = jnp.mean(y * y, axis=0, keepdims=True)
    y = y * jax.lax.rsqrt(variance + config.norm_epsilon) * part["scale"] + part["bias"]
    return y.astype(x.dtype)


def _residual(config: ModelConfig, x: jax.Array, norm: Tree, branch: Any) -> jax.Array:
    if config.norm_position == "pre":
        return x + branch(_norm(config, norm, x))
    return _norm(config, norm, x + branch(x))


def _heads(config: ModelConfig, x: jax.Array, rows: int, count: int) -> list[jax.Array]:
    """`count` arrays `[B, H, K, D]` of `x` `[count·H·D, B·K]`."""
    x = x.reshape(count, config.num_heads, config.resolved_head_dim, rows, -1)
    return list(x.transpose(0, 3, 1, 4, 2))


def _attend(
    query: jax.Array, cache: Tree, bias: jax.Array | None, may_be_empty: bool = True
) -> tuple[jax.Array, Any]:
    """Attention of `query` `[B, H, K, D]` as `[H·D, B·K]`, and its weights as a fraction."""
    key, value = cache["key"], cache["value"]
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    scores = jnp.einsum("bhkd,bhds->bhks", query, key, preferred_element_type=jnp.float32)
    exps, total = exponentials(scores, bias, may_be_empty)
    out = jnp.einsum(
        "bhks,bhsd->bhkd", exps.astype(value.dtype), value, preferred_element_type=jnp.float32
    )
    out = (out / total).astype(value.dtype).transpose(1, 3, 0, 2)
    return out.reshape(out.shape[0] * out.shape[1], -1), (exps, total)
