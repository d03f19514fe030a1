"""Measures the forms of an embedding's gradient on this machine, interleaved, medians.

python benchmarks/embedding_gradient.py [--json=FILE]

Ids are drawn with the frequencies of words in text (Zipf), so that a few repeat very often.
"""

import functools
import json
import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from transformer_jax.ops import embedding

_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")
SIZES = {"small": (4_096, 8_000, 128), "base": (25_088, 32_000, 512)}  # positions, V, M
DTYPE = {"cpu": jnp.float32}  # of activations; bfloat16 elsewhere
REPEATS = 15
TOO_SLOW = 2000  # milliseconds; such a form is measured once
FORMS = {
    "scatter": embedding.sums_by_scatter,
    "sorting": embedding.sums_by_sorting,
    "product": embedding.sums_by_product,
}


def measure(count: int, vocab_size: int, width: int, repeats: int) -> dict[str, float]:
    """Median milliseconds of each form."""
    rng = np.random.default_rng(0)
    ids = jnp.asarray(np.minimum(rng.zipf(1.2, count), vocab_size) - 1, jnp.int32)
    values = jnp.asarray(rng.normal(size=(count, width)), jnp.float32)
    values = values.astype(DTYPE.get(jax.default_backend(), jnp.bfloat16))
    programs = {
        name: jax.jit(functools.partial(form, size=vocab_size)) for name, form in FORMS.items()
    }
    for program in programs.values():
        jax.block_until_ready(program(ids, values))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(repeats):
        for name, program in programs.items():
            if turn and times[name][0] > TOO_SLOW:
                continue
            started = time.perf_counter()
            jax.block_until_ready(program(ids, values))
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def main(argv: list[str]) -> None:
    del argv
    device = jax.devices()[0].device_kind
    print(
        f"{device}, {os.cpu_count()} cores, jax {jax.__version__}; median milliseconds of {REPEATS}"
    )
    results = {}
    for name, sizes in SIZES.items():
        results[name] = measure(*sizes, REPEATS)
        print(f"{name}: {sizes[0]} positions, {sizes[1]} tokens, width {sizes[2]}")
        for form, milliseconds in results[name].items():
            print(f"  {form:10}{milliseconds:10.2f}")
    if _JSON.value:
        with open(_JSON.value, "w") as out:
            json.dump(results, out, indent=2)


if __name__ == "__main__":
    app.run(main)
