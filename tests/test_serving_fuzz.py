"""Requests that no client would write, on all routes: answers as designed, no growth, no hang."""

import gc
import json
import random
import tracemalloc

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")

import hypothesis
import schemathesis
from fastapi.testclient import TestClient
from schemathesis.specs.openapi import checks

from tests.serving_model import prepared
from transformer_jax.extras.serving.app import create_app
from transformer_jax.extras.serving.service import Service

BODIES = {
    "/v1/translate": {"texts": ["one", "two."], "n_best": 2, "alignment": True, "beam_size": 4},
    "/v1/score": {"pairs": [["one", "eins"]], "model": "tiny", "timeout_ms": 1000},
    "/v1/sentences": {"texts": ["One. Two."], "source_lang": "en"},
    "/translate": {"q": "<b>one</b>", "source": "auto", "target": "de", "format": "html"},
    "/detect": {"q": "one", "api_key": ""},
    "/v2/translate": {"text": ["one"], "target_lang": "DE", "tag_handling": "html"},
}
STATUSES = {200, 400, 403, 404, 413, 415, 429, 503, 504}
ODD = [
    None,
    True,
    -1,
    0,
    1e308,
    2**63,
    10**40,
    "",
    "\x00",
    "\U0001f600" * 30,
    "a" * 300,
    [],
    {},
    [[[]]],
    ["", None],
    "one",
    "de",
    "EN",
    {"a": {"b": []}},
    "<p",
    "&#x110000;",
    "\u202e",
    "beam",
]

CHECKS = [
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.status_code_conformance,
]


@pytest.fixture(scope="module")
def app(translator):
    return create_app(Service([prepared(translator)]), max_bytes=5000)


@pytest.mark.slow
def test_requests_from_the_description_get_documented_answers(app):
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    num_operations = 0
    for operation in (result.ok() for result in schema.get_all_operations()):
        num_operations += 1

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def check(case):
            response = case.call()
            assert response.status_code < 500 or response.status_code in (503, 504)
            case.validate_response(response, checks=CHECKS)

        check()
    assert num_operations >= 14


def mutated(rng: random.Random, value):
    """`value` with a part changed."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        changed = {**value, name: mutated(rng, value[name])}
        if rng.random() < 0.1:
            del changed[name]
        if rng.random() < 0.1:
            changed[rng.choice(["x", "\x00", "model", "stream", "top_k", "text", "q"])] = (
                rng.choice(ODD)
            )
        return changed
    if isinstance(value, list) and value and rng.random() < 0.6:
        return [mutated(rng, one) for one in value] * rng.randint(1, 5)
    if isinstance(value, str) and rng.random() < 0.4:
        return "".join(
            rng.choices([*value, "\n", "<", "&", "\u0301", ". ", "\U0001f600", "\x7f"], k=9)
        )
    return rng.choice(ODD)


def body(rng: random.Random, path: str) -> tuple[bytes, str]:
    """A body and its type."""
    kind = rng.choice(
        ["application/json"] * 6
        + ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", ""]
    )
    choice = rng.random()
    if choice < 0.1:
        return rng.randbytes(rng.randint(0, 300)), kind
    if choice < 0.15:
        return rng.choice([b"[", b'{"a":', b'{"texts":[']) * rng.randint(1, 500), kind
    content = json.dumps(mutated(rng, BODIES[path])).encode()
    if choice < 0.3:
        place = rng.randrange(len(content))
        content = content[:place] + rng.randbytes(rng.randint(1, 4)) + content[place + 1 :]
    if choice > 0.95:
        content = content.replace(b'"one"', b'"\\ud800"').replace(b"2", b"NaN")
    return content, kind


@pytest.mark.slow
def test_thousands_of_random_bodies_are_answered_and_leave_nothing(app):
    client = TestClient(app, raise_server_exceptions=False)
    rng = random.Random(0)
    counts: dict[int, int] = {}

    def ask(count):
        for _ in range(count):
            path = rng.choice(list(BODIES))
            content, kind = body(rng, path)
            answer = client.post(path, content=content, headers={"Content-Type": kind})
            counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
            assert answer.status_code in STATUSES, (path, content, kind, answer.text)
            if answer.status_code != 200:
                assert answer.json()

    ask(1000)  # what is kept on purpose is there after these
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ask(2000)
    gc.collect()
    growth = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert growth < 1 << 20, growth
    assert counts[200] > 150
    assert counts[400] > 600
