"""Parameters that stay as they are: `train.frozen`."""

import fnmatch
from collections.abc import Sequence
from typing import Any

import jax
import optax

from transformer_jax.errors import UserError

PyTree = Any  # of arrays, or of what describes arrays


def is_frozen(path: Sequence[Any], names: Sequence[str]) -> bool:
    """Whether one of the names is that of the parameter at `path`, or of a part that has it."""
    name = jax.tree_util.keystr(tuple(path), simple=True, separator="/")
    return any(fnmatch.fnmatchcase(name, part + end) for part in names for end in ("", "/*"))


def check_names(params: PyTree, names: Sequence[str], owner: str = "the model") -> None:
    """Raises a `UserError` if a name is of no parameter, or nothing is left to train.

    Args:
      params: that are trained without `names`.
      names: `train.frozen`.
      owner: of the parameters, for the message.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    parts = sorted({jax.tree_util.keystr(path[:1], simple=True) for path in paths})
    for name in names:
        if not any(is_frozen(path, [name]) for path in paths):
            raise UserError(
                f"config.train.frozen has {name!r}, and {owner} has no such part; it has "
                f"{', '.join(parts)}."
            )
    if names and all(is_frozen(path, names) for path in paths):
        raise UserError(f"config.train.frozen={tuple(names)} leaves no parameter to train.")


def trained(params: PyTree, names: Sequence[str]) -> PyTree:
    """`params` with an `optax.MaskedNode`, which has no arrays, for each frozen one."""
    if not names:
        return params
    return jax.tree_util.tree_map_with_path(
        lambda path, x: optax.MaskedNode() if is_frozen(path, names) else x, params
    )


def with_frozen(trained_params: PyTree, params: PyTree) -> PyTree:
    """All parameters: the trained ones, and of `params` the frozen ones."""
    return jax.tree.map(
        lambda new, old: old if is_masked(new) else new, trained_params, params, is_leaf=is_masked
    )


def is_masked(node: Any) -> bool:
    """Whether a node of a tree is in the place of a frozen parameter."""
    return isinstance(node, optax.MaskedNode)
