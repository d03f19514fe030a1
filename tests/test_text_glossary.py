"""Glossaries: which terms are in a text, files that are wrong, and terms in translations."""

import json

import pytest

from tests.conftest import transformer_jax
from transformer_jax.decoding import phrases
from transformer_jax.decoding.phrases import OneOf
from transformer_jax.decoding.requests import Request
from transformer_jax.errors import UserError
from transformer_jax.text import glossary

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


def test_a_term_is_a_phrase_also_at_the_beginning_of_a_sentence():
    terms = glossary.of_rows([("a", "rot|Rot|blau", "inflect, case")])
    request = terms.request(Request("A a", phrases=("x",), line=3))
    forms = ("rot", "Rot", "blau", "Blau")
    assert request == Request("A a", phrases=("x", OneOf(forms, may_continue=True)), line=3)
    assert terms.request(Request("b")) == Request("b")
    assert not glossary.of_rows([])


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


def test_documents_have_the_terms_of_their_sentences(translator):
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
    with pytest.raises(UserError, match="`glossary`: phrases need beam search"):
        translator.translate_document(text, glossary=[("two", "x")], method="sample")


def test_the_command_has_a_glossary_for_lines_and_documents(tiny_run, tmp_path):
    terms, lines = tmp_path / "terms.tsv", tmp_path / "lines.txt"
    terms.write_text("two\tneun\n", encoding="utf-8")
    lines.write_text("one two\nthree\n", encoding="utf-8")
    flags = [f"--workdir={tiny_run[1]}", f"--input={lines}", f"--glossary={terms}"]
    done = transformer_jax("decode", *flags)
    first, second = done.stdout.splitlines()
    assert "neun" in first.casefold().split()
    assert second
    report = tmp_path / "sentences.jsonl"
    done = transformer_jax("decode", *flags, "--document", f"--sentences={report}", "--noguards")
    assert not done.returncode, done.stderr
    sentences = [json.loads(line) for line in report.read_text().splitlines()]
    assert [one["source"] for one in sentences] == ["one two", "three"]
    assert "neun" in sentences[0]["text"].casefold().split()
    assert done.stdout.splitlines() == [one["text"] for one in sentences]
    terms.write_text("two", encoding="utf-8")
    done = transformer_jax("decode", *flags)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: {terms}, line 1: 1 columns instead of source, tab, target, and if need be another "
        "tab and flags.\n",
    )
    for flag in ("--protect=x", "--noguards", f"--sentences={report}"):
        done = transformer_jax("decode", f"--workdir={tiny_run[1]}", f"--input={lines}", flag)
        assert done.returncode == 2
        assert "need --document; add it." in done.stderr
