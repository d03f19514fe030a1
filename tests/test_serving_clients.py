"""The server over real sockets: official clients, slow clients, clients that go away."""

import json
import socket
import urllib.error
import urllib.parse

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("deepl")
pytest.importorskip("libretranslatepy")

import deepl
import libretranslatepy
import requests

from tests.serving_model import prepared, running, served_model, wait_until
from transformer_jax.extras.serving.app import create_app
from transformer_jax.extras.serving.keys import Keys, add_key
from transformer_jax.extras.serving.service import Service
from transformer_jax.translator import scheduler


@pytest.fixture(scope="module")
def model(translator):
    return prepared(translator)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A file of two keys, the second with 10 characters a minute, and these keys."""
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    secrets = [add_key(path, "one"), add_key(path, "two")]
    lines = path.read_text().splitlines()
    return Keys([lines[0], f"{lines[1]} 10"], "keys.txt"), secrets


@pytest.fixture(scope="module")
def address(model, keys):
    with running(create_app(Service([model]), keys[0]), header_seconds=0.05) as address:
        yield address


def test_official_deepl_client_translates_lists_and_gets_errors(address, keys, model, monkeypatch):
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 0)
    client = deepl.Translator(keys[1][0], server_url=address)
    want = model.translator.translate("one two").text
    result = client.translate_text("one two", target_lang="DE")
    assert (result.text, result.detected_source_lang) == (want, "EN")
    several = client.translate_text(["three", "two"], source_lang="EN", target_lang="DE")
    assert [one.text for one in several] == [
        model.translator.translate(text).text for text in ("three", "two")
    ]
    html = client.translate_text("<b>one two</b>", target_lang="DE", tag_handling="html")
    assert html.text == f"<b>{want}</b>"
    assert [one.code for one in client.get_source_languages()] == ["EN"]
    targets = client.get_target_languages()
    assert [(one.code, one.name) for one in targets] == [("DE", "German")]
    assert client.get_usage().character.count >= 13
    with pytest.raises(deepl.DeepLException, match="No model translates from 'EN' to 'FR'"):
        client.translate_text("one", source_lang="EN", target_lang="FR")
    xml = client.translate_text(
        "<a>one <x>two</x></a>", target_lang="DE", tag_handling="xml", ignore_tags=["x"]
    )
    assert xml.text.startswith("<a>")
    assert xml.text.count("<x>two</x>") == 1
    with pytest.raises(deepl.DeepLException, match="tag_handling: Input should be"):
        client.translate_text("one", target_lang="DE", tag_handling="yaml")
    with pytest.raises(deepl.DeepLException, match="does not support formality=more"):
        client.translate_text("one", target_lang="DE", formality="more")
    with pytest.raises(deepl.AuthorizationException, match="not known"):
        deepl.Translator("wrong", server_url=address).get_usage()
    limited = deepl.Translator(keys[1][1], server_url=address)
    limited.translate_text("one two", target_lang="DE")
    with pytest.raises(deepl.TooManyRequestsException, match="10 a minute"):
        limited.translate_text("one two", target_lang="DE")


def test_official_libretranslate_client_translates_lists_and_gets_errors(address, keys, model):
    client = libretranslatepy.LibreTranslateAPI(address, keys[1][0])
    assert client.translate("one two", "en", "de") == model.translator.translate("one two").text
    assert client.detect("one two") == [{"language": "en", "confidence": 100.0}]
    assert [one["code"] for one in client.languages()] == ["en", "de"]
    for secret, target, status in (
        (keys[1][0], "fr", 400),
        ("wrong", "de", 403),
        (None, "de", 403),
        (keys[1][1], "de", 413),
    ):
        wrong = libretranslatepy.LibreTranslateAPI(address, secret)
        with pytest.raises(urllib.error.HTTPError) as error:
            wrong.translate("one two three", "en", target)
        assert error.value.code == status
        assert isinstance(json.loads(error.value.read())["error"], str)


LIBRE = {"q": "one two", "source": "en", "target": "de"}
DEEPL = {"text": ["one two"], "target_lang": "DE"}
# What stays of a text that Weblate and its like send with an element for each placeholder.
MARKED = '<x id="4"></x>'


@pytest.mark.parametrize(
    ("client", "path", "sent"),
    [
        ("Mastodon", "/translate", {"json": LIBRE | {"format": "html", "api_key": None}}),
        ("Discourse", "/translate", {"data": LIBRE | {"format": "html", "api_key": ""}}),
        ("Weblate", "/translate", {"data": LIBRE | {"api_key": ""}}),
        ("Zotero", "/translate", {"json": LIBRE | {"format": "text"}}),
        ("one that leaves fields empty", "/translate", {"json": LIBRE | {"format": ""}}),
        ("one with null", "/translate", {"json": LIBRE | {"alternatives": None}}),
        ("deep-translator", "/translate", {"params": LIBRE | {"format": "text"}}),
        ("one whose address ends in a slash", "//translate", {"data": LIBRE}),
        (
            "Mastodon",
            "/v2/translate",
            {"data": DEEPL | {"source_lang": "", "target_lang": "de", "tag_handling": "html"}},
        ),
        (
            "Weblate",
            "/v2/translate",
            {
                "json": {
                    "text": [f"one two{MARKED}"],
                    "source_lang": "EN",
                    "target_lang": "DE",
                    "formality": "default",
                    "tag_handling": "xml",
                    "ignore_tags": ["x"],
                    "model_type": "prefer_quality_optimized",
                }
            },
        ),
        (
            "deep-translator",
            "/v2/translate",
            {"method": "get", "params": DEEPL | {"source_lang": "en"}, "has_key": True},
        ),
        ("OmegaT", "/v2/translate", {"data": DEEPL | {"split_sentences": "0"}, "has_key": True}),
        (
            "one with numbers and null",
            "/v2/translate",
            {"json": DEEPL | {"split_sentences": 1, "glossary_id": None}},
        ),
    ],
)
def test_requests_of_clients_are_answered_as_they_write_them(
    address, keys, model, client, path, sent
):
    secret, sent = keys[1][0], dict(sent)
    headers = {"Authorization": f"Bearer {secret}"}
    if sent.pop("has_key", False):  # in the fields
        name = "params" if "params" in sent else "data"
        headers, sent[name] = {}, sent[name] | {"auth_key": secret}
    method = sent.pop("method", "post")
    answer = requests.request(method, address + path, headers=headers, timeout=30, **sent)
    assert answer.status_code == 200, (client, answer.text)
    got = answer.json()
    text = got["translations"][0]["text"] if path.startswith("/v2") else got["translatedText"]
    if MARKED in str(sent):
        assert text.count(MARKED) == 1
    else:
        assert text == model.translator.translate("one two").text


def test_weblate_may_ask_for_glossaries_before_it_translates(address, keys):
    headers = {"Authorization": f"DeepL-Auth-Key {keys[1][0]}"}
    for path, name in (("glossary-language-pairs", "supported_languages"), ("glossaries",) * 2):
        answer = requests.get(f"{address}/v2/{path}", headers=headers, timeout=30)
        assert (answer.status_code, answer.json()) == (200, {name: []})


def test_probes_may_ask_for_headers_alone(address):
    for path in ("/health", "/healthz", "/languages", "/"):
        answer = requests.head(address + path, timeout=30)
        assert (answer.status_code, answer.content) == (200, b"")
    assert requests.head(f"{address}/translate", timeout=30).status_code == 405


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_server_closes_connections_without_headers(address, sent):
    where = urllib.parse.urlsplit(address)
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        connection.sendall(sent)
        assert connection.recv(100) == b""  # closed by the server


def test_server_refuses_what_is_no_http_in_json(address):
    where = urllib.parse.urlsplit(address)
    for sent in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 5000 + b"\r\n"):
        with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
            connection.sendall(sent)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])


def test_places_of_clients_that_go_away_are_freed(translator):
    served = served_model(translator, batch_wait_ms=60_000.0, timeout_ms=60_000.0)
    served.prepare()
    queue = scheduler.of_process()
    with running(create_app(Service([served]))) as address:
        where = urllib.parse.urlsplit(address)
        for stream in (True, False):
            body = json.dumps({"texts": ["one", "two"], "stream": stream}).encode()
            head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
                connection.sendall(b"POST /v1/translate HTTP/1.1\r\nHost: x\r\n")
                connection.sendall(head.encode() + body)
                wait_until(lambda: queue.num_waiting == 2)
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # as of a client that was killed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            wait_until(lambda: queue.num_waiting == 0)


def test_server_needs_keys_for_texts_only(address, keys):
    for path in ("/", "/docs", "/healthz", "/readyz", "/metrics", "/v1/models", "/languages"):
        assert requests.get(address + path, timeout=30).status_code == 200, path
    texts = {"texts": ["one"]}
    for header in ({"Authorization": f"Bearer {keys[1][0]}"}, {"X-API-Key": keys[1][0]}):
        answer = requests.post(f"{address}/v1/translate", json=texts, headers=header, timeout=30)
        assert answer.status_code == 200
    for path in ("/v1/translate", "/v1/score", "/v1/sentences"):
        answer = requests.post(address + path, json=texts, timeout=30)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    too_much = {"texts": ["one two"]}
    header = {"Authorization": f"Bearer {keys[1][1]}"}
    answers = [
        requests.post(f"{address}/v1/translate", json=too_much, headers=header, timeout=30)
        for _ in range(2)
    ]
    assert answers[-1].status_code == 429
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 60
    assert answers[-1].json()["error"]["code"] == "key_limit"
