"""Low-rank adapters of dense layers (LoRA, Hu et al., 2021).

A run with `train.lora_rank` keeps the parameters of the model as they are and trains two matrices
for each kernel `W`, which the model then has as `W + lora_alpha / lora_rank * A B`. The products
are added before the model reads its parameters, so its modules are the same. A step takes as long
as one that trains the kernels; it needs less memory, because only adapters have gradients at its
end and an optimizer state.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.config import TrainConfig

PyTree = Any  # of arrays, or of their shapes
BASE, ADAPTERS = "base", "lora"  # parts of the parameters of a run with adapters


def add_adapters(params: PyTree, rank: int, rng: jax.Array) -> dict[str, PyTree]:
    """The parameters of a run with adapters, which change nothing yet: `B` is 0.

    Args:
      params: of the model.
      rank: columns of `A` `[inner, rank]`, and rows of `B` `[rank, outer]`.
      rng: key of `A`, whose numbers have variance 1 / inner.
    """
    return {BASE: params, ADAPTERS: _adapters(params, rank, rng)}


def _adapters(params: PyTree, rank: int, rng: jax.Array, module: str = "") -> PyTree:
    """`A` and `B` in the place of each kernel in the part of `params` that has this name."""
    adapters = {}
    for i, (name, part) in enumerate(sorted(params.items())):
        part_rng = jax.random.fold_in(rng, i)
        if name == "kernel":
            inner, outer = _sizes(module, part.shape)
            a = jax.random.normal(part_rng, (inner, rank), part.dtype) * inner**-0.5
            adapters[name] = {"a": a, "b": jnp.zeros((rank, outer), part.dtype)}
        elif isinstance(part, dict) and (below := _adapters(part, rank, part_rng, name)):
            adapters[name] = below
    return adapters


def _sizes(module: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Inputs and outputs of a kernel; that of attention's output has the inputs `[H, D]`."""
    num_inner = 2 if module == "out" else 1
    return math.prod(shape[:num_inner]), math.prod(shape[num_inner:])


def merge(params: dict[str, PyTree], config: TrainConfig) -> PyTree:
    """The parameters of the model.

    Args:
      params: of `add_adapters`.
      config: with the factor of the products.
    """
    return _merged(params[BASE], params[ADAPTERS], config.lora_alpha / config.lora_rank)


def _merged(base: PyTree, adapters: PyTree, scale: float) -> PyTree:
    if not isinstance(base, dict):
        # As exact on every device as the kernel, however the device multiplies by default.
        product = jnp.matmul(adapters["a"], adapters["b"], precision=jax.lax.Precision.HIGHEST)
        return base + scale * product.reshape(base.shape)
    return {
        name: _merged(part, adapters[name], scale) if name in adapters else part
        for name, part in base.items()
    }
