"""The decoder's weights, laid out for `incremental.decode_step`.

Activations are `[M, N]`, features first, so weights are the left operands of their products,
`[out, in]`. N is the number of hypotheses; the other letters of shapes are those of `layers`.
"""

import math

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.model.transformer import Params
from transformer_jax.ops.norms import NormParams
from transformer_jax.ops.platforms import compute_dtype
from transformer_jax.ops.positional import SINUSOIDS, sinusoid_table


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


def prepare(config: ModelConfig, params: Params) -> DecoderWeights:
    """The decoder's weights in the type of the computation, laid out for `decode_step`.

    Args:
      config: of the model.
      params: of `Transformer`.
    """
    dtype = compute_dtype(config)
    positions = None
    if config.positional in SINUSOIDS:
        positions = jnp.asarray(sinusoid_table(config)).astype(dtype)
    elif config.positional == "learned":
        positions = params["embed_target"]["positions"].astype(dtype)
    return DecoderWeights(
        layers=[
            _prepare_layer(
                params[f"decoder_layers_{i}"], params.get("decoder_position_bias"), dtype
            )
            for i in range(config.num_decoder_layers)
        ],
        table=params["target_embedding"].astype(dtype),
        positions=positions,
        embedding_norm=(
            _prepare_norm(params["embed_target"]["norm"]) if config.embedding_norm else None
        ),
        norm=_prepare_norm(params["decoder_norm"]) if config.norm_position == "pre" else None,
        output=params["output_embedding"].astype(dtype) if "output_embedding" in params else None,
        output_bias=(
            params["output_bias"].astype(jnp.float32)[:, None] if config.output_bias else None
        ),
    )


def _prepare_layer(params: Params, position_bias: Params | None, dtype: jnp.dtype) -> LayerWeights:
    """The weights of a layer; `position_bias` is that of the stack, if its layers share one."""
    self_attention, cross_attention = params["self_attention"], params["cross_attention"]
    position_bias = self_attention.get("position_bias", position_bias)

    def dense(*layers: Params, num_inner: int = 1) -> DenseWeights:
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

    feed_forward = params["feed_forward"]
    return LayerWeights(
        self_query_key_value=dense(*(self_attention[name] for name in ("query", "key", "value"))),
        self_out=dense(self_attention["out"], num_inner=2),
        self_head_norms=head_norms(self_attention),
        self_position_bias=None if position_bias is None else position_bias["table"],
        cross_query=dense(cross_attention["query"]),
        cross_key_value=dense(cross_attention["key"], cross_attention["value"]),
        cross_out=dense(cross_attention["out"], num_inner=2),
        cross_head_norms=head_norms(cross_attention),
        gate=dense(feed_forward["gate"]) if "gate" in feed_forward else None,
        up=dense(feed_forward["up"]),
        down=dense(feed_forward["down"]),
        self_attention_norm=_prepare_norm(params["self_attention_norm"]),
        cross_attention_norm=_prepare_norm(params["cross_attention_norm"]),
        feed_forward_norm=_prepare_norm(params["feed_forward_norm"]),
    )


def _prepare_norm(params: Params) -> NormParams:
    return {name: x[:, None] for name, x in params["norm"].items()}  # --> [M, 1] each
