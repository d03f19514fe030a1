"""Page 10: each check passes for the right line and fails for the mistake."""

import pytest

TITLES = [
    "LayerNorm over the whole matrix",
    "an encoder that returns its block's input",
    "a feed-forward without its activation",
    "a residual of the wrong tensor",
    "a loss averaged over padding",
    "BLEU of teacher-forced output",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(page):
    return page("10_")


def test_page_shows_all_mistakes(results):
    assert [mistake.title for mistake in results["mistakes"]] == TITLES


@pytest.mark.parametrize("number", range(len(TITLES)), ids=TITLES)
def test_check_passes_the_right_line_and_catches_the_mistake(results, number):
    mistake = results["mistakes"][number]
    mistake.check(mistake.right)
    with pytest.raises(AssertionError, match=r"\w+ \w+"):
        mistake.check(mistake.wrong)


def test_teacher_forcing_flatters(results):
    assert results["bleu"](results["teacher_forced"]) > 40
    assert results["bleu"](results["generated"]) < 20
