"""Runs and exports of earlier versions still work; `tests/golden/make.py` writes them."""

import dataclasses
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from transformer_jax import Translator
from transformer_jax.config import DataConfig
from transformer_jax.extras.interop import stablehlo_program
from transformer_jax.training.loop import train
from transformer_jax.workdir import folder as workdir_lib

ROOT = Path(__file__).parent.parent
ARCHIVES = sorted((ROOT / "tests" / "golden").glob("v*.tar.gz"))
assert ARCHIVES, "without archives these tests would be skipped"


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name)
def golden(request, tmp_path_factory):
    """The folder of an unpacked archive, and what that version translated."""
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(request.param) as tar:
        tar.extractall(folder, filter="data")
    return folder, json.loads((folder / "expected.json").read_text())


def assert_translates(folder, sources, expected):
    translator = Translator.load(folder / "run", "latest")
    for name, beam_size in (("greedy", 1), ("beam", 4)):
        texts = [out.text for out in translator.translate(sources, beam_size=beam_size)]
        assert texts == expected[name]
    pairs = [(folder / f"validation.{lang}").read_text().splitlines() for lang in ("en", "de")]
    np.testing.assert_allclose(translator.score(*pairs), expected["scores"], atol=2e-4)


def test_golden_run_restores_and_resumes_to_the_same_text(golden):
    folder, expected = golden
    assert_translates(folder, expected["sources"], expected["as_written"])
    assert Translator.load(folder / "run", "best").checkpoint_step < expected["num_steps"]
    config = workdir_lib.read_config(folder / "run")
    assert (config.data.max_ratio, config.data.plan_version) == (0.0, 1)  # as at that time
    places = {name: str(folder / name) for name in ("train", "validation")}
    # Values of a recipe of today for settings that the version did not have.
    places |= {name: getattr(DataConfig(), name) for name in ("max_ratio", "plan_version")}
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, **places, cache_dir=str(folder / "cache")),
        train=dataclasses.replace(
            config.train, num_steps=expected["num_steps"], eval_every_steps=0, log_every_steps=20
        ),
    )
    assert train(config, folder / "run")
    assert workdir_lib.read_config(folder / "run").data.plan_version == 1
    assert_translates(folder, expected["sources"], expected["resumed"])
    last = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["train_loss"] == pytest.approx(expected["resumed"]["train_loss"], rel=1e-4)


def test_golden_export_translates_to_the_same_text(golden):
    folder, expected = golden
    done = subprocess.run(
        # As an export of today has it.
        [sys.executable, "-P", stablehlo_program.__file__, folder / "exported"],
        input="\n".join(expected["sources"]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected["as_written"]["greedy"]


def test_golden_export_translates_in_small_batches_of_similar_lengths(golden, monkeypatch):
    folder, expected = golden
    monkeypatch.setattr(stablehlo_program, "LENGTH_STEP", 1)
    program = stablehlo_program.Translator(folder / "exported")
    encode, shapes = program.encode, []

    def recorded(params, inputs, mask):
        shapes.append(inputs.shape)
        assert mask.sum(1).max() <= inputs.shape[1] <= program.manifest["max_len"]
        return encode(params, inputs, mask)

    program.encode = recorded
    copies = -(-70 // len(expected["sources"]))
    texts = program.translate(expected["sources"] * copies)
    assert texts == expected["as_written"]["greedy"] * copies
    rows, widths = zip(*shapes, strict=True)
    assert sum(rows) == len(texts)
    assert set(rows[:-1]) == {32}
    assert list(widths) == sorted(widths)
    assert widths[0] < widths[-1]
    assert program.translate([]) == []
