"""Functions with a custom gradient that keep every other derivative.

JAX refuses forward mode, `jax.jvp`, of a `jax.custom_vjp`. Here, the derivative is a primitive,
which is linear in the tangents. JAX transposes it for a gradient, and then `backward` computes it.
Everywhere else it is the derivative of the plain function.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from transformer_jax.ops import platforms

Arrays = Sequence[Any]  # the leaves of trees
PyTree = Any


def with_gradient(
    plain: Callable[..., PyTree],
    forward: Callable[..., tuple[PyTree, PyTree]],
    backward: Callable[..., tuple[PyTree, ...]],
) -> Callable[..., PyTree]:
    """`plain(*arguments)`, with a gradient that `backward` computes.

    JAX differentiates `forward` and `backward` where the gradient is differentiated again.
    `jax.vmap` can map the function before and after it is differentiated.

    Args:
      plain: of trees of arrays, to a tree of floating-point arrays. JAX can differentiate it.
      forward: of the same arguments: the same value, and residuals for `backward`.
      backward: of the arguments, the residuals, and the cotangents of the value: the gradient by
        each argument, with None for an array that has none.
    """
    function = jax.custom_jvp(plain)

    @function.defjvp
    def differentiate(primals, tangents):
        out, residuals = forward(*primals)
        primal_leaves, tree = jax.tree.flatten(primals)
        residual_leaves, residual_tree = jax.tree.flatten(residuals)
        out_leaves, out_tree = jax.tree.flatten(out)
        places = [
            place
            for place, leaf in enumerate(primal_leaves)
            if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
        ]
        moves = [jax.tree.leaves(tangents)[place] for place in places]
        precision = platforms.matmul_precision()
        rule = _Rule(plain, backward, tree, residual_tree, out_tree, tuple(places), precision)
        moved = _derivative.bind(
            *primal_leaves,
            *residual_leaves,
            *moves,
            rule=rule,
            out_types=tuple(jax.typeof(x).strip_weak_type().to_tangent_aval() for x in out_leaves),
            axes=(),
        )
        return out, jax.tree.unflatten(out_tree, moved)

    return function


@dataclasses.dataclass(frozen=True, eq=False)
class _Rule:
    """The derivative of one call. Its operands are primals, residuals and tangents.

    Attributes:
      plain: as in `with_gradient`.
      backward: as in `with_gradient`.
      tree: of the primals.
      residual_tree: of what `forward` gives besides the value.
      out_tree: of the value.
      places: of the primals that have tangents.
      precision: of products; JAX may trace the tangents later, outside of the caller's context.
    """

    plain: Callable[..., PyTree]
    backward: Callable[..., tuple[PyTree, ...]]
    tree: Any
    residual_tree: Any
    out_tree: Any
    places: tuple[int, ...]
    precision: str | None

    @property
    def num_constants(self) -> int:
        """Primals and residuals."""
        return int(self.tree.num_leaves + self.residual_tree.num_leaves)

    def tangents(self, *operands: Any) -> Arrays:
        """The tangents of the value."""
        leaves = list(operands[: self.tree.num_leaves])

        def value(*moving: Any) -> Arrays:
            for place, leaf in zip(self.places, moving, strict=True):
                leaves[place] = leaf
            return jax.tree.leaves(self.plain(*self.tree.unflatten(leaves)))

        moving = tuple(leaves[place] for place in self.places)
        with jax.default_matmul_precision(self.precision):
            return jax.jvp(value, moving, operands[self.num_constants :])[1]

    def cotangents(self, *operands: Any) -> Arrays:
        """Those of the operands that are tangents.

        Args:
          *operands: the constants, then the cotangents of the value.
        """
        leaves = operands[: self.tree.num_leaves]
        residuals = operands[len(leaves) : self.num_constants]
        grads = self.backward(
            *self.tree.unflatten(leaves),
            self.residual_tree.unflatten(residuals),
            self.out_tree.unflatten(operands[self.num_constants :]),
        )
        by_leaf = self.tree.flatten_up_to(tuple(grads))
        return [
            jnp.zeros_like(leaves[place]) if by_leaf[place] is None else by_leaf[place]
            for place in self.places
        ]


# --- The primitive: JAX's rules for it -----------------------------------------------------------

# Parameters: `rule`; `out_types`, of the results; `axes`, for each `vmap` around it, the innermost
# first, 0 for an operand that has the mapped axis, at its front, and else None.
_derivative: Any = jax.extend.core.Primitive("derivative")
_derivative.multiple_results = True


def _evaluate(*operands: Any, rule: _Rule, axes: Sequence[Arrays], **_: Any) -> Arrays:
    function = rule.tangents
    for of_operands in axes:
        function = jax.vmap(function, of_operands)
    return function(*operands)


def _transpose(cotangents: Arrays, *operands: Any, rule: _Rule, axes: Sequence[Arrays], **_: Any):
    function, num_constants = rule.cotangents, rule.num_constants
    for of_operands in axes:
        function = _mapped(function, of_operands[:num_constants], of_operands[num_constants:])
    cotangents = [ad.instantiate_zeros(x) for x in cotangents]
    grads = function(*operands[:num_constants], *cotangents)
    # A tangent that is known is zero: its primal was a constant.
    wanted = map(ad.is_undefined_primal, operands[num_constants:])
    moved = [grad if is_wanted else None for grad, is_wanted in zip(grads, wanted, strict=True)]
    return [None] * num_constants + moved


def _mapped(function: Callable[..., Arrays], of_constants: Arrays, of_tangents: Arrays):
    """`function` over one more axis, which every cotangent of a value has."""

    def mapped(*operands: Any) -> Arrays:
        others = (0,) * (len(operands) - len(of_constants))
        grads = jax.vmap(function, (*of_constants, *others))(*operands)
        # A tangent without the axis was broadcast.
        return [
            jnp.sum(grad, axis=0) if axis is None else grad
            for grad, axis in zip(grads, of_tangents, strict=True)
        ]

    return mapped


def _batch(operands: Arrays, where: Arrays, *, out_types: Arrays, axes: Arrays, rule: _Rule):
    is_mapped = [axis is not None for axis in where]
    moved = [
        jnp.moveaxis(x, axis, 0) if mapped else x
        for x, axis, mapped in zip(operands, where, is_mapped, strict=True)
    ]
    size = moved[is_mapped.index(True)].shape[0]
    out = _derivative.bind(
        *moved,
        rule=rule,
        out_types=tuple(jax.extend.core.unmapped_aval(size, 0, one) for one in out_types),
        axes=(*axes, tuple(0 if mapped else None for mapped in is_mapped)),
    )
    return out, [0] * len(out)


def _differentiate(primals: Arrays, tangents: Arrays, **parameters: Any):
    """By all operands, of which the constants are not linear."""
    places = [place for place, x in enumerate(tangents) if not isinstance(x, ad.Zero)]

    def evaluate(*moving: Any) -> Arrays:
        operands = list(primals)
        for place, x in zip(places, moving, strict=True):
            operands[place] = x
        return _evaluate(*operands, **parameters)

    return jax.jvp(
        evaluate, [primals[place] for place in places], [tangents[place] for place in places]
    )


_derivative.def_impl(_evaluate)
_derivative.def_abstract_eval(lambda *_, out_types, **__: list(out_types))
ad.primitive_jvps[_derivative] = _differentiate
ad.primitive_transposes[_derivative] = _transpose
batching.primitive_batchers[_derivative] = _batch
mlir.register_lowering(_derivative, mlir.lower_fun(_evaluate, multiple_results=True))
