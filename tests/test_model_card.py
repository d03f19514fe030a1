"""READMEs of exported models: front matter, scores, and programs."""

import dataclasses
import json

import pytest

from tests.conftest import copy_run
from tests.huggingface_models import small_model
from transformer_jax.data.foreign_tokenizers import VocabularyTokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.extras.interop import FORMATS, bundle, model_card, usage_examples
from transformer_jax.extras.interop.model_facts import ModelFacts, Score
from transformer_jax.extras.interop.sample_text import SampleText
from transformer_jax.translator import pretrained


def card(model, facts, **arguments):
    defaults = {"format_name": "marian", "program": "print(1)\n", "output": "1", "notes": []}
    return model_card.compose(facts, model, **(defaults | arguments))


def front_matter(text):
    """The lines of YAML, as Hugging Face's hub reads them."""
    _, lines, rest = text.split("---\n", 2)
    assert text.startswith("---\n")
    return lines.splitlines(), rest


def test_model_card_begins_with_languages_and_a_licence_to_fill_in(tiny_run):
    model = pretrained.load(tiny_run[1])
    facts = model_card.collect_facts(tiny_run[1], model)
    lines, text = front_matter(card(model, facts))
    assert lines[:4] == ["language:", '- "en"', '- "de"', "license: unknown  # fill in"]
    assert "library_name: transformers" in lines
    assert "- translation" in lines
    assert "**Fill in before you publish the model**" in text
    facts = model_card.collect_facts(tiny_run[1], model, licence="cc-by-4.0")
    lines, text = front_matter(card(model, facts))
    assert 'license: "cc-by-4.0"' in lines
    assert "## Licence\n\ncc-by-4.0\n" in text
    assert "Fill in" not in text


def test_model_card_has_data_and_recipe_without_paths_of_this_machine(tiny_run):
    model = pretrained.load(tiny_run[1])
    text = card(model, model_card.collect_facts(tiny_run[1], model))
    assert str(tiny_run[0]) not in text
    for words in (
        "# run: en to de",
        "- training data: train\n",
        "10,352 parameters, 1 encoder and 1 decoder layers",
        "checkpoint of step 60 of 60",
        "A text of more than 47 tokens does not fit",
        "```python\nprint(1)\n```\n\nIt prints:\n\n```\n1\n```",
    ):
        assert words in text


def test_model_card_has_the_scores_of_its_checkpoint(tiny_run, tmp_path):
    model = pretrained.load(tiny_run[1])
    lines = (tiny_run[1] / "metrics.jsonl").read_text().splitlines()
    (evaluated,) = [x for x in map(json.loads, lines) if x["step"] == 60 and "eval_bleu" in x]
    run = copy_run(tiny_run[1], tmp_path / "run")
    facts = model_card.collect_facts(run, model)
    (score,) = facts.scores
    assert (score.data, score.num_sentences) == ("validation set", evaluated["eval_num_sentences"])
    assert (score.bleu, score.chrf) == (evaluated["eval_bleu"], evaluated["eval_chrf"])
    row = f"| validation set | 8 | {score.bleu:.2f} | {score.chrf:.2f} |"
    text = card(model, facts)
    assert row in text
    assert evaluated["eval_bleu_signature"] in text
    # The mean of several checkpoints is another model.
    assert model_card.collect_facts(run, model, "average:2").scores == ()
    none = dataclasses.replace(facts, scores=())
    assert "The command `transformer-jax eval` computes them." in card(model, none)


