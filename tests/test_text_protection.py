"""What no translation may change: it is there once, wherever the model puts it."""

import random
import re

import pytest

pytest.importorskip("sentencex")
pytest.importorskip("markdown_it")

from tests.test_text_documents import Tree, identity, read, shown
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import copying, protection
from transformer_jax.extras.documents.copying import Marked, Shown
from transformer_jax.extras.documents.document import SentenceTranslation
from transformer_jax.translator.words import words_of

USUAL = protection.of()
A, B, C = (chr(0xF0000 + n) for n in range(3))
MATCHES = [
    ("Hello {name}, see https://a.b/c?d=e, or a@c.de.", ["{name}", "https://a.b/c?d=e", "a@c.de"]),
    (
        "50% of 100% discount: 5 km, 3.5 GB, $2, € 5.",
        ["50%", "100%", "5 km", "3.5 GB", "$2", "€ 5"],
    ),
    ("%s has %(n)d of %1$s, 100%%", ["%s", "%(n)d", "%1$s", "100%%"]),
    ("v{version}, {{x}}px, ${a} and #{b}", ["v{version}", "{{x}}px", "${a}", "#{b}"]),
    ("{a}{b} x", ["{a}{b}"]),
    ("<x id='1'/> a < b > c &amp; @user #tag C#", ["<x id='1'/>", "&amp;", "@user", "#tag"]),
    ("5 men, 12:30, 5 o'clock, 3°C, 5'10", ["3°C"]),
    ("a 👨‍👩‍👧 b 👍🏽 c 🇩🇪 d ✈️ e 1️⃣", ["👨‍👩‍👧", "👍🏽", "🇩🇪", "✈️", "1️⃣"]),
    ("(see https://a.b/{id}/c?x={y}).", ["https://a.b/{id}/c?x={y}"]),
    ("www.a.org/b. Nothing: {not this} {}", ["www.a.org/b", "{not this}", "{}"]),
    ("50% discount on a: b, 7 d", ["50%"]),
]


@pytest.mark.parametrize(("text", "wanted"), MATCHES)
def test_usual_patterns_by_hand(text, wanted):
    assert [text[start:end] for start, end, _ in USUAL.find(text)] == wanted


def test_patterns_of_a_caller_come_first_and_wrong_ones_are_refused():
    patterns = protection.of([r"ID-\d+ km", "Acme"], usual=False)
    text = "ID-5 km by Acme and {x}"
    assert [text[a:b] for a, b, _ in patterns.find(text)] == ["ID-5 km", "Acme"]
    both = protection.of([r"ID-\d+ km"])
    assert [text[a:b] for a, b, _ in both.find(text)] == ["ID-5 km", "{x}"]
    for pattern, message in (("(", "is no regular expression"), ("x*", "matches an empty text")):
        with pytest.raises(UserError, match=re.escape(f"`protect={pattern}` {message}")):
            protection.of([pattern])


def test_marks_are_characters_that_the_text_does_not_have():
    marks = protection.Marks(f"a {A} b &#xF0001;")
    assert marks.add("{x}", "{x}") == C
    assert marks.plain(f"{C} {A}") == f"{{x}} {A}"


def test_sentences_show_words_in_the_place_of_marks():
    sentence = copying.shown(f"{A} has {B} of {A}.", ("one", "has", "Two"))
    # Other ones than those of the sentence; at its beginning with a capital letter.
    assert sentence.text == "One has Two of One."
    # Nor one that may be a form of theirs.
    assert copying.shown(f"The bands of {A}", ("band", "ban", "two")).text == "The bands of two"
    many = copying.shown(" ".join(chr(0xF0000 + n) for n in range(10)), ("a", "b"))
    assert many.text == "A b a b a b a b a b"
    assert copying.shown("x1 X2 X3 X4 X5 X6 X7 X8 " + A).text.endswith(" X9")
    parts = copying.split(Shown("X1 a X2 b", ((A, "X1"), (B, "X2"))), [5])
    assert parts == [Shown("X1 a", ((A, "X1"),)), Shown("X2 b", ((B, "X2"),))]


SENTENCE = Shown("Hello X1, you have X2 mails", ((A, "X1"), (B, "X2")))
IN_ORDER = [(n, n, 1.0) for n in range(7)]
PLACED = [
    ("Hallo X1, Sie haben X2 Mails", IN_ORDER, f"Hallo {A}, Sie haben {B} Mails"),
    ("X2 Mails für X1", (), f"{B} Mails für {A}"),
    ("x1s Mail-X2", (), f"{A} Mail-{B}"),  # an ending is dropped, a hyphen stays
    ("X1-X2", (), f"{A}-{B}"),
    ("X1's X2", (), f"{A}'s {B}"),
    # One that is missing takes the place of the word that attends to it most.
    ("Mails hat Hans Y", [(6, 0, 1), (3, 1, 1), (1, 2, 1), (5, 3, 0.9)], f"Mails hat {A} {B}"),
    # A word that attends to another word more is not its translation.
    ("Mails", [(6, 0, 0.9), (5, 0, 0.1)], f"{A} {B} Mails"),
    ("Hallo, Mails", [(0, 0, 1.0), (6, 2, 1.0)], f"Hallo {A} {B}, Mails"),
    ("X1 und X1 X2", (), f"{A} und {B}"),  # written once more
    # The translation of another word, which only looks like it.
    ("X1 und X1 X2", [(1, 0, 1.0), (6, 2, 1.0), (5, 3, 1.0)], f"{A} und X1 {B}"),
    ("", (), f"{A} {B}"),
]


