"""Attention over the devices of a mesh: batch and heads are sharded, without communication."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from transformer_jax.ops.attention.call import Extras, Settings, expand

_BATCH_AXES = ("data", "fsdp")
_HEAD_AXIS = "tensor"
Axes = tuple[str, ...]


def over_mesh(attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`attend` under `shard_map` over the axes of the mesh that are not manual yet, if any."""

    @functools.wraps(attend)
    def call(query, key, value, extras: Extras, settings: Settings) -> jax.Array:
        mesh = jax.sharding.get_abstract_mesh()
        free = {
            name: mesh.shape[name]
            for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
            if kind != AxisType.Manual
        }
        if not free:
            return attend(query, key, value, extras, settings)
        batch, heads = _axes(free, query.shape[0], key.shape[2])
        extras = extras._replace(
            mask=None if extras.mask is None else expand(extras.mask),
            bias=None if extras.bias is None else expand(extras.bias),
        )

        def local(query, key, value, extras: Extras) -> jax.Array:
            if extras.seeds is not None:
                first_row = jax.lax.axis_index(batch) * query.shape[0]
                first_head = jax.lax.axis_index(heads) * query.shape[2]
                extras = extras._replace(origin=jnp.stack([first_row, first_head]))
            return attend(query, key, value, extras, settings)

        spec = PartitionSpec(batch, None, heads, None)
        specs = (spec, spec, spec, _extras_specs(extras, batch, heads))
        args = (query, key, value, extras)
        if AxisType.Explicit in mesh.axis_types:
            args = jax.tree.map(jax.sharding.reshard, args, specs)
        return jax.shard_map(
            local, in_specs=specs, out_specs=spec, axis_names=set(free), check_vma=False
        )(*args)

    return call


def _axes(free: dict[str, int], rows: int, heads: int) -> tuple[Axes, Axes]:
    """Mesh axes that shard the batch and the heads: those that divide them."""
    batch: Axes = ()
    for name in _BATCH_AXES:
        if name in free and rows % free[name] == 0:
            batch, rows = (*batch, name), rows // free[name]
    divides = _HEAD_AXIS in free and heads % free[_HEAD_AXIS] == 0
    return batch, (_HEAD_AXIS,) if divides else ()


def _extras_specs(extras: Extras, batch: Axes, heads: Axes) -> Extras:
    """The `PartitionSpec` of each array of `extras`, at its field."""

    def broadcastable(x: jax.Array | None) -> PartitionSpec | None:
        if x is None:
            return None
        return PartitionSpec(
            None if x.shape[0] == 1 else batch, None if x.shape[1] == 1 else heads, None, None
        )

    def by_row(x: jax.Array | None) -> PartitionSpec | None:
        return None if x is None else PartitionSpec(batch, *[None] * (x.ndim - 1))

    specs: dict[str, Any] = {
        "mask": broadcastable(extras.mask),
        "bias": broadcastable(extras.bias),
        "distance_bias": None if extras.distance_bias is None else PartitionSpec(heads, None),
        "query_segment_ids": by_row(extras.query_segment_ids),
        "key_segment_ids": by_row(extras.key_segment_ids),
        "key_lengths": by_row(extras.key_lengths),
        "seeds": None if extras.seeds is None else PartitionSpec(None),
    }
    return Extras(**specs)
