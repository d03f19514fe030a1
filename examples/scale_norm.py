"""Adds a norm: ScaleNorm (Nguyen and Salazar, 2019) in the place of LayerNorm.

    python examples/scale_norm.py --workdir=runs/scale_norm

trains the quickstart with it and translates a number. `model.choices` has the two functions that
decide what a norm is; the layers and the incremental decoder both call them there. In a fork,
change them in `transformer_jax/model/choices.py`, with a field of `ModelConfig` that chooses
between norms.
"""

import argparse

import jax
import jax.numpy as jnp

from transformer_jax import Translator
from transformer_jax.config import ModelConfig
from transformer_jax.configs import quickstart  # type: ignore[attr-defined, unused-ignore]
from transformer_jax.model import choices
from transformer_jax.model.choices import NormParams
from transformer_jax.training.loop import train


def init_scale_norm(config: ModelConfig) -> NormParams:
    """Initial parameters: one length for all features, √M."""
    return {"scale": jnp.full(1, config.d_model**0.5)}


def scale_norm(config: ModelConfig, params: NormParams, x: jax.Array, axis: int = -1) -> jax.Array:
    """`scale · x / ‖x‖` over `axis`, computed in float32.

    Args:
      config: of the model.
      params: `scale`, one number, which broadcasts against `x`.
      x: `[..., M]` in the layers, `[M, N]` with `axis=0` in the incremental decoder.
      axis: of the features.
    """
    x32 = x.astype(jnp.float32)
    square = jnp.sum(jnp.square(x32), axis, keepdims=True)
    y = x32 * jax.lax.rsqrt(square + config.norm_epsilon) * params["scale"]
    return y.astype(x.dtype)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", required=True, help="folder of the run")
    args = parser.parse_args()

    choices.init_norm = init_scale_norm
    choices.norm = scale_norm
    train(quickstart.get_config(), args.workdir)
    (translation,) = Translator.load(args.workdir).translate(["three hundred and forty-seven"])
    print(translation.text)
