"""How the training state is sharded: rules from names of parameter axes to mesh axes.

A mesh has the axes `data` and `fsdp`, which both shard a batch's rows, and `tensor`, which shards
heads, feed-forward width and vocabulary. Parameters, and the optimizer's state of them, are
sharded over `fsdp` and `tensor`.
"""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import Config, ModelConfig, ParallelConfig
from transformer_jax.errors import UserError
from transformer_jax.model import lora
from transformer_jax.model.transformer import param_axes, param_shapes
from transformer_jax.ops import platforms
from transformer_jax.training.frozen import is_masked
from transformer_jax.training.step import PyTree, TrainState, TrainStep

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# Names of the parameter axes that each mesh axis may shard; mesh axes are applied in this order.
# A mesh axis shards the first axis of a parameter that has such a name, that it divides, and that
# is not sharded yet. The first, because a reduce-scatter along a leading axis is the cheapest.
RULES = {
    "tensor": ("heads", "mlp", "vocab"),
    "fsdp": ("embed", "heads", "kv", "mlp", "vocab", "positions"),
}


def choose_devices(config: Config) -> list[jax.Device]:
    """The devices that `config.parallel` asks for.

    Raises:
      UserError: where they are missing, or where some process would have none to work on.
    """
    devices = platforms.all_devices()
    size = int(np.prod(mesh_shape(config.parallel, len(devices))))
    if size < len(devices) and jax.process_count() > 1:
        raise UserError(
            f"config.parallel asks for {size} devices, but the {jax.process_count()} processes "
            f"have {len(devices)}, and all must be used; set one size to -1, the rest."
        )
    return devices[:size]


def num_batch_shards(config: Config) -> int:
    """Devices, of all processes, that share a batch's rows."""
    data, fsdp, _ = mesh_shape(config.parallel, len(platforms.all_devices()))
    return data * fsdp


def mesh_shape(parallel: ParallelConfig, num_devices: int) -> tuple[int, int, int]:
    """Sizes of `AXES`; the one that is -1 takes the devices that the others leave.

    Raises:
      UserError: where the devices do not suffice or do not divide.
    """
    sizes = [parallel.data, parallel.fsdp, parallel.tensor]
    fixed = int(np.prod([size for size in sizes if size != -1]))
    asked = ", ".join(f"{name}={size}" for name, size in zip(AXES, sizes, strict=True))
    if fixed > num_devices or (-1 in sizes and num_devices % fixed):
        raise UserError(
            f"config.parallel ({asked}) does not fit {num_devices} devices "
            f"({platforms.current()}): the sizes multiply to {fixed}"
            + (
                ", which must divide them."
                if -1 in sizes
                else "; use smaller ones, or -1, the rest."
            )
        )
    data, fsdp, tensor = (num_devices // fixed if size == -1 else size for size in sizes)
    return data, fsdp, tensor


def make_mesh(config: Config, devices: list[jax.Device]) -> Mesh:
    """The mesh of a run; neighbours in it are neighbours in the machine where that is known."""
    shape = mesh_shape(config.parallel, len(devices))
    axis_types = (jax.sharding.AxisType.Auto,) * len(AXES)
    return jax.make_mesh(shape, AXES, axis_types, devices=devices)


def param_specs(config: Config, mesh: Mesh, shapes: PyTree) -> PyTree:
    """A `PartitionSpec` over mesh axes for each parameter of a state.

    Args:
      config: of the run.
      mesh: with `AXES`.
      shapes: the parameters, or `jax.ShapeDtypeStruct`s of them.
    """
    if not config.train.lora_rank:
        return _model_specs(config.model, mesh, shapes)
    return {
        lora.BASE: _model_specs(config.model, mesh, shapes[lora.BASE]),
        # Few numbers, so every device has all of them.
        lora.ADAPTERS: jax.tree.map(lambda _: PartitionSpec(), shapes[lora.ADAPTERS]),
    }


def _model_specs(model: ModelConfig, mesh: Mesh, shapes: PyTree) -> PyTree:
    """A `PartitionSpec` for each parameter of the model, by `RULES`."""
    return jax.tree.map(
        lambda x, names: _spec(x.shape, names, mesh.shape), shapes, param_axes(model)
    )


def sharded_shapes(config: Config, model: ModelConfig) -> PyTree:
    """Shapes of the parameters of `model`, with shardings on the devices of `config`."""
    mesh, shapes = make_mesh(config, choose_devices(config)), param_shapes(model)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        shapes,
        shardings(mesh, _model_specs(model, mesh, shapes)),
    )


def _spec(
    shape: tuple[int, ...], names: PartitionSpec, mesh_sizes: Mapping[str, int]
) -> PartitionSpec:
    """Applies `RULES` to a parameter of that shape with these names of axes."""
    mesh_axes: list[str | None] = [None for _ in shape]
    for mesh_axis, sharded_names in RULES.items():
        size = mesh_sizes[mesh_axis]
        for i, name in enumerate(names):
            is_free = mesh_axes[i] is None and size > 1
            if is_free and name in sharded_names and shape[i] % size == 0:
                mesh_axes[i] = mesh_axis
                break
    while mesh_axes and mesh_axes[-1] is None:  # as in the shardings that JAX returns
        mesh_axes.pop()
    return PartitionSpec(*mesh_axes)


def replicated_share(specs: PyTree, shapes: PyTree, mesh: Mesh) -> dict[str, float]:
    """The share of the parameters, 0 .. 1, that each mesh axis should shard and does not."""
    leaves = list(zip(jax.tree.leaves(shapes), jax.tree.leaves(specs), strict=True))
    total = sum(x.size for x, _ in leaves)
    return {
        axis: sum(x.size for x, spec in leaves if axis not in spec) / total
        for axis in ("fsdp", "tensor")
        if mesh.shape[axis] > 1
    }


def axis_of(spec: PartitionSpec, axis: str) -> int | None:
    """The axis of the array that a mesh axis shards, if any."""
    return list(spec).index(axis) if axis in spec else None


def state_specs(step: TrainStep, specs: PyTree, shapes: TrainState) -> PyTree:
    """A `PartitionSpec` for each array of the state.

    The optimizer's arrays are sharded like the parameter that they belong to, if they have its
    shape.
    """
    replicated = PartitionSpec()

    def like_param(x, spec, param):
        if is_masked(x):
            return x
        return spec if x.shape == param.shape else replicated

    return TrainState(
        step=replicated,  # type: ignore[arg-type]  # specs in the place of arrays
        params=specs,
        opt_state=optax.tree_utils.tree_map_params(
            step.tx,
            like_param,
            shapes.opt_state,
            specs,
            shapes.params,
            transform_non_params=lambda _: replicated,
            is_leaf=is_masked,
        ),
        ema=None if shapes.ema is None else specs,
        usual_norm=None if shapes.usual_norm is None else replicated,  # type: ignore[arg-type]
    )


def with_optimizer_on_host(state_shardings: TrainState, shapes: TrainState) -> TrainState:
    """`state_shardings` with the optimizer's arrays in the host's memory; its scalars stay."""

    def on_host(sharding: NamedSharding, x: jax.ShapeDtypeStruct) -> NamedSharding:
        return sharding.with_memory_kind("pinned_host") if x.ndim else sharding

    opt_state = jax.tree.map(on_host, state_shardings.opt_state, shapes.opt_state)
    return dataclasses.replace(state_shardings, opt_state=opt_state)


def shardings(mesh: Mesh, specs: PyTree) -> PyTree:
    """`specs` on `mesh`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
