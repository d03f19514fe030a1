"""Documents as real projects have them: what their programs and dialects need stays as it is."""

import sys
from collections.abc import Callable

import pytest

pytest.importorskip("sentencex")
pytest.importorskip("markdown_it")

from tests.test_text_documents import read, reversed_words, shown
from transformer_jax.extras.documents import accelerators, copying, guards, placeholders, protection
from transformer_jax.extras.documents.copying import Marked
from transformer_jax.extras.documents.document import Document, Reading, SentenceTranslation
from transformer_jax.extras.documents.formats import po_plurals, readers
from transformer_jax.extras.documents.guards import Guards
from transformer_jax.extras.documents.placeholders import MessageFormat
from transformer_jax.translator.words import words_of

# Format, source, and the document with all words that are translated in capitals.
WILD = [
    ("txt", "  -a, --all=x    one two\n\t-b\tthree", "  -a, --all=x    ONE TWO\n\t-b\tTHREE"),
    ("txt", "one %s%s two", "ONE %s%s TWO"),
    ("html", "<p>a <a href=x/ >b c</a> d</p>", "<p>A <a href=x/ >B C</a> D</p>"),
    ("html", "<p>a<br/>b <x-y z=1 /> c</p>", "<p>A<br/>B <x-y z=1 /> C</p>"),
    ("html", "<div translate=no d=/a/ >a b</div>", None),
    ("html", "<p>a <code class=b/ >c</code> d</p>", "<p>A <code class=b/ >c</code> D</p>"),
    ("html", "<p>a <keycap>b</keycap> c</p>", "<p>A <keycap>B</keycap> C</p>"),
    ("html", "<para>a</para><para>b</para>", "<para>A</para><para>B</para>"),
    (
        "html",
        "<p>three<sup><a href=#n><i>[</i>a<i>]</i></a></sup> and x<sup>st</sup></p>",
        "<p>THREE<sup><a href=#n><i>[</i>a<i>]</i></a></sup> AND <sup>XST</sup></p>",
    ),
    (
        "html",
        "<p>a C<sub>6</sub>H<sub>12</sub>O &amp; CO<sub>2</sub></p>",
        "<p>A C<sub>6</sub>H<sub>12</sub>O &amp; CO<sub>2</sub></p>",
    ),
    ("html", "<p>H<sub>2</sub>&lt;a</p>", "<p>H<sub>2</sub> &lt; A</p>"),
    ("html", "<p>x<sub>a</sub> b</p>", "<p><sub>XA</sub> B</p>"),
    ("html", "<p><ruby>a<rt>b</rt></ruby> c</p>", "<p><ruby>A<rt>b</rt></ruby> C</p>"),
    ("md", "> [!NOTE]\n> one two", "> [!NOTE]\n> ONE TWO"),
    ("md", "See [[a b|c]] and ![[d.png]] here", "SEE [[a b|c]] AND ![[d.png]] HERE"),
    ("md", "*[HTML]: one\n*[CSS]: two", "*[HTML]: ONE\n*[CSS]: TWO"),
    ("md", r"a \(b_c\) d \[e \\ f\] :joy: at 9:30h:", r"A \(b_c\) D \[e \\ f\] :joy: AT 9 : 30h :"),
    ("md", "import A from 'b';\nexport const c = {\n  d: 1,\n};", None),
    ("md", "import duties rose", "IMPORT DUTIES ROSE"),
    ("md", "<A b={() => c}>d <E/></A> {/* f */} g", "<A b={() => c}>D <E/></A> {/* f */} G"),
    ("md", "---\n\none two\n\n---\n", "---\n\nONE TWO\n\n---\n"),
    ("md", "---\na: b\n- c\n  d\n# e\n---\nf", "---\na: b\n- c\n  d\n# e\n---\nF"),
    (
        "srt",
        "1\n-00:00:01,0 --> 00:00:02,0\na b\n\nc\n\n2\n00:00:03,0 --> 00:00:04,0\nd\n",
        "1\n-00:00:01,0 --> 00:00:02,0\nA B\n\nC\n\n2\n00:00:03,0 --> 00:00:04,0\nD\n",
    ),
    ("srt", "1\r00:01,0 --> 00:02,0\ra b\rc d\r", "1\r00:01,0 --> 00:02,0\rA B\rC D\r"),
    (
        "vtt",
        "WEBVTT\n\n00:01.0 --> 00:02.0\n<ruby>a<rt>b</rt></ruby> c\n\nNOTE d",
        "WEBVTT\n\n00:01.0 --> 00:02.0\n<ruby>A<rt>b</rt></ruby> C\n\nNOTE d",
    ),
    ("txt", "{n, plural, =1 {one day} other {# days}}", "{n, plural, =1 {ONE DAY} other {# DAYS}}"),
    (
        "txt",
        "You have {n, plural, one {a mail} other {# of {g, select, a {his} b {her}} mails}} left.",
        "YOU HAVE {n, plural, one {A MAIL} other {# OF {g, select, a {HIS} b {HER}} MAILS}} LEFT .",
    ),
    (
        "html",
        "<p>a <b>{n, plural, one {<i>b</i> &amp; c} other {'{'}}</b></p>",
        "<p>A <b>{n, plural, one {<i>B</i> &amp; C} other {'{'}}</b></p>",
    ),
    ("txt", "{n, plural, one {a", "{ N , PLURAL , ONE { A"),
]
# What an entry of a catalogue has before its translation, and the translation.
MESSAGES = [
    ('msgid "one" " two"\t"!"', "ONE TWO !"),
    (r'msgid "caf\303\251 \x41\\n"', r"CAFÉ A \\ N"),
    ('#, kde-format\nmsgid "one %1 of two %2"', "ONE %1 OF TWO %2"),
    ('#, c-format\nmsgid "one %<PRIu64> % d %m"', "ONE %<PRIu64> % d %m"),
    ('#, c-format\nmsgid "one %\'d <b>two</b>"', "ONE %'d <b>TWO</b>"),
    ('#, fuzzy, sh-format\nmsgid "one $A_b"', "ONE $A_b"),
    ('#, no-c-format\nmsgid "50% discount"', "50% DISCOUNT"),
    ('#, object-pascal-format\nmsgid "one %0:d"', "ONE %0:d"),
    ('msgid "_File"', "_FILE"),
    ('msgid "E_xit %s…"', "E_XIT %s …"),
    ('msgid "Save &As"', "SAVE &AS"),
    ('msgid "R&D at AT&T"', "R & D AT AT & T"),
    ('msgid "file_name"', "FILE_NAME"),
    ('msgid "one <xref linkend=\\"x\\"/> two"', 'ONE <xref linkend=\\"x\\"/> TWO'),
]
CUE = "1\n00:00:01,0 --> 00:00:02,0\n"
# Format, beginning of a document, what follows it any number of times, and its end.
REPEATED = [
    ("srt", CUE, "a b\n", ""),
    ("srt", "", f"{CUE}a b\n\n", ""),
    ("vtt", "WEBVTT\n\n00:01.0 --> 00:02.0\n", "a b\n", ""),
    ("html", "<p>", "<code>x</code> a ", "</p>"),
    ("html", "", "<code>x</code>", ""),
    ("html", "<p>", "<b>x</b> a ", "</p>"),
    ("html", "", "<div>", "a"),
    ("html", "<p>", "<b>", "a"),
    ("html", "<p>a", "<sup>", ""),
    ("html", "<p>", "<ruby>a", ""),
    ("html", "", "<p>a</p>", ""),
    ("html", "<p>", "&amp; a ", ""),
    ("html", "<p>", "<!-- ", ""),
    ("md", "", "[a](b) ", ""),
    ("md", "", "[", "a"),
    ("md", "", "`a` b ", ""),
    ("md", "", "a b\n\n", ""),
    ("md", "", "- a b\n", ""),
    ("md", "| a | b |\n|---|---|\n", "| c | d |\n", ""),
    ("md", "", "*a ", ""),
    ("txt", "", "a b\n", ""),
    ("txt", "", "A b. ", ""),
    ("txt", "", "a  b  ", ""),
    ("txt", "", "%s a {b} ", ""),
    ("txt", "", "{n, plural, other {", "a"),
    ("txt", "", "{n, plural, one {a} other {b}} ", ""),
    ("po", "", 'msgid "a"\nmsgstr ""\n\n', ""),
    ("po", 'msgid ""\n', '"a b "\n', 'msgstr ""\n'),
    ("xliff", "<xliff>", "<trans-unit><source>a b</source></trans-unit>", "</xliff>"),
    ("xliff", "<xliff><trans-unit><source>", "<g>a</g> ", "</source></trans-unit></xliff>"),
]
XLIFF = """<xliff><file><trans-unit><source>a b.</source>{}</trans-unit></file></xliff>"""
SEGMENTS = '<{0}>{1}<mrk mtype="seg" mid="1">{2}</mrk> <mrk mtype="seg" mid="2">{3}</mrk>{4}</{0}>'
SEG_SOURCE = SEGMENTS.format("seg-source", "", "a", "b.", "")
# What follows the source of a unit, and what it becomes.
UNITS = [
    (SEG_SOURCE, SEG_SOURCE + SEGMENTS.format("target", "", "A", "B .", "")),
    (SEG_SOURCE + "<target/>", SEG_SOURCE + SEGMENTS.format("target", "", "A", "B .", "")),
    (
        SEG_SOURCE + '<target><g><mrk mtype="seg" mid="2"/></g></target>',
        SEG_SOURCE + '<target><g><mrk mtype="seg" mid="2">B .</mrk></g></target>',
    ),
    (
        SEG_SOURCE + SEGMENTS.format("target", "<g>", "x", "", "</g>"),
        SEG_SOURCE + SEGMENTS.format("target", "<g>", "x", "B .", "</g>"),
    ),
    ('<target><x id="1"/><g> </g></target>', "<target>A B .</target>"),
    ("<target>x</target>", "<target>x</target>"),
]