@pytest.mark.parametrize(("text", "links", "wanted"), PLACED)
def test_marks_are_placed_by_hand(text, links, wanted):
    result = copying.with_marks(SENTENCE, Marked(text, tuple(links)))
    assert result.text == wanted
    # A mark is linked to its own place.
    places = {word: number for number, word in enumerate(words_of(result.text))}
    for mark, place in ((A, 1), (B, 5)):
        for source, word, _ in result.links:
            assert (word != places.get(mark)) or source == place


def test_confidences_follow_their_words():
    marked = Marked("X2 Mails X2 Hans", (), (0.1, 0.2, 0.3, 0.4))
    result = copying.with_marks(SENTENCE, marked)
    assert (result.text, result.confidences) == (f"{A} {B} Mails Hans", (1.0, 1.0, 0.2, 0.4))
    plain = Shown("a", ())
    assert copying.with_marks(plain, marked) is marked


# Format, document, and what stays in it.
DOCUMENTS = [
    (
        "txt",
        "Hello {name}.\n\n- You have %d mails 🙂. See https://a.b/c.",
        ["{name}", "%d", "🙂", "https://a.b/c"],
    ),
    (
        "html",
        "<p>Hello <b>{name}</b>, you &amp; I have &lt;b&gt;5 km&lt;/b&gt; 🙂.</p>",
        ["{name}", "&lt;b&gt;", "5 km", "&lt;/b&gt;", "🙂"],
    ),
    (
        "md",
        "Hello *{user_name}*, see <https://a.b> or https://c.d/e_f_g.",
        ["{user_name}", "<https://a.b>", "https://c.d/e_f_g"],
    ),
    ("po", 'msgid "%s files in {dir}"\nmsgstr ""\n', ["%s", "{dir}"]),
    (
        "srt",
        "1\n00:00:01,000 --> 00:00:02,000\nHello <i>{name}</i>\n5 km long.\n",
        ["{name}", "5 km"],
    ),
]


@pytest.mark.parametrize(("format", "text", "kept"), DOCUMENTS)
@pytest.mark.parametrize("kind", ["identity", "copied", "lost"])
def test_documents_keep_what_is_protected(format, text, kept, kind):
    document = read(text, format, protection=USUAL)
    if kind == "identity":
        wanted = read(text, format)
        assert document.join(identity(document)) == wanted.join(identity(wanted))
        return
    results = []
    for sentence in document.sentences:
        seen = copying.shown(sentence.text)
        words = [] if kind == "lost" else [word.upper() for word in reversed(words_of(seen.text))]
        marked = copying.with_marks(seen, Marked(" ".join(words), ()))
        results.append(SentenceTranslation(marked.text, marked.links))
    joined = document.join(results)
    times = 2 if format == "po" else 1  # the source stays too
    assert [joined.count(part) for part in kept] == [times] * len(kept), joined
    assert not any(map(protection.is_mark, joined))
    if format == "html":
        Tree(joined)  # well-formed


def test_parts_alone_are_no_sentences():
    for text in ("{name}", "https://a.b/c", "12.5", "🙂 %s", "3 km"):
        assert shown(read(text, protection=USUAL)) == []


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "1",
        "1.",
        "{",
        "{a",
        "http:",
        "http://a.",
        "a.",
        "a@",
        "<a ",
        "&a",
        "%",
        "$1",
        "www.",
        "5 k",
        "1'",
    ],
)
@pytest.mark.parametrize("before", ["", "%"])
def test_protection_takes_linear_time(part, before):
    # Quadratic time would be minutes here.
    read(before + part * (200_000 // len(part)), protection=USUAL)


def test_any_text_with_placeholders_keeps_them():
    rng = random.Random(0)
    bits = [
        *"ab .,-'<>&\n",
        "{x}",
        "%s",
        "5 km",
        "🙂",
        "http://a.b",
        "word ",
        "&amp;",
        "<b>",
        "</b>",
    ]
    for size in range(600):
        text = "".join(rng.choices(bits, k=1 + size % 30))
        for format in ("txt", "html"):
            document = read(text, format, protection=USUAL)
            assert document.join(identity(document)) == text
            seen = [copying.shown(sentence.text) for sentence in document.sentences]
            texts = [rng.choice(["", "Wort", one.text.upper()]) for one in seen]
            marked = [
                copying.with_marks(one, Marked(out, ()))
                for one, out in zip(seen, texts, strict=True)
            ]
            joined = document.join([SentenceTranslation(m.text, m.links) for m in marked])
            assert joined.count("{x}") == text.count("{x}"), text
            assert not any(map(protection.is_mark, joined))
