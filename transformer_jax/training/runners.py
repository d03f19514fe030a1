"""Puts the pure step on devices: `jit` over a mesh, or `pmap`.

Both form the sums of each device's rows on that device, add them up over the devices once a step,
and update. Accumulated parts are added locally, before.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import Config
from transformer_jax.data.batch_plan import BatchShape
from transformer_jax.data.loader import Batch
from transformer_jax.errors import UserError
from transformer_jax.training.step import TrainState, TrainStep

Tree = Any
AXIS = "data"


class Runner(Protocol):
    """What the loop needs."""

    num_devices: int

    def init(self, seed: int, params: Tree = None) -> TrainState:
        """State before the first step, with given parameters or fresh ones."""

    def compile(self, state: TrainState, shape: BatchShape) -> None:
        """Compiles the step for one batch shape."""

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        """One optimizer step; `state` is consumed."""

    def to_host_layout(self, state: TrainState) -> TrainState:
        """The state without a device axis, as checkpoints keep it."""

    def restore_target(self, state: TrainState) -> TrainState:
        """`jax.ShapeDtypeStruct`s of `to_host_layout(state)`, with shardings."""

    def from_host_layout(self, state: TrainState) -> TrainState:
        """Inverse of `to_host_layout`."""


def choose_devices(config: Config) -> list[jax.Device]:
    """The devices that `config.parallel.data` asks for.

    Raises:
      UserError: where there are fewer.
    """
    devices = jax.devices()
    wanted = config.parallel.data
    if wanted > len(devices):
        raise UserError(
            f"config.parallel.data={wanted}, but JAX sees {len(devices)} devices "
            f"({devices[0].platform}); use at most that many, or -1 for all."
        )
    return devices if wanted == -1 else devices[:wanted]


def make_runner(config: Config, devices: list[jax.Device]) -> Runner:
    """The runner that `config.parallel.runner` names, on `devices`."""
    kinds: dict[str, type[JitRunner] | type[PmapRunner]] = {"jit": JitRunner, "pmap": PmapRunner}
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


def _step_rng(step: TrainStep, state: TrainState) -> jax.Array:
    """Key of this step and device: a resumed run draws what an undisturbed one would."""
    rng = jax.random.fold_in(jax.random.key(step.config.seed), state.step)
    return jax.random.fold_in(rng, jax.lax.axis_index(AXIS))


class JitRunner:
    """`jit` over a mesh with the axis `data`; parameters are replicated, rows split."""

    def __init__(self, step: TrainStep, devices: list[jax.Device]):
        self._step = step
        self.num_devices = len(devices)
        mesh = Mesh(np.asarray(devices), (AXIS,))
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._split = NamedSharding(mesh, PartitionSpec(AXIS))

        def sums(state, batch):
            local = step.grad_sums(state.params, batch, _step_rng(step, state))
            return jax.lax.psum(local, AXIS)

        whole_sums = jax.shard_map(
            sums,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
            out_specs=PartitionSpec(),
            # With replication tracked, JAX would reduce every use of a parameter by itself.
            check_vma=False,
        )

        def full_step(state, batch):
            return step.apply_sums(state, whole_sums(state, batch))

        self._jitted = jax.jit(
            full_step,
            in_shardings=(self._replicated, self._split),
            out_shardings=self._replicated,
            donate_argnums=0,
        )
        self._compiled: dict[tuple[int, ...], Any] = {}

    def init(self, seed: int, params: Tree = None) -> TrainState:
        init = jax.jit(self._step.init_state, out_shardings=self._replicated)
        return init(jax.random.key(seed), jax.device_put(params, self._replicated))

    def compile(self, state: TrainState, shape: BatchShape) -> None:
        batch = batch_struct(shape)
        self._compiled[shape_key(batch)] = self._jitted.lower(state, batch).compile()

    def step(self, state, batch):
        compiled = self._compiled.get(shape_key(batch), self._jitted)
        return compiled(state, jax.device_put(batch, self._split))

    def to_host_layout(self, state: TrainState) -> TrainState:
        return state

    def restore_target(self, state: TrainState) -> TrainState:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._replicated), state
        )

    def from_host_layout(self, state: TrainState) -> TrainState:
        return state


class PmapRunner:
    """`pmap` over the devices: every leaf of the state has a leading device axis."""

    def __init__(self, step: TrainStep, devices: list[jax.Device]):
        self._step, self._devices = step, devices
        self.num_devices = len(devices)

        def full_step(state, batch):
            local = step.grad_sums(state.params, batch, _step_rng(step, state))
            return step.apply_sums(state, jax.lax.psum(local, AXIS))

        self._compiled: dict[tuple[int, ...], Any] = {}
        self._pmapped = jax.pmap(full_step, AXIS, devices=devices, donate_argnums=0)
        self._broadcast = jax.pmap(lambda _, tree: tree, in_axes=(0, None), devices=devices)

    def init(self, seed: int, params: Tree = None) -> TrainState:
        def init(_, params):
            return self._step.init_state(jax.random.key(seed), params)

        whole = jax.pmap(init, in_axes=(0, None), devices=self._devices)
        return whole(np.arange(self.num_devices), params)

    def _split_rows(self, x):
        return x.reshape(self.num_devices, -1, *x.shape[1:])  # --> [devices, rows, ...]

    def compile(self, state: TrainState, shape: BatchShape) -> None:
        def per_device(x):
            rows = x.shape[0] // self.num_devices
            return jax.ShapeDtypeStruct((self.num_devices, rows, *x.shape[1:]), x.dtype)

        batch = jax.tree.map(per_device, batch_struct(shape))
        self._compiled[shape_key(batch)] = self._pmapped.lower(state, batch).compile()

    def step(self, state, batch):
        batch = jax.tree.map(self._split_rows, batch)
        state, metrics = self._compiled.get(shape_key(batch), self._pmapped)(state, batch)
        return state, jax.tree.map(lambda x: x[0], metrics)

    def to_host_layout(self, state: TrainState) -> TrainState:
        return jax.tree.map(lambda x: x.addressable_data(0)[0], state)

    def restore_target(self, state: TrainState) -> TrainState:
        device = jax.sharding.SingleDeviceSharding(self._devices[0])
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=device), state
        )

    def from_host_layout(self, state: TrainState) -> TrainState:
        return self._broadcast(np.arange(self.num_devices), state)


def on_one_device(tree: Tree) -> Tree:
    """A replicated tree as arrays of the first local device, without a copy."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)
