"""Times dropout with different generators of random bits.

    python benchmarks/dropout.py [--json=FILE]

The programs take turns; a time is the median over the turns.
"""

import functools
import os

import jax
import jax.numpy as jnp
from absl import app, flags
from timing import median_milliseconds, write_json

from transformer_jax.ops.dropout import dropout

_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")
SHAPE, RATE, REPEATS = (4096, 512), 0.1, 31


def bernoulli(x: jax.Array, rng: jax.Array) -> jax.Array:
    """What `flax.linen.Dropout` computes."""
    return jnp.where(jax.random.bernoulli(rng, 1 - RATE, x.shape), x / (1 - RATE), 0.0)


def main(argv: list[str]) -> None:
    del argv
    x = jnp.ones(SHAPE)
    threefry, rbg = jax.random.key(0), jax.random.key(0, impl="rbg")
    rows = {
        "no dropout (x * 2)": (lambda x, rng: x * 2.0, threefry),
        "ours": (lambda x, rng: dropout(x, RATE, rng), threefry),
        "jax.random, threefry": (bernoulli, threefry),
        "jax.random, rbg": (bernoulli, rbg),
    }
    results = median_milliseconds(
        {name: functools.partial(jax.jit(fn), x, rng) for name, (fn, rng) in rows.items()}, REPEATS
    )
    device = jax.devices()[0].device_kind
    print(f"{SHAPE} float32, rate {RATE}, {device}, {os.cpu_count()} cores, jax {jax.__version__}")
    for name, milliseconds in results.items():
        ratio = milliseconds / results["ours"]
        print(f"{name:24} {milliseconds:8.3f} ms  {ratio:6.2f} times ours")
    write_json(_JSON.value, results)


if __name__ == "__main__":
    app.run(main)
