"""Documents as they are written when every sentence has changed: what is between them has not."""

import dataclasses
import random
import re

import pytest

pytest.importorskip("sentencex")
pytest.importorskip("markdown_it")

from tests.test_text_documents import reversed_words
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import document_translation, protection, sentences
from transformer_jax.extras.documents.document import Document, Reading, SentenceTranslation
from transformer_jax.extras.documents.formats import readers
from transformer_jax.translator.words import words_of

# (format, source): the words one, two and three are translated, and nothing else.
SOURCES = [
    ("txt", "one two.\n☐ two.\n"),
    ("txt", "- ✅ one two."),
    ("txt", "one two 🐶\n\nthree"),
    ("txt", "one 😀\n- 😀 one two\n  →  three\n1.2.3 one\n~ two"),
    ("html", "<p>one two. 😀 two three.</p>"),
    ("html", "<p> <b> one two. </b> three. </p>"),
    ("html", "<p>one two.<b> </b>three</p>"),
    ("html", "<p>one two<sup>1</sup>. three</p>"),
    ("html", "<p>one &unknown; two. &nbsp; one &amp; two</p>"),
    ("html", "<p translate=no>kept<p>one two.</p>"),
    ("html", "<ul><li class='x notranslate'>kept<li>one two</ul>"),
    ("html", "<td translate=no>kept<td>one<tr><td>two"),
    ("html", "<p title='a translate = no'>one two</p>"),
    ("html", "<p translate=no>kept <b translate=yes>one two</b></p>"),
    ("md", "one **`kept`** two."),
    ("md", "[`kept`](x) one **![kept](x)** two"),
    ("md", "one.\ntwo two.\n> three.\n> one **two** three."),
    ("md", "\\- one two\n\n\\# one\n\n\\+ two\n\n1986\\. one two."),
    ("md", "- [ ] one.\n- [x] two.[^kept]\n\n[^kept]: one two.\n\n[TOC]"),
    ("md", "one $5 two $10. three $kept+1$ one. $$kept\nkept$$ two"),
    ("md", "one\n: two\n: three\n\n:::kept\none\n:::\n\n!!! kept\n    two"),
    ("md", "+++\nkept=1\n+++\none `kept`.\n"),
    ("md", "one <code>kept it</code> two <i translate='no'>kept</i> three"),
    ("srt", "1\n00:01,0 --> 00:02,0\none two\n2\n00:03,0-->00:04,0\nthree\n"),
]


def translated(document: Document, change) -> str:
    results = []
    for sentence in document.sentences:
        text = change(sentence.text)
        same = tuple((n, n, 1.0) for n in range(len(words_of(text))))
        results.append(SentenceTranslation(text, same))
    return document.join(results)


def read(text: str, format: str) -> Document:
    return readers.read(text, format, Reading("en", "", "de", protection.of()))


@pytest.mark.parametrize(("format", "source"), SOURCES)
def test_layout_between_sentences_stays(format, source):
    wanted = re.sub(r"\b(?:one|two|three)\b", lambda word: word[0].upper(), source)
    assert translated(read(source, format), str.upper) == wanted


def test_parts_of_words_keep_their_tags_where_the_word_is_the_same():
    document = read("<p>one H<sub>2</sub>O</p>", "html")
    assert document.join(reversed_words(document)) == "<p>H<sub>2</sub>O ONE</p>"
    document = read("<p>one x<b>2</b>y</p>", "html")  # another word: all of it
    assert document.join(reversed_words(document)) == "<p><b>X2Y</b> ONE</p>"


XLIFF_2 = (
    '<xliff version="2.0" srcLang="en"{0}><file id="a"><unit id="1"><segment>'
    "<source>{1}</source>{2}</segment></unit></file></xliff>"
)
XLIFF = "<xliff><file><trans-unit><source>{0}</source>{1}</trans-unit></file></xliff>"
# Codes in pairs enclose what they enclosed, unless they cross others.
CODES = [
    (
        'a <sc id="1"/>b c<ec startRef="1"/> d',
        'D <sc id="1"/>C B<ec startRef="1"/> A',
    ),
    ('a <bpt id="1">x</bpt>b<ept id="1">y</ept>', '<bpt id="1">x</bpt>B<ept id="1">y</ept> A'),
    ('a <bx id="1"/>b<ex id="1"/>', '<bx id="1"/>B<ex id="1"/> A'),
    (
        'a <bx id="1"/>b <g id="2">c <ex id="1"/>d</g>',
        '<g id="2">D C <ex id="1"/></g> B A <bx id="1"/>',
    ),
    ('a <g id="1"><bx id="1"/>b</g> c<ex id="1"/>', 'C <g id="1"><bx id="1"/>B</g> A<ex id="1"/>'),
]


