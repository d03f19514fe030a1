"""Measures dropout by its source of random bits, interleaved, medians.

python benchmarks/dropout.py [--json=FILE]
"""

import json
import os
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from absl import app, flags

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
    rows: dict[str, tuple[Callable, jax.Array]] = {
        "no dropout (x * 2)": (lambda x, rng: x * 2.0, threefry),
        "ours": (lambda x, rng: dropout(x, RATE, rng), threefry),
        "jax.random, threefry": (bernoulli, threefry),
        "jax.random, rbg": (bernoulli, rbg),
    }
    compiled = {}
    for name, (function, rng) in rows.items():
        compiled[name] = jax.jit(function)
        jax.block_until_ready(compiled[name](x, rng))
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(REPEATS):
        for name, (_, rng) in rows.items():
            started = time.perf_counter()
            jax.block_until_ready(compiled[name](x, rng))
            times[name].append(time.perf_counter() - started)
    results = {name: 1000 * statistics.median(values) for name, values in times.items()}
    device = jax.devices()[0].device_kind
    print(f"{SHAPE} float32, rate {RATE}, {device}, {os.cpu_count()} cores, jax {jax.__version__}")
    for name, milliseconds in results.items():
        ratio = milliseconds / results["ours"]
        print(f"{name:24} {milliseconds:8.3f} ms  {ratio:6.2f} x ours")
    if _JSON.value:
        with open(_JSON.value, "w") as out:
            json.dump(results, out, indent=2)


if __name__ == "__main__":
    app.run(main)
