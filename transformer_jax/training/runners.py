"""Puts the pure step on devices: `jit` over a mesh, or `pmap`.

Both form the sums of each device's rows on that device, add them up over the devices once a step,
and update. Accumulated parts are added locally, before. Parameters that are parted over `fsdp` are
gathered once before the sums are formed, and their gradients leave each device its own part; what
is parted over `tensor` stays so, and the compiler exchanges activations.
"""

import abc
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.config import Config
from transformer_jax.data.batch_shapes import BatchShape
from transformer_jax.data.loader import Batch
from transformer_jax.model.layers import compute_dtype
from transformer_jax.training import partition
from transformer_jax.training.step import Sums, TrainState, TrainStep

Tree = Any


def make_runner(config: Config, devices: list[jax.Device]) -> "Runner":
    """The runner that `config.parallel.runner` names, on `devices` of all processes."""
    kinds: dict[str, type[Runner]] = {"jit": JitRunner, "pmap": PmapRunner}
    return kinds[config.parallel.runner](TrainStep(config), devices)


def batch_struct(shape: BatchShape) -> dict[str, jax.ShapeDtypeStruct]:
    """Types of a batch of that shape."""
    source = jax.ShapeDtypeStruct((shape.rows, shape.source_len), jnp.int32)
    target = jax.ShapeDtypeStruct((shape.rows, shape.target_len), jnp.int32)
    return {
        "inputs": source,
        "inputs_positions": source,
        "inputs_segment_ids": source,
        "decoder_inputs": target,
        "targets": target,
        "targets_positions": target,
        "targets_segment_ids": target,
        "loss_mask": jax.ShapeDtypeStruct(target.shape, jnp.bool_),
    }


def shape_key(batch: dict[str, Any]) -> tuple[int, ...]:
    """What tells the compiled steps of a plan apart."""
    return (*batch["inputs"].shape, *batch["targets"].shape)


class Runner(abc.ABC):
    """What both have in common: the mesh, where the state lies, which rows are whose.

    Checkpoints keep the state in host layout: global arrays over the mesh, without a device axis.
    """

    def __init__(self, step: TrainStep, devices: list[jax.Device]):
        self.train_step = step
        self.mesh = partition.make_mesh(step.config, devices)
        self.num_devices = self.mesh.size
        self.num_row_parts = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        self._shapes = jax.eval_shape(lambda: step.init_state(jax.random.key(0)))
        self.specs = partition.param_specs(step.config, self.mesh, self._shapes.params)
        self.shardings = partition.shardings(
            self.mesh, partition.state_specs(step, self.specs, self._shapes)
        )
        self._replicated = NamedSharding(self.mesh, PartitionSpec())
        self._by_row = NamedSharding(self.mesh, PartitionSpec(partition.ROW_AXES))
        self._compiled: dict[tuple[int, ...], Any] = {}

    def replicated_share(self) -> dict[str, float]:
        """Share of the parameters that `fsdp` and `tensor` could not part, 0 .. 1."""
        return partition.replicated_share(self.specs, self._shapes.params, self.mesh)

    def num_params(self) -> int:
        return sum(x.size for x in jax.tree.leaves(self._shapes.params))

    def init(self, seed: int, params: Tree = None) -> TrainState:
        """State before the first step, with given parameters (on the host) or fresh ones."""
        if params is not None:
            params = jax.device_put(params, self.shardings.params)
        init = jax.jit(self.train_step.init_state, out_shardings=self.shardings)
        return self.from_host_layout(init(jax.random.key(seed), params))

    def restore_target(self) -> TrainState:
        """`jax.ShapeDtypeStruct`s of the state in host layout, with shardings."""
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            self._shapes, self.shardings,
        )  # fmt: skip

    def local_rows(self, num_rows: int) -> np.ndarray:
        """Numbers of those rows of a batch that this process loads."""
        parts = self._by_row.addressable_devices_indices_map((num_rows,)).values()
        rows = {i for part in parts if part for i in range(*part[0].indices(num_rows))}
        return np.asarray(sorted(rows))

    def whole(self, tree: Tree) -> Tree:
        """A tree in host layout as whole arrays on this process's first device."""

        def one(x):
            if not x.is_fully_replicated:
                x = jax.device_put(x, self._replicated)
            return x.addressable_data(0)

        return jax.tree.map(one, tree)

    def compile(self, shape: BatchShape, state: TrainState | None = None) -> Any:
        """Compiles the step for one batch shape.

        Args:
          shape: of the whole batch.
          state: in this runner's layout; `pmap` needs it where there are several processes.
        """
        batch = batch_struct(shape)
        compiled = self._lower(batch, state).compile()
        self._compiled[shape_key(batch)] = compiled
        return compiled

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        """One optimizer step; `state` is consumed.

        Args:
          state: in this runner's layout.
          batch: the rows of this process (`local_rows`).
        """
        return self._run(state, self._place(batch))

    def _place(self, batch: Batch) -> dict[str, jax.Array]:
        """The whole batch over the mesh, of the rows that each process has."""
        shares = self.num_row_parts // len(self.local_rows(self.num_row_parts))
        return {
            name: jax.make_array_from_process_local_data(
                self._by_row, x, (x.shape[0] * shares, *x.shape[1:])
            )
            for name, x in batch.items()
        }

    @abc.abstractmethod
    def _lower(self, batch: Tree, state: TrainState | None) -> Any:
        """The step, lowered for batches of that shape."""

    @abc.abstractmethod
    def _run(self, state: TrainState, batch: Tree) -> tuple[TrainState, dict[str, jax.Array]]:
        """The step, on placed arrays."""

    @abc.abstractmethod
    def to_host_layout(self, state: TrainState) -> TrainState:
        """The state without a device axis, as checkpoints keep it."""

    @abc.abstractmethod
    def from_host_layout(self, state: TrainState) -> TrainState:
        """Inverse of `to_host_layout`; `state` is consumed."""


