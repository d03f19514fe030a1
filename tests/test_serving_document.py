"""docs/serving.md: its commands run against a server, and what it names exists."""

import os
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.walkthrough import read_blocks, run
from tests.web_server import Server
from transformer_jax import Translator
from transformer_jax.extras.serving.app import create_app
from transformer_jax.extras.serving.metrics import Metrics
from transformer_jax.extras.serving.served_model import ServedModel
from transformer_jax.extras.serving.service import Service

TEXT = (Path(__file__).parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"


@pytest.mark.slow
def test_commands_of_the_document_are_answered(translator, tmp_path):
    pytest.importorskip("deepl")
    pytest.importorskip("libretranslatepy")
    # A translator of the test, because preparing lets nothing compile afterwards.
    fresh = Translator(translator.config, translator.tokenizers, translator.params)
    model = ServedModel("numbers", fresh)
    model.prepare()
    server = Server(create_app(Service([model])))
    blocks = read_blocks(TEXT.replace(ADDRESS, server.address.rstrip("/")))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = "".join(run(blocks, tmp_path, environment).values())
    server.stop()
    best = model.translator.translate(["thirty-four", "two"])
    for one in best:
        assert one.text in printed
    for part in ("event: done", '"alignment":', '"log_probs":', '"translatedText":', '"targets":'):
        assert part in printed


def test_routes_and_metrics_of_the_document_exist():
    service = Service([])
    routes = {*create_app(service).openapi()["paths"], "/docs", "/v1"}
    named = set(re.findall(r"`(/[a-z][\w/]*)`", TEXT))
    assert named <= routes
    assert len(named) > 8
    page = Metrics(service).page().decode()
    metrics = set(re.findall(r"transformer_jax_\w+", TEXT))
    known = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in metrics} <= known


def test_flags_of_the_document_exist():
    commands = (Path(__file__).parent.parent / "docs" / "commands.md").read_text()
    section = commands.partition("\n## serve\n")[2].partition("\n## ")[0]
    known = set(re.findall(r"--(\w+)", section))
    known |= {f"no{name}" for name in re.findall(r"`--(\w+)`", section)}  # no value: yes or no
    assert set(re.findall(r"`--(\w+)", TEXT)) <= known
