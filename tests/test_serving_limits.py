"""What the server refuses, what it never says, and what it compiles."""

import asyncio
import concurrent.futures
import dataclasses
import itertools
import json
import logging
import os
import queue
import random
import re
import sys
import threading
import tracemalloc
import types
import weakref

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from tests.serving_model import LIMITS, prepared, served_model
from transformer_jax import Translator, waiting
from transformer_jax.extras.documents import languages
from transformer_jax.extras.serving import priority, texts
from transformer_jax.extras.serving.app import create_app
from transformer_jax.extras.serving.documents import Wanted
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.jobs import Job
from transformer_jax.extras.serving.lifecycle import Lifecycle
from transformer_jax.extras.serving.limits import RequestLimits
from transformer_jax.extras.serving.served_model import ServedModel
from transformer_jax.extras.serving.service import Service
from transformer_jax.translator import scheduler
from transformer_jax.translator.batch_translator import NOT_FINITE
from transformer_jax.translator.text_queue import DeadlineError
from transformer_jax.translator.translation import no_translation

POSTS = ("/v1/translate", "/v1/score", "/v1/sentences", "/translate", "/detect", "/v2/translate")
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def model(translator):
    return prepared(translator)


@pytest.fixture(scope="module")
def client(model):
    app = create_app(Service([model]), max_bytes=5000, cors_origins=["https://a.example"])
    return TestClient(app, raise_server_exceptions=False)


def error_of(path: str, answer) -> str:
    """The message of an error, in the form of the API of `path`."""
    body = answer.json()
    if path.startswith("/v1"):
        return body["error"]["message"]
    return body["message" if path.startswith("/v2") else "error"]


@pytest.mark.parametrize("path", POSTS)
def test_server_refuses_bodies_in_the_form_of_each_api(client, path):
    for content, headers, status, message in (
        (b"{", JSON, 400, "Invalid JSON"),
        (b"[" * 4000, JSON, 400, "Invalid JSON: recursion limit"),
        (b'{"texts": ["\xff"]}', JSON, 400, "Invalid JSON"),
        (b'{"texts": ["\\ud800"]}', JSON, 400, "Invalid JSON"),
        (b'{"\\ud800": 1}', JSON, 400, "Invalid JSON"),
        (b"1e999", JSON, 400, "the request"),
        (b"9" * 4900, JSON, 400, "the request"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
        (b"{}", {**JSON, "Content-Encoding": "gzip"}, 415, "compressed"),
        (b" " * 5001, JSON, 413, "larger than 5,000 bytes"),
        (iter([b" " * 4000] * 2), JSON, 413, "larger than 5,000 bytes"),
    ):
        answer = client.post(path, content=content, headers=headers)
        assert answer.status_code == status, (content, answer.text)
        assert message in error_of(path, answer)


def test_server_answers_unknown_routes_and_methods_in_json(client):
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v2/nothing", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/page/%2e%2e/keys.txt", 404),
        ("DELETE", "/v1/translate", 405),
        ("TRACE", "/v2/translate", 405),
        ("GET", "/translate", 405),
    ):
        answer = client.request(method, path)
        assert answer.status_code == status, path
        assert isinstance(error_of(path, answer), str)
        assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    "extra",
    [{"length_penalty": "NaN"}, {"timeout_ms": "Infinity"}, {"seed": 2**80}, {"top_k": 2**70}],
)
def test_server_refuses_numbers_that_are_none(client, extra):
    body = json.dumps({"texts": ["one"], **extra}).replace('"NaN"', "NaN")
    answer = client.post(
        "/v1/translate", content=body.replace('"Infinity"', "Infinity"), headers=JSON
    )
    assert answer.status_code == 400