def translated(document: Document, order: int = 1, is_lost: bool = False) -> str:
    """The document with its words in capitals, in order or reversed (-1), or without any."""
    results = []
    for sentence in document.sentences:
        seen = copying.shown(sentence.text)
        words = [] if is_lost else [word.upper() for word in words_of(seen.text)][::order]
        links = ((n, n if order > 0 else len(words) - 1 - n, 1.0) for n in range(len(words)))
        marked = copying.with_marks(seen, Marked(" ".join(words), tuple(links)))
        results.append(SentenceTranslation(marked.text, marked.links))
    return document.join(results)


def protected(text: str, format: str) -> Document:
    return read(text, format, target_language="de", protection=protection.of())


@pytest.mark.parametrize(("format", "source", "wanted"), WILD)
def test_real_markup_stays_and_all_else_is_translated(format, source, wanted):
    assert translated(protected(source, format)) == (wanted or source)


def test_elements_that_a_client_ignores_are_words_of_their_sentence():
    reading = Reading("en", ignored_tags=frozenset({"x"}))
    for element in ('<x id="4"></x>', "<x>one</x>", "<x/>"):
        document = readers.read(f"a {element} b", "html", reading)
        (sentence,) = document.sentences
        assert sentence.plain == f"a {element} b"
        assert copying.shown(sentence.text).text == "a X1 b"


