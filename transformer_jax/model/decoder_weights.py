"""The decoder's weights, laid out for `incremental.decode_step`.

Activations are `[M, N]`, features first, so weights are the left operands of their products,
`[out, in]`. N is the number of hypotheses; the other letters of shapes are those of `layers`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model.choices import NormParams, compute_dtype, sinusoid_table
from transformer_jax.model.transformer import Params, param_shapes
from transformer_jax.ops.positional import SINUSOIDS

PyTree = Any


@flax.struct.dataclass
class DenseWeights:
    """One product for one or several dense layers, whose outputs follow each other."""

    kernel: jax.Array  # [out, in]
    bias: jax.Array | None  # [out, 1]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[in, N]` to `[out, N]`."""
        return self.kernel @ x if self.bias is None else self.kernel @ x + self.bias


@flax.struct.dataclass
class HeadNorms:
    """Scales of `config.qk_norm`, `[D]` each."""

    query: jax.Array
    key: jax.Array


@flax.struct.dataclass
class LayerWeights:
    """Weights of one decoder layer; the parameters of norms are `[M, 1]`."""

    self_query_key_value: DenseWeights  # M -> (H + 2·G)·D
    self_out: DenseWeights  # H·D -> M
    self_head_norms: HeadNorms | None
    self_position_bias: jax.Array | None  # [buckets, H] of relative positions
    cross_query: DenseWeights  # M -> H·D
    cross_key_value: DenseWeights  # M -> 2·G·D
    cross_out: DenseWeights  # H·D -> M
    cross_head_norms: HeadNorms | None
    gate: DenseWeights | None  # M -> F
    up: DenseWeights  # M -> F
    down: DenseWeights  # F -> M
    self_attention_norm: NormParams
    cross_attention_norm: NormParams
    feed_forward_norm: NormParams


@flax.struct.dataclass
class DecoderWeights:
    """The decoder's weights in the type of the computation."""

    layers: list[LayerWeights]
    table: jax.Array  # [V, M], of the target tokens
    positions: jax.Array | None  # [max_len, M]; None where nothing is added
    embedding_norm: NormParams | None  # [M, 1]
    norm: NormParams | None  # after the last layer of a pre-norm model, [M, 1]
    output: jax.Array | None  # [V, M]; None: `table`
    output_bias: jax.Array | None  # [V, 1] float32

    @property
    def output_table(self) -> jax.Array:
        """Projection to the vocabulary, `[V, M]`."""
        return self.table if self.output is None else self.output


@flax.struct.dataclass
class InferenceParams:
    """A model's parameters as search and scores read them; each number is there once."""

    others: Params  # parameters of `Transformer` that are not the decoder's alone
    decoder: DecoderWeights  # it shares its tables with `others`


# Field of `LayerWeights` -> the module of its dense layers, these, and their number of inner axes.
_PRODUCTS = {
    "self_query_key_value": ("self_attention", ("query", "key", "value"), 1),
    "self_out": ("self_attention", ("out",), 2),
    "cross_query": ("cross_attention", ("query",), 1),
    "cross_key_value": ("cross_attention", ("key", "value"), 1),
    "cross_out": ("cross_attention", ("out",), 2),
    "gate": ("feed_forward", ("gate",), 1),
    "up": ("feed_forward", ("up",), 1),
    "down": ("feed_forward", ("down",), 1),
}
_NORMS = "self_attention_norm", "cross_attention_norm", "feed_forward_norm"


def for_inference(
    config: ModelConfig,
    params: Params,
    place: Callable[[str, PyTree], PyTree] = lambda name, part: part,
) -> InferenceParams:
    """Parameters in the type of the computation, the decoder's laid out for `decode_step`.

    One layer is converted after the other, so `params` and the result need little more memory than
    one of the two, unless the caller holds the arrays too.

    Args:
      config: of the model.
      params: of `Transformer`. It is emptied.
      place: puts the part of this name of `params` on the devices, and a table of sinusoids.
    """
    dtype = compute_dtype(config)

    def take(name: str) -> PyTree:
        return place(name, params.pop(name)) if name in params else None

    shared_bias = take("decoder_position_bias")
    layers: list[LayerWeights] = []
    for i in range(config.num_decoder_layers):
        layer = _prepare_layer(take(f"decoder_layers_{i}"), shared_bias, dtype)
        layers.append(jax.block_until_ready(layer))  # which frees what it was made of
    embed, norm = take("embed_target"), take("decoder_norm")
    others: Params = {}
    for name in list(params):
        part = take(name)
        # Layers share a program: only of a table does the type depend on this name.
        part = _rounded(part, "" if isinstance(part, dict) else name, dtype)
        others[name] = jax.block_until_ready(part)
    positions = None
    if config.positional in SINUSOIDS:
        positions = place("positions", jnp.asarray(sinusoid_table(config)).astype(dtype))
    elif config.positional == "learned":
        assert embed is not None
        positions = embed["positions"].astype(dtype)
    decoder = DecoderWeights(
        layers=layers,
        table=others["target_embedding"],
        positions=positions,
        embedding_norm=_prepare_norm(embed["norm"]) if embed and config.embedding_norm else None,
        norm=None if norm is None else _prepare_norm(norm),
        output=others.get("output_embedding"),
        output_bias=others["output_bias"][:, None] if config.output_bias else None,
    )
    return InferenceParams(others, decoder)


def prepare(config: ModelConfig, params: Params) -> DecoderWeights:
    """The decoder's weights of `for_inference`; `params` stays as it is."""
    return for_inference(config, dict(params)).decoder