def test_every_answer_has_safe_headers_and_only_named_origins_get_cors(client):
    for path in ("/", "/docs", "/healthz", "/v1/models", "/nothing"):
        headers = client.get(path, headers={"Origin": "https://b.example"}).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    allowed = client.options("/v1/translate", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    other = {**asked, "Origin": "https://b.example"}
    assert client.options("/v1/translate", headers=other).status_code == 400


def test_server_that_fails_says_nothing_of_texts(client, monkeypatch, caplog, capsys):
    def fail(*arguments):
        raise KeyError("secret seven")

    monkeypatch.setattr(ServedModel, "submit", fail)
    with caplog.at_level(logging.DEBUG, "transformer_jax"):
        for path, body in (
            ("/v1/translate", {"texts": ["secret seven"]}),
            ("/translate", {"q": "secret seven", "source": "en", "target": "de"}),
            ("/v2/translate", {"text": ["secret seven"], "target_lang": "DE"}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 500
            assert "failed" in error_of(path, answer)
            assert "seven" not in answer.text
    assert "KeyError" in caplog.text
    assert "seven" not in caplog.text + "".join(capsys.readouterr())


def test_body_that_takes_too_long_is_refused():
    sent = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    def answer(path, error: ServiceError):
        from transformer_jax.extras.serving.errors import JsonError

        return JsonError({"error": error.message}, error.status)

    limits = RequestLimits(None, 100, lambda *seen: None, answer, body_seconds=0.01)
    scope = {"type": "http", "path": "/", "headers": [], "method": "POST"}
    asyncio.run(limits(scope, receive, send))
    assert sent[0]["status"] == 408


def test_full_queue_and_long_requests_are_refused_and_nothing_waits(translator, monkeypatch):
    # One that knows no times of batches, by which it would refuse what comes late.
    monkeypatch.setattr(scheduler._process, "scheduler", scheduler.Scheduler())
    served = served_model(translator, max_queue=2, batch_wait_ms=600_000.0)
    served.prepare()
    client = TestClient(create_app(Service([served])))
    queue = scheduler.of_process()
    waiting = served.translator.submit("one", wait_ms=600_000.0)
    answer = client.post("/v1/translate", json={"texts": ["one", "two"]})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert answer.json()["error"]["code"] == "queue_full"
    assert queue.num_waiting == 1
    # Longer than ever can wait: it would be refused each time. Nothing of it is left.
    long_texts = {"texts": ["one", "two " * 40]}
    answer = client.post("/v1/translate", json={**long_texts, "format": "sentence"})
    assert (answer.status_code, answer.json()["error"]["item"]) == (400, 1)
    assert "parts of 16 tokens, and at most 2 texts may wait" in answer.json()["error"]["message"]
    answer = client.post("/v1/translate", json=long_texts)
    assert answer.status_code == 413
    assert "sentences; at most 2 may wait" in answer.json()["error"]["message"]
    answer = client.post("/v1/translate", json={"texts": ["two " * 20]})
    assert (answer.status_code, queue.num_waiting) == (429, 1)
    short = {"texts": ["one"], "timeout_ms": 1e-9}
    answer = client.post("/v1/translate", json=short)
    assert (answer.status_code, answer.headers["Retry-After"]) == (504, "1")
    waiting.cancel()
    many = {"q": "One. Two. Three.", "source": "en", "target": "de"}
    answer = client.post("/translate", json=many)
    assert (answer.status_code, queue.num_waiting) == (413, 0)
    page = client.get("/metrics").text
    assert 'transformer_jax_refusals_total{reason="queue_full"} 2.0' in page


def test_expired_texts_are_504(client, monkeypatch):
    expired = concurrent.futures.Future()
    expired.set_exception(DeadlineError("not begun within 1 ms."))
    waiting = concurrent.futures.Future()
    monkeypatch.setattr(ServedModel, "submit", lambda *arguments: [expired, waiting])
    answer = client.post("/v1/translate", json={"texts": ["one", "two"]})
    assert (answer.status_code, answer.json()["error"]["item"]) == (504, 0)
    assert answer.json()["error"]["message"] == "The text was not begun within 1 ms."
    assert waiting.cancelled()
    stream = {"texts": ["one", "two"], "stream": True}
    assert "event: error" in client.post("/v1/translate", json=stream).text


def test_model_that_gives_no_numbers_is_an_error_and_no_empty_translation(client, monkeypatch):
    def submit(*arguments):
        one = concurrent.futures.Future()
        one.set_result([no_translation(unmet=(NOT_FINITE,))])
        waiting.append(concurrent.futures.Future())
        return [one, waiting[-1]]

    waiting = []
    monkeypatch.setattr(ServedModel, "submit", submit)
    for path, body in (
        ("/v1/translate", {"texts": ["one", "two"]}),
        ("/translate", {"q": ["one", "two"], "source": "en", "target": "de"}),
        ("/v2/translate", {"text": ["one", "two"], "target_lang": "DE"}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 500
        assert "the model gives NaN" in error_of(path, answer)
    stream = {"texts": ["one", "two"], "stream": True}
    assert '"code": "model_damaged"' in client.post("/v1/translate", json=stream).text
    assert all(one.cancelled() for one in waiting)


def test_words_of_a_long_text_are_linked_without_a_matrix_of_all(translator):
    """The text is so long that a matrix would be larger than the words, however few are output."""
    compiled = prepared(translator)
    limits = dataclasses.replace(LIMITS, max_chars=50_000, timeout_ms=600_000)
    searches = compiled.searches[1:]
    served = ServedModel("tiny", compiled.translator, searches, limits, has_retries=False)
    served.prepare()
    client = TestClient(create_app(Service([served])))
    body = {"texts": ["one " * 100], "alignment": True}
    client.post("/v1/translate", json=body)  # loads what the first long text needs
    body["texts"] = ["one " * 6000]
    tracemalloc.start()
    answer = client.post("/v1/translate", json=body).json()["translations"][0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sources, targets = len(answer["source_words"]), len(answer["words"])
    assert sources == 6000
    assert len(answer["alignment"]) == targets
    assert peak < 4 * sources * targets  # bytes of a matrix in single precision
    assert max(source for source, _ in answer["alignment"]) > 5900


def test_model_that_was_replaced_is_freed(translator, monkeypatch):
    def load():
        config = translator.config
        return ServedModel("tiny", Translator(config, translator.tokenizers, translator.params))

    monkeypatch.setattr(ServedModel, "_warmup_calls", lambda model: [])
    service = Service([load()])
    said = []
    life = Lifecycle(create_app(service), {"tiny": load}, None, said.append)
    former = weakref.ref(service.models["tiny"].translator.engine.runner)
    service.models["tiny"].submit(Job(()))  # keeps its settings
    life.reload()
    assert said == ["tiny: loaded again, step 0"]
    assert former() is None
    # What a reload leaves is not looked at by later collections, but freed by the next reload.
    former = weakref.ref(service.models["tiny"].translator.engine.runner)
    service.models["tiny"].submit(Job(()))
    life.reload()
    assert former() is None


@pytest.mark.skipif(sys.platform != "linux", reason="others have no priorities of threads")
def test_threads_that_compute_yield_and_others_do_not():
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with concurrent.futures.ThreadPoolExecutor(1, initializer=priority.lower) as pool:
        inherited = pool.submit(lambda: _in_thread(nice)).result(60)
        assert (pool.submit(nice).result(60), inherited) == (priority.NICE, priority.NICE)
    assert nice() < priority.NICE


def _in_thread(function):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


def test_server_says_how_far_its_start_is_and_how_long_it_takes(monkeypatch):
    said, lines = queue.SimpleQueue(), []
    seconds = itertools.count(100.0, 30.0)
    clock = types.SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(waiting, "SILENCE", 0.0)

    def prepare():
        lines.append(said.get(timeout=60))
        return 5

    model = types.SimpleNamespace(name="tiny", progress=(3, 12), prepare=prepare)
    assert Lifecycle(None, {}, None, said.put)._prepare(model) == 5
    assert lines == ["tiny: 3 of 12 batch shapes, 30 s, 1 min 30 s left"]


def test_server_reads_what_detects_languages_before_it_is_ready(model):
    languages._identifier.cache_clear()
    languages._candidates.cache_clear()
    life = Lifecycle(create_app(Service([model])), {}, None, lambda text: None)
    ended = threading.Event()
    life.start(ended.set, ended.set)
    assert ended.wait(60)
    assert life.failure is None
    assert languages._identifier.cache_info().currsize == 1


def test_server_that_is_starting_or_ending_answers_503(translator):
    served = served_model(translator)
    service = Service([served])
    client = TestClient(create_app(service))
    bodies = {
        "/v1/translate": {"texts": ["one"]},
        "/translate": {"q": "one", "source": "en", "target": "de"},
        "/v2/translate": {"text": ["one"], "target_lang": "DE"},
    }
    for path, body in bodies.items():
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert "starting" in error_of(path, answer)
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    served.prepare()
    assert client.get("/readyz").status_code == 200
    service.is_draining = True
    assert client.get("/readyz").status_code == 503


def test_valid_requests_of_all_routes_compile_nothing(client, model):
    rng = random.Random(0)
    compiled = model.num_compiled

    def text():
        return " ".join(
            rng.choices(["one", "two", "drei", "\U0001f600", "x.", "Y!"], k=rng.randint(0, 9))
        )

    def some():
        return [text() for _ in range(rng.randint(1, 8))]

    for _ in range(25):
        search = rng.choice(
            [{}, {"beam_size": 1}, {"length_penalty": rng.random()}, {"stopping": "exact"}]
        )
        n_best = rng.randint(1, 4) if "beam_size" not in search else 1
        requests = {
            "/v1/translate": {
                "texts": some(),
                "n_best": n_best,
                "alignment": rng.random() < 0.5,
                **search,
            },
            "/v1/score": {"pairs": [[one[:6], text()[:6]] for one in some()]},
            "/translate": {"q": some(), "source": "en", "target": "de", "format": "html"},
            "/v2/translate": {"text": some(), "target_lang": "DE"},
        }
        for path, body in requests.items():
            answer = client.post(path, json=body)
            assert answer.status_code in (200, 413), (path, body, answer.text)
    assert model.num_compiled == compiled
    assert f"transformer_jax_compiles_total {float(compiled)}" in client.get("/metrics").text


def test_languages_are_detected_for_each_text(monkeypatch, model):
    monkeypatch.setattr(
        ServedModel, "languages", property(lambda one: (["en", "fr"], ["de", "fr"]))
    )
    monkeypatch.setattr(texts, "ServedText", lambda text, model, languages, wanted: languages)
    given = ["the house is big and old", "la maison est grande"]
    first, second = texts._read(Service([model]), given, "", "FR", Wanted(""))
    assert (first.source_lang, first.served) == ("en", ("en", "fr"))
    assert second.served is None  # it is French already
    assert second.detected["language"] == "fr"


def test_api_page_loads_nothing_from_elsewhere(client):
    pytest.importorskip("fastapi_offline")
    page = client.get("/docs")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(links) == 4
    assert "http" not in page.text
    for link in links:
        assert client.get(f"/{link}").status_code == 200, link
    assert '"openapi.json"' in client.get("/docs/start.js").text
    description = client.get("/openapi.json").json()
    assert {"/v1/translate", "/translate", "/v2/translate", "/readyz"} <= set(description["paths"])
    assert client.get("/redoc").status_code == 404


def test_applications_of_one_process_count_for_themselves(model):
    apps = [TestClient(create_app(Service([model]))) for _ in range(2)]
    apps[0].post("/v1/translate", json={"texts": ["two"]})
    pages = [app.get("/metrics").text for app in apps]
    counted = 'requests_total{route="/v1/translate",status="200"}'
    assert [counted in page for page in pages] == [True, False]
    assert all('seconds_count{stage="compute"} 1.0' in page for page in pages)  # of the process