def test_the_number_of_a_plural_is_never_lost():
    for kind, kept in (("plural", "#"), ("selectordinal", "#"), ("select", "")):
        document = protected(f"{{n, {kind}, other {{days #}}}}", "txt")
        assert translated(document, is_lost=True) == f"{{n, {kind}, other {{{kept}}}}}"


def test_messages_that_lack_a_placeholder_are_not_written():
    """As `msgfmt -c` would refuse the file."""
    for flag, source in (("c", "one %d"), ("qt", "one %1"), ("python-brace", "{a} one")):
        assert MessageFormat((flag,)).written(source, "eins") is None
        assert MessageFormat((flag,)).written(source, source * 2) is None
        assert MessageFormat((flag,)).written(source, source) == source
    assert MessageFormat().written("one %d", "eins") == "eins"


@pytest.mark.parametrize(("source", "wanted"), MESSAGES)
def test_messages_keep_what_their_program_replaces(source, wanted):
    assert translated(protected(f'{source}\nmsgstr ""\n', "po")) == f'{source}\nmsgstr "{wanted}"\n'


@pytest.mark.parametrize(("rest", "wanted"), UNITS)
def test_segments_of_xliff_are_filled_from_those_of_the_source(rest, wanted):
    assert translated(protected(XLIFF.format(rest), "xliff")) == XLIFF.format(wanted)


@pytest.mark.parametrize(
    ("flags", "source", "in_order", "reversed_order"),
    [
        ("c", "%s of %*d", "%s OF %*d", "%3$*2$d OF %1$s"),
        ("c", "%2$s of %1$s", "%2$s OF %1$s", "%1$s OF %2$s"),
        ("python-brace", "{} of {:x} {a}", "{} OF {:x} {a}", "{a} {1:x} OF {0}"),
        ("python", "%s of %s", "%s OF %s", ""),
        ("lisp", "~a of ~d", "~a OF ~d", ""),
        ("python", "%(a)s of %(b)s", "%(a)s OF %(b)s", "%(b)s OF %(a)s"),
    ],
)
def test_arguments_are_numbered_where_their_order_changes(flags, source, in_order, reversed_order):
    entry = f'#, {flags}-format\nmsgid "{source}"\nmsgstr "'
    document = protected(f'{entry}"\n', "po")
    for order, wanted in ((1, in_order), (-1, reversed_order)):
        assert translated(document, order) == f'{entry}{wanted}"\n'


