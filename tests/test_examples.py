"""Each example, run as a script on a small corpus."""

import dataclasses
import io
import itertools
import json
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests.conftest import digit_pairs, run_command, tiny_config, write_pairs
from transformer_jax import Translator
from transformer_jax.config import ModelConfig
from transformer_jax.configs import quickstart
from transformer_jax.extras.interop.huggingface import writing
from transformer_jax.model import choices
from transformer_jax.ops.top_k import NEVER
from transformer_jax.search.processors import Prefixes
from transformer_jax.training import loop
from transformer_jax.translator.pretrained import load

EXAMPLES = Path(__file__).parent.parent / "examples"
MAX_LINES = 60


@pytest.fixture
def run_example(monkeypatch, capsys):
    """Runs an example with some arguments; returns what it printed."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"examples/{name}.py", *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Arguments of the examples that train."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return (
        f"--train={write_pairs(tmp_path, 'train', digit_pairs(300))}",
        f"--validation={write_pairs(tmp_path, 'dev', digit_pairs(6, seed=1))}",
        f"--workdir={tmp_path / 'run'}",
    )


def test_examples_have_at_most_60_lines():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) >= 4
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}


@pytest.mark.slow
def test_own_loop_example_learns_and_writes_what_decode_reads(run_example, tmp_path):
    train = write_pairs(tmp_path, "train", digit_pairs(300))
    output = tmp_path / "own.bundle"
    printed = run_example("own_loop", f"--train={train}", f"--output={output}", "--steps=12")
    assert float(printed.split("step 12: loss ")[1]) < 5.4  # log(380), of equal shares, is 5.9
    translator = Translator.load(output)
    assert translator.checkpoint_step == 12
    assert np.isfinite(translator.translate("one two").log_prob)


@pytest.mark.slow
def test_own_corpus_example_trains_and_translates(run_example, corpus, tmp_path):
    write_pairs(tmp_path, "train", digit_pairs(700, longest=9))
    printed = run_example("own_corpus", *corpus, "--num_steps=4")
    sources = (tmp_path / "dev.en").read_text().splitlines()
    for source in sources[:3]:
        assert f"\n{source}  ->  " in printed
    assert Translator.load(tmp_path / "run", checkpoint="latest").checkpoint_step == 4


def test_fine_tune_example_scores_the_model_before_and_after(
    run_example, corpus, tiny_run, tmp_path, monkeypatch
):
    # The example takes all devices that there are, for which the step takes longer to compile.
    monkeypatch.setattr(loop, "choose_devices", lambda config: jax.devices()[:1])
    published = load(tiny_run[1])
    plan = writing.plan_export(published.config, published.tokenizers, published.params)
    folder = tmp_path / "published"
    writing.write_directory(
        epath.Path(folder), published.config, published.tokenizers, published.params, plan
    )
    printed = run_example("fine_tune", f"--model={folder}", *corpus, "--num_steps=2")
    before, after = printed.splitlines()[-2:]
    assert before.startswith(f"{folder}: BLEU ")
    assert after.startswith(f"{tmp_path / 'run'}: BLEU ")
    assert Translator.load(tmp_path / "run").checkpoint_step == 2


def test_quickstart_example_does_what_the_commands_do(run_example, tiny_run, tmp_path, monkeypatch):
    config = tiny_config(tiny_run[0], num_steps=2, eval_every_steps=2)
    monkeypatch.setattr(quickstart, "get_config", lambda: config)
    printed = run_example("quickstart", f"--workdir={tmp_path / 'run'}")
    assert "translating 20 numbers" in printed
    assert "\nthirty-four\t" in printed
    scores = json.loads((tmp_path / "run" / "eval.json").read_text())
    command = run_command("eval", f"--workdir={tmp_path / 'run'}", f"--json={tmp_path / 'e.json'}")
    assert command.returncode == 0, command.stderr
    assert json.loads((tmp_path / "e.json").read_text()) == scores
    assert "20 sentences" in (tmp_path / "run" / "report.html").read_text()


def test_scale_norm_example_trains_and_decodes_with_one_scale(run_example, tmp_path, monkeypatch):
    for name in ("init_norm", "norm"):  # restored after the test
        monkeypatch.setattr(choices, name, getattr(choices, name))
    config = tiny_config(tmp_path, num_steps=2, eval_every_steps=2)
    # No other test has a model of these sizes, so no cached shapes or programs are used.
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, d_ff=40))
    monkeypatch.setattr(quickstart, "get_config", lambda: config)
    run_example("scale_norm", f"--workdir={tmp_path / 'run'}")
    params = Translator.load(tmp_path / "run").params
    assert {name: x.shape for name, x in params["encoder_norm"]["norm"].items()} == {"scale": (1,)}


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 8), -1), ((8, 5), 0)])
def test_scale_norm_example_matches_float64(shape, axis):
    functions = runpy.run_path(str(EXAMPLES / "scale_norm.py"), run_name="example")
    x = np.random.default_rng(0).normal(size=shape)
    wanted = 3.0 * x / np.sqrt(np.sum(x**2, axis, keepdims=True) + 1e-6)
    params = {"scale": np.full(1, 3.0, np.float32)}
    out = functions["scale_norm"](ModelConfig(), params, x.astype(np.float32), axis)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)


def test_decoding_rule_example_forbids_doubled_tokens(run_example, tiny_run, monkeypatch):
    def has_doubled_token(translation):
        return any(a == b for a, b in itertools.pairwise(translation.ids))

    translator = Translator.load(tiny_run[1])
    sources = (tiny_run[0] / "test.en").read_text().splitlines()
    assert any(map(has_doubled_token, translator.translate(sources)))
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(sources)))
    printed = run_example("decoding_rule", f"--workdir={tiny_run[1]}")
    rule = runpy.run_path(str(EXAMPLES / "decoding_rule.py"))["no_doubled_tokens"]
    expected = Translator.load(tiny_run[1], processors=[rule]).translate(sources)
    assert not any(map(has_doubled_token, expected))
    assert printed.splitlines()[-len(sources) :] == [translation.text for translation in expected]


@pytest.mark.parametrize("index", [0, 1, 3])
def test_decoding_rule_example_changes_only_the_last_token(index):
    functions = runpy.run_path(str(EXAMPLES / "decoding_rule.py"), run_name="example")
    rng = np.random.default_rng(0)
    log_probs = rng.normal(size=(5, 2, 3)).astype(np.float32)
    tokens = rng.integers(5, size=(2, 3, 4))
    prefixes = Prefixes(jnp.asarray(tokens), jnp.asarray(index), constraints=None)
    out = functions["no_doubled_tokens"](jnp.asarray(log_probs), prefixes)
    wanted = log_probs.copy()
    for row, beam in np.ndindex(2, 3):
        if index:
            wanted[tokens[row, beam, index - 1], row, beam] = NEVER
    np.testing.assert_array_equal(out, wanted)
