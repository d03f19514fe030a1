"""Page 9: each mistake is seen by its check, and by nothing less."""

import numpy as np
import pytest

TITLES = [
    "positions twice too steep", "a causal mask of the wrong side",
    "a causal mask that hides the token itself", "LayerNorm over the whole matrix",
    "an encoder that returns its block's input", "softmax over the wrong axis",
    "scaling by d_model", "scaling both query and key", "d_k called the standard deviation",
    "dividing by a sum of similarities", "a loss averaged over padding",
    "source and target swapped", "gradients from the query's",
    "heads that are one wide product", "a feed-forward without its activation",
    "a residual of the wrong tensor", "an additive similarity that is a vector",
    "BLEU of teacher-forced output",
]  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(page):
    return page("9_")


def test_all_are_there(found):
    assert [mistake.title for mistake in found["MISTAKES"]] == TITLES


@pytest.mark.parametrize("number", range(len(TITLES)), ids=TITLES)
def test_the_right_line_passes_and_the_mistake_is_caught(found, number):
    mistake = found["MISTAKES"][number]
    mistake.check(mistake.right)
    with pytest.raises(AssertionError, match=r"\w+ \w+"):
        mistake.check(mistake.wrong)


def test_steepness_in_numbers(found):
    """sin(7 / 10000^(3/8)), by hand."""
    assert found["sinusoids"](8, 16)[7, 6] == pytest.approx(np.sin(7 * 10_000**-0.375), abs=1e-6)


def test_teacher_forcing_flatters(found):
    assert found["bleu"](found["teacher_forced"]) > 40
    assert found["bleu"](found["generated"]) < 20
