"""Position encodings against the paper's table and NumPy."""

import numpy as np
import pytest

from transformer_jax.config import ModelConfig
from transformer_jax.model import choices
from transformer_jax.ops import positional

TABLE = [
    [0.0, 1.0, 0.0, 1.0],
    [0.84147098, 0.54030231, 0.00999983, 0.99995000],
    [0.90929743, -0.41614684, 0.01999867, 0.99980001],
    [0.14112001, -0.98999250, 0.02999550, 0.99955003],
]
LAST_COLUMNS_BASE_100 = [
    [0.0, 1.0],
    [0.09983342, 0.99500417],
    [0.19866933, 0.98006658],
    [0.29552021, 0.95533649],
]


def test_sinusoids_interleaved_are_the_papers_table():
    np.testing.assert_allclose(positional.sinusoids(4, 4), TABLE, atol=5e-8)
    np.testing.assert_allclose(
        positional.sinusoids(4, 4, base=100)[:, 2:], LAST_COLUMNS_BASE_100, atol=5e-8
    )


def test_sinusoids_halves_are_interleaved_in_another_order():
    interleaved = positional.sinusoids(50, 12)
    halves = positional.sinusoids(50, 12, "halves")
    np.testing.assert_array_equal(halves[:, :6], interleaved[:, 0::2])
    np.testing.assert_array_equal(halves[:, 6:], interleaved[:, 1::2])


def test_sinusoids_tensor2tensor_reach_the_base():
    table = positional.sinusoids(30, 8, "tensor2tensor")
    for p in (0, 1, 17, 29):
        for i in range(4):
            angle = p / 10_000.0 ** (i / 3)
            assert table[p, i] == pytest.approx(np.sin(angle), abs=1e-6)
            assert table[p, 4 + i] == pytest.approx(np.cos(angle), abs=1e-6)
    assert np.all(np.isfinite(positional.sinusoids(3, 2, "tensor2tensor")))


def test_sinusoids_refuse_odd_width_and_unknown_layout():
    with pytest.raises(ValueError, match="even d_model, got 5"):
        positional.sinusoids(4, 5)
    with pytest.raises(ValueError, match="layout"):
        positional.sinusoids(4, 4, "spiral")
    with pytest.raises(ValueError, match="even head_dim, got 3"):
        positional.apply_rotary(np.zeros((1, 2, 1, 3)), np.arange(2)[None])


def test_rotary_rotates_pairs_and_depends_only_on_distance():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 1, 1, 1, 6)).astype(np.float32)
    at = lambda v, p: np.asarray(positional.apply_rotary(v, np.array([[p]])))[0, 0, 0]  # noqa: E731
    pairs = x[0, 0, 0, :3] + 1j * x[0, 0, 0, 3:]
    want = pairs * np.exp(1j * 5 * 10_000.0 ** (-np.arange(3) / 3))
    np.testing.assert_allclose(at(x, 5), np.concatenate([want.real, want.imag]), atol=1e-5)
    np.testing.assert_allclose(at(x, 7) @ at(y, 4), at(x, 13) @ at(y, 10), atol=1e-5)
    assert abs(at(x, 7) @ at(y, 4) - at(x, 7) @ at(y, 5)) > 1e-3
    rows = rng.normal(size=(2, 3, 1, 4)).astype(np.float32)
    by_row = positional.apply_rotary(rows, np.tile(np.arange(3), (2, 1)))
    np.testing.assert_array_equal(positional.apply_rotary(rows, np.arange(3)), by_row)


def test_relative_buckets_are_those_of_the_paper():
    """32 buckets up to distance 128: by hand, the ends of the ranges of T5's formula."""
    ends = [*range(9), 12, 16, 23, 32, 46, 64, 91]  # first distances of the buckets 0 .. 15
    distances = np.arange(-200, 201)
    want = [sum(abs(d) >= end for end in ends) - 1 + 16 * (d > 0) for d in distances]
    got = positional.relative_buckets(distances, True, 32, 128)
    np.testing.assert_array_equal(got, want)
    # Causal: later keys are in bucket 0, and 16 buckets are exact.
    got = positional.relative_buckets(
        np.array([5, 0, -1, -15, -16, -18, -19, -1000]), False, 32, 128
    )
    assert got.tolist() == [0, 0, 1, 15, 16, 16, 17, 31]


def test_alibi_slopes_are_a_geometric_sequence():
    np.testing.assert_allclose(positional.alibi_slopes(8), 0.5 ** np.arange(1, 9))
    twelve = positional.alibi_slopes(12)  # those of 8, then every second one of 16
    np.testing.assert_allclose(twelve[:8], 0.5 ** np.arange(1, 9))
    np.testing.assert_allclose(twelve[8:], 0.5 ** np.arange(0.5, 4))
    bias = choices.position_bias(
        ModelConfig(positional="alibi", num_heads=2), None, np.array([-3, 0, 2]), causal=False
    )
    np.testing.assert_allclose(bias, -np.outer([2.0**-4, 2.0**-8], [3, 0, 2]))
