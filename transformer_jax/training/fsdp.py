"""Parameters that are sharded over `fsdp`: gathered for use, and their gradients reduced."""

import functools
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from transformer_jax.training import partition
from transformer_jax.training.frozen import is_masked

PyTree = Any


class FsdpParams:
    """The parameters of a step under `shard_map` over `data` and `fsdp`.

    Args:
      specs: of the parameters over all mesh axes.
      mesh: of the run.
      dtype: in which kernels and tables are sent, that of the computation.
      by_layer: whether `gather` leaves out the layers, whose parameters `gather_layer` gathers.

    Attributes:
      specs: of the parameters over `fsdp` alone.
      reduced_axes: mesh axes over which gradients are summed.
    """

    def __init__(self, specs: PyTree, mesh: Mesh, dtype: jax.typing.DTypeLike, by_layer: bool):
        self.specs = jax.tree.map(_only_fsdp, specs)
        self.reduced_axes = tuple(a for a in partition.BATCH_AXES if mesh.shape[a] > 1)
        self._dtype, self._by_layer = dtype, by_layer

    def gather(self, params: PyTree) -> PyTree:
        """The entire parameters that the step needs at its beginning."""
        return {
            name: part if self._is_later(name) else self._map(self._all_gather, part, name)
            for name, part in params.items()
        }

    def gather_layer(self, stack: str, params: PyTree) -> PyTree:
        """The entire parameters of a layer of `stack`.

        JAX would sum their gradients in `dtype`; here they are reduce-scattered in float32.
        """

        def gather(param: jax.Array, axis: int, is_exact: bool) -> jax.Array:
            use = jax.custom_vjp(lambda x: self._all_gather(x, axis, is_exact))
            use.defvjp(
                lambda x: (self._all_gather(x, axis, is_exact), None),
                lambda _, grad: (_reduce_scatter(grad, axis),),
            )
            return use(param)

        return self._map(gather, params, f"{stack}_0")  # all layers have the same specs

    def reduce(self, grads: PyTree) -> PyTree:
        """The sums over all rows; of sharded parameters, this device's shards of them."""
        others = tuple(a for a in self.reduced_axes if a != "fsdp")

        def reduce(grad: jax.Array, spec: PartitionSpec, is_scattered: bool) -> jax.Array:
            if is_masked(grad):
                return grad
            axis = partition.axis_of(spec, "fsdp")
            if axis is None:
                return jax.lax.psum(grad, self.reduced_axes)
            return jax.lax.psum(grad if is_scattered else _reduce_scatter(grad, axis), others)

        return {
            name: jax.tree.map(
                functools.partial(reduce, is_scattered=self._is_later(name)),
                part,
                self.specs[name],
                is_leaf=is_masked,
            )
            for name, part in grads.items()
        }

    def _is_later(self, name: str) -> bool:
        """Whether parameters of this name are those of a layer that is gathered on its own."""
        return self._by_layer and name.startswith(("encoder_layers_", "decoder_layers_"))

    def _map(self, function: Any, params: PyTree, name: str) -> PyTree:
        """`function(param, axis, is_exact)` of each parameter that `fsdp` shards; others stay."""

        def apply(path: tuple[Any, ...], param: jax.Array, spec: PartitionSpec) -> jax.Array:
            axis = partition.axis_of(spec, "fsdp")
            is_exact = path[-1:] == (jax.tree_util.DictKey("table"),)  # relative positions
            return param if axis is None else function(param, axis, is_exact)

        return jax.tree_util.tree_map_with_path(apply, params, self.specs[name])

    def _all_gather(self, param: jax.Array, axis: int, is_exact: bool) -> jax.Array:
        """The entire parameter.

        Kernels and embeddings are sent in the type of the computation, unless they are read in
        float32 (`is_exact`).
        """
        dtype = self._dtype if param.ndim > 1 and not is_exact else param.dtype
        gathered = jax.lax.all_gather(param.astype(dtype), "fsdp", axis=axis, tiled=True)
        return gathered.astype(param.dtype)  # in which its gradients are added up


def _reduce_scatter(grad: jax.Array, axis: int) -> jax.Array:
    return jax.lax.psum_scatter(grad, "fsdp", scatter_dimension=axis, tiled=True)


def _only_fsdp(spec: PartitionSpec) -> PartitionSpec:
    """`spec` without the other mesh axes."""
    axis = partition.axis_of(spec, "fsdp")
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "fsdp")