@pytest.mark.parametrize(("source", "wanted"), CODES)
def test_codes_in_pairs_enclose_the_same_words(source, wanted):
    document = read(XLIFF.format(source, ""), "xliff")
    result = document.join(reversed_words(document))
    assert result == XLIFF.format(source, f"<target>{wanted}</target>")


def test_xliff_files_say_their_languages():
    document = read(XLIFF_2.format("", "a b", ""), "xliff")
    wanted = XLIFF_2.format(' trgLang="de"', "a b", "<target>B A</target>")
    assert document.join(reversed_words(document)) == wanted
    with pytest.raises(UserError, match="the target language of the file is es, and that of the"):
        read(XLIFF_2.format(' trgLang="es"', "a b", ""), "xliff")
    read(XLIFF_2.format(' trgLang="de-CH"', "a b", ""), "xliff")
    seen = "<seg-source>a</seg-source>"
    document = read(XLIFF.format("a", seen), "xliff")
    assert document.join(reversed_words(document)) == XLIFF.format("a", f"{seen}<target>A</target>")


def test_messages_are_escaped_only_where_their_source_is():
    document = read('msgid "a & b <c> d"\nmsgstr ""\n\nmsgid "a &amp; <c>b</c>"\nmsgstr ""', "po")
    result = translated(document, str.upper)
    assert 'msgstr "A & B <c> D"' in result
    assert 'msgstr "A &amp; <c>B</c>"' in result


def test_any_line_is_divided():
    """White space of all kinds; some makes the library fail."""
    rng = random.Random(0)
    for language in ("en", "de", "fr", "ru", "ja"):
        for _ in range(400):
            text = "".join(
                rng.choices("AIb .!?\u00a0\u202f\u3000\t'\"(é中。", k=rng.randint(1, 12))
            )
            for one in sentences.split(text, language):
                assert text[one.start : one.end] == one.text


def test_patterns_are_expressions_of_their_own():
    patterns = protection.of([r"(?i)acme", r"(a)\1", r"(?P<shown>x)(?P<n>y)"], usual=False)
    parts = [(start, end) for start, end, _ in patterns.find("ACME aa aaa xy")]
    assert parts == [(0, 4), (5, 7), (8, 11), (12, 14)]
    patterns = protection.of([r"\+-", r"-\."], usual=False)
    assert [one[:2] for one in patterns.find("+-. -.")] == [(0, 2), (4, 6)]
    for wrong in ("dog", None, [3]):
        with pytest.raises(UserError, match="`protect`"):
            protection.of(wrong)


def test_the_language_of_a_document_is_that_of_its_text(translator):
    script = "function the(is, of) { return and + to; } // this is the English of a script\n" * 60
    page = f"<script>{script}</script><p>Der Hund läuft über die Straße und bellt laut.</p>"
    text = document_translation.without_markup(page, "html")
    assert text == "Der Hund läuft über die Straße und bellt laut."


def test_a_document_is_cut_where_the_model_was_trained_to(translator):
    text = ", ".join(["one two three"] * 12)
    sentences_of_document = read(text, "txt").sentences
    preparer = document_translation.preparer(translator, document_translation.options())
    assert preparer.longest == translator.config.data.max_len
    preparer = dataclasses.replace(preparer, longest=20)
    (parts,) = preparer.parts(sentences_of_document)
    encoder = translator.engine.encoder("", "")
    sizes = [len(ids) for ids in encoder.source_ids([part.request.text for part in parts])]
    assert len(parts) > 1
    assert max(sizes) < 20
    assert ", ".join(part.request.text.rstrip(",") for part in parts) == text