TWO_FORMS = "nplurals=2; plural=n != 1;"


@pytest.mark.parametrize(
    ("before", "after", "singular", "wanted"),
    [
        (TWO_FORMS, TWO_FORMS, "one file", ["ONE FILE", "%d FILES"]),
        # French: 0 and 1 have one form, in which the number may not be missing.
        ("nplurals=2; plural=n > 1;", "", "one file", ["%d FILES", "%d FILES"]),
        ("nplurals=2; plural=n > 1;", "", "%d file", ["%d FILE", "%d FILES"]),
        # 101 has the form of 1; and a form is not there yet.
        (
            "nplurals=3; plural=n%100==1 ? 1 : n%100==2 ? 2 : 0;",
            "",
            "%d file",
            ["%d FILES", "%d FILE", "%d FILES"],
        ),
        # A form that the header does not count.
        ("nplurals=1; plural=0;", "", "%d file", ["%d FILES"]),
        # What templates have: the forms of German.
        ("nplurals=INTEGER; plural=EXPRESSION;", TWO_FORMS, "one file", ["ONE FILE", "%d FILES"]),
        ("nplurals=2; plural=n / 0 +;", TWO_FORMS, "one file", ["ONE FILE", "%d FILES"]),
    ],
)
def test_each_form_of_a_plural_has_the_placeholders_that_gettext_wants(
    before, after, singular, wanted
):
    head = 'msgid ""\nmsgstr "charset={}\\nPlural-Forms: {}\\n"\n\n'
    entry = f'#, c-format\nmsgid "{singular}"\nmsgid_plural "%d files"\n'
    empty = head.format("CHARSET", before) + entry + 'msgstr[0] ""\nmsgstr[1] ""\n'
    filled = [f'msgstr[{n}] "{text}"' for n, text in enumerate(wanted)]
    result = head.format("UTF-8", after or before) + entry + "\n".join(filled) + "\n"
    assert translated(protected(empty, "po")) == result
    assert translated(protected(result, "po")) == result


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        # A header that is not the first entry is none.
        (
            'msgid "a"\nmsgstr ""\n\nmsgid ""\nmsgstr "charset=CHARSET\\n"\n',
            'msgid "a"\nmsgstr "A"\n\nmsgid ""\nmsgstr "charset=CHARSET\\n"\n',
        ),
        # A plural without text stays as it is.
        (
            'msgid ""\nmsgstr "nplurals=1; plural=0;"\n\nmsgid "a"\nmsgid_plural ""\n'
            'msgstr[0] ""\nmsgstr[1] ""\n',
            'msgid ""\nmsgstr "nplurals=1; plural=0;"\n\nmsgid "a"\nmsgid_plural ""\n'
            'msgstr[0] ""\n',
        ),
        ("# only a comment\n", "# only a comment\n"),
    ],
)
def test_odd_catalogues_lose_nothing(source, wanted):
    assert translated(protected(source, "po")) == wanted


def test_a_header_without_plurals_gets_those_of_the_language():
    """The forms of 0, 1, 2, 5, 21 and 101 things, by the tables of CLDR."""
    for code, wanted in {
        "de": "101111",
        "fr": "001111",
        "pt_BR": "001111",
        "pt": "101111",
        "ja": "000000",
        "rus_Cyrl": "201200",
        "pl": "201222",
        "cs": "201222",
        "sl": "301330",
        "ar": "012345",
        "lt": "201100",
        "lv": "201100",
        "ro": "101121",
    }.items():
        forms = po_plurals.of_language(code).numbers
        form_of = {number: form for form, numbers in forms.items() for number in numbers}
        assert "".join(str(form_of[n]) for n in (0, 1, 2, 5, 21, 101)) == wanted, code
    entry = 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] "{}"\nmsgstr[1] "{}"\n'
    header = 'msgid ""\nmsgstr ""\n"X: y\\n"{}\n\n'
    result = translated(protected(header.format("") + entry.format("", ""), "po"))
    added = f'\n"Plural-Forms: {TWO_FORMS}\\n"'
    assert result == header.format(added) + entry.format("A", "B")


