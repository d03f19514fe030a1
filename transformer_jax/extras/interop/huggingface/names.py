"""Names and layouts of our parameters in Hugging Face's classes, in both directions.

There are two kinds of names: BART's, which Marian, M2M-100, Pegasus and mBART share, and T5's.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.extras.interop.layout import Path, flatten
from transformer_jax.model.transformer import param_shapes


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of the tensors of some classes.

    Attributes:
      shared: table of source and target, where they have one.
      tables: side -> its table, where it is a parameter.
      positions: position tables of encoder and decoder.
      of_layer: name of another parameter by its path; None: it is one of those above.
    """

    shared: str
    tables: dict[str, str]
    positions: tuple[str, ...]
    of_layer: Callable[[Path], str | None]


# tie_embeddings -> sides whose tables are parameters.
TABLES = {
    "all": ("target",),
    "decoder": ("target", "source"),
    "inputs": ("target", "output"),
    "none": ("target", "source", "output"),
}
_MODULES = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "out_proj",
    "up": "fc1",
    "down": "fc2",
}
_PARAMETERS = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_T5_ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
# Feed-forward layers of T5, plain and gated.
_T5_PLAIN = {"up": "wi", "down": "wo"}
_T5_GATED = {"gate": "wi_0", "up": "wi_1", "down": "wo"}

OUTPUT_BIAS = "final_logits_bias"
# Tensors of old files that the classes do not read.
UNREAD = {
    "model.encoder.version",
    "model.decoder.version",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
}
BASE = "model."  # before the names of BART's parts; files of the model without its head lack it


def shapes(config: ModelConfig) -> dict[Path, tuple[int, ...]]:
    """Shape of every parameter of a model."""
    return {path: leaf.shape for path, leaf in flatten(param_shapes(config)).items()}


def layer_tensors(names: Names, config: ModelConfig) -> Iterator[tuple[Path, str, tuple[int, ...]]]:
    """Yields (our path, their name, our shape) of each parameter of layers and norms."""
    for path, shape in shapes(config).items():
        name = names.of_layer(path)
        if name:
            yield path, name, shape


def _bart_name(path: Path) -> str | None:
    stack, _, number = path[0].rpartition("_layers_")
    if stack:
        inner = [_MODULES[part] for part in path[1:-1] if part in _MODULES]
        return ".".join(["model", stack, "layers", number, *inner, _PARAMETERS[path[-1]]])
    if path[0] in ("encoder_norm", "decoder_norm"):
        stack = path[0].removesuffix("_norm")
        return f"model.{stack}.layer_norm.{_PARAMETERS[path[-1]]}"
    if path[1:] and path[1] == "norm":
        stack = {"embed_source": "encoder", "embed_target": "decoder"}[path[0]]
        return f"model.{stack}.layernorm_embedding.{_PARAMETERS[path[-1]]}"
    return None


BART = Names(
    shared="model.shared.weight",
    tables={
        "source": "model.encoder.embed_tokens.weight",
        "target": "model.decoder.embed_tokens.weight",
        "output": "lm_head.weight",
    },
    positions=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
    of_layer=_bart_name,
)


def _t5_names(gated: bool) -> Names:
    feed_forward = _T5_GATED if gated else _T5_PLAIN

    def name(path: Path) -> str | None:
        if path[0].endswith("_position_bias"):
            stack = path[0].removesuffix("_position_bias")
            return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        if path[0] in ("encoder_norm", "decoder_norm"):
            return f"{path[0].removesuffix('_norm')}.final_layer_norm.weight"
        stack, _, number = path[0].rpartition("_layers_")
        if not stack:
            return None
        module = path[1].removesuffix("_norm")
        # The branches of a block, each with its norm.
        last = 1 if stack == "encoder" else 2
        branch = {"self_attention": 0, "cross_attention": 1, "feed_forward": last}[module]
        if path[1].endswith("_norm"):
            inner = "layer_norm"
        elif module == "feed_forward":
            inner = f"DenseReluDense.{feed_forward[path[2]]}"
        else:
            kind = "SelfAttention" if module == "self_attention" else "EncDecAttention"
            inner = f"{kind}.{_T5_ATTENTION[path[2]]}"
        return f"{stack}.block.{number}.layer.{branch}.{inner}.weight"

    return Names(
        shared="shared.weight",
        tables={
            "source": "encoder.embed_tokens.weight",
            "target": "decoder.embed_tokens.weight",
            "output": "lm_head.weight",
        },
        positions=(),
        of_layer=name,
    )


T5_PLAIN, T5_GATED = _t5_names(gated=False), _t5_names(gated=True)


def to_torch(path: Path, value: np.ndarray) -> np.ndarray:
    """A parameter in torch's layout: kernels `[out, in]`, tables unchanged, the others `[size]`.

    Args:
      path: of the parameter.
      value: kernels are `[M, H, D]`, `[H, D, M]` or `[in, out]`.
    """
    value = np.asarray(value, np.float32)
    shape = torch_shape(path, value.shape)
    if path[-1] != "kernel":
        return np.ascontiguousarray(value.reshape(shape))
    return np.ascontiguousarray(value.reshape(shape[::-1]).T)  # --> [out, in]


def from_torch(path: Path, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Inverse of `to_torch`."""
    value = value.T if path[-1] == "kernel" else value
    return np.ascontiguousarray(value.reshape(shape), np.float32)


def torch_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape that `to_torch` gives a parameter of `shape`."""
    size = int(np.prod(shape))
    if path[-1] == "table":
        return shape
    if path[-1] != "kernel":
        return (size,)
    outputs = shape[-1] if path[-2] in ("out", "gate", "up", "down") else size // shape[0]
    return (outputs, size // outputs)
