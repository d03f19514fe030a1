"""Times three ways to compute the gradient of an embedding on this machine.

    python benchmarks/embedding_gradient.py [--json=FILE]

Ids follow the frequencies of words in text (Zipf's law), so a few ids repeat very often. The
programs take turns; a time is the median over the turns.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from timing import median_milliseconds, write_json

from transformer_jax.ops import embedding

_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")
SIZES = {"small": (4_096, 8_000, 128), "base": (25_088, 32_000, 512)}  # positions, V, M
DTYPE = {"cpu": jnp.float32}  # of activations; bfloat16 on other platforms
REPEATS = 15
SLOW = 2000  # milliseconds; a slower program is timed once
FORMS = {
    "scatter": embedding.sums_by_scatter,
    "sorting": embedding.sums_by_sorting,
    "product": embedding.sums_by_product,
}


def measure(num_positions: int, vocab_size: int, width: int) -> dict[str, float]:
    """Median milliseconds of each form."""
    rng = np.random.default_rng(0)
    ids = jnp.asarray(np.minimum(rng.zipf(1.2, num_positions), vocab_size) - 1, jnp.int32)
    values = jnp.asarray(rng.normal(size=(num_positions, width)), jnp.float32)
    values = values.astype(DTYPE.get(jax.default_backend(), jnp.bfloat16))
    programs = {
        name: functools.partial(jax.jit(functools.partial(form, size=vocab_size)), ids, values)
        for name, form in FORMS.items()
    }
    return median_milliseconds(programs, REPEATS, SLOW)


def main(argv: list[str]) -> None:
    del argv
    device = jax.devices()[0].device_kind
    print(
        f"{device}, {os.cpu_count()} cores, jax {jax.__version__}; median milliseconds of {REPEATS}"
    )
    results = {}
    for name, sizes in SIZES.items():
        results[name] = measure(*sizes)
        print(f"{name}: {sizes[0]} positions, {sizes[1]} tokens, width {sizes[2]}")
        for form, milliseconds in results[name].items():
            print(f"  {form:10}{milliseconds:10.2f}")
    write_json(_JSON.value, results)


if __name__ == "__main__":
    app.run(main)
