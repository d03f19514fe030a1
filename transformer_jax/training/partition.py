"""Which part of the training state each device holds: rules from names of axes to mesh axes.

A mesh has the axes `data` and `fsdp`, which both part a batch's rows, and `tensor`, which parts
heads, feed-forward width and vocabulary. Parameters and what the optimizer keeps of them are
parted over `fsdp` and `tensor`.
"""

from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import Config, ParallelConfig
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import param_axes
from transformer_jax.ops import platforms
from transformer_jax.training.step import TrainState, TrainStep

Tree = Any
AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")

# Names of the axes that a mesh axis may part, in this order of mesh axes. It parts the first axis
# of a parameter that has such a name, that it divides, and that nothing parts yet: a sum over
# devices leaves each its part of a leading axis more cheaply than of the last one.
RULES = {
    "tensor": ("heads", "mlp", "vocab"),
    "fsdp": ("embed", "heads", "kv", "mlp", "vocab", "positions"),
}


def choose_devices(config: Config) -> list[jax.Device]:
    """The devices that `config.parallel` asks for.

    Raises:
      UserError: where they are not there, or where some process would have none to work on.
    """
    devices = platforms.all_devices()
    size = int(np.prod(mesh_shape(config.parallel, len(devices))))
    if size < len(devices) and jax.process_count() > 1:
        raise UserError(
            f"config.parallel asks for {size} devices, but the {jax.process_count()} processes "
            f"have {len(devices)}, and all must be used; set one size to -1, the rest."
        )
    return devices[:size]


def num_row_parts(config: Config) -> int:
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
    return jax.make_mesh(
        shape, AXES, (jax.sharding.AxisType.Auto,) * len(AXES), devices=devices
    )  # fmt: skip


def param_specs(config: Config, mesh: Mesh, shapes: Tree) -> Tree:
    """A `PartitionSpec` over mesh axes for each parameter, by `RULES`.

    Args:
      config: of the run.
      mesh: with `AXES`.
      shapes: the parameters, or `jax.ShapeDtypeStruct`s of them.
    """
    return jax.tree.map(
        lambda x, names: _spec(x.shape, names, mesh.shape), shapes, param_axes(config.model)
    )


def _spec(shape: tuple[int, ...], names: PartitionSpec, sizes: Any) -> PartitionSpec:
    parted: list[str | None] = [None for _ in shape]
    for axis, may_part in RULES.items():
        for i, name in enumerate(names):
            free = parted[i] is None and sizes[axis] > 1
            if free and name in may_part and shape[i] % sizes[axis] == 0:
                parted[i] = axis
                break
    while parted and parted[-1] is None:  # shardings are compared with what comes back
        parted.pop()
    return PartitionSpec(*parted)


def replicated_share(specs: Tree, shapes: Tree, mesh: Mesh) -> dict[str, float]:
    """The share of the parameters, 0 .. 1, that each mesh axis should part and does not."""
    leaves = list(zip(jax.tree.leaves(shapes), jax.tree.leaves(specs), strict=True))
    total = sum(x.size for x, _ in leaves)
    return {
        axis: sum(x.size for x, spec in leaves if axis not in spec) / total
        for axis in ("fsdp", "tensor")
        if mesh.shape[axis] > 1
    }


def axis_of(spec: PartitionSpec, axis: str) -> int | None:
    """Which axis of the array the mesh axis parts, if any."""
    return list(spec).index(axis) if axis in spec else None


def state_specs(step: TrainStep, specs: Tree, shapes: TrainState) -> Tree:
    """A `PartitionSpec` for each array of the state; what the optimizer keeps of a parameter is
    parted as the parameter is, where it has its shape."""
    whole: Any = PartitionSpec()

    def like(leaf, spec, param):
        return spec if leaf.shape == param.shape else whole

    return TrainState(
        step=whole,
        params=specs,
        opt_state=optax.tree_utils.tree_map_params(
            step.tx, like, shapes.opt_state, specs, shapes.params,
            transform_non_params=lambda _: whole,
        ),
        ema=None if shapes.ema is None else specs,
        usual_norm=None if shapes.usual_norm is None else whole,
    )  # fmt: skip


def shardings(mesh: Mesh, specs: Tree) -> Tree:
    """`specs` on `mesh`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
