"""Page 4: encodings, against the paper's formula in plain Python."""

import math

import numpy as np
import pytest


@pytest.fixture(scope="module")
def results(page):
    return page("4_")


def encoding(position, d_model, base):
    row = []
    for pair in range(d_model // 2):
        angle = position / base ** (2 * pair / d_model)
        row += [math.sin(angle), math.cos(angle)]
    return row


def test_sinusoids_follow_the_formula_of_the_paper(results):
    assert results["table"].shape == (100, 512)
    for position in (0, 1, 57, 99):
        np.testing.assert_allclose(
            results["table"][position], encoding(position, 512, 10_000), atol=1e-5
        )


def test_sinusoid_dot_products_depend_on_distance_only(results):
    assert results["unequal"] < 1e-4
    distances = [diagonal[0] for diagonal in results["by_distance"]]
    assert distances[0] == max(distances)
    assert distances[0] > distances[5] > distances[50]


@pytest.mark.parametrize("base", [100, 10_000])
def test_sums_of_embeddings_and_encodings(results, base):
    words = [
        [0.1, 0.2, 1, 0.45],
        [0.15, 0.32, 13, 0.51],
        [-0.1, 0.21, 0.65, 0.25],
        [0.1, -0.12, 0.33, -0.45],
    ]
    want = [np.add(word, encoding(p, 4, base)) for p, word in enumerate(words)]
    np.testing.assert_allclose(results["sums"][base], want, atol=1e-6)


def test_sums_worked_by_hand(results):
    np.testing.assert_allclose(
        results["sums"][100][1], [0.9915, 0.8603, 13.0998, 1.5050], atol=6e-5
    )
    np.testing.assert_allclose(
        results["sums"][10_000][3], [0.2411, -1.1100, 0.3600, 0.5496], atol=6e-5
    )


def test_sinusoid_layouts_are_reordered_columns(results):
    paper, halves = results["layouts"]["interleaved"], results["layouts"]["halves"]
    np.testing.assert_array_equal(halves, np.concatenate([paper[:, ::2], paper[:, 1::2]], axis=1))
    slowest = results["layouts"]["tensor2tensor"][:, 15]
    np.testing.assert_allclose(slowest, np.sin(np.arange(40) / 10_000), atol=1e-7)


def test_rotary_scores_depend_on_distance_only(results):
    assert results["along"] < 1e-4
    assert np.ptp(results["rotated"][0]) > 1.0
