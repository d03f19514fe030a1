"""Files of translators and subtitles: what is missing is filled, and the rest is kept."""

import random
import re
import xml.dom.minidom

import pytest

pytest.importorskip("sentencex")
pytest.importorskip("markdown_it")

from tests.test_text_documents import MARKDOWN, PAGE, TEXT, identity, reversed_words, shown
from tests.test_text_documents import read as read_document
from transformer_jax.errors import UserError
from transformer_jax.extras.documents.document import Document, SentenceTranslation
from transformer_jax.extras.documents.formats import FORMATS
from transformer_jax.translator.translation import Translation

# Each file with @@ where its translations are missing: the text there, translated to itself.
PO = r"""# Head
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=(n != 1);\n"

#: a.c:3
#, c-format
msgid "A \"red\" dog.\n"
msgstr @@"A \"red\" dog.\n"@@

msgctxt "menu"
msgid ""
"A <b>cat</b> "
"runs.\n"
"Two."
msgstr   @@""
"A <b>cat</b> "
"runs.\n"
"Two."@@

msgid "done"
msgstr "fertig"

msgid "one bird"
msgid_plural "many birds"
msgstr[0] @@"one bird"@@
msgstr[1] @@"many birds"@@
msgstr[2] @@"many birds"@@

msgid "one fish"
msgid_plural "fishes"
msgstr[0] @@"fishes"@@

#~ msgid "old"
#~ msgstr ""
"""
XLIFF = """<?xml version='1.0'  encoding="UTF-8"?><!DOCTYPE xliff [<!ENTITY e "x">]>
<xliff version="1.2" xmlns:x="y"><!-- <source> -->
 <file original="a>b" source-language='en'><body>
  <trans-unit id="1"><source>A <g id="1" a='>'>red</g> dog<x id="2"/> runs &amp; &e; eats.</source>
   <target  state="new">@@A <g id="1" a='>'>red</g> dog<x id="2"/> runs &amp; &e; eats.@@</target>
   <alt-trans><source>no</source></alt-trans></trans-unit>
  <trans-unit id="2">
    <source>One.  Two <ph id="1">code</ph>.</source>@@
    <target>One.  Two <ph id="1">code</ph>.</target>@@
    <note>Not this.</note>
  </trans-unit>
  <trans-unit id="3" translate="no"><source>Brand</source><target/></trans-unit>
  <trans-unit id="4"><source>done</source><target>fertig</target></trans-unit>
  <trans-unit id="5"><source><![CDATA[a < b]]></source><target>@@<![CDATA[a < b]]>@@</target>
  </trans-unit>
  <x:trans-unit><x:source>name</x:source>@@<x:target>name</x:target>@@</x:trans-unit>
 </body></file>
</xliff>
"""
XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0"
 version="2.0" srcLang="en"@@ trgLang="fr"@@>
<file id="f"><unit id="1"><segment><source>A <pc id="1">red <mrk id="m">old</mrk></pc> dog.</source>
<target>@@A <pc id="1">red <mrk id="m">old</mrk></pc> dog.@@</target></segment></unit>
<unit id="2" translate="no"><segment><source>Brand</source></segment></unit></file></xliff>"""
TMX = """<?xml version="1.0"?>
<tmx version="1.4"><header srclang="en"/><body>
  <tu>
    <tuv xml:lang="EN-us"><seg>A <bpt i="1">&lt;b></bpt>red<ept i="1">&lt;/b></ept> b.</seg></tuv>@@
    <tuv xml:lang="fr"><seg>A <bpt i="1">&lt;b></bpt>red<ept i="1">&lt;/b></ept> b.</seg></tuv>@@
  </tu>
  <tu><tuv xml:lang="fr"><seg>@@One <hi>two</hi>.@@</seg></tuv>
      <tuv lang="en"><seg>One <hi>two</hi>.</seg></tuv></tu>
  <tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="fr"><seg>un</seg></tuv></tu>
  <tu><tuv xml:lang="de"><seg>eins</seg></tuv></tu>
</body></tmx>
"""
FILLED = {"po": [PO], "xliff": [XLIFF, XLIFF_2], "tmx": [TMX]}
SRT = """1\r
00:00:01,000 --> 00:00:02,500\r
A <i>red</i> dog\r
runs over {\\an8}the street.\r
\r
2\r
00:00:03,000 --> 00:00:04,000 X1:1\r
- One?\r
- Two & three!\r
"""
VTT = """WEBVTT - 00:01

