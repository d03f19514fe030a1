"""Documents: split into sentences, and put together again with layout, markup and tags."""

import html.parser
import json
import random
import re

import pytest

pytest.importorskip("sentencex")
pytest.importorskip("markdown_it")

import markdown_it

from tests.conftest import run_command
from transformer_jax.commands import decode_document
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import sentences
from transformer_jax.extras.documents.document import Document, Reading, SentenceTranslation
from transformer_jax.extras.documents.formats import readers
from transformer_jax.extras.documents.protection import NO_PROTECTION, Protection
from transformer_jax.extras.documents.sentences import NO_LINES, NO_SPLIT
from transformer_jax.translator.words import words_of

TEXT = (
    "  Dr. Smith came at 3.15 p.m. He left.\n\n\t- One!  Two?\r\nthree\u2028four \n1. Five. ***\n"
)
PAGE = """<!DOCTYPE html><!-- Not > this. -->
<html><head><title>A title.</title><style>p > a { color: red }</style>
<script>if (a < b) { say("</p> no"); }</script></head>
<body class='x' title="a > b"><p>One &amp; two.  Three <b>four</b>!<br/>Five</p>
<p translate="no">Name <i>Other</i></p><span class="a notranslate b">Brand</span>
<code>x = 1</code> &nbsp; six &lt; 7 <p>unclosed <a href=x>end</a><pre>a b
c</pre>"""
MARKDOWN = """---
title: x
---
# Head *one* #

A **bold _nested_** and [link *text*](http://x.y "t") `code`,
second \\* esc &amp; more <b>html</b> <http://auto.link> ![img](a.png).
Second sentence.  \nhard

> quote one
> two. *Em
> over* lines.

- item

| a | b |
|---|---|
| cell **one** | two \\| pipe |

```
code block
```
1. num ~~gone~~ x [[a](b)] **a**b
"""


def read(
    text: str,
    format: str = "txt",
    language: str = "en",
    splitting: str = "",
    target_language: str = "",
    protection: Protection = NO_PROTECTION,
) -> Document:
    return readers.read(text, format, Reading(language, splitting, target_language, protection))


def shown(document: Document) -> list[str]:
    return [sentence.text for sentence in document.sentences]


def identity(document: Document) -> list[SentenceTranslation]:
    return [SentenceTranslation(text) for text in shown(document)]


def reversed_words(document: Document) -> list[SentenceTranslation]:
    """Each sentence with its words in capitals and in reverse order, and with the true links."""
    results = []
    for text in shown(document):
        words = [word.upper() for word in words_of(text)]
        links = ((n, len(words) - 1 - n, 1.0) for n in range(len(words)))
        results.append(SentenceTranslation(" ".join(reversed(words)), tuple(links)))
    return results


