"""`eval --errors`: where translations are wrong, by hand; and the page that shows it."""

import importlib.util
from collections import Counter

import pytest
from sacrebleu.metrics.chrf import CHRF

from tests.test_report import Page
from transformer_jax.evaluation import error_analysis
from transformer_jax.evaluation.error_analysis import Bucket, NgramMatches, WordErrors
from transformer_jax.extras.plotting import error_page
from transformer_jax.extras.plotting.error_page import ErrorPage, mark_differences

PAIRS = [
    ("A dog runs.", "Ein Hund rennt ."),
    ("<b>Two</b> dogs & cats run.", "Zwei Hunde und Katzen rennen <b> schnell ."),
    ("No.", "Nein ."),
]
FIRST = ["Ein Hund rennt .", "Zwei Hunde und Hunde rennen <b> .", "Nein Nein Nein ."]
SECOND = ["Ein Hund läuft .", "Zwei Hunde und Katzen rennen <b> schnell .", "Nein ."]
FREQUENCIES = {"Ein": 4, "Hund": 1, "rennt": 1, "Hunde": 2, "und": 1500, ".": 99, "Nein": 12}


@pytest.fixture(scope="module")
def rows():
    return error_analysis.sentences(PAIRS, [FIRST, SECOND])


def test_sentences_have_the_chrf_of_sacrebleu(rows):
    assert [row.number for row in rows] == [1, 2, 3]
    for row, (source, reference), texts in zip(
        rows, PAIRS, zip(FIRST, SECOND, strict=True), strict=True
    ):
        assert (row.source, row.reference, row.hypotheses) == (source, reference, texts)
        scores = [CHRF().sentence_score(text, [reference]).score for text in texts]
        assert row.chrf == pytest.approx(scores)


def test_buckets_by_length_are_those_of_the_references(rows):
    long = ("x", " ".join(["wort"] * 10))
    more = error_analysis.sentences([*PAIRS, long], [[*FIRST, long[1]], [*SECOND, ""]])
    short, longer = error_analysis.by_length(more, str.split)
    assert (short.name, short.count) == ("0 to 9", 3)
    assert short.scores == error_analysis.by_length(rows, str.split)[0].scores
    assert short.scores[0] == CHRF().corpus_score(FIRST, [[r for _, r in PAIRS]]).score
    assert longer == Bucket("10 to 19", 1, (100.0, 0.0))


def test_words_longer_than_the_reference_are_counted(rows):
    # First: 0, -1 and +2 words; second: 0 three times.
    assert error_analysis.by_length_difference(rows, str.split) == [
        Bucket("-1", 1, (1.0, 0.0)),
        Bucket("0", 4, (1.0, 3.0)),
        Bucket("2", 1, (1.0, 0.0)),
    ]
    far = error_analysis.sentences([("x", " ".join("a" * 30))], [["a"]])
    assert error_analysis.by_length_difference(far, str.split) == [Bucket("under -20", 1, (1.0,))]


def test_f1_of_words_by_their_frequency(rows):
    # Words that are not counted: Zwei Katzen rennen <b> schnell, of which the first system has
    # Zwei, rennen and <b>; and läuft, which the second one has in addition to all five.
    buckets = error_analysis.by_frequency(rows, str.split, FREQUENCIES)
    want = {
        "0": (5, (2 * 3 / (5 + 3), 2 * 5 / (5 + 6))),
        "1": (2, (1.0, 2 * 1 / (2 + 1))),  # Hund, rennt
        "2 to 4": (2, (2 * 2 / (2 + 3), 1.0)),  # Ein, Hunde; the first one has Hunde twice
        "10 to 99": (4, (2 * 4 / (4 + 6), 1.0)),  # . and Nein, of which the first one has three
        "1000 and more": (1, (1.0, 1.0)),
    }
    assert {one.name: one.count for one in buckets} == {name: n for name, (n, _) in want.items()}
    for one in buckets:
        assert one.scores == pytest.approx([100 * f1 for f1 in want[one.name][1]])
    # Words that no reference has are wrong, too.
    invented = error_analysis.sentences([("x", "Ein Hund")], [["Ein zz"]])
    buckets = error_analysis.by_frequency(invented, str.split, FREQUENCIES)
    assert buckets[0] == Bucket("0", 0, (0.0,))


def test_words_that_are_most_often_wrong(rows):
    assert error_analysis.word_errors(rows, str.split, 0, 2) == [
        WordErrors("Nein", 1, 0, 2),
        WordErrors("Hunde", 1, 0, 1),
    ]
    everything = error_analysis.word_errors(rows, str.split, 0, 99)
    assert WordErrors("Katzen", 1, 1, 0) in everything
    assert "rennt" not in {one.word for one in everything}
    assert [one.word for one in error_analysis.word_errors(rows, str.split, 1, 9)] == [
        "läuft",
        "rennt",
    ]