def _step_rng(step: TrainStep, number: jax.Array, axes: Any) -> jax.Array:
    """Key of this step and rows: a resumed run draws what an undisturbed one would."""
    rng = jax.random.fold_in(jax.random.key(step.config.seed), number)
    return jax.random.fold_in(rng, jax.lax.axis_index(axes))


class JitRunner(Runner):
    """`jit` over the mesh."""

    def __init__(self, step: TrainStep, devices: list[jax.Device]):
        super().__init__(step, devices)
        rows, whole = PartitionSpec(partition.ROW_AXES), PartitionSpec()
        # `tensor` is the compiler's: of its own axes alone the mapped function knows.
        own = jax.tree.map(_only_fsdp, self.specs)
        self._summed = tuple(a for a in partition.ROW_AXES if self.mesh.shape[a] > 1)

        def sums(params, number, batch):
            params = jax.tree.map(self._gather, params, own)
            rng = _step_rng(step, number, partition.ROW_AXES)
            local = step.grad_sums(params, batch, rng)
            return local._replace(
                grads=jax.tree.map(self._reduce, local.grads, own),
                losses=jax.lax.psum(local.losses, self._summed),
            )

        mapped_sums = jax.shard_map(
            sums,
            mesh=self.mesh,
            in_specs=(own, whole, rows),
            out_specs=Sums(own, whole),  # type: ignore[arg-type]
            axis_names=set(partition.ROW_AXES),
            # With replication tracked, JAX would reduce every use of a parameter by itself.
            check_vma=False,
        )

        def train_step(state, batch):
            return step.apply_sums(state, mapped_sums(state.params, state.step, batch))

        self._jitted = jax.jit(
            train_step,
            in_shardings=(self.shardings, self._by_row),
            out_shardings=(self.shardings, self._replicated),
            donate_argnums=0,
        )

    def _gather(self, param: jax.Array, spec: PartitionSpec) -> jax.Array:
        """The whole parameter; kernels and tables in the type that they are used in."""
        axis = partition.axis_of(spec, "fsdp")
        if axis is None:
            return param
        dtype = compute_dtype(self.train_step.config.model) if param.ndim > 1 else param.dtype
        whole = jax.lax.all_gather(param.astype(dtype), "fsdp", axis=axis, tiled=True)
        return whole.astype(param.dtype)  # in which its gradients are added up

    def _reduce(self, grad: jax.Array, spec: PartitionSpec) -> jax.Array:
        """The sum over all rows; of a parted parameter, this device's part of it."""
        axis = partition.axis_of(spec, "fsdp")
        if axis is None:
            return jax.lax.psum(grad, self._summed)
        grad = jax.lax.psum_scatter(grad, "fsdp", scatter_dimension=axis, tiled=True)
        return jax.lax.psum(grad, tuple(a for a in self._summed if a != "fsdp"))

    def _lower(self, batch: Tree, state: TrainState | None) -> Any:
        del state
        return self._jitted.lower(self.restore_target(), batch)

    def _run(self, state, batch):
        return self._compiled.get(shape_key(batch), self._jitted)(state, batch)

    def to_host_layout(self, state: TrainState) -> TrainState:
        return state

    def from_host_layout(self, state: TrainState) -> TrainState:
        return state