class Tree(html.parser.HTMLParser):
    """Paths of tags with the words that each encloses."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(f"{tag}{attrs}")

    def handle_endtag(self, tag):
        assert self.open.pop().startswith(tag)

    def handle_data(self, data):
        self.words += (("/".join(self.open), word.casefold()) for word in data.split())


def test_sentences_have_their_places_and_layout_is_kept():
    parts = sentences.split(TEXT, "en")
    texts = [s.text for s in parts]
    assert texts[-5:] == ["One!", "Two?", "three", "four", "Five."]
    # Whether "p.m." ends the first sentence is for the library to decide.
    assert " ".join(texts[:-5]) == "Dr. Smith came at 3.15 p.m. He left."
    assert all(TEXT[s.start : s.end] == s.text for s in parts)
    document = read(TEXT, "txt", "en")
    assert document.join(identity(document)) == TEXT
    upper = [SentenceTranslation(text.upper()) for text in texts]
    assert document.join(upper) == TEXT.upper()


def test_sentences_of_other_scripts_are_joined_as_the_script_does():
    chinese, english = "你好。今天好！\n再见。", "Hello. Nice!\nBye."
    for text, language, other in ((chinese, "zh", english), (english, "en", chinese)):
        document = read(text, "txt", language)
        wanted = shown(read(other, "txt", "zh"))
        assert len(wanted) == len(shown(document)) == 3
        assert document.join([SentenceTranslation(one) for one in wanted]) == other
    for text in ("", " \n ", "--- * * *\n", "🙂"):
        document = read(text, "txt", "xx")
        assert shown(document) == []
        assert document.join([]) == text


def test_plain_text_is_split_as_the_client_says():
    text = "One\ntwo. Three."
    wanted = {
        "": ["One", "two.", "Three."],
        NO_LINES: ["One two.", "Three."],
        NO_SPLIT: ["One two. Three."],
    }
    for splitting, parts in wanted.items():
        document = read(text, "txt", "en", splitting)
        assert shown(document) == parts
        assert document.join(identity(document)) == text


def test_html_keeps_markup_and_what_is_not_to_be_translated():
    document = read(PAGE, "html", "en")
    assert shown(document) == [
        *("A title.", "One & two.", "Three four!", "Five", "six < 7", "unclosed end", "a b", "c")
    ]
    result = document.join(reversed_words(document))
    for text in (
        "TWO &amp; ONE",
        "! <b>FOUR</b> THREE",
        "7 &lt; SIX",
        "<a href=x>END</a> UNCLOSED",
    ):
        assert text in result
    for text in ("a < b", "Name <i>Other</i>", ">Brand<", "x = 1", 'title="a > b">', "<br/>"):
        assert text in result
    assert document.join(identity(document)) == PAGE


@pytest.mark.parametrize(
    "text",
    ["", "<", "a < b", "<a", "<a title='", "<!--", "</", "<script>x", "<b>x</i></b>", "&#0;&bad;"],
)
def test_html_that_is_broken_stays_as_it_is(text):
    document = read(text, "html", "en")
    assert document.join(identity(document)) == text
    assert document.join(reversed_words(document)).count("<b") == text.count("<b")


@pytest.mark.parametrize(
    "part",
    ["<a ", "<a b='", "<!--", "<", "</", "&", "<a =\"' ", "<b>", "<script>", "<i>a</i> ", "<u>a"],
)
def test_html_takes_linear_time(part):
    # Quadratic time would be minutes here.
    document = read(part * (200_000 // len(part)), "html", "en")
    document.join(identity(document))


def test_a_script_of_xhtml_may_end_itself():
    text = '<html xmlns="x"><head><script src="a.js"/></head><body><p>One.</p></body></html>'
    assert shown(read(text, "html", "en")) == ["One."]
    assert shown(read(text.replace(' xmlns="x"', ""), "html", "en")) == []  # as HTML has it


def test_markdown_keeps_links_whose_words_name_their_address():
    text = "See [dog][] and [cat] and [a bird][dog].\n\n[dog]: a.html\n[cat]: b.html\n"
    document = read(text, "md", "en")
    assert document.join(identity(document)) == text
    translated = document.join(reversed_words(document))
    assert {"[dog][]", "[cat]"} <= {*re.findall(r"\[[a-z]+\](?:\[\])?", translated)}
    assert "[BIRD A][dog]" in translated


def test_markup_in_translations_is_text():
    document = read("<b>one</b> two", "html", "en")
    joined = document.join([SentenceTranslation("<script>x</script>")])
    assert sorted(Tree(joined).words) == [("", "script>x</script>"), ("b[]", "<")]
    document = read("one *two*", "md", "en")
    translated = document.join([SentenceTranslation("a_b [c](d) <e>")])
    rendered = markdown_it.MarkdownIt().render(translated)
    assert "a_b" in rendered
    assert "&lt;e&gt;" in rendered
    assert "href" not in rendered


def test_markdown_keeps_markup_and_moves_emphasis_with_its_words():
    document = read(MARKDOWN, "md", "en")
    assert document.join(identity(document)) == MARKDOWN
    assert shown(document)[:4] == [
        "Head one",
        "A bold nested and link text , second * esc & more html .",
        "Second sentence.",
        "hard",
    ]
    result = document.join(reversed_words(document))
    wanted = [
        "# *ONE* HEAD #\n",
        "**_NESTED_ BOLD** A",
        '[*TEXT* LINK](http://x.y "t")',
        "`code`",
        "<b>HTML</b>",
        "\\* SECOND",
        "![img](a.png)",
        "| **ONE** CELL | two \\| pipe |",
        "> . TWO ONE QUOTE . LINES *OVER EM*\n",
        "- ITEM\n",
        "code block",
        "~~GONE~~ NUM",
    ]
    assert [text for text in wanted if text not in result] == []


_BITS = {
    "html": [*"<>/bai p=\"'&;! \n-x", "<b>", "</b>", "<i>", "</i>", "<code>", "</code>", "<!--"],
    "md": [*"*_[]()`<>ab \n\\&;!~|#->1.\"'/", "<b>", "</b>", "**", "](x)", "a word ", "&amp;"],
    "txt": [*"ab .!?\n\r\t-*1)", "a word ", "Mr. ", "你好。", "\ufeff", "\u2028"],
}


@pytest.mark.parametrize("format", _BITS)
def test_any_text_comes_back_from_an_identity(format):
    # Every word that is shown is then translated, and nothing else is lost.
    rng = random.Random(0)
    for size in range(1500):
        text = "".join(rng.choices([*_BITS[format], "\n\n", "\r\n"], k=1 + size % 40))
        document = read(text, format, "en")
        assert document.join(identity(document)) == text
        document.join(reversed_words(document))


@pytest.mark.parametrize("seed", range(3))
def test_tags_enclose_the_same_words_wherever_those_are(seed):
    # Nested elements at random places; the translation has the words in reverse order.
    rng = random.Random(seed)

    def markup(depth: int) -> str:
        parts = []
        for _ in range(rng.randint(1, 3)):
            word = f"w{rng.randrange(10**6)}"
            tag = rng.choice("biu")
            inner = markup(depth - 1) if depth and rng.random() < 0.6 else ""
            parts.append(f"<{tag} n={rng.randrange(99)}>{inner} {word}</{tag}>" if inner else word)
        return " ".join(parts)

    for _ in range(200):
        text = f"<p>x {markup(4)}</p>"
        document = read(text, "html", "en")
        result = document.join(reversed_words(document))
        assert sorted(Tree(result).words) == sorted(Tree(text).words)


# Source, the words of its translation (each with the number of its source word), and the result.
HARD = [
    ("<b>red</b> <i>house</i>", "1 0", "<i>HOUSE</i> <b>RED</b>"),
    ("<b>red <i>old</i></b> house", "2 0 1", "HOUSE <b>RED <i>OLD</i></b>"),
    ("<b>not</b> here", "1 0 1", "HERE <b>NOT</b> HERE"),
    ("a <b>word</b>s", "0 1", "A <b>WORDS</b>"),
    ("a<b>b</b>c <i>d</i>", "1 0", "<i>D</i> <b>ABC</b>"),
    ("one<img> two", "0 1", "ONE<img> TWO"),
    ("one <img>two", "0 1", "ONE <img>TWO"),
    ("one<img> two", "1 0", "TWO ONE<img>"),
    ("<b></b>one", "0", "<b></b>ONE"),
    ("one<img>two three", "1 0", "THREE ONETWO<img>"),
    ("one<b></b>two three", "0 1", "ONETWO<b></b> THREE"),
    ("one <b> </b>two", "1 0", "TWO ONE <b></b>"),
    ("<b>one. two.</b>", "0 1 2 3", "<b>ONE . TWO .</b>"),
    ("<b>one <i>two</i></b> <u>three</u>", "2 1 0", "<u>THREE</u> <b><i>TWO</i> ONE</b>"),
    ("<b>lost</b> one", "1", "<b>ONE</b>"),
    ("<a href='x>y'>one</a> two", "1 0", "TWO <a href='x>y'>ONE</a>"),
    ("one <code>two</code> three", "1 0", "THREE ONE <code>two</code>"),
    ("one <!-- <b> --> two", "0 1", "ONE <!-- <b> --> TWO"),
    ("<b>one</i> two", "0 1", "<b>ONE</i> TWO"),
    ("<B>one</b> two", "1 0", "TWO <B>ONE</b>"),
    ("&lt;b&gt; <b>one</b>", "3 1 0 2", "<b>ONE</b> B &lt; &gt;"),
    ("one <b>two <tt translate=no>X</tt></b>", "1 0", "<b>TWO <tt translate=no>X</tt></b> ONE "),
]


@pytest.mark.parametrize(("source", "numbers", "wanted"), HARD)
def test_hard_cases_of_tags(source, numbers, wanted):
    document = read(f"<p>{source}</p>", "html", "en", NO_SPLIT)
    results = []
    order = [int(number) for number in numbers.split()]
    for text in shown(document):
        words = [word.upper() for word in words_of(text)]
        chosen = order[: len(order) if len(shown(document)) == 1 else len(words)]
        translation = " ".join(words[n % len(words)] for n in chosen)
        links = tuple((n % len(words), place, 1.0) for place, n in enumerate(chosen))
        results.append(SentenceTranslation(translation, links))
    assert document.join(results) == f"<p>{wanted}</p>"


def test_formats_are_known_by_name():
    assert readers.format_of("a/b.HTM") == "html"
    assert readers.format_of("README.md") == "md"
    assert readers.format_of("a.pdf") is None
    with pytest.raises(UserError, match="no format htm; did you mean html"):
        read("", "htm")


def test_a_document_of_a_model(translator):
    text = "<p>one <b>two</b> three</p>\n\n<p>four</p>"
    result = translator.translate_document(text, "html", beam_size=2)
    assert [one.source for one in result.sentences] == ["one two three", "four"]
    single = [out.text for out in translator.translate(["one two three", "four"], beam_size=2)]
    assert [one.text for one in result.sentences] == single
    tree = Tree(result.text)
    assert [word for _, word in tree.words] == " ".join(single).casefold().split()
    assert {path for path, _ in tree.words} <= {"p[]", "p[]/b[]"}
    with pytest.raises(TypeError, match="text"):
        translator.translate_document(b"one")


def test_decode_translates_a_document_and_resumes_it(tiny_run, translator, tmp_path, monkeypatch):
    page, output = tmp_path / "page.html", tmp_path / "out.html"
    text = "\ufeff<p>one <b>two</b> three</p>\r\n<p>four</p><p>five six</p>"
    page.write_bytes(text.encode())
    flags = [f"--workdir={tiny_run[1]}", "--document", f"--input={page}", "--beam_size=2"]
    done = run_command("decode", *flags, f"--output={output}")
    assert "3 sentences" in done.stderr
    wanted = translator.translate_document(text, "html", beam_size=2).text
    assert output.read_bytes().decode() == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "page.html"]

    # As a run leaves it that is killed after its first sentence.
    sentence_file = tmp_path / "out.html.done.jsonl"
    record = tmp_path / "out.html.done.jsonl.unfinished"
    as_json, written = decode_document._as_json, []

    def interrupted(translation):
        written.append(translation)
        if len(written) == 2:
            raise KeyboardInterrupt
        return as_json(translation)

    with monkeypatch.context() as patch:
        patch.setattr(decode_document, "_as_json", interrupted)
        assert run_command("decode", *flags, f"--output={output}").returncode == 130
    assert json.loads(record.read_text())["lines"] == 1
    first = json.loads(sentence_file.read_text())
    first |= {"text": "kept", "links": []}
    line = json.dumps(first) + "\n"
    sentence_file.write_text(line)
    record.write_text(json.dumps(json.loads(record.read_text()) | {"bytes": len(line)}))
    done = run_command("decode", *flags, f"--output={output}")
    assert "after line 1" in done.stderr
    assert not done.returncode, done.stderr
    assert "kept" in output.read_text()
    assert not sentence_file.exists()
    assert not record.exists()


@pytest.mark.parametrize(
    ("flags", "data", "message"),
    [
        (["--n_best=2"], b"one", "--document has no lines: remove --n_best."),
        ([], b"one \xff", "byte 4 is not UTF-8"),
        (["--document_format="], b"one", "its ending is none of .txt, .text"),
    ],
)
def test_documents_that_cannot_be_translated_are_refused(tmp_path, tiny_run, flags, data, message):
    path = tmp_path / "page.x"
    path.write_bytes(data)
    arguments = [f"--workdir={tiny_run[1]}", "--document", "--document_format=txt", *flags]
    done = run_command("decode", *arguments, f"--input={path}")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_documents_refuse_settings_and_files_that_they_cannot_have(translator, tiny_run, tmp_path):
    for settings, message in (
        ({"n_best": 2}, "There is no search setting n_best"),
        ({"attention": None}, "There is no search setting attention"),
        ({"splitting": "x"}, "`splitting` is 'x', not one of 0, 1, nonewlines"),
        ({"protect": "dog"}, "`protect` is a str"),
    ):
        with pytest.raises(UserError, match=message):
            translator.translate_document("one", **settings)
    with pytest.raises(UserError, match="no valid text: character 0"):
        translator.translate_document("\ud800 one")
    page = tmp_path / "page.txt"
    page.write_text("one")
    flags = [f"--workdir={tiny_run[1]}", "--document", f"--input={page}"]
    done_file = tmp_path / "out.done.jsonl"
    output = tmp_path / "out"
    done = run_command("decode", *flags, f"--output={output}", f"--sentences={done_file}")
    assert done.returncode == 2
    assert "--sentences is the file of finished sentences; give it another" in done.stderr
    done_file.write_text("of the user")
    done = run_command("decode", *flags, f"--output={output}")
    assert done.returncode == 2
    assert "there is a file that is not of an interrupted job" in done.stderr
    assert done_file.read_text() == "of the user"
    terms = tmp_path / "terms.tsv"
    terms.write_text("one\teins\n")
    done = run_command("decode", *flags, f"--glossary={terms}", f"--output={terms}")
    assert done.returncode == 2
    assert "--output and --glossary are the same file" in done.stderr
