"""The HTTP server's APIs on a small model: answers, errors, nothing compiled after the start."""

import gc
import json

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from tests.serving_model import prepared, served_model
from transformer_jax.extras.serving import lifecycle
from transformer_jax.extras.serving.app import create_app
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.service import Service

TEXTS = ["one two", "three", "four five six"]
SENTENCES = {"texts": TEXTS, "format": "sentence"}


@pytest.fixture(scope="module")
def model(translator):
    return prepared(translator)


@pytest.fixture(scope="module")
def client(model):
    return TestClient(create_app(Service([model])), raise_server_exceptions=False)


def test_server_translates_as_the_translator_and_compiles_nothing(client, model):
    compiled = model.translator.engine.num_compiled
    for body in ({}, {"n_best": 2}, {"beam_size": 1}, {"length_penalty": 2.0}, {"alignment": True}):
        answer = client.post("/v1/translate", json={**SENTENCES, **body})
        assert answer.status_code == 200, answer.text
        settings = {name: value for name, value in body.items() if name != "alignment"}
        want = model.translator.translate(TEXTS, **{"n_best": 1, **settings})
        got = answer.json()["translations"]
        assert [one["text"] for one in got] == [best[0].text for best in want]
        for one, best in zip(got, want, strict=True):
            assert one["tokens"] == list(best[0].tokens)
            assert [a["text"] for a in one["alternatives"]] == [h.text for h in best[1:]]
            assert ("alignment" in one) == ("alignment" in body)
    assert model.translator.engine.num_compiled == compiled
    refused = client.post("/v1/translate", json={**SENTENCES, "beam_size": 3})
    assert refused.status_code == 400
    assert "the model's own search; beam_size=1" in refused.json()["error"]["message"]


def test_server_streams_translations_in_order(client, model):
    body = {**SENTENCES, "stream": True}
    with client.stream("POST", "/v1/translate", json=body) as answer:
        events = [line for line in answer.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in events[::2]]
    data = [json.loads(line.removeprefix("data: ")) for line in events[1::2]]
    assert names == ["translation"] * 3 + ["done"]
    assert [d["index"] for d in data[:-1]] == [0, 1, 2]
    assert [d["text"] for d in data[:-1]] == [t.text for t in model.translator.translate(TEXTS)]


def test_server_has_the_api_of_libretranslate(client, model):
    text = "one two.\n\n  three"
    body = {"q": text, "source": "en", "target": "de", "format": "text", "alternatives": 1}
    want = [model.translator.translate(t, n_best=2) for t in ("one two.", "three")]
    for send in ({"json": body}, {"data": body}):
        answer = client.post("/translate", **send).json()
        assert answer["translatedText"] == f"{want[0][0].text}\n\n  {want[1][0].text}"
        assert len(answer["alternatives"]) == 1
    several = client.post("/translate", json={**body, "q": ["one", "two"]}).json()
    assert len(several["translatedText"]) == len(several["alternatives"]) == 2
    auto = client.post("/translate", json={"q": "one", "source": "auto", "target": "de"}).json()
    assert auto["detectedLanguage"] == {"language": "en", "confidence": 100.0}
    for change, message in (
        ({"target": "fr"}, "No model translates"),
        ({"q": None}, "q: Field required."),
        ({"format": "pdf"}, "format: Input should be 'text' or 'html'."),
    ):
        refused = client.post("/translate", json={**body, **change})
        assert refused.status_code == 400
        assert message in refused.json()["error"]
    assert client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert client.get("/frontend/settings").json()["language"]["target"]["code"] == "de"
    detected = client.post("/detect", json={"q": "hello"}).json()
    assert detected == [{"language": "en", "confidence": 100.0}]


