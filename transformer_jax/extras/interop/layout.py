"""Parameter trees by path, their model dimension, and their position tables."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from transformer_jax.config import ModelConfig
from transformer_jax.model.choices import sinusoid_table
from transformer_jax.model.transformer import Params

Path = tuple[str, ...]
# (module, parameter) -> axis of the model dimension; other parameters have none.
MODEL_AXIS: dict[Path, int] = {
    ("query", "kernel"): 0,
    ("key", "kernel"): 0,
    ("value", "kernel"): 0,
    ("out", "kernel"): 2,
    ("out", "bias"): 0,
    ("up", "kernel"): 0,
    ("down", "kernel"): 1,
    ("down", "bias"): 0,
    ("norm", "scale"): 0,
    ("norm", "bias"): 0,
}
# Parameters [vocabulary or positions, M].
TABLES = ("source_embedding", "target_embedding", "output_embedding", "positions")


def flatten(params: Params) -> dict[Path, Any]:
    """Leaves by path, such as `("encoder_norm", "norm", "scale")`."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {tuple(key.key for key in path): leaf for path, leaf in leaves}


def unflatten(leaves: Mapping[Path, ArrayLike]) -> Params:
    """Inverse of `flatten`."""
    tree: Params = {}
    for path, leaf in leaves.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = leaf
    return tree


def put(value: np.ndarray, target: jax.ShapeDtypeStruct) -> jax.Array:
    """A parameter on the devices. Each process puts its shards there, without communication."""
    if target.sharding is None:
        return jnp.asarray(value, target.dtype)
    value = np.asarray(value, target.dtype)
    return jax.make_array_from_callback(value.shape, target.sharding, value.__getitem__)


def permute_model(params: Params, order: np.ndarray) -> Params:
    """The same model with its model dimension in another order: new `i` is old `order[i]`.

    Every layer reads and writes the residual stream, and norms treat all dimensions alike. So
    outputs change only by the rounding of sums in another order.
    """
    return unflatten({path: permute(path, leaf, order) for path, leaf in flatten(params).items()})


def permute(path: Path, leaf: np.ndarray, order: np.ndarray) -> np.ndarray:
    """One parameter of `permute_model`."""
    axis = 1 if path[-1] in TABLES else MODEL_AXIS.get(path[-2:])
    return leaf if axis is None else np.take(np.asarray(leaf), order, axis)


def interleaved_to_halves(d_model: int) -> np.ndarray:
    """Order that turns `interleaved` sinusoids into `halves`: sines first, then cosines."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])


def position_tables(config: ModelConfig, params: Params) -> tuple[np.ndarray, np.ndarray] | None:
    """Vectors added at each position of source and target, each `[max_len, M]`.

    None for positions that attention applies: nothing is added.
    """
    if config.positional in ("rotary", "relative", "alibi"):
        return None
    if config.positional == "learned":
        source, target = (params[f"embed_{side}"]["positions"] for side in ("source", "target"))
        return np.asarray(source), np.asarray(target)
    if config.positional == "none":
        table = np.zeros((config.max_len, config.d_model), np.float32)
    else:
        table = sinusoid_table(config)
    return table, table
