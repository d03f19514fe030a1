"""How blockwise attention cuts its work: sizes, what it skips, the memory it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention_oracle import make_problem
from transformer_jax.ops import platforms
from transformer_jax.ops.attention import blocks, by_distance, dot_product_attention
from transformer_jax.ops.attention.blocks import Blocks, Grid, choose_blocks
from transformer_jax.ops.attention.call import Extras, Settings


@pytest.mark.parametrize(
    ("shape", "skipping", "want"),
    [
        ((2, 8, 1, 1024, 1024), "full", Blocks(1, 1, 1024, 1024)),
        ((1, 8, 1, 4097, 4097), "full", Blocks(1, 1, 1376, 1376)),
        ((1, 2, 4, 4096, 4096), "full", Blocks(1, 1, 512, 2048)),
        ((2, 8, 1, 1024, 1024), "causal", Blocks(1, 4, 512, 512)),
        ((2, 8, 1, 1024, 1024), "segments", Blocks(1, 8, 128, 128)),
        ((64, 8, 1, 64, 64), "full", Blocks(32, 8, 64, 64)),
        ((6, 3, 1, 1, 100), "full", Blocks(6, 3, 1, 100)),
    ],
)
def test_block_sizes_divide_or_cover_the_lengths(shape, skipping, want):
    assert choose_blocks(*shape, skipping) == want


@pytest.mark.parametrize(
    "kinds", [("causal",), ("lengths",), ("segments",), ("causal", "lengths", "segments")]
)
def test_blocks_needed_are_computed_and_others_skipped(kinds):
    length, size, sizes = 24, 36, Blocks(2, 1, 4, 6)
    problem = make_problem(kinds, batch=4, length=length, size=size, heads=1, groups=1, dim=2)
    counts = Blocks(2, 1, length // sizes.t, size // sizes.s)
    masking = {k: np.asarray(v) for k, v in problem.masking.items() if k != "causal"}
    grid = Grid(Settings("causal" in kinds, 1.0, 0.0, 1), sizes, counts, length, size, 1)
    ranges = np.asarray(jax.jit(lambda m: blocks.key_ranges(Extras(**m), grid))(masking))
    ranges = np.broadcast_to(ranges, (2, counts.t, 2))
    visited = needed = 0
    mask = problem.mask()
    for b, t, s in np.ndindex(2, counts.t, counts.s):
        part = mask[2 * b : 2 * b + 2, 0, 4 * t : 4 * t + 4, 6 * s : 6 * s + 6]
        first, last = ranges[b, t]
        visited += bool(first <= s < last)
        needed += bool(part.any())
        assert not part.any() or first <= s < last
    assert needed <= visited < counts.t * counts.s * 2 * 0.8


def test_blocks_computed_equal_handmade_ranges():
    query_ids = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 0, 0, 0, 0]])
    key_ids = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 0, 0, 0, 0, 0, 0]])
    extras = Extras(query_segment_ids=query_ids, key_segment_ids=key_ids)
    grid = Grid(Settings(False, 1.0, 0.0, 1), Blocks(1, 1, 4, 4), Blocks(1, 1, 4, 4), 16, 16, 1)
    np.testing.assert_array_equal(
        jax.jit(lambda e: blocks.key_ranges(e, grid))(extras), [[[0, 1], [1, 3], [1, 3], [0, 0]]]
    )


def test_blocks_are_all_computed_without_a_mask():
    grid = Grid(Settings(False, 1.0, 0.0, 1), Blocks(1, 1, 4, 4), Blocks(1, 1, 2, 2), 8, 8, 1)
    assert blocks.key_ranges(Extras(), grid) is None


def temporary_bytes(implementation, length, causal=False):
    x = jax.ShapeDtypeStruct((1, length, 1, 16), jnp.float32)

    def loss(query, key, value):
        return jnp.sum(
            dot_product_attention(query, key, value, causal=causal, implementation=implementation)
        )

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("causal", [False, True])
def test_blockwise_memory_grows_linearly(causal, monkeypatch):
    targets = {"full": (64, 64**2), "causal": (64, 64**2)}
    monkeypatch.setattr(blocks, "_TARGETS", targets)
    short, long = (temporary_bytes("blockwise", n, causal) for n in (1024, 4096))
    assert long < 4.5 * short
    assert temporary_bytes("xla", 4096) > 20 * long


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (4, 1), (3, 5), (6, 2)])
def test_matrix_of_distances_and_the_sums_of_its_diagonals(rows, columns, platform, monkeypatch):
    monkeypatch.setattr(platforms, "current", lambda: platform)
    values = np.arange(2.0 * (rows + columns - 1)).reshape(2, -1)
    d_matrix = np.arange(2.0 * rows * columns).reshape(2, rows, columns)

    @jax.jit
    def compute(values, d_matrix):
        matrix, pullback = jax.vjp(lambda x: by_distance(x, rows, columns), values)
        return matrix, pullback(d_matrix)[0]

    matrix, sums = compute(np.float32(values), np.float32(d_matrix))
    want = [
        [[v[j - i + rows - 1] for j in range(columns)] for i in range(rows)]
        for v in values.tolist()
    ]
    np.testing.assert_array_equal(matrix, want)
    diagonals = [[np.trace(x, k) for k in range(1 - rows, columns)] for x in d_matrix]
    np.testing.assert_array_equal(sums, diagonals)