def test_ngrams_that_one_system_has_right_more_often(rows):
    first, second = error_analysis.ngram_matches(rows, str.split, 99)
    assert [one.words for one in first] == [
        "Ein Hund rennt",
        "Ein Hund rennt .",
        "Hund rennt",
        "Hund rennt .",
        "rennt",
        "rennt .",
    ]
    assert NgramMatches("Katzen rennen", 1, (0, 1)) in second
    # Two of three are in a reference, which has one: no n-gram counts more often than there.
    pairs = [("x", "a b a b c")]
    both = error_analysis.sentences(pairs, [["a b a b a b"], ["a b"]])
    assert error_analysis.ngram_matches(both, str.split, 3) == (
        [
            NgramMatches("a", 2, (2, 1)),
            NgramMatches("a b", 2, (2, 1)),
            NgramMatches("a b a", 1, (1, 0)),
        ],
        [],
    )


def test_words_are_those_of_bleu():
    assert error_analysis.splitter("13a")("Ein Hund, 3,5 km. ") == [
        "Ein",
        "Hund",
        ",",
        "3,5",
        "km",
        ".",
    ]
    assert error_analysis.splitter("zh")("两只狗。") == ["两", "只", "狗", "。"]
    counts = error_analysis.count_words(["a b a", "b."], error_analysis.splitter("13a"))
    assert counts == Counter({"a": 2, "b": 2, ".": 1})


@pytest.mark.parametrize(
    ("written", "other", "html"),
    [
        ("a b c", "a b c", "a b c"),
        ("a x y c", "a b c", "a <del>x y</del> c"),
        ("a <b>", "a", "a <del>&lt;b&gt;</del>"),
        ("", "a b", ""),
        ("两只狗", "两只猫", "两只<del>狗</del>"),
        ("Hund", "Hunde laufen", "<del>Hund</del>"),
    ],
)
def test_differences_are_marked(written, other, html):
    assert mark_differences(written, other, "del") == html


def page_of(rows, systems):
    return ErrorPage(
        "Errors on <test>",
        systems,
        {"BLEU": [12.345] * len(systems)},
        rows,
        str.split,
        FREQUENCIES,
        "a text",
        ("en", "de"),
        {"BLEU": 0.03} if len(systems) == 2 else {},
    ).html()


def test_page_of_one_system_has_its_worst_sentences_first(monkeypatch):
    monkeypatch.setattr(error_page, "NUM_SENTENCES", 2)
    html = page_of(error_analysis.sentences(PAIRS, [FIRST]), ["runs/<mine>"])
    page = Page(html)
    assert page.sources == ["data:,"]  # it loads nothing
    assert not page.open
    places = [html.find(f"<dt>line {n}</dt>") for n in (2, 3, 1)]
    scores = [CHRF().sentence_score(FIRST[i], [PAIRS[i][1]]).score for i in (1, 2, 0)]
    assert scores == sorted(scores)
    assert 0 < places[0] < places[1]
    assert places[2] == -1  # all right, and only two are shown
    assert "Errors on <test>" in page.text
    assert "runs/<mine>, chrF" in page.text
    assert "<b>Two</b> dogs & cats run." in page.text
    assert "und <ins>Katzen</ins> rennen &lt;b&gt; <ins>schnell</ins> ." in html
    assert "und <del>Hunde</del> rennen &lt;b&gt; ." in html
    assert "12.35" in page.text
    assert '<th scope="row">2 (1)</th><td>1</td>' in html  # a translation with two words more
    assert "script" not in page.tags


def test_page_of_two_systems_shows_where_they_differ(rows):
    html = page_of(rows, ["one", "two"])
    page = Page(html)
    assert not page.open
    assert "1 sentences are better by one, 2 by two, and 0 are equal" in page.text
    better_by_one, better_by_two = (
        html.find(f"better by {name}</summary>") for name in ("one", "two")
    )
    assert better_by_one < html.find("<dt>line 1</dt>") < better_by_two
    assert better_by_two < html.find("<dt>line 2</dt>", better_by_one)
    assert "Difference by paired bootstrap: BLEU p = 0.0300." in page.text
    heads = [html.find(f"more often by {name}</summary>") for name in ("one", "two")]
    assert heads[0] < html.find('<th scope="row">Hund rennt</th><td>1</td><td>1</td><td>0</td>')
    assert heads[1] < html.find('<th scope="row">schnell .</th><td>1</td><td>0</td><td>1</td>')
    same = page_of(rows, ["one", "one"])
    assert same.count("better by one</summary>") == 2


def test_page_needs_no_matplotlib():
    page = "transformer_jax.extras.plotting.error_page"
    code = f"import sys; sys.modules['matplotlib'] = None; import {page}"
    assert importlib.util.find_spec("matplotlib")
    from tests.test_imports import loaded_by

    loaded_by(code)