def _only_fsdp(spec: PartitionSpec) -> PartitionSpec:
    axis = partition.axis_of(spec, "fsdp")
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "fsdp")


class PmapRunner(Runner):
    """`pmap` over the devices: every leaf of the state has a leading device axis."""

    def __init__(self, step: TrainStep, devices: list[jax.Device]):
        super().__init__(step, devices)
        self._stacked = NamedSharding(self.mesh, PartitionSpec(partition.AXES))

        def train_step(state, batch):
            rng = _step_rng(step, state.step, "data")
            local = step.grad_sums(state.params, batch, rng)
            return step.apply_sums(state, jax.lax.psum(local, "data"))

        ordered = list(self.mesh.devices.flat)
        self._pmapped = jax.pmap(train_step, "data", devices=ordered, donate_argnums=0)

    def _per_device(self, x: Any) -> jax.ShapeDtypeStruct:
        rows = x.shape[0] // self.num_devices
        return jax.ShapeDtypeStruct((self.num_devices, rows, *x.shape[1:]), x.dtype)

    def _lower(self, batch: Tree, state: TrainState | None) -> Any:
        if jax.process_count() > 1:  # pmap then looks for each array's local part
            zeros = {
                name: np.zeros((len(self.local_rows(x.shape[0])), *x.shape[1:]), x.dtype)
                for name, x in batch.items()
            }
            return self._pmapped.lower(state, self._split(self._place(zeros)))
        stacked = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.num_devices, *x.shape), x.dtype),
            self.restore_target(),
        )
        return self._pmapped.lower(stacked, jax.tree.map(self._per_device, batch))

    def _split(self, batch: Tree) -> Tree:
        return jax.tree.map(functools.partial(self._move, lambda x: x[None], True), batch)

    def _run(self, state, batch):
        compiled = self._compiled.get(shape_key(batch), self._pmapped)
        state, metrics = compiled(state, self._split(batch))
        return state, jax.tree.map(functools.partial(self._move, lambda x: x[0], False), metrics)

    def _move(self, change: Any, stacked: bool, x: jax.Array) -> jax.Array:
        """`x` with every device's part changed, and given or relieved of a device axis."""
        parts = [change(shard.data) for shard in x.addressable_shards]
        if stacked:
            shape, sharding = (self.num_devices, *parts[0].shape[1:]), self._stacked
        else:
            shape, sharding = parts[0].shape, self._replicated
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)

    def to_host_layout(self, state: TrainState) -> TrainState:
        return jax.tree.map(functools.partial(self._move, lambda x: x[0], False), state)

    def from_host_layout(self, state: TrainState) -> TrainState:
        def consume(x: jax.Array) -> jax.Array:
            stacked = self._move(lambda part: part[None], True, x)
            x.delete()  # one array after the other: two states may not fit
            return stacked

        return jax.tree.map(consume, state)
