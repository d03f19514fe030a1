"""Texts of several sentences in the server: formats, terms, what stays, guards, confidence."""

import asyncio
import dataclasses
import json
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from tests.serving_model import prepared
from transformer_jax import Translator
from transformer_jax.extras.documents import languages, term_placement
from transformer_jax.extras.documents.copying import Shown
from transformer_jax.extras.documents.guards import Guards
from transformer_jax.extras.documents.sentence_translator import Preparer
from transformer_jax.extras.serving import v1
from transformer_jax.extras.serving.app import create_app
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.served_model import ServedModel
from transformer_jax.extras.serving.service import Service
from transformer_jax.extras.serving.v1_fields import TranslateRequest
from transformer_jax.translator import word_links
from transformer_jax.translator.calibration import Calibration
from transformer_jax.translator.confidence import Logistic
from transformer_jax.translator.words import words_of


@pytest.fixture(scope="module")
def model(translator):
    return prepared(translator)


@pytest.fixture(scope="module")
def client(model):
    return TestClient(create_app(Service([model])), raise_server_exceptions=False)


@pytest.fixture(autouse=True)
def _nothing_is_compiled(model):
    before = model.num_compiled
    yield
    assert model.num_compiled == before


def translate(client, text, **fields):
    answer = client.post("/v1/translate", json={"texts": [text], **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["translations"][0]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("txt", "one two.\n\n  - three {x} four.  Five https://a.b/c"),
        ("html", "<p class='a'>one <b>two</b> 5 km.</p><p translate='no'>six</p>"),
        ("md", "# one\n\n*two* `code` three"),
        ("po", 'msgid "one %s"\nmsgstr ""\n'),
    ],
)
def test_texts_are_translated_as_documents(client, model, format, text):
    got = translate(client, text, format=format)
    want = model.translator.translate_document(text, format)
    assert got["text"] == want.text
    assert [one["source"] for one in got["sentences"]] == [one.source for one in want.sentences]
    assert [one["text"] for one in got["sentences"]] == [one.text for one in want.sentences]
    for part in ("{x}", "https://a.b/c", "5 km", "six</p>", "`code`", "%s"):
        assert (part in got["text"]) == (part in text)


def test_sentences_are_one_text_where_the_client_says_so(client, model):
    text = "one {x}. Two."
    got = translate(client, text, format="sentence")
    assert got["text"] == model.translator.translate(text).text
    assert "sentences" not in got
    unprotected = translate(client, text, protect=False)
    assert [one["source"] for one in unprotected["sentences"]] == ["one {x}.", "Two."]


def test_alternatives_scores_and_streams_of_documents(client, model):
    text = "one two.\n\nthree"
    singles = [model.translator.translate(one, n_best=2) for one in ("one two.", "three")]
    got = translate(client, text, n_best=2, guards=False)
    assert got["text"] == "\n\n".join(best[0].text for best in singles)
    assert got["alternatives"][0]["text"] == "\n\n".join(best[1].text for best in singles)
    assert got["score"] == pytest.approx(sum(best[0].score for best in singles), abs=1e-4)
    body = {"texts": [text, "four"], "stream": True, "guards": False}
    with client.stream("POST", "/v1/translate", json=body) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    first, second, done = (json.loads(line.removeprefix("data: ")) for line in events)
    assert (first["text"], done["count"]) == (got["text"], 2)
    assert second["text"] == model.translator.translate("four").text


def test_words_are_linked_as_they_are_in_the_text(client):
    got = translate(client, "one {x} two.\nthree {y}", alignment=True)
    assert got["source_words"] == ["one", "{x}", "two", ".", "three", "{y}"]
    assert got["words"] == words_of(got["text"].replace("{x}", "X")) or "{x}" in got["words"]
    assert got["alignment"]
    sources, words = zip(*got["alignment"], strict=True)
    assert max(sources) < len(got["source_words"])
    assert max(words) < len(got["words"])
    assert [1, got["words"].index("{x}")] in got["alignment"]
    assert [5, got["words"].index("{y}")] in got["alignment"]