def test_server_has_the_api_of_deepl(client, model):
    body = {"text": ["one two.", "three"], "target_lang": "DE"}
    want = [t.text for t in model.translator.translate(body["text"])]
    answer = client.post("/v2/translate", json=body).json()["translations"]
    assert answer == [{"detected_source_language": "EN", "text": text} for text in want]
    form = client.post("/v2/translate", data={**body, "source_lang": "EN"}).json()["translations"]
    assert form == answer
    assert client.get("/v2/languages?type=target").json() == [
        {"language": "DE", "name": "German", "supports_formality": False}
    ]
    refused = client.post("/v2/translate", json={**body, "glossary_id": "x"})
    assert (refused.status_code, refused.json()) == (
        400,
        {"message": "This server does not support glossary_id."},
    )
    assert client.get("/v2/usage").json()["character_count"] >= 13


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "texts: Field required."),
        ({"texts": []}, 400, "texts: List should have at least 1 item"),
        ({"texts": ["a"], "beam": 3}, 400, "beam: Extra inputs are not permitted."),
        ({"texts": ["a"], "model": "x"}, 404, "No model 'x'; there are tiny."),
        (
            {"texts": ["a"], "target_lang": "fr"},
            404,
            "No model translates to 'fr'; there are en-de.",
        ),
        ({"texts": ["a"] * 9}, 413, "9 texts; a request has at most 8."),
        ({"texts": ["a" * 201]}, 413, "201 characters; a request has at most 200."),
        ({"texts": ["a"], "n_best": 99}, 400, "`n_best=99` needs `beam_size`"),
        ({"texts": ["a"], "length_penalty": -1}, 400, "`length_penalty=-1.0` must be >= 0"),
    ],
)
def test_server_says_what_is_wrong(client, body, status, message):
    answer = client.post("/v1/translate", json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_named_model_is_asked_for_its_languages(client):
    for wrong in ({"target_lang": "fr"}, {"source_lang": "fr"}):
        for path in ("/v1/translate", "/v1/sentences"):
            body = {"model": "tiny", "texts": ["one"], **wrong}
            answer = client.post(path, json=body)
            assert answer.status_code == 400, answer.text
            assert "does not translate" in answer.text


def test_forms_are_read_as_utf8(client):
    want = client.post("/v2/translate", json={"text": ["zwölf"], "target_lang": "DE"}).json()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    for text in ("zwölf", "zw%C3%B6lf"):
        body = f"text={text}&target_lang=DE".encode()
        answer = client.post("/v2/translate", content=body, headers=headers)
        assert answer.json() == want
    for body in (b"text=\xff&target_lang=DE", b"a=b&" * 2000):
        answer = client.post("/v2/translate", content=body, headers=headers)
        assert (answer.status_code, "form cannot be read" in answer.text) == (400, True)


def test_settings_of_a_search_are_bounded(client):
    answer = client.post("/v1/translate", json={**SENTENCES, "max_decode_ratio": 1e308})
    assert answer.status_code == 400, answer.text


def test_server_names_the_text_that_is_wrong(client):
    answer = client.post("/v1/translate", json={"texts": ["one", 2]})
    assert (answer.status_code, answer.json()["error"]["item"]) == (400, 1)
    long_pair = {"pairs": [["one", "eins"], ["one " * 20, "eins"]]}
    answer = client.post("/v1/score", json=long_pair)
    assert (answer.status_code, answer.json()["error"]["item"]) == (400, 1)
    assert "tokens; 15 can be scored" in answer.json()["error"]["message"]


def test_server_places_sentences_in_utf16_units(client):
    text = "One \U0001f600 two. Three e\u0301!\n\U0001f1eb\U0001f1f7 four."
    (sentences,) = client.post("/v1/sentences", json={"texts": [text]}).json()["texts"]
    units = text.encode("utf-16-le")
    assert [one["text"] for one in sentences] == [
        units[2 * one["start"] : 2 * one["end"]].decode("utf-16-le") for one in sentences
    ]
    assert [one["text"][:3] for one in sentences] == ["One", "Thr", "\U0001f1eb\U0001f1f7 "]


def test_server_says_what_a_model_can_do(client):
    (said,) = client.get("/v1/models").json()["models"]
    assert (said["name"], said["engine"], said["alignment"]) == ("tiny", "jax", True)
    assert said["searches"] == [{}, {"beam_size": 1}]
    assert said["limits"]["max_tokens"] == 16


def test_preparing_a_model_says_how_far_it_is(translator):
    seen = []
    other = served_model(translator)
    total = len(other._warmup_calls())
    service = Service([other])

    def call():
        with pytest.raises(ServiceError) as error:
            service.check_ready()
        seen.append((other.progress, error.value.message))

    other._warmup_calls = lambda: [call] * total
    other.prepare()
    assert seen == [
        ((n, total), f"The server is starting ({n} of {total} batch shapes); try again.")
        for n in range(total)
    ]
    assert other.progress == (total, total)
    service.check_ready()


@pytest.mark.all_programs
def test_batches_of_single_texts_have_few_rows_on_a_cpu(translator):
    runner, settings = translator.engine.runner, translator.settings()
    assert runner.batch_limits(settings)[1] // 8 > 64
    assert runner.row_options(settings, 8) == [1, 4, 16]
    assert runner.row_options(settings, runner.batch_limits(settings)[1] // 2) == [1, 2]


def test_server_counts_without_texts_or_addresses(client):
    client.post("/v1/translate", json={"texts": ["seven nine"]})
    client.get("/no/such/path")
    page = client.get("/metrics").text
    assert 'transformer_jax_requests_total{route="/v1/translate",status="200"}' in page
    assert 'transformer_jax_requests_total{route="none",status="404"}' in page
    assert "transformer_jax_queue_texts 0.0" in page
    assert "seven" not in page
    assert "no/such" not in page
    assert "testclient" not in page


def test_a_server_rarely_looks_for_garbage_of_all_ages():
    """It would stop all threads for a tenth of a second where a thousand requests wait."""
    thresholds, generations = gc.get_threshold(), set()

    def count(phase, info):
        generations.add(info["generation"])

    try:
        lifecycle._collect_garbage()
        gc.callbacks.append(count)
        kept = [[] for _ in range(500_000)]
        assert generations == {0, 1}
        del kept
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