@pytest.mark.parametrize(
    ("format", "source", "wanted"),
    [
        ("po", 'msgid "a"\nmsgstr ""\n', 'msgid "a"\nmsgstr "\\tbc"\n'),
        ("html", "<p>a</p>", "<p>\tbc</p>"),
        ("xliff", XLIFF.format("<target/>"), XLIFF.format("<target>\tbc</target>")),
    ],
)
def test_control_characters_of_a_translation_are_not_written(format, source, wanted):
    """XML has none, and gettext uses one between a context and its message."""
    document = protected(source, format)
    assert document.join([SentenceTranslation("\tb\x04\x00\x1f\x7f\uffffc")]) == wanted


def test_marks_of_keys_are_put_before_the_same_letter_or_another():
    for source, translation, wanted in [
        ("_File %s", "%s Datei f", "%s Datei _f"),
        ("&Open", "Öffnen", "&Öffnen"),
        ("E&xit:", "終了:", "終了(&X):"),
        ("_File", "", "(_F)"),
        ("_File _Two", "_Datei", "_Datei"),
        ("_File " + "a" * 300, "Datei", "Datei"),
    ]:
        text, with_mark = accelerators.without(source, ["%s"])
        assert text == (
            source.replace("_", "").replace("&", "") if wanted != translation else source
        )
        assert with_mark(translation) == wanted


def test_a_translation_without_a_placeholder_of_its_source_is_flagged():
    check = Guards("en", "de").problems
    assert check("one {name} of %d", "eins {name} von %d") == ()
    for lost in ("eins {name} von", "eins {nom} von %d", "eins {name} {name} von"):
        assert check("one {name} of %d", lost) == (guards.PLACEHOLDER,)
    assert placeholders.missing("%s %s", "%s") == ["%s"]


def test_every_flag_of_gettext_has_placeholders():
    """Each example is from gettext's manual or from the manual of the language."""
    examples = {
        "c": "%5.2f",
        "objc": "%@",
        "c++": "{0}",
        "gcc-internal": "%qD",
        "python": "%(a)s",
        "python-brace": "{a}",
        "java": "{0,number,#}",
        "java-printf": "%1$tY",
        "csharp": "{0:x}",
        "javascript": "%s",
        "scheme": "~a",
        "lisp": "~a",
        "elisp": "%s",
        "librep": "%s",
        "rust": "{}",
        "ruby": "%<a>d",
        "sh": "${a}",
        "awk": "%s",
        "lua": "%s",
        "object-pascal": "%s",
        "smalltalk": "%1",
        "qt": "%L1",
        "qt-plural": "%n",
        "kde": "%1",
        "kde-kuit": "%1",
        "boost": "%|1$+5|",
        "tcl": "%s",
        "perl": "%s",
        "perl-brace": "{a}",
        "php": "%s",
        "gfc-internal": "%s",
        "ycp": "%1",
    }
    assert {*examples} == {*placeholders.BY_FLAG}
    for flag, example in examples.items():
        assert MessageFormat((flag,)).of(f"a {example} b") == [example], flag


def test_deep_messages_and_those_without_an_end_take_linear_time():
    # Regular expressions run here, whose steps cannot be counted: quadratic time would be a minute.
    for part in ("{n, plural, a {", "{n, plural, a {b}} ", "'{", "{n, plural, "):
        protected(part * (30_000 // len(part)), "txt")
    for part in ("<code>", "<sup>", "<sub>1</sub>", "H<sub>1</sub>", r"\(", "{/*", "[[", "<A b={"):
        read(part * (30_000 // len(part)), "md")
    cue = "00:01,0 --> 00:02,0\n" + "a b\n" * 2_000
    assert shown(read(cue, "srt")) == [" ".join(["a b"] * 2_000)]
    assert translated(read(cue, "srt")) == cue.upper()


def lines_run(function: Callable[[], object]) -> int:
    """Lines of the package's code that a call runs, each time counted."""
    count = 0

    def line(*_):
        nonlocal count
        count += 1
        return line

    def call(frame, *_):
        return line if "transformer_jax" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(("format", "first", "part", "last"), REPEATED)
def test_documents_take_time_linear_in_their_length(format, first, part, last):
    def translate(count: int) -> None:
        document = read(first + count * part + last, format)
        document.join(reversed_words(document))

    assert lines_run(lambda: translate(120)) < 2.1 * lines_run(lambda: translate(60))