def test_terms_of_a_request_are_placed_or_said(client):
    text = "one two.\nthree"
    got = translate(client, text, glossary=[["two", "neun|acht"], ["nine", "x"]], guards=False)
    first, second = got["sentences"]
    assert {"neun", "acht"} & {word.casefold() for word in first["text"].split()}
    assert (first["unmet"], second["unmet"]) == ([], [])
    # The model writes 16 tokens, of which terms may have half.
    long = translate(client, text, glossary=[["two", "漢字漢字漢字"]], guards=False)
    assert "漢字漢字漢字" in long["sentences"][0]["unmet"][0]
    for terms, message in (
        ([["two"]], "`glossary[0]`: 1 columns instead of source, tab, target"),
        ([["two", "x", "cas"]], "there is no flag cas; did you mean case?"),
        ([["two", "x"], ["two", "y"]], "write all forms into one"),
        ([["two", "x"]] * 1001, "glossary: List should have at most 1000 items"),
    ):
        answer = client.post("/v1/translate", json={"texts": [text], "glossary": terms})
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]


def test_terms_are_forced_where_no_word_belongs_to_them(client, model, monkeypatch):
    monkeypatch.setattr(term_placement, "_LEAST_SHARE", 2.0)  # more than any word attends
    asked = {"glossary": [["two", "neun"]], "guards": False}
    got = translate(client, "one two", **asked)
    assert "neun" in got["text"].casefold()
    assert got["sentences"][0]["unmet"] == []

    def refuse(job):
        raise ServiceError(429, "The queue is full.")

    # Without room for another search, the translation comes and says what it lacks.
    monkeypatch.setattr(model, "submit_pairs", refuse)
    got = translate(client, "one two", **asked)
    assert got["text"] == model.translator.translate("one two").text
    assert "neun" in got["sentences"][0]["unmet"][0]


def test_more_terms_than_programs_have_room_for_are_said(client):
    words = ["one", "two", "six"]
    terms = [[word, "|".join(f"{letter}" for letter in "abcdefgh")] for word in words]
    got = translate(client, " ".join(words), glossary=terms, guards=False)
    assert len(got["sentences"][0]["unmet"]) <= len(words)


def test_caught_translations_are_searched_again(client, model, monkeypatch):
    plain = model.translator.translate("one two").text
    asked = []
    real = Guards.problems

    def problems(self, source, translation):
        asked.append(translation)
        return ("loop",) if translation == plain else real(self, source, translation)

    monkeypatch.setattr(Guards, "problems", problems)
    got = translate(client, "one two.\nthree".replace("two.", "two"))
    assert got["text"].splitlines()[0] != plain or got["sentences"][0]["flags"] == ["loop"]
    assert asked.count(plain) >= 1
    assert len(asked) > 2
    monkeypatch.setattr(Guards, "problems", lambda *texts: ("copy", "long"))
    got = translate(client, "one two")
    assert got["sentences"][0]["flags"] == ["copy", "long"]
    assert got["text"] == plain
    without = translate(client, "one two", guards=False)
    assert without["sentences"][0]["flags"] == []


def test_confidence_is_given_where_the_model_has_it(client, model, monkeypatch):
    assert not client.get("/v1/models").json()["models"][0]["confidence"]
    assert "confidence" not in translate(client, "one two", confidence=True)["sentences"][0]
    half = Logistic((0.0,) * 4, 0.0)
    monkeypatch.setattr(model.translator, "calibration", Calibration(half, half, ("one",)))
    assert client.get("/v1/models").json()["models"][0]["confidence"]
    got = translate(client, "two {x}", confidence=True)["sentences"][0]
    assert got["confidence"] == 0.5
    assert [word for word, _ in got["words"]] == got["text"].split()
    assert ["{x}", 1.0] in got["words"]
    assert "confidence" not in translate(client, "two {x}")["sentences"][0]


def test_texts_that_are_not_of_their_format_are_refused(client):
    for format, text, message in (
        ("po", "msgid nothing", "line 1 is not of a PO file"),
        ("xliff", "<a>", "is not valid XML"),
        ("pdf", "x", "format: Input should be 'sentence', 'txt', 'md', 'html'"),
    ):
        answer = client.post("/v1/translate", json={"texts": ["one", text], "format": format})
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    texts = ['msgid "one"\nmsgstr ""\n', "msgid nothing"]
    answer = client.post("/v1/translate", json={"texts": texts, "format": "po"})
    assert answer.json()["error"]["item"] == 1