def test_model_card_has_evaluations_of_its_checkpoint_only(tiny_run, tmp_path):
    model = pretrained.load(tiny_run[1])
    (tmp_path / "history").mkdir()

    def add(number, step, bleu, checkpoint="best", data="/data/news", **more):
        scores = {"checkpoint_step": step, "bleu": bleu, "chrf": 50.0, "split": "test"}
        record = {"command": "eval", "started": f"2026-01-0{number}", "checkpoint": checkpoint}
        record |= more
        text = json.dumps({**record, "data": data, "scores": scores})
        (tmp_path / f"history/{number}.json").write_text(text)

    add(1, 60, 11.0)
    add(2, 60, 12.0)
    add(3, 40, 13.0)
    add(4, 60, 14.0, "average:2")
    add(5, 60, 15.0, data="")
    add(6, 60, 16.0, ensemble=["a", "b"])
    add(7, 60, 17.0, settings={"decode.beam_size": 1})
    add(8, 60, 18.0, "average:25")
    scores = {score.data: score.bleu for score in model_card.collect_facts(tmp_path, model).scores}
    assert scores == {"news": 12.0, "test": 15.0}
    averaged = model_card.collect_facts(tmp_path, model, "average:2").scores
    assert [score.bleu for score in averaged] == [14.0]


def test_model_card_of_a_bundle_has_its_scores_and_licence(tiny_run, tmp_path):
    model = pretrained.load(tiny_run[1])
    score = Score("test set", 20, 31.5, "tok:13a", 55.0, "")
    facts = ModelFacts("mine", "a work directory", 60, (score,), "mit")
    path = tmp_path / "x.bundle"
    bundle.write(path, model.config, model.tokenizers, model.params, facts)
    stored = pretrained.load(path)
    assert model_card.collect_facts(path, stored) == facts
    assert model_card.collect_facts(path, stored, licence="x").licence == "x"
    text = card(model, facts, format_name="bundle")
    assert "In the folder of the file:" in text
    assert "pip install 'transformer-jax @ git+URL'" in text


def test_model_card_has_the_name_that_the_user_gave(tokenizers, tiny_run, tmp_path, monkeypatch):
    snapshot = tmp_path / "hub/models--Some--opus-mt/snapshots/c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("c0ffee")
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    facts = model_card.collect_facts("Some/opus-mt", small_model(tokenizers))
    assert (facts.name, facts.origin) == ("opus-mt", "the Hugging Face model opus-mt")
    monkeypatch.chdir(tiny_run[1])
    trained = pretrained.load(".")
    for path in (".", "../run/", tiny_run[1]):
        assert model_card.collect_facts(path, trained).name == "run"


def test_model_card_of_an_imported_model_claims_no_training(tokenizers):
    model = small_model(tokenizers)
    text = card(model, ModelFacts("opus", "the Hugging Face model opus"), notes=["another epsilon"])
    assert "training data: see the card of the Hugging Face model opus" in text
    assert "optimizer" not in text
    assert "It was trained on sentences" not in text
    assert "## Differences from the original model\n\n- another epsilon" in text


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("kind", ["ours", "lower-case", "language tags", "vocabulary"])
def test_programs_are_python_and_short(format_name, kind, tokenizers):
    spm, text = tokenizers.source, 'Say "nine"\t\\n äö\u2028.'
    pair, data, decode = tokenizers, {}, {}
    if kind == "lower-case":
        lower = type(spm)(spm.model, lowercase=True)
        pair = TokenizerPair(lower, lower)
    if kind in ("language tags", "vocabulary"):
        vocabulary = {p: i for i, p in enumerate([">>de<<", *spm.tokens(range(295))])}
        special = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
        one = VocabularyTokenizer(spm.model, vocabulary, special, len(vocabulary))
        pair, decode = TokenizerPair(one, one, LanguageTags(">>{}<<")), {"suppressed_ids": (1, 2)}
    if kind == "language tags":
        data = {"target_language_tags": True}
    config = small_model(tokenizers).config
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, **data),
        decode=dataclasses.replace(config.decode, **decode),
    )
    program = usage_examples.PROGRAMS[format_name](config, pair, text)
    compile(program, "README.md", "exec")
    lines = program.rstrip().split("\n")
    assert len(lines) <= 12
    assert any(json.dumps(text, ensure_ascii=False)[1:-1] in line for line in lines)


def test_readme_shows_the_first_short_sentence():
    long = "word " * 40
    assert model_card.example(SampleText((long, "a short one", "another"))) == "a short one"
    assert model_card.example(SampleText((long, long))) == long


def test_programs_name_a_format_each():
    assert tuple(usage_examples.PROGRAMS) == FORMATS