NOTE not this

STYLE
::cue { color: red }

intro
00:01.000 --> 00:02.000 align:start
<v Ann>Hello <c.loud>red</c> dog &amp; <00:01.500>cat.

00:03.000 --> 00:04.000
one two three
four"""


def without_translations(text: str, format: str) -> str:
    """A file of `FILLED` before it is translated."""
    return re.sub("@@(.*?)@@", '""' if format == "po" else "", text, flags=re.DOTALL)


def read(text: str, format: str) -> Document:
    return read_document(text, format, target_language="fr")


@pytest.mark.parametrize("format", FILLED)
def test_missing_translations_are_filled_and_nothing_else_changes(format):
    for marked in FILLED[format]:
        filled = marked.replace("@@", "")
        document = read(without_translations(marked, format), format)
        assert document.join(identity(document)) == filled
        again = read(filled, format)
        assert shown(again) == []
        assert again.join([]) == filled
        # All that is not between the marks is as it was, whatever the translations are.
        kept = re.split("@@.*?@@", marked, flags=re.DOTALL)
        result = document.join(reversed_words(document))
        assert re.fullmatch(".*".join(map(re.escape, kept)), result, re.DOTALL)
        if format != "po":
            xml.dom.minidom.parseString(result)


def test_sentences_and_tags_of_translators_files():
    document = read(without_translations(PO, "po"), "po")
    wanted = ['A "red" dog.', "A cat runs. Two.", "one bird", "many birds", "many birds", "fishes"]
    assert shown(document)[0] == wanted[0]
    assert " ".join(shown(document)) == " ".join(wanted)
    result = document.join(reversed_words(document))
    assert r'msgstr ". DOG \" RED \" A\n"' in result
    assert "<b>CAT</b> A" in result
    assert 'msgstr[2] "BIRDS MANY"' in result
    document = read(without_translations(XLIFF, "xliff"), "xliff")
    result = document.join(reversed_words(document))
    assert 'DOG<x id="2"/> <g id="1" a=\'>\'>RED</g> A' in result
    assert "B &lt; A" in result
    assert '<ph id="1">code</ph>' in result.partition("<target>")[2]
    document = read(without_translations(XLIFF_2, "xliff"), "xliff")
    result = document.join(reversed_words(document))
    assert '<pc id="1"><mrk id="m">OLD</mrk> RED</pc> A' in result


def test_an_empty_target_of_one_tag_gets_two():
    text = "<xliff><unit><segment><source>a</source><target a='b' /></segment></unit></xliff>"
    document = read(text, "xliff")
    assert "<target a='b'>X</target>" in document.join([SentenceTranslation("X")])


def test_subtitles_keep_times_and_lines():
    document = read(SRT, "srt")
    assert shown(document) == ["A red dog runs over the street.", "One?", "Two & three!"]
    assert document.join(identity(document)) == SRT
    result = document.join(reversed_words(document))
    assert "& TWO\r\n" in result.replace("! THREE ", "")
    assert "<i>RED</i> A\r\n\r\n2\r\n00:00:03,000" in result
    assert result.count("\n") == SRT.count("\n")
    document = read(VTT, "vtt")
    assert shown(document) == ["Hello red dog & cat.", "one two three four"]
    assert document.join(identity(document)) == VTT
    result = document.join(reversed_words(document))
    assert "&amp; <00:01.500>DOG <c.loud>RED</c> HELLO" in result
    assert "<v Ann>" in result
    assert result.endswith("\nFOUR THREE\nTWO ONE")


@pytest.mark.parametrize(
    "text", ["<" + "a" * 200_000, "a " * 100_000, "{" * 200_000, "<a " * 60_000]
)
def test_subtitles_take_linear_time(text):
    # Quadratic time would be minutes here.
    document = read(f"00:01,0 --> 00:02,0\n{text}\nb\n", "srt")
    document.join(identity(document))


def test_units_have_the_languages_of_their_file_in_its_form():
    """A model may write `deu_Latn`; a file has `de`."""
    unit = '<tu><tuv xml:lang="en"><seg>a dog</seg></tuv></tu>'
    document = read_document(
        f"<tmx><body>{unit}</body></tmx>", "tmx", "eng_Latn", target_language="deu_Latn"
    )
    assert '<tuv xml:lang="de"><seg>a dog</seg></tuv>' in document.join(identity(document))
    chinese = unit.replace('"en"', '"zh-Hans"')
    text = f"<tmx>{chinese}</tmx>"
    document = read_document(text, "tmx", "zho_Hant", target_language="fr")
    assert shown(document) == []  # another script


@pytest.mark.parametrize("mark", ['translate="no"', 'mtype="protected"'])
def test_elements_of_xliff_that_are_not_translated_stay(mark):
    source = f'Buy <mrk id="1" {mark}>ACME</mrk> now'
    document = read(
        f"<xliff><unit><segment><source>{source}</source></segment></unit></xliff>", "xliff"
    )
    (sentence,) = document.sentences
    assert "ACME" not in sentence.text
    assert f"<target>{source}</target>" in document.join(identity(document))


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        ("po", 'msgid "a"\nmsgstr "b\n', "line 2 is not of a PO file"),
        ("xliff", "<xliff>\n<a></b></xliff>", "line 2 is not valid XML: mismatched tag"),
        ("xliff", "", "line 1 is not valid XML: no element found"),
        ("tmx", "<html/>", "the root element is html, not tmx"),
        ("srt", "Hello\n", "there is no cue"),
    ],
)
def test_broken_files_are_refused(format, text, message):
    with pytest.raises(UserError, match=message):
        read(text, format)


def test_a_memory_needs_both_languages():
    with pytest.raises(UserError, match="needs a source and a target language"):
        read_document(TMX, "tmx")


_BITS = {
    "po": ["a word", "\\n", '"\n"', "<b>", "</b>", '\\"', '"', "\\", "&amp;", ". ", "ü", "\r\n"],
    "srt": [
        "00:01,0 --> 00:02,0\n",
        "a word ",
        "\n",
        "\r\n",
        "<i>",
        "</i>",
        "- ",
        "{\\a}",
        "<",
        ">",
    ],
    "xliff": ["<g>", "</g>", "<x/>", "a word ", "&amp;", "<![CDATA[", "]]>", "\n", "<!-- -->", "ü"],
}


@pytest.mark.parametrize("format", _BITS)
def test_any_file_is_read_or_refused_in_one_sentence(format):
    rng = random.Random(0)
    num_read = 0
    for size in range(1500):
        text = "".join(rng.choices(_BITS[format], k=1 + size % 12))
        if format == "xliff":
            source = f"<source>{text}</source>"
            text = f"<xliff><trans-unit>{source}<target></target></trans-unit></xliff>"
        elif format == "po":
            source = f'"{text}"'
            text = f'msgid {source}\nmsgstr ""\n'
        try:
            document = read(text, format)
        except UserError:
            continue
        num_read += bool(shown(document))
        joined = document.join(identity(document))
        if format == "xliff" and shown(document):
            assert joined == text.replace("<target></target>", source.replace("source>", "target>"))
        elif format == "po" and shown(document):
            assert joined == text.replace('msgstr ""', f"msgstr {source}")
        elif format == "srt":
            assert joined == text
        assert read(document.join(reversed_words(document)), format)
    assert num_read > 50


@pytest.mark.parametrize("format", FORMATS)
def test_an_identity_engine_gives_the_same_bytes(format, translator, monkeypatch):
    """All of the way, with what is protected, guards, and searches that are tried again."""

    def same(requests, **settings):
        return (Translation(request.text, 0.0, 0.0, (), ()) for request in requests)

    others = {"txt": [TEXT], "md": [MARKDOWN], "html": [PAGE], "srt": [SRT], "vtt": [VTT]}
    protected = "A {name} at https://a.b/c?d=e&f, 5 km and 😀, says %s to x@y.org.\n"
    others["txt"].append(protected)
    others["html"].append(f"<p>{protected.replace('&', '&amp;')}</p>")
    others["md"].append(protected)
    monkeypatch.setattr(translator, "translate_iterable", same)
    for marked in (FILLED | others)[format]:
        marked = marked.replace('"fr"', '"de"')  # the target language of the model
        text = without_translations(marked, format) if format in FILLED else marked
        result = translator.translate_document(text, format)
        assert result.text == marked.replace("@@", "")
        assert result.sentences
