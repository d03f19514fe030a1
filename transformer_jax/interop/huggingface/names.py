"""Names and layouts of our parameters in BART's family of classes, in both directions."""

from collections.abc import Iterator

import jax
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.interop.layout import Path, flatten
from transformer_jax.model.transformer import init_params

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

SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"
# tie_embeddings -> tables that are parameters, and their names.
EMBEDDINGS = {
    "all": {"target": SHARED},
    "decoder": {"target": TARGET, "source": SOURCE},
    "none": {"target": TARGET, "source": SOURCE, "output": OUTPUT},
}
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
OUTPUT_BIAS = "final_logits_bias"


def shapes(config: ModelConfig) -> dict[Path, tuple[int, ...]]:
    """Shape of every parameter of a model."""
    tree = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    return {path: leaf.shape for path, leaf in flatten(tree).items()}


def layer_tensors(config: ModelConfig) -> Iterator[tuple[Path, str, tuple[int, ...]]]:
    """Yields (our path, their name, our shape) of each parameter of layers and final norms."""
    for path, shape in shapes(config).items():
        name = tensor_name(path)
        if name:
            yield path, name, shape


def tensor_name(path: Path) -> str | None:
    """Hugging Face's name of a parameter; None for embeddings, positions and the output bias."""
    stack, _, number = path[0].rpartition("_layers_")
    if stack:
        inner = [_MODULES[part] for part in path[1:-1] if part in _MODULES]
        return ".".join(["model", stack, "layers", number, *inner, _PARAMETERS[path[-1]]])
    if path[0] in ("encoder_norm", "decoder_norm"):
        stack = path[0].removesuffix("_norm")
        return f"model.{stack}.layer_norm.{_PARAMETERS[path[-1]]}"
    return None


def to_torch(path: Path, value: np.ndarray, bias_size: int) -> np.ndarray:
    """A parameter in torch's layout: kernels `[out, in]`, the others `[size]`.

    Args:
      path: of the parameter.
      value: kernels are `[M, H, D]`, `[H, D, M]` or `[in, out]`.
      bias_size: number of outputs of a kernel.
    """
    value = np.asarray(value, np.float32)
    if path[-1] != "kernel":
        return np.ascontiguousarray(value.reshape(-1))
    return np.ascontiguousarray(value.reshape(-1, bias_size).T)  # --> [out, in]


def from_torch(path: Path, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Inverse of `to_torch`."""
    value = value.T if path[-1] == "kernel" else value
    return np.ascontiguousarray(value.reshape(shape), np.float32)


def torch_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape that `to_torch` gives a parameter of `shape`."""
    size = int(np.prod(shape))
    if path[-1] != "kernel":
        return (size,)
    outputs = shape[-1] if path[-2] in ("out", "up", "down") else size // shape[0]
    return (outputs, size // outputs)
