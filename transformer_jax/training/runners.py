"""Puts the pure step on devices: `jit` over a mesh, or `pmap`.

Each device computes the sums of its rows of the batch, accumulated parts included. The sums are
all-reduced once a step, and then every device updates. Parameters that are sharded over `fsdp` are
all-gathered once before, or layer by layer, and their gradients are reduce-scattered, so each
device updates its shard. What is sharded over `tensor` stays sharded, and the compiler communicates
activations.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax import distributed
from transformer_jax.config import Config
from transformer_jax.data.loader import MAX_LINKS, Batch
from transformer_jax.data.plans.batch_shapes import BatchShape
from transformer_jax.model import choices, lora
from transformer_jax.ops import platforms
from transformer_jax.training import partition
from transformer_jax.training.fsdp import FsdpParams
from transformer_jax.training.step import Metrics, PyTree, Sums, TrainState, TrainStep

ShapeKey = tuple[int, ...]


def make_runner(config: Config, devices: list[jax.Device]) -> "Runner":
    """The runner that `config.parallel.runner` names, on `devices` of all processes."""
    kinds: dict[str, type[Runner]] = {"jit": JitRunner, "pmap": PmapRunner}
    return kinds[config.parallel.runner](TrainStep(config), devices)


def batch_struct(shape: BatchShape, has_links: bool = False) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of the arrays of a batch; `has_links`: with the alignment of its tokens."""
    source = jax.ShapeDtypeStruct((shape.rows, shape.source_len), jnp.int32)
    target = jax.ShapeDtypeStruct((shape.rows, shape.target_len), jnp.int32)
    of_targets = "decoder_inputs", "targets", "targets_positions", "targets_segment_ids"
    batch = dict.fromkeys(("inputs", "inputs_positions", "inputs_segment_ids"), source)
    batch |= dict.fromkeys(of_targets, target)
    batch["loss_mask"] = jax.ShapeDtypeStruct(target.shape, jnp.bool_)
    if has_links:
        batch["alignment"] = jax.ShapeDtypeStruct((*target.shape, MAX_LINKS), jnp.int32)
    return batch


def shape_key(batch: dict[str, Any]) -> ShapeKey:
    """Key of a batch's compiled step."""
    return (*batch["inputs"].shape, *batch["targets"].shape)