@functools.partial(jax.jit, static_argnames="dtype")
def _prepare_layer(params: Params, position_bias: Params | None, dtype: jnp.dtype) -> LayerWeights:
    """The weights of a layer; `position_bias` is that of the stack, if its layers share one."""

    def dense(module: str, names: tuple[str, ...], num_inner: int) -> DenseWeights | None:
        layers = [params[module][name] for name in names if name in params[module]]
        if not layers:
            return None
        inner = math.prod(layers[0]["kernel"].shape[:num_inner])
        kernels = [p["kernel"].reshape(inner, -1).T for p in layers]  # --> [out, in] each
        biases = [p["bias"].reshape(-1, 1) for p in layers if "bias" in p]  # --> [out, 1] each
        return DenseWeights(
            jnp.concatenate(kernels).astype(dtype),
            jnp.concatenate(biases).astype(dtype) if biases else None,
        )

    def head_norms(attention: Params) -> HeadNorms | None:
        if "query_norm" not in attention:
            return None
        return HeadNorms(attention["query_norm"]["scale"], attention["key_norm"]["scale"])

    self_attention = params["self_attention"]
    position_bias = self_attention.get("position_bias", position_bias)
    products: dict[str, Any] = {field: dense(*product) for field, product in _PRODUCTS.items()}
    layer_norms: dict[str, Any] = {name: _prepare_norm(params[name]) for name in _NORMS}
    return LayerWeights(
        **products,
        **layer_norms,
        self_head_norms=head_norms(self_attention),
        cross_head_norms=head_norms(params["cross_attention"]),
        self_position_bias=None if position_bias is None else position_bias["table"],
    )


def _prepare_norm(params: Params) -> NormParams:
    return {name: x[:, None] for name, x in params["norm"].items()}  # --> [M, 1] each


@functools.partial(jax.jit, static_argnames=("name", "dtype"))
def _rounded(part: PyTree, name: str, dtype: jnp.dtype) -> PyTree:
    """A part of the parameters of this name; what the model rounds before its use, rounded."""

    def rounded(path: jax.tree_util.KeyPath, x: jax.Array) -> jax.Array:
        return x.astype(dtype) if is_rounded((name, *(key.key for key in path))) else x

    return jax.tree.map_with_path(rounded, part)


def is_rounded(path: Sequence[str]) -> bool:
    """Whether the model rounds a parameter to the type of the computation before its use.

    It reads parameters of norms, and biases of attention and logits, as float32.

    Args:
      path: names of its modules, and its own.
    """
    *modules, name = path
    is_bias = name == "bias" and modules[-1:] != ["norm"]
    return name in ("kernel", "positions") or name.endswith("_embedding") or is_bias


def inference_shapes(config: ModelConfig) -> Params:
    """A `jax.ShapeDtypeStruct` for each parameter, in the type in which the model uses it."""
    dtype = compute_dtype(config)

    def shape(path: jax.tree_util.KeyPath, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        is_in_dtype = is_rounded([key.key for key in path])
        return jax.ShapeDtypeStruct(x.shape, dtype if is_in_dtype else x.dtype)

    return jax.tree.map_with_path(shape, param_shapes(config))


@functools.partial(jax.jit, static_argnames="config")
def restore(config: ModelConfig, model: InferenceParams) -> Params:
    """The parameters of `Transformer` that `for_inference` was given, as it has rounded them."""
    shapes, decoder = param_shapes(config), model.decoder
    params = dict(model.others)
    for i, layer in enumerate(decoder.layers):
        params[f"decoder_layers_{i}"] = _restore_layer(layer, shapes[f"decoder_layers_{i}"])
    if "decoder_position_bias" in shapes:
        params["decoder_position_bias"] = {"table": decoder.layers[0].self_position_bias}
    if "embed_target" in shapes:
        embed: Params = {"positions": decoder.positions, "norm": decoder.embedding_norm}
        params["embed_target"] = {
            name: _restore_norm(embed[name]) if name == "norm" else embed[name]
            for name in shapes["embed_target"]
        }
    if decoder.norm is not None:
        params["decoder_norm"] = _restore_norm(decoder.norm)
    return params


def _restore_layer(layer: LayerWeights, shapes: Params) -> Params:
    """Inverse of `_prepare_layer`, whose parameters have these shapes."""
    params: Params = {name: dict(part) for name, part in shapes.items()}
    for field, (module, names, num_inner) in _PRODUCTS.items():
        product, first = getattr(layer, field), 0
        for name in names if product is not None else ():
            shape = shapes[module][name]["kernel"].shape
            outputs = slice(first, first := first + math.prod(shape[num_inner:]))
            params[module][name] = {"kernel": product.kernel[outputs].T.reshape(shape)}
            if product.bias is not None:
                params[module][name]["bias"] = product.bias[outputs].reshape(shape[num_inner:])
    for module, norms in (
        ("self_attention", layer.self_head_norms),
        ("cross_attention", layer.cross_head_norms),
    ):
        if norms is not None:
            params[module] |= {"query_norm": {"scale": norms.query}}
            params[module] |= {"key_norm": {"scale": norms.key}}
    if "position_bias" in params["self_attention"]:
        params["self_attention"]["position_bias"] = {"table": layer.self_position_bias}
    return params | {name: _restore_norm(getattr(layer, name)) for name in _NORMS}


def _restore_norm(weights: NormParams) -> Params:
    return {"norm": {name: x[:, 0] for name, x in weights.items()}}