def test_the_language_of_texts_is_detected_where_the_client_says_so(client):
    got = translate(client, "one two", source_lang="auto")
    assert got["source_lang"] == "en"
    assert got["text"] == translate(client, "one two")["text"]
    single = {"texts": ["one two"], "format": "sentence", "source_lang": "auto"}
    assert client.post("/v1/translate", json=single).status_code == 400


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("ZH-HANT", "zho_Hant"),
        ("zh-TW", "zho_Hant"),
        ("ZH", "zho_Hans"),
        ("ZH-CN", "zho_Hans"),
        ("EN-US", "eng_Latn"),
        ("fr", "fra_Latn"),
        ("fra_Latn", "fra_Latn"),
        ("xx", None),
    ],
)
def test_languages_of_clients_are_those_of_the_model_in_their_script(asked, code):
    assert languages.find(asked, ["eng_Latn", "zho_Hans", "zho_Hant", "fra_Latn"]) == code
    assert languages.find("pt-br", ["pt", "pt_BR"]) == "pt_BR"
    assert languages.find("ZH-HANT", ["en", "zh"]) == "zh"  # there is no other


def test_a_glossary_has_few_forms(client):
    body = {"texts": ["one"], "glossary": [["one", "|".join(f"a{i}" for i in range(20))]]}
    answer = client.post("/v1/translate", json=body)
    assert (answer.status_code, "more than 16 forms" in answer.text) == (400, True)


@pytest.mark.parametrize("before", ["", "\u6f22 "])
def test_tokens_of_a_long_text_are_matched_in_linear_time(before):
    """Quadratic time would be minutes here. Unknown characters have no token, the others have."""
    text = before + "ab " * 15_000 + "\u6f22" + " cd" * 5_000
    tokens = ["\u2581ab"] * 15_000 + ["<unk>"] + ["\u2581cd"] * 5_000
    owners = word_links.token_of_characters(text, ["<unk>"] * bool(before) + tokens)
    first = len(before) // 2
    want = [first + number for number in range(15_000) for _ in "ab"] + [-1]
    want += [first + 15_001 + number for number in range(5_000) for _ in "cd"]
    shown = [owner for owner, char in zip(owners, text, strict=True) if not char.isspace()]
    assert shown == [-1] * first + want


def test_a_text_of_unknown_language_goes_to_the_model_that_reads_it(translator, monkeypatch):
    monkeypatch.setattr(ServedModel, "_warmup_calls", lambda model: [])
    models = []
    for source in ("en", "fr"):
        data = dataclasses.replace(translator.config.data, source_lang=source)
        config = dataclasses.replace(translator.config, data=data)
        fresh = Translator(config, translator.tokenizers, translator.params)
        models.append(ServedModel(f"{source}-de", fresh))
        models[-1].prepare()
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(service=Service(models))))
    for text, name in (("Bonjour, comment allez-vous ?", "fr-de"), ("How are you today?", "en-de")):
        body = TranslateRequest(texts=[text], source_lang="auto", target_lang="de")
        assert asyncio.run(v1._model_of(request, body)).name == name
    named = TranslateRequest(texts=["Bonjour"], source_lang="auto", model="en-de")
    assert asyncio.run(v1._model_of(request, named)).name == "en-de"


def test_a_long_sentence_without_known_characters_is_translated_once(translator):
    """No character says where its tokens are: it stays whole, and is not repeated."""
    encode, names = (lambda text: list(range(40))), (lambda ids: ["<unk>" for _ in ids])
    tokenizers = SimpleNamespace(source=SimpleNamespace(encode=encode, tokens=names))
    preparer = SimpleNamespace(engine=SimpleNamespace(tokenizers=tokenizers))
    parts = Preparer._split(preparer, Shown("\u6f22 \u5b57"), list(range(40)), 16)
    assert [part.text for part in parts] == ["\u6f22 \u5b57"]
