"""Compiles attention for TPUs that are not attached, and prints the memory that a device needs.

    JAX_PLATFORMS=cpu python benchmarks/attention_tpu.py [--topologies=v5e:2x4] [--json=FILE]

Needs `libtpu` (`pip install -c constraints.txt libtpu`), whose compiler runs on any machine. The
program is the gradient of causal attention over packed rows. The batch is sharded over the mesh
axis `data`, the heads over `tensor`.
"""

import json
import os

# Ask no metadata server about a TPU that is not attached.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.ops.attention import dot_product_attention

_TOPOLOGIES = flags.DEFINE_list("topologies", ["v5e:2x4", "v6e:2x4"], "Machines of 8 devices.")
_LENGTH = flags.DEFINE_integer("length", 4096, "T and S.")
_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")
BATCH, HEADS, HEAD_DIM = 8, 8, 64
IMPLEMENTATIONS = ("auto", "pallas_tpu", "blockwise", "xla")


def compile_for(topology: str, implementation: str, length: int) -> dict:
    """Memory of one device in bytes, and the number of kernels and collectives in the program."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    mesh = Mesh(np.array(devices).reshape(-1, 2), ("data", "tensor"))

    def argument(shape: tuple[int, ...], dtype, *axes: str | None) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    x = argument((BATCH, length, HEADS, HEAD_DIM), jnp.bfloat16, "data", None, "tensor")
    ids = argument((BATCH, length), jnp.int32, "data")

    def total(query, key, value, ids):
        out = dot_product_attention(
            query,
            key,
            value,
            causal=True,
            query_segment_ids=ids,
            key_segment_ids=ids,
            implementation=implementation,
        )
        return jnp.sum(out.astype(jnp.float32))

    with jax.set_mesh(mesh):
        compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(x, x, x, ids).compile()
    memory, text = compiled.memory_analysis(), compiled.as_text() or ""
    if memory is None:
        raise SystemExit(
            "this libtpu does not report the memory of a program; install that of constraints.txt"
        )
    return {
        "topology": topology,
        "implementation": implementation,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "kernels": text.count("tpu_custom_call"),
        "collectives": text.count(" all-gather(") + text.count(" all-to-all("),
    }


def main(argv: list[str]) -> None:
    del argv
    shape = f"[{BATCH}, {_LENGTH.value}, {HEADS}, {HEAD_DIM}]"
    print(f"{shape} bfloat16, causal and packed, gradient; MB per device; jax {jax.__version__}")
    rows = []
    for topology in _TOPOLOGIES.value:
        for implementation in IMPLEMENTATIONS:
            row = compile_for(topology, implementation, _LENGTH.value)
            rows.append(row)
            print(
                f"{topology:8} {implementation:12} arguments {row['argument_bytes'] / 1e6:7.1f}  "
                f"outputs {row['output_bytes'] / 1e6:7.1f}  "
                f"temporaries {row['temporary_bytes'] / 1e6:8.1f}  kernels {row['kernels']}  "
                f"collectives {row['collectives']}"
            )
    if _JSON.value:
        with open(_JSON.value, "w") as out:
            json.dump({"length": _LENGTH.value, "rows": rows}, out, indent=1)


if __name__ == "__main__":
    app.run(main)
