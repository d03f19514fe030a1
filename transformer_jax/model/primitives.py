"""Modules that own parameters or random bits: dense layers, norms and dropout.

They call the pure functions of `transformer_jax.ops` and name the axes of their parameters. Those
replace Flax's for two reasons: `ops.dense` accumulates gradients of parameters in float32, and the
random bits of `ops.dropout` cost almost nothing.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Initializer

from transformer_jax.config import ModelConfig
from transformer_jax.model import choices
from transformer_jax.ops import norms
from transformer_jax.ops.dense import dense
from transformer_jax.ops.dropout import dropout

Axes = tuple[tuple[str, int], ...]  # logical name (see `with_axes`) and size of each axis


def with_axes(init: Initializer, *names: str) -> Initializer:
    """`init` in float32 with a logical name for each axis of the parameter.

    Names are `embed` (M), `heads` (H or G), `kv` (D), `mlp` (F), `vocab` (V), `positions` and
    `buckets`.
    `training.partition.RULES` maps them to the axes of the mesh.
    """
    return nn.with_logical_partitioning(functools.partial(init, dtype=jnp.float32), names)


class Dense(nn.Module):
    """A dense layer with `kernel` `[*inner, *outer]` and `bias` `[*outer]`.

    The kernel starts as Glorot and Bengio's (2010), its outputs counted `uses` times.
    """

    inner: Axes  # of the input
    outer: Axes  # of the output
    use_bias: bool
    uses: int = 1  # of each output: heads that share it

    def setup(self) -> None:
        names, sizes = zip(*self.inner, *self.outer, strict=True)
        num_inner = len(self.inner)
        fan_in, fan_out = math.prod(sizes[:num_inner]), math.prod(sizes[num_inner:])
        init = nn.initializers.variance_scaling(
            (fan_in + fan_out) / (fan_in + self.uses * fan_out),
            "fan_avg",
            "uniform",
            in_axis=range(num_inner),
            out_axis=range(num_inner, len(names)),
        )
        self.kernel = self.param("kernel", with_axes(init, *names), sizes)
        self.bias = None
        if self.use_bias:
            zeros = with_axes(nn.initializers.zeros, *names[num_inner:])
            self.bias = self.param("bias", zeros, sizes[num_inner:])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., *inner]` to `[..., *outer]`."""
        return dense(x, self.kernel, self.bias, len(self.inner))


class Norm(nn.Module):
    """The norm of a residual branch or of a stack; its parameters are below `norm/`."""

    config: ModelConfig

    def setup(self) -> None:
        # A box is a parameter with the names of its axes. `param` removes a box by default, but its
        # type does not know of a dict of boxes.
        boxed = self.param("norm", self._init, unbox=False)
        self.weights: choices.NormParams = nn.meta.unbox(boxed)

    def _init(self, rng: jax.Array) -> dict[str, nn.LogicallyPartitioned]:
        del rng  # the initial values are constants
        return {
            name: nn.LogicallyPartitioned(x, ("embed",))
            for name, x in choices.init_norm(self.config).items()
        }

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` normalized, `[..., M]`."""
        return choices.norm(self.config, self.weights, x)

    def before(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The residual stream `x` and what a branch reads of it, each `[..., M]`.

        The branch reads `norm(x)` in a pre-norm model and `x` in a post-norm model.
        """
        if self.config.norm_position == "pre":
            # Without the barrier, XLA for CPU recomputes the sum of all later branches' gradients
            # for every earlier layer.
            x = jax.lax.optimization_barrier(x)
        return x, choices.norm_before(self.config, self.weights, x)

    def after(self, x: jax.Array) -> jax.Array:
        """What follows the residual sum `x` `[..., M]`: `x` in pre-norm, `norm(x)` in post-norm."""
        return choices.norm_after(self.config, self.weights, x)


class HeadNorm(nn.Module):
    """The norm of each head's query or key, with one scale `[D]` for all heads."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` `[B, L, H, D]` normalized over D, in its type."""
        init = with_axes(nn.initializers.ones, "kv")
        scale = self.param("scale", init, (self.config.resolved_head_dim,))
        return norms.rms_norm(x, scale, self.config.norm_epsilon).astype(x.dtype)


class PositionBias(nn.Module):
    """What relative positions or ALiBi add to the scores of self-attention."""

    config: ModelConfig
    causal: bool

    def setup(self) -> None:
        config = self.config
        self.table: jax.Array | None = None  # [buckets, H]
        if config.positional == "relative":
            init = with_axes(nn.initializers.normal(config.d_model**-0.5), "buckets", "heads")
            shape = (config.relative_buckets, config.num_heads)
            self.table = self.param("table", init, shape)

    def __call__(self, length: int) -> jax.Array | None:
        """`[H, 2 L - 1]` float32, for each distance from 1 - L on; None where nothing is added.

        Indices count, not positions: sentences that share a row do not attend to one another.
        """
        if isinstance(length, int):
            distances = np.arange(1 - length, length)
            return choices.position_bias(self.config, self.table, distances, self.causal)
        # In an export the length is a symbolic dimension: select from the biases of all distances.
        longest = self.config.max_len
        every = choices.position_bias(
            self.config, self.table, np.arange(1 - longest, longest), self.causal
        )
        if every is None:
            return None
        return every[:, jnp.arange(2 * length - 1) + longest - length]


class Dropout(nn.Module):
    """`ops.dropout` with a key from the `dropout` collection."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """`x` of any shape, unchanged if `deterministic`."""
        if deterministic or self.rate == 0.0:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))
