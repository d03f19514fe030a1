"""Page 9: each check passes for the right line and fails for the mistake."""

import numpy as np
import pytest

TITLES = [
    "positions twice too steep",
    "a causal mask of the wrong side",
    "a causal mask that hides the token itself",
    "softmax over the wrong axis",
    "scaling by d_model",
    "scaling both query and key",
    "d_k called the standard deviation",
    "dividing by a sum of similarities",
    "source and target swapped",
    "gradients from the query's",
    "heads that are one wide product",
    "an additive similarity that is a vector",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(page):
    return page("9_")


def test_page_shows_all_mistakes(results):
    assert [mistake.title for mistake in results["mistakes"]] == TITLES


@pytest.mark.parametrize("number", range(len(TITLES)), ids=TITLES)
def test_check_passes_the_right_line_and_catches_the_mistake(results, number):
    mistake = results["mistakes"][number]
    mistake.check(mistake.right)
    with pytest.raises(AssertionError, match=r"\w+ \w+"):
        mistake.check(mistake.wrong)


def test_positions_by_hand(results):
    """sin(7 / 10000^(3/8))."""
    assert results["sinusoids"](8, 16)[7, 6] == pytest.approx(np.sin(7 * 10_000**-0.375), abs=1e-6)
