"""A CTranslate2 model that is served over HTTP: each API, and what it refuses."""

import json

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("ctranslate2")

from etils import epath
from fastapi.testclient import TestClient

from transformer_jax import Translator
from transformer_jax.extras.interop.ctranslate2 import writing
from transformer_jax.extras.serving.app import create_app
from transformer_jax.extras.serving.jobs import Limits
from transformer_jax.extras.serving.served_model import ServedModel
from transformer_jax.extras.serving.service import Service

TEXTS = ["one two", "three", "four five six"]


@pytest.fixture(scope="module", params=["float32", "int8"])
def served(request, tiny_run, tmp_path_factory):
    ours = Translator.load(tiny_run[1])
    folder = epath.Path(tmp_path_factory.mktemp("ct2") / request.param)
    model = (ours.config, ours.tokenizers, ours.params)
    writing.write_directory(folder, *model, request.param)
    one = ServedModel("exported", Translator.load(folder), limits=Limits(max_tokens=16))
    assert one.prepare() == 0
    return one


@pytest.fixture(scope="module")
def client(served):
    return TestClient(create_app(Service([served])), raise_server_exceptions=False)


def test_export_is_served_as_python_translates(client, served):
    for settings in ({}, {"beam_size": 1}, {"beam_size": 3, "length_penalty": 1.5}):
        body = {"texts": TEXTS, **settings, "n_best": settings.get("beam_size", 2)}
        answer = client.post("/v1/translate", json={**body, "format": "sentence"})
        assert answer.status_code == 200, answer.text
        want = served.translator.translate(**body)
        for got, best in zip(answer.json()["translations"], want, strict=True):
            assert got["text"] == best[0].text
            assert got["score"] == pytest.approx(best[0].score, abs=1e-4)
            assert [a["text"] for a in got["alternatives"]] == [one.text for one in best[1:]]


def test_export_links_words_scores_and_streams(client, served):
    body = {"texts": TEXTS, "alignment": True, "guards": False}
    answer = client.post("/v1/translate", json=body).json()
    for text, one in zip(TEXTS, answer["translations"], strict=True):
        assert one["source_words"] == text.split()
        assert [word for _, word in one["alignment"]] == list(range(len(one["words"])))
    pairs = [[text, one["text"]] for text, one in zip(TEXTS, answer["translations"], strict=True)]
    scores = client.post("/v1/score", json={"pairs": pairs}).json()["scores"]
    want = served.translator.score(*zip(*pairs, strict=True))
    assert [one["log_prob"] for one in scores] == pytest.approx(want, abs=1e-4)
    body = {"texts": TEXTS, "stream": True, "format": "sentence"}
    with client.stream("POST", "/v1/translate", json=body) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [e["text"] for e in events[:-1]] == [one["text"] for one in answer["translations"]]
    assert events[-1] == {"model": "exported", "count": 3}


def test_export_has_the_apis_of_libretranslate_and_deepl(client, served):
    want = [t.text for t in served.translator.translate(["one two.", "three"])]
    body = {"q": "one two. three", "source": "en", "target": "de"}
    assert client.post("/translate", json=body).json() == {"translatedText": " ".join(want)}
    body = {"text": ["one two.", "three"], "target_lang": "DE"}
    translations = client.post("/v2/translate", json=body).json()["translations"]
    assert [one["text"] for one in translations] == want


def test_export_says_what_it_is_and_refuses_settings_by_name(client):
    (said,) = client.get("/v1/models").json()["models"]
    assert (said["engine"], said["alignment"]) == ("ctranslate2", True)
    for settings, message in (
        ({"beam_groups": 2, "beam_size": 4}, "no `beam_groups=2`"),
        ({"stopping": "exact"}, "no `stopping=exact`"),
        ({"method": "sample", "min_p": 0.5}, "no `min_p=0.5`"),
        ({"method": "sample", "seed": 3}, "it has no `seed`"),
        ({"beam_size": 5000}, "5,000 hypotheses of a text; at most 256."),
        ({"method": "mbr", "mbr_samples": 5000}, "5,000 hypotheses of a text; at most 256."),
        ({"suppressed_ids": [5] * 9000}, "characters; at most 10,000."),
    ):
        answer = client.post("/v1/translate", json={"texts": ["one"], **settings})
        assert answer.status_code == 400, (settings, answer.text)
        assert message in answer.json()["error"]["message"]


def test_export_without_the_usual_attention_links_no_words(served, monkeypatch):
    directory = served.translator.engine.runner._directory
    heads = directory.attention_heads + 1
    monkeypatch.setattr(
        served.translator.engine.runner,
        "_directory",
        type(directory)(**{**vars(directory), "attention_heads": heads}),
    )
    other = ServedModel("other", served.translator)
    client = TestClient(create_app(Service([other])))
    other.prepare()
    assert client.get("/v1/models").json()["models"][0]["alignment"] is False
    assert client.post("/v1/translate", json={"texts": ["one"]}).status_code == 200
    for format in ("sentence", "txt"):
        body = {"texts": ["one"], "alignment": True, "format": format}
        answer = client.post("/v1/translate", json=body)
        assert answer.status_code == 400
        assert "gives no attention that links words" in answer.json()["error"]["message"]
