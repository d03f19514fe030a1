"""Adds a norm: RMSNorm (Zhang and Sennrich, 2019) in the place of LayerNorm.

    python examples/rms_norm.py --workdir=runs/rms_norm

trains the quickstart with it and translates a number. `ops.norms` has the two functions that decide
what a norm is; the layers and the incremental decoder both call them there. In a fork, change
them in `transformer_jax/ops/norms.py`, with a field of `ModelConfig` that chooses between norms.
"""

import argparse

import jax
import jax.numpy as jnp

from transformer_jax import Translator
from transformer_jax.config import ModelConfig
from transformer_jax.configs import quickstart  # type: ignore[attr-defined]
from transformer_jax.ops import norms
from transformer_jax.ops.norms import NormParams
from transformer_jax.training.loop import train


def init_rms_norm(config: ModelConfig) -> NormParams:
    """Initial parameters: no mean is subtracted, so there is no bias."""
    return {"scale": jnp.ones(config.d_model)}


def rms_norm(config: ModelConfig, params: NormParams, x: jax.Array, axis: int = -1) -> jax.Array:
    """`x / sqrt(mean(x²) + ε) · scale` over `axis`, computed in float32.

    Args:
      config: of the model.
      params: `scale`, which broadcasts against `x`.
      x: `[..., M]` in the layers, `[M, N]` with `axis=0` in the incremental decoder.
      axis: of the features.
    """
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis, keepdims=True)
    y = x32 * jax.lax.rsqrt(mean_square + config.norm_epsilon) * params["scale"]
    return y.astype(x.dtype)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", required=True, help="folder of the run")
    args = parser.parse_args()

    norms.init_norm = init_rms_norm
    norms.norm = rms_norm
    train(quickstart.get_config(), args.workdir)
    (translation,) = Translator.load(args.workdir).translate(["three hundred and forty-seven"])
    print(translation.text)
