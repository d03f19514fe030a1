"""Glossaries: which terms are in a text, files that are wrong, and terms in translations."""

import dataclasses
import json

import numpy as np
import pytest

from tests.conftest import run_command
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import glossary, term_placement
from transformer_jax.translator import phrases
from transformer_jax.translator.phrases import OneOf
from transformer_jax.translator.requests import Request
from transformer_jax.translator.translation import Translation

ROWS = [
    ("red hat", "roter Hut|roten Hut"),
    ("hat", "Hut", "inflect"),
    ("hats and coats", "Garderobe"),
    ("EU", "Europäische Union", "case"),
    ("Red", "Röd", "case"),
    ("city", "Stadt", "inflect"),
    ("帽子", "Hut"),
    ("C++", "C++"),
]
MATCHES = [
    ("A red hat and two hats.", ["red hat", "hat"]),
    ("RED HAT", ["red hat"]),
    ("Hats and coats, hats.", ["hats and coats", "hat"]),  # the longest
    ("The eu.", []),
    ("The EU.", ["EU"]),
    ("Red hat", ["red hat"]),
    ("Red wine, red wine", ["Red"]),
    ("chat, hatred, redhat", []),
    ("cities", []),  # another stem
    ("citys, city's", ["city"]),
    ("一顶帽子。", ["帽子"]),
    ("In C++ and C.", ["C++"]),
    ("hat hat hat", ["hat"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "wanted"), MATCHES)
def test_terms_are_found_by_hand(text, wanted):
    assert [term.source for term in glossary.of_rows(ROWS).find(text)] == wanted


def test_occurrences_are_counted_in_words():
    places = glossary.of_rows(ROWS).occurrences("A red hat, two hats.")
    assert [(one.term.source, one.first, one.end) for one in places] == [
        ("red hat", 1, 3),
        ("hat", 5, 6),
    ]
    assert not glossary.of_rows([])


def test_a_term_is_a_phrase_also_at_the_beginning_of_a_sentence(tokenizers):
    terms = glossary.of_rows([("a", "rot|Rot|blau", "inflect, case")])
    forms = ("rot", "Rot", "blau", "Blau")
    wanted = Request("A a", phrases=("x", OneOf(forms, may_continue=True)), line=3)
    request = Request("A a", phrases=("x",), line=3)
    assert term_placement.constrained(terms, request, tokenizers, 20) == wanted
    assert term_placement.constrained(terms, request, tokenizers, 0) == request  # no room
    assert term_placement.constrained(terms, Request("b"), tokenizers, 20) == Request("b")


def translation(text, attention):
    """One whose tokens are its words."""
    words = text.split()
    return Translation(
        text,
        -1.0,
        -2.0,
        tuple("▁" + word for word in words),
        (),
        attention=np.asarray(attention, float),
    )


def aligned(source, text, links):
    """The translation in which word t attends to source word s of each link (s, t)."""
    attention = np.zeros((len(text.split()), len(source.split())))
    for s, t in links:
        attention[t, s] = 1
    source_tokens = tuple("▁" + word for word in source.split())
    return dataclasses.replace(translation(text, attention), source_tokens=source_tokens)


# (source, translation, links, terms, drafts); a form is in the place of the words that attend most.
PLACED = [
    ("a dog runs", "ein Hund rennt", [(0, 0), (1, 1), (2, 2)], "dog=Rüde", ["ein Rüde rennt"]),
    ("dogs run", "Hunde rennen", [(0, 0), (1, 1)], "dogs=hübsche Rüden", ["Hübsche Rüden rennen"]),
    ("a dog", "ein Hund", [(0, 0), (1, 1)], "dog=Rüde|Rüden", ["ein Rüde", "ein Rüden"]),
    ("a dog", "ein Rüde", [(0, 0), (1, 1)], "dog=Rüde|Rüden", []),  # it is there
    ("a dog", "ein Rüde", [(0, 0), (1, 1)], "dog=Hund", ["ein Hund"]),
    ("a dog", "ein Tier", [(0, 0), (0, 1)], "dog=Hund", []),  # nothing attends to it
    (
        "the red hat",
        "der Hut ist rot",
        [(0, 0), (2, 1), (1, 3)],
        "red hat=Rothut",
        ["der Rothut ist rot"],
    ),
    (
        "an ice cream",
        "ein Eis am Stiel",
        [(0, 0), (1, 1), (2, 2), (2, 3)],
        "ice cream=Glace",
        ["ein Glace"],
    ),
    ("dog and dog", "Hund und Hund", [(0, 0), (1, 1), (2, 2)], "dog=Rüde", ["Rüde und Rüde"]),
    ("dog and dog", "X und Hund", [(0, 0), (1, 1), (2, 2)], "dog=X|Y", ["X und X", "X und Y"]),
    # One word for both: the second has no place.
    ("dog hut", "Hundehütte", [(0, 0), (1, 0)], "dog=A;hut=B", ["A"]),
    ("dog , cat", "Hund , Katze", [(0, 0), (1, 1), (2, 2)], "dog=A;cat=B|C", ["A , B", "A , C"]),
]


@pytest.mark.parametrize(("source", "text", "links", "rows", "wanted"), PLACED)
def test_terms_take_the_place_of_the_words_that_attend_to_them(source, text, links, rows, wanted):
    terms = glossary.of_rows([row.split("=") for row in rows.split(";")])
    before = aligned(source, text, links)
    drafts = term_placement.drafts(source, terms.occurrences(source), before)
    assert [one.text for one in drafts] == wanted
    for one in drafts:
        for start, end, *_ in one.replaced:
            forms = {form for term in terms.terms for form in term.phrase.forms}
            assert one.text[start:end] in forms


def test_new_tokens_attend_as_those_before_did():
    draft = term_placement.Draft("ein großer Rüde rennt", ((4, 15, 4, 8),))
    before = translation("ein Hund rennt", np.eye(3))
    tokens = ("▁ein", "▁gro", "ßer", "▁Rüde", "▁ren", "nt")
    wanted = [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    np.testing.assert_allclose(draft.tokens_before(before, tokens), wanted)


def test_there_are_not_too_many_drafts():
    source = " ".join(f"w{n}" for n in range(8))
    terms = glossary.of_rows((f"w{n}", "|".join(f"x{n}y{m}" for m in range(4))) for n in range(8))
    before = aligned(source, " ".join(f"v{n}" for n in range(8)), [(n, n) for n in range(8)])
    drafts = term_placement.drafts(source, terms.occurrences(source), before)
    assert 16 <= len(drafts) <= 32
    assert all(f"x{n}y" in one.text.casefold() for one in drafts for n in range(8))


def test_translations_with_terms_are_what_the_model_says_of_them(translator):
    terms = glossary.of_rows([("two", "neun|acht")])
    requests = [Request("one two"), Request("three"), Request("two hundred and two")]
    results = term_placement.translate(
        translator, terms, requests, attention=translator.alignment, n_best=3, beam_size=3
    )
    tokenizer = translator.tokenizers.target
    plain = translator.translate([one.text for one in requests], n_best=3, beam_size=3)
    assert [one.text for one in results[1]] == [one.text for one in plain[1]]
    for request, ranked in zip(requests, results, strict=True):
        best = ranked[0]
        assert tokenizer.decode(list(best.ids)) == best.text
        assert best.attention.shape == (len(best.tokens), len(best.source_tokens))
        assert len(best.token_log_probs) == len(best.tokens) + 1
        score = translator.score(request.text, best.text)
        assert best.log_prob == pytest.approx(score, abs=1e-3)
        if "two" in request.text:
            forms = ("neun", "acht", "Neun", "Acht")
            assert not best.unmet
            # The form is the likelier one.
            other = dict(zip(forms, ("acht", "neun", "Acht", "Neun"), strict=True))
            form = next(one for one in forms if phrases.contains(best.text, one))
            swapped = best.text.replace(form, other[form])
            assert translator.score(request.text, swapped) <= best.log_prob
            for one in ranked:
                assert any(phrases.contains(one.text, form) for form in forms)


WRONG = [
    ("a", "line 1: 1 columns instead of source, tab, target"),
    ("a\tb\tc\td", "line 1: 4 columns"),
    ("x\ty\n\na\t", "line 3: a term needs a source and a target"),
    ("\tb", "line 1: a term needs a source"),
    ("a\tb\tcas", "line 1: there is no flag cas; did you mean case?"),
    ("a\tb\n# c\nA\tc", "line 3: 'A' is 'c' here and 'b' in another entry; write all forms into"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_wrong_glossaries_name_their_line(tmp_path, text, message):
    path = tmp_path / "terms.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        glossary.read(path)
    assert str(error.value).startswith(f"{path}, {message}")


def test_glossaries_are_given_in_several_ways(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("# comment\na\tb\tcase\n\nA\tc\tcase\na\tb\tcase\n", encoding="utf-8")
    from_file = glossary.of(path)
    assert [(term.source, term.forms) for term in from_file.terms][:2] == [
        ("a", ("b",)),
        ("A", ("c",)),
    ]
    assert glossary.of(from_file) is from_file
    assert glossary.of(None) is None
    for given, message in (
        (3, "`glossary` is an int (3), not a path"),
        ([("a", 3)], "`glossary[0]` is a tuple"),
        (["a b"], "`glossary[0]`: 1 columns"),
    ):
        with pytest.raises(UserError) as error:
            glossary.of(given)
        assert str(error.value).startswith(message)
    with pytest.raises(UserError, match="There is no glossary"):
        glossary.of(tmp_path / "none.tsv")


def test_documents_have_the_terms_of_their_sentences(translator, monkeypatch):
    text = "one two.\n\nthree"
    plain = translator.translate_document(text)
    with_terms = translator.translate_document(text, glossary=[("two", "neun|acht")], guards=False)
    first, second = with_terms.sentences
    assert any(phrases.contains(first.text, form) for form in ("neun", "acht", "Neun", "Acht"))
    assert not first.unmet
    assert second.text == plain.sentences[1].text
    # One that cannot be placed is named.
    unmet = translator.translate_document(text, glossary=[("two", "漢字漢字" * 20)], guards=False)
    assert unmet.sentences[0].unmet
    assert "漢字" in unmet.sentences[0].unmet[0]
    # Attention places terms whatever the search; without it, only constraints can.
    sampled = translator.translate_document(text, glossary=[("two", "neun")], method="sample")
    assert "neun" in sampled.text.casefold()
    monkeypatch.setattr(type(translator), "alignment", None)
    forced = translator.translate_document(text, glossary=[("two", "neun")], guards=False)
    assert "neun" in forced.text.casefold()
    with pytest.raises(UserError, match="`glossary`: phrases need beam search"):
        translator.translate_document(text, glossary=[("two", "x")], method="sample")


def test_the_command_has_a_glossary_for_lines_and_documents(tiny_run, tmp_path):
    terms, lines = tmp_path / "terms.tsv", tmp_path / "lines.txt"
    terms.write_text("two\tneun\n", encoding="utf-8")
    lines.write_text("one two\nthree\n", encoding="utf-8")
    flags = [f"--workdir={tiny_run[1]}", f"--input={lines}", f"--glossary={terms}"]
    done = run_command("decode", *flags)
    first, second = done.stdout.splitlines()
    assert "neun" in first.casefold().split()
    assert second
    report = tmp_path / "sentences.jsonl"
    done = run_command("decode", *flags, "--document", f"--sentences={report}", "--noguards")
    assert not done.returncode, done.stderr
    sentences = [json.loads(line) for line in report.read_text().splitlines()]
    assert [one["source"] for one in sentences] == ["one two", "three"]
    assert "neun" in sentences[0]["text"].casefold().split()
    assert done.stdout.splitlines() == [one["text"] for one in sentences]
    terms.write_text("two", encoding="utf-8")
    done = run_command("decode", *flags)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: {terms}, line 1: 1 columns instead of source, tab, target, and if need be another "
        "tab and flags.\n",
    )
    for flag in ("--protect=x", "--noguards", f"--sentences={report}"):
        done = run_command("decode", f"--workdir={tiny_run[1]}", f"--input={lines}", flag)
        assert done.returncode == 2
        assert "need --document; add it." in done.stderr


def test_of_equal_terms_the_one_with_capital_letters_fits():
    rows = [("apple", "Apfel"), ("Apple", "Apple", "case")]
    for terms in (rows, rows[::-1]):
        known = glossary.of_rows(terms).find("Apple and apple")
        assert [term.forms for term in known] == [("Apple",), ("Apfel",)]
