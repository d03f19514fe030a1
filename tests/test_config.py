import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from transformer_jax.config import Config, DataConfig, from_json, keep_former_defaults, to_json
from transformer_jax.errors import UserError
from transformer_jax.validation import validate

RECIPES = sorted(
    path.stem
    for path in (Path(__file__).parent.parent / "configs").glob("*.py")
    if path.stem != "__init__"
)


def changed(**sections):
    config = Config()
    for section, values in sections.items():
        if isinstance(values, dict):
            values = dataclasses.replace(getattr(config, section), **values)
        config = dataclasses.replace(config, **{section: values})
    return config


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_valid_and_survive_json(name):
    config = importlib.import_module(f"configs.{name}").get_config()
    assert from_json(to_json(validate(config))) == config


def test_json_keeps_tuples_and_none():
    config = changed(data={"train_weights": (1.0, 2.5)}, model={"head_dim": None})
    assert from_json(to_json(config)).data.train_weights == (1.0, 2.5)
    assert from_json(to_json(config)).model.head_dim is None


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"d_model": 100, "num_heads": 8}}, ["num_heads=8", "d_model=100"]),
        ({"model": {"max_len": 100}}, ["model.max_len=100", "data.max_len=256"]),
        ({"data": {"batch_tokens": 200}}, ["batch_tokens=200", "256"]),
        ({"data": {"batch_sentences": 64}}, ["batch_sentences=64", "bucket"]),
        (
            {"data": {"batching": "bucket", "subword_sampling": 0.1}},
            ["subword_sampling=0.1", "batching=pack"],
        ),
        ({"data": {"pack_len": 100}}, ["pack_len=100", "max_len=256"]),
        ({"train": {"accumulate_steps": 200}}, ["25000", "200 accumulated"]),
        ({"model": {"activation": "gelu_tan"}}, ["gelu_tan", "did you mean gelu_tanh?"]),
        ({"model": {"positional": "sinus"}}, ["positional='sinus'", "interleaved"]),
        ({"model": {"dropout_rate": 1.0}}, ["dropout_rate=1.0", "below 1"]),
        ({"model": {"d_model": 7, "num_heads": 7}}, ["d_model=7", "even"]),
        (
            {"model": {"positional": "rotary", "head_dim": 3}},
            ["head_dim=3", "even", "rotary"],
        ),
        ({"model": {"head_dim": 0}}, ["head_dim=0"]),
        ({"data": {"shared_vocab": False}}, ["tie_embeddings=all", "shared_vocab"]),
        ({"data": {"source_lang": "de"}}, ["source_lang", "'de'"]),
        ({"data": {"train": "a,b"}}, ["source=files"]),
        (
            {"data": {"source": "files", "train": "a,b", "train_weights": (1.0,)}},
            ["train_weights has 1", "2 corpora"],
        ),
        (
            {"data": {"source": "files", "train": "a,b", "train_languages": ("en-de", "en-fr")}},
            ["target_language_tags"],
        ),
        ({"parallel": {"data": 0}}, ["parallel.data=0"]),
        ({"parallel": {"runner": "xmap"}}, ["runner='xmap'", "jit, pmap"]),
        ({"optimizer": {"learning_rate": 0.0}}, ["learning_rate=0.0", "> 0"]),
        ({"optimizer": {"name": "adan"}}, ["did you mean adam?"]),
        ({"train": {"num_steps": 0}}, ["num_steps=0"]),
        ({"decode": {"beam_size": 0}}, ["beam_size=0"]),
        ({"optimizer": {"weight_decay": 0.1}}, ["weight_decay=0.1", "adamw"]),
        (
            {"optimizer": {"schedule": "cosine", "warmup_steps": 100_000}},
            ["warmup_steps=100000", "num_steps=100000"],
        ),
        (
            {"train": {"early_stopping_patience": 2, "eval_every_steps": 0}},
            ["early_stopping_patience=2", "eval_every_steps"],
        ),
        ({"train": {"num_steps": "5"}}, ["config.train.num_steps='5'", "int"]),
        ({"data": {"train_weights": ("a",)}}, ["train_weights[0]='a'", "float"]),
        ({"data": {"train_languages": "en-de"}}, ["train_languages='en-de'"]),
        ({"data": {"normalization": "nfd"}}, ["normalization='nfd'", "identity, nfkc"]),
        ({"data": {"normalization": "nfkc,nfkc,nfkc"}}, ["normalization=", "SOURCE,TARGET"]),
        ({"data": {"normalization": "nfkc", "tokenizer_model": "x"}}, ["tokenizer_model"]),
        ({"seed": 2**64}, ["config.seed=18446744073709551616", "below 9.22"]),
    ],
)
def test_what_cannot_work_is_told_in_one_sentence(sections, words):
    with pytest.raises(UserError) as error:
        validate(changed(**sections))
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["run/config.json is not JSON"]),
        ('{"modle": {}}', ["no setting modle", "did you mean model?"]),
        ('{"model": {"d_modl": 4}}', ["model.d_modl", "model.d_model"]),
        ('{"model": {"d_model": "4"}}', ["model.d_model='4'", "int"]),
        ('{"seed": true}', ["seed=True", "int"]),
        ('{"model": 3}', ["model must be an object"]),
    ],
)
def test_damaged_json_is_named(text, words):
    with pytest.raises(UserError) as error:
        from_json(text, "run/config.json")
    for word in words:
        assert word in str(error.value)


def test_a_file_of_0_1_0_means_what_it_meant():
    text = json.dumps({"data": {"max_len": 16}})
    stored = from_json(text)
    assert (stored.data.max_ratio, stored.data.plan_version) == (0.0, 1)
    assert from_json(to_json(Config())) == Config()  # a file of today says what it means
    # The recipe of today goes on with it, unless it sets one of these itself.
    assert keep_former_defaults(Config(seed=3), stored).data == dataclasses.replace(
        DataConfig(), max_ratio=0.0, plan_version=1, normalization="nmt_nfkc"
    )
    own = Config(data=DataConfig(max_ratio=5.0))
    assert keep_former_defaults(own, stored).data.max_ratio == 5.0
    assert keep_former_defaults(own, Config()) == own
