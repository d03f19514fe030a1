"""Runs the layers of a stack, and says what their backward pass recomputes."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

Remat = Literal["none", "dots", "full"]
Params = dict[str, Any]  # of one layer

# Activations that the backward pass does not recompute. `dots`: the results of products with
# parameters. Attention's products have batch axes, and are recomputed: scores are large.
_SAVED: dict[str, Callable[..., bool] | None] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": None,
}


def with_remat(layer_class: type[nn.Module], remat: Remat) -> type[nn.Module]:
    """`layer_class` whose activations are recomputed in the backward pass."""
    if remat == "none":
        return layer_class
    # `deterministic` selects Python branches, so it is static. `nn.remat` names static arguments by
    # position: 0 is `self`, 1 is `x`.
    return nn.remat(layer_class, static_argnums=2, policy=_SAVED[remat])


def scan_layers(
    layers: Sequence[nn.Module],
    x: jax.Array,
    deterministic: bool,
    *,
    rng: jax.Array | None,
    remat: Remat,
    gather: Callable[[Params], Params],
    **inputs: jax.Array | None,
) -> jax.Array:
    """Applies the layers as the body of one loop, which is compiled once.

    Their parameters stay separate, so a checkpoint does not show whether it was trained this way.

    Args:
      layers: of one class and config, bound to their parameters.
      x: input of the first layer, `[B, L, M]`.
      deterministic: True disables dropout.
      rng: key of the dropout; None: there is none.
      remat: what the backward pass recomputes.
      gather: makes the parameters of a layer from what this device has of them. With remat the
        backward pass calls it again, so a device has those of one layer at a time.
      inputs: the same for all layers.
    """
    stacked = jax.tree.map(
        lambda *x: jnp.stack(x), *(layer.variables["params"] for layer in layers)
    )
    keys = None if rng is None else jax.random.split(rng, len(layers))
    layer = layers[0].clone(parent=None)  # which takes its parameters as an argument

    apply_layer: Callable[..., Any] = layer.apply

    def apply(x: jax.Array, params_and_key: tuple[Params, jax.Array | None]):
        params, key = params_and_key
        rngs = None if key is None else {"dropout": key}
        return apply_layer({"params": gather(params)}, x, deterministic, rngs=rngs, **inputs), None

    if remat != "none":
        apply = jax.checkpoint(apply, policy=_SAVED[remat], prevent_cse=False)
    return jax.lax.scan(apply, x, (stacked, keys))[0]