class Runner(abc.ABC):
    """What both runners share: the mesh, the sharding of the state, the rows of each device.

    A checkpoint has the state in checkpoint layout: global arrays over the mesh, without a device
    axis. So each runner can restore what the other has saved.

    Attributes:
      mesh: with the axes `partition.AXES`.
      platform: of the devices, as JAX names it.
      num_batch_shards: devices that share a batch's rows.
      specs: a `PartitionSpec` for each parameter.
      shardings: a `NamedSharding` for each array of the state, in checkpoint layout.
    """

    @platforms.settings_of_package()
    def __init__(self, step: TrainStep, devices: list[jax.Device]):
        self.train_step = step
        self.mesh = partition.make_mesh(step.config, devices)
        self.num_devices = self.mesh.size
        self.platform = self.mesh.devices.flat[0].platform
        self.num_batch_shards = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        self._shapes = jax.eval_shape(lambda: step.init_state(jax.random.key(0)))
        self.specs = partition.param_specs(step.config, self.mesh, self._shapes.params)
        self._on_devices = partition.shardings(
            self.mesh, partition.state_specs(step, self.specs, self._shapes)
        )
        self.shardings = self._on_devices
        if step.config.optimizer.host_state:
            self.shardings = partition.with_optimizer_on_host(self._on_devices, self._shapes)
        self._replicated = NamedSharding(self.mesh, PartitionSpec())
        self._by_row = NamedSharding(self.mesh, PartitionSpec(partition.BATCH_AXES))
        # On a CPU, more optimisation takes half of its compilation, and changes no value or speed.
        quick = {"xla_backend_optimization_level": 1} if self.platform == "cpu" else None
        self._init = jax.jit(step.init_state, out_shardings=self.shardings, compiler_options=quick)
        self._compiled: dict[ShapeKey, jax.stages.Compiled] = {}

    def describe(self) -> Iterator[str]:
        """Lines about the model and its devices."""
        mesh = " x ".join(f"{name} {size}" for name, size in self.mesh.shape.items() if size > 1)
        count = distributed.process_count()
        yield (
            f"model: {self.num_params():,} parameters on {self.num_devices} "
            f"{self.platform} device(s)"
            + (f" of {count} processes" if count > 1 else "")
            + f", compiled by {self.train_step.config.parallel.runner}"
            + (f", {mesh}" if mesh else "")
        )
        trained = _size(self.train_step.trained(self._shapes.params))
        if trained != self.num_params():
            yield f"{trained:,} parameters are trained"
        for axis, share in self.replicated_share().items():
            if share:
                yield (
                    f"{axis}={self.mesh.shape[axis]} divides no axis of {100 * share:.2g}% of "
                    "the parameters; each device has all of those"
                )

    def replicated_share(self) -> dict[str, float]:
        """Share of the parameters that `fsdp` and `tensor` could not shard, 0 .. 1."""
        specs, shapes = map(self._of_model, (self.specs, self._shapes.params))
        return partition.replicated_share(specs, shapes, self.mesh)

    def num_params(self) -> int:
        """Parameters of the model, without adapters."""
        return _size(self._of_model(self._shapes.params))

    def _of_model(self, params: PyTree) -> PyTree:
        """The part of a tree like a state's parameters that is like the model's."""
        return params[lora.BASE] if self.train_step.config.train.lora_rank else params

    @platforms.settings_of_package()
    def init(self, seed: int, params: PyTree = None) -> TrainState:
        """State before the first step, with given parameters (on the host) or fresh ones."""
        if params is not None:
            params = jax.device_put(params, self.model_shardings)
        return self.from_checkpoint_layout(self._init(jax.random.key(seed), params))

    def restore_target(self) -> TrainState:
        """`jax.ShapeDtypeStruct`s of the state in checkpoint layout, with shardings."""
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            self._shapes,
            self.shardings,
        )

    def local_rows(self, num_rows: int) -> np.ndarray:
        """Numbers of those rows of a batch that this process loads."""
        shards = self._by_row.addressable_devices_indices_map((num_rows,)).values()
        rows = {i for shard in shards if shard for i in range(*shard[0].indices(num_rows))}
        return np.asarray(sorted(rows))

    @property
    def model_shardings(self) -> PyTree:
        """A `NamedSharding` for each parameter of the model."""
        return self._of_model(self.shardings.params)

    @property
    def shards_model(self) -> bool:
        """Whether a device has a part of the model."""
        return self.num_devices > self.mesh.shape["data"]

    @platforms.settings_of_package()
    def compile(self, shape: BatchShape, state: TrainState | None = None) -> jax.stages.Compiled:
        """Compiles the step for one batch shape, once.

        Args:
          shape: of the batch of all devices.
          state: in this runner's layout; `pmap` needs it if there are several processes.
        """
        batch = batch_struct(shape, self.train_step.config.train.alignment_weight > 0)
        key = shape_key(batch)
        if key not in self._compiled:
            self._compiled[key] = self._lower(batch, state).compile()
        return self._compiled[key]

    @platforms.settings_of_package()
    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One optimizer step; `state` is consumed.

        Args:
          state: in this runner's layout.
          batch: the rows of this process (`local_rows`).
        """
        return self._run(state, self._put_on_devices(batch))

    def _put_on_devices(self, batch: Batch) -> dict[str, jax.Array]:
        """The global batch, sharded by rows, from the rows of each process."""
        num_shares = self.num_batch_shards // len(self.local_rows(self.num_batch_shards))
        return {
            name: jax.make_array_from_process_local_data(
                self._by_row, x, (x.shape[0] * num_shares, *x.shape[1:])
            )
            for name, x in batch.items()
        }

    @abc.abstractmethod
    def _lower(self, batch: PyTree, state: TrainState | None) -> jax.stages.Lowered:
        """The step, lowered for batches of that shape."""

    @abc.abstractmethod
    def _run(self, state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        """The step, on a global batch."""

    @abc.abstractmethod
    def to_checkpoint_layout(self, state: TrainState) -> TrainState:
        """The state without a device axis, as checkpoints have it."""

    @abc.abstractmethod
    def from_checkpoint_layout(self, state: TrainState) -> TrainState:
        """Inverse of `to_checkpoint_layout`; `state` is consumed."""


def _step_rng(step: TrainStep, number: jax.Array, axes: str | tuple[str, ...]) -> jax.Array:
    """Key of step `number` and this device: a resumed run draws what an undisturbed one would."""
    rng = jax.random.fold_in(jax.random.key(step.config.seed), number)
    return jax.random.fold_in(rng, jax.lax.axis_index(axes))


class JitRunner(Runner):
    """`jit` over the mesh."""

    def __init__(self, step: TrainStep, devices: list[jax.Device]):
        super().__init__(step, devices)
        by_row, replicated = PartitionSpec(partition.BATCH_AXES), PartitionSpec()
        # `shard_map` handles `data` and `fsdp` alone; the compiler shards over `tensor`.
        train, dtype = step.config.train, choices.compute_dtype(step.config.model)
        by_layer = train.scan_layers and train.remat != "none" and self.mesh.shape["fsdp"] > 1
        by_layer &= not train.lora_rank  # adapters are added to all layers at the beginning
        # With adapters, kernels are rounded after these are added.
        dtype = jnp.float32 if train.lora_rank else dtype
        fsdp = FsdpParams(self.specs, self.mesh, dtype, by_layer)
        if by_layer:
            step.objective.model = step.objective.model.clone(gather=fsdp.gather_layer)

        def device_sums(params, number, batch):
            rng = _step_rng(step, number, partition.BATCH_AXES)
            local = step.grad_sums(fsdp.gather(params), batch, rng)
            losses = jax.lax.psum(local.losses, fsdp.reduced_axes)
            return Sums(fsdp.reduce(local.grads), losses)

        global_sums = jax.shard_map(
            device_sums,
            mesh=self.mesh,
            in_specs=(fsdp.specs, replicated, by_row),
            out_specs=Sums(fsdp.specs, replicated),  # type: ignore[arg-type]
            axis_names=set(partition.BATCH_AXES),
            # With replication tracked, JAX would reduce every use of a parameter separately.
            check_vma=False,
        )

        def train_step(state, batch):
            sums = global_sums(step.gradient_point(state), state.step, batch)
            if step.config.optimizer.host_state:
                state = jax.device_put(state, self._on_devices)
            return step.apply_sums(state, sums)

        self._jitted = jax.jit(
            train_step,
            in_shardings=(self.shardings, self._by_row),
            out_shardings=(self.shardings, self._replicated),
            donate_argnums=0,
        )

    def _lower(self, batch: PyTree, state: TrainState | None) -> jax.stages.Lowered:
        del state
        return self._jitted.lower(self.restore_target(), batch)

    def _run(self, state, batch):
        return self._compiled.get(shape_key(batch), self._jitted)(state, batch)

    def to_checkpoint_layout(self, state: TrainState) -> TrainState:
        return state

    def from_checkpoint_layout(self, state: TrainState) -> TrainState:
        return state


class PmapRunner(Runner):
    """`pmap` over the devices: every leaf of the state has a leading device axis."""

    def __init__(self, step: TrainStep, devices: list[jax.Device]):
        super().__init__(step, devices)
        self._stacked = NamedSharding(self.mesh, PartitionSpec(partition.AXES))

        def train_step(state, batch):
            rng = _step_rng(step, state.step, "data")
            local = step.grad_sums(step.gradient_point(state), batch, rng)
            return step.apply_sums(state, jax.lax.psum(local, "data"))

        ordered = list(self.mesh.devices.flat)
        self._pmapped = jax.pmap(train_step, "data", devices=ordered, donate_argnums=0)

    def _lower(self, batch: PyTree, state: TrainState | None) -> jax.stages.Lowered:
        if distributed.process_count() > 1:  # pmap then looks for each array's local shards
            zeros = {
                name: np.zeros((len(self.local_rows(x.shape[0])), *x.shape[1:]), x.dtype)
                for name, x in batch.items()
            }
            return self._pmapped.lower(state, self._add_device_axis(self._put_on_devices(zeros)))
        n = self.num_devices

        def stacked(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((n, *x.shape), x.dtype)

        def split(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((n, x.shape[0] // n, *x.shape[1:]), x.dtype)

        return self._pmapped.lower(
            jax.tree.map(stacked, self.restore_target()), jax.tree.map(split, batch)
        )

    def _run(self, state, batch):
        compiled = self._compiled.get(shape_key(batch), self._pmapped)
        state, metrics = compiled(state, self._add_device_axis(batch))
        return state, self._remove_device_axis(metrics)

    def to_checkpoint_layout(self, state: TrainState) -> TrainState:
        return self._remove_device_axis(state)

    def from_checkpoint_layout(self, state: TrainState) -> TrainState:
        def consume(x: jax.Array) -> jax.Array:
            stacked = self._add_device_axis(x)
            x.delete()  # one array after the other: two states may not fit
            return stacked

        return jax.tree.map(consume, state)

    def _add_device_axis(self, tree: PyTree) -> PyTree:
        """Each device's `[...]` as its part of `[num_devices, ...]`."""

        def add(x: jax.Array) -> jax.Array:
            shards = _map_shards(lambda shard: shard[None], x)
            shape = (self.num_devices, *shards[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, self._stacked, shards)

        return jax.tree.map(add, tree)

    def _remove_device_axis(self, tree: PyTree) -> PyTree:
        """Inverse of `_add_device_axis` for what is equal on all devices."""

        def remove(x: jax.Array) -> jax.Array:
            shards = _map_shards(lambda shard: shard[0], x)
            shape = shards[0].shape
            return jax.make_array_from_single_device_arrays(shape, self._replicated, shards)

        return jax.tree.map(remove, tree)


def _size(params: PyTree) -> int:
    return sum(x.size for x in jax.tree.leaves(params))


def _map_shards(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> list[jax.Array]:
    """`function` of the shard on each local device."""
    return [function(shard.data) for shard in x.addressable_shards]
