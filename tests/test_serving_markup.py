"""Plain texts and HTML as sentences, keys, and limits of keys."""

import stat

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sentencex")

from transformer_jax.errors import UserError
from transformer_jax.serving.errors import ServiceError
from transformer_jax.serving.keys import Keys, add_key
from transformer_jax.serving.markup import NO_LINES, NO_SPLIT, Html, PlainText

PAGE = """<!DOCTYPE html><!-- Not > this. -->
<html><head><title>A title.</title><style>p > a { color: red }</style>
<script>if (a < b) { say("</p> no"); }</script></head>
<body class='x' title="a > b"><p>One &amp; two.  Three <b>four</b>!<br/>Five</p>
<p translate="no">Name <i>Other</i></p><span class="a notranslate b">Brand</span>
<code>x = 1</code> &nbsp; 6 &lt; 7 <p>unclosed <a href=x>end</a>"""


def test_html_keeps_markup_and_what_is_not_to_be_translated():
    document = Html(PAGE, "en")
    assert document.sentences == [
        "A title.",
        "One & two.",
        "Three",
        "four",
        "Five",
        "6 < 7",
        "unclosed",
        "end",
    ]
    upper = document.join([sentence.upper() for sentence in document.sentences])
    for text in ("A title.", "One &amp; two.", "Three", "four", "Five", "unclosed", ">end<"):
        assert text.upper() in upper.replace("&amp;", "&AMP;")
    for text in (
        "a < b",
        "Name <i>Other</i>",
        ">Brand<",
        "x = 1",
        "<body class='x' title=\"a > b\">",
    ):
        assert text in upper
    assert document.join(document.sentences) == PAGE.replace("&nbsp;", "\xa0")


@pytest.mark.parametrize(
    "text",
    ["", "<", "a < b", "<a", "<a title='", "<!--", "</", "<script>x", "<b>x</i></b>", "&#0;&bad;"],
)
def test_html_that_is_broken_stays_as_it_is(text):
    document = Html(text, "en")
    joined = document.join(document.sentences)
    assert joined == text or joined.replace("&lt;", "<") == text or "&" in text


@pytest.mark.parametrize(
    "part", ["<a ", "<a b='", "<!--", "<", "</", "&", "<a =\"' ", "<b>", "<script>"]
)
def test_html_takes_linear_time(part):
    # Quadratic time would be minutes here.
    document = Html(part * (600_000 // len(part)), "en")
    document.join(document.sentences)


def test_markup_in_translations_is_text():
    document = Html("<b>one</b>", "en")
    assert document.join(["<script>x</script>"]) == "<b>&lt;script&gt;x&lt;/script&gt;</b>"


def test_plain_text_is_split_as_the_client_says():
    text = "One\ntwo. Three."
    assert PlainText(text, "en").sentences == ["One", "two.", "Three."]
    assert PlainText(text, "en", NO_LINES).sentences == ["One two.", "Three."]
    assert PlainText(text, "en", NO_SPLIT).sentences == [text]


def test_keys_are_kept_as_digests_in_a_file_of_the_owner(tmp_path):
    path = tmp_path / "keys.txt"
    first = add_key(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("# comment\n\n  # another\n" + path.read_text().rstrip("\n"))
    second = add_key(path, "two")
    keys = Keys.read(path)
    assert (keys.client(first), keys.client(second)) == ("one", "two")
    assert first not in path.read_text()
    for secret, status in (("", 401), ("tj_wrong", 403), (first[:-1], 403), ("\ud800", 403)):
        with pytest.raises(ServiceError) as error:
            keys.client(secret)
        assert error.value.status == status
    with pytest.raises(UserError, match="a key for one already"):
        add_key(path, "one")
    for name in ("", "a b", "#x", "x" * 65, "a\nb"):
        with pytest.raises(UserError, match="the name of a key"):
            add_key(path, name)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "keys has no key"),
        (["# only"], "keys has no key"),
        (["one"], "keys:1: .*1 words"),
        (["one abc"], "keys:1: .*64 hexadecimal"),
        ([f"one {'0' * 64} many"], "keys:1: .*many is not a number"),
        ([f"one {'0' * 64} 0"], "keys:1: .*0 is not a number"),
        (["", f"one {'0' * 64}", f"one {'1' * 64}"], "keys:3: the name one is there twice"),
    ],
)
def test_files_of_keys_that_are_wrong_are_refused(lines, message):
    with pytest.raises(UserError, match=message):
        Keys(lines, "keys")


def test_keys_have_characters_a_minute_which_stay_when_they_are_read_again():
    now = 0.0
    lines = [f"one {'0' * 64} 60", f"two {'1' * 64}"]
    keys = Keys(lines, "keys", lambda: now)
    keys.charge("two", 10**9)
    keys.charge("one", 50)
    with pytest.raises(ServiceError) as error:
        keys.charge("one", 20)
    assert (error.value.status, error.value.retry_after) == (429, 11)
    keys.charge("one", -50)  # the request was refused
    keys.charge("one", 60)
    keys = Keys(lines, "keys", lambda: now).with_use_of(keys)
    with pytest.raises(ServiceError):
        keys.charge("one", 1)
    now = 30.0
    keys.charge("one", 30)
    with pytest.raises(ServiceError) as error:
        keys.charge("one", 61)
    assert error.value.status == 413
