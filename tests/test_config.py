import dataclasses
import importlib
import json
import sys
import typing
from pathlib import Path

import pytest
from absl import flags

from transformer_jax.commands import config_flags
from transformer_jax.config import (
    Config,
    DataConfig,
    Setting,
    all_settings,
    from_json,
    keep_former_defaults,
    to_json,
    validate,
)
from transformer_jax.config.__main__ import page as settings_page
from transformer_jax.config.setting import Rules
from transformer_jax.errors import UserError

ROOT = Path(__file__).parent.parent
RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__")


def changed(**sections):
    config = Config()
    for section, values in sections.items():
        if isinstance(values, dict):
            values = dataclasses.replace(getattr(config, section), **values)
        config = dataclasses.replace(config, **{section: values})
    return config


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_valid_and_survive_json(name):
    config = importlib.import_module(f"transformer_jax.configs.{name}").get_config()
    assert from_json(to_json(validate(config))) == config


def test_shares_of_noise_may_be_1_together():
    shares = ("upper_case:0.05", "lower_case:0.55", "typos:0.3", "extra_spaces:0.1")
    assert sum(float(share.split(":")[1]) for share in shares) > 1  # by rounding
    validate(changed(data={"augment": shares}))


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
        (
            {"data": {"batch_tokens": 300}, "train": {"accumulate_steps": 2}},
            ["batch_tokens=300 must be at least 512", "each of 2 accumulated"],
        ),
        ({"data": {"batch_sentences": 64}}, ["batch_sentences=64", "bucket"]),
        (
            {"data": {"batching": "bucket", "subword_sampling": 0.1}},
            ["subword_sampling=0.1", "batching=pack"],
        ),
        (
            {"data": {"batching": "bucket", "augment": ("typos:0.1",)}},
            ["augment=('typos:0.1',)", "batching=pack"],
        ),
        ({"data": {"augment": ("typos",)}}, ["augment=('typos',)", "must look like"]),
        ({"data": {"augment": ("typos:0",)}}, ["augment=('typos:0',)", "above 0"]),
        ({"data": {"augment": ("typos:1.5",)}}, ["augment=('typos:1.5',)", "at most 1"]),
        ({"train": {"lora_alpha": 32.0}}, ["lora_alpha=32.0", "set config.train.lora_rank"]),
        ({"data": {"augment": ("typo:0.1",)}}, ["no noise 'typo'", "did you mean typos?"]),
        ({"data": {"augment": ("typos:0.1", "typos:0.2")}}, ["a kind of noise twice"]),
        ({"data": {"augment": ("typos:0.6", "upper_case:0.6")}}, ["more than 1 together"]),
        (
            {"data": {"augment": ("upper_case:0.6",), "lowercase": True}},
            ["augment changes the case", "lowercase=True"],
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
        ({"data": {"target_vocab_size": 99}}, ["target_vocab_size=99", "shared_vocab=False"]),
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
            ["warmup_steps=100000", "num_steps=100000", "lower config.opt", "`stop_after=100000`"],
        ),
        (
            {"train": {"early_stopping_patience": 2, "eval_every_steps": 0}},
            ["early_stopping_patience=2", "eval_every_steps"],
        ),
        (
            {"train": {"r_drop": 5.0}, "model": {"dropout_rate": 0.0}},
            ["r_drop=5", "dropout_rate"],
        ),
        (
            {"train": {"alignment_weight": 0.1, "scan_layers": True}},
            ["scan_layers=True", "alignment_weight=0.1"],
        ),
        ({"optimizer": {"name": "adafactor", "mu_dtype": "bfloat16"}}, ["mu_dtype=bfloat16"]),
        ({"optimizer": {"name": "schedule_free_adamw"}}, ["schedule=rsqrt", "schedule=constant"]),
        (
            {
                "optimizer": {
                    "name": "schedule_free_adamw",
                    "schedule": "constant",
                    "host_state": True,
                }
            },
            ["host_state=True", "for the gradient too"],
        ),
        (
            {"optimizer": {"host_state": True}, "parallel": {"runner": "pmap"}},
            ["host_state=True", "parallel.runner=jit"],
        ),
        ({"train": {"remat": "some"}}, ["remat='some'", "none, dots, full"]),
        ({"train": {"num_steps": "5"}}, ["config.train.num_steps='5'", "int"]),
        ({"data": {"train_weights": ("a",)}}, ["train_weights[0]='a'", "float"]),
        ({"data": {"train_languages": "en-de"}}, ["train_languages='en-de'"]),
        (
            {"data": {"source": "files", "train": "a", "train_languages": ("pt-BR-en",)}},
            ["('pt-BR-en',) must look like"],
        ),
        ({"data": {"normalization": "nfd"}}, ["normalization='nfd'", "identity, nfkc"]),
        ({"data": {"normalization": "nfkc,nfkc,nfkc"}}, ["normalization=", "SOURCE,TARGET"]),
        ({"data": {"normalization": "nfkc", "tokenizer_model": "x"}}, ["tokenizer_model"]),
        ({"seed": 2**64}, ["config.seed=18446744073709551616", "below 2^63"]),
        (
            {"decode": {"method": "sample", "top_k": 2**31}},
            ["config.decode.top_k=2147483648", "below 2^31"],
        ),
    ],
)
def test_invalid_config_is_refused_in_one_sentence(sections, words):
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
def test_from_json_names_the_wrong_setting(text, words):
    with pytest.raises(UserError) as error:
        from_json(text, "run/config.json")
    for word in words:
        assert word in str(error.value)


def test_config_json_of_0_1_0_keeps_its_meaning():
    text = json.dumps({"data": {"max_len": 16}})
    stored = from_json(text)
    assert (stored.data.max_ratio, stored.data.plan_version) == (0.0, 1)
    assert from_json('{"optimizer": {}}').optimizer.weight_decay_on == "all"
    remat = [from_json(f'{{"train": {{"remat": {x}}}}}').train.remat for x in ("false", "true")]
    assert remat == ["none", "full"]
    assert from_json(to_json(Config())) == Config()  # a current file names every setting
    # A current recipe resumes with the former values, unless it sets one of them itself.
    assert keep_former_defaults(Config(seed=3), stored).data == dataclasses.replace(
        DataConfig(), max_ratio=0.0, plan_version=1, normalization="nmt_nfkc"
    )
    chosen = Config(data=DataConfig(max_ratio=5.0))
    assert keep_former_defaults(chosen, stored).data.max_ratio == 5.0
    assert keep_former_defaults(chosen, Config()) == chosen


def test_settings_page_is_current():
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == settings_page(), "run: python -m transformer_jax.config > docs/settings.md"


def test_settings_page_has_every_field_with_its_rules():
    """Read from the dataclasses and their type annotations, not by the code of the page."""
    page = (ROOT / "docs" / "settings.md").read_text()
    rows = {}
    section = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| `"):
            name, default, allowed, resumable, meaning = line.strip("| ").split(" | ")
            rows[section, name.strip("`")] = default.strip("`"), allowed, resumable, meaning
    fields = {("", "seed"): (Config, "seed")}
    for part in dataclasses.fields(Config)[1:]:
        fields |= {(part.name, f.name): (part.type, f.name) for f in dataclasses.fields(part.type)}
    assert set(rows) == set(fields)
    for key, (cls, name) in fields.items():
        default, allowed, resumable, meaning = rows[key]
        assert default == (str(getattr(cls(), name)) or '""'), key
        hint = typing.get_type_hints(cls)[name]
        choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
        for choice in choices or (("True", "False") if hint is bool else ()):
            assert f"`{choice}`" in allowed, key
        assert meaning.endswith("."), key
        assert resumable in ("yes", "no"), key
    for path in ("train.num_steps", "decode.beam_size", "parallel.data", "data.train"):
        assert rows[tuple(path.split("."))][2] == "yes", path
    for path in ("model.d_model", "data.vocab_size", "optimizer.b1", "train.label_smoothing"):
        assert rows[tuple(path.split("."))][2] == "no", path
    assert rows["model", "dropout_rate"][1] == ">= 0 and below 1"


def test_every_default_is_within_its_choices_and_range():
    for setting in all_settings(Config):
        assert not setting.choices or setting.default in setting.choices, setting.path
        assert setting.default is None or setting.in_range(setting.default), setting.path


def test_bounds_include_what_they_say():
    for name, inside, outside in (
        ("at_least", 1, 0.9),
        ("above", 1.1, 1),
        ("at_most", 1, 1.1),
        ("below", 0.9, 1),
    ):
        rules = Rules("", {name: 1}, False, dataclasses.MISSING)
        setting = Setting("a", float, 0.0, rules, False)
        assert setting.in_range(inside), name
        assert not setting.in_range(outside), name
        assert not setting.in_range(float("nan"))
        assert not setting.in_range(float("inf"))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("model.activation=silu", "silu"),
        ("model.head_dim=4", 4),
        ("model.head_dim=None", None),
        ("train.num_steps=None", None),  # `validate` refuses it
        ("data.train_weights=(1.0,2.5)", (1.0, 2.5)),
        ("decode.suppressed_ids=(3,4)", (3, 4)),
        ("data.lowercase", True),
    ],
)
def test_config_flags_parse_every_kind_of_setting(flag, value):
    argv = ["eval", f"--config.{flag}"]
    values = flags.FlagValues()
    config_flags.define_config(Config(), argv, values)
    values(argv)
    path = flag.partition("=")[0]
    assert {s.path: s for s in all_settings(Config)}[path].value(values.config) == value


RECIPE = """
from shared import WIDTH
from transformer_jax.configs import tiny

def get_config():
    config = tiny.get_config()
    config.model.d_model = WIDTH
    return config
"""


def test_recipe_imports_a_file_of_its_folder(tmp_path, monkeypatch):
    (tmp_path / "shared.py").write_text("WIDTH = 48")
    (tmp_path / "mine.py").write_text(RECIPE)
    path = list(sys.path)
    monkeypatch.chdir("/")
    assert config_flags.read_recipe(str(tmp_path / "mine.py")).model.d_model == 48
    assert sys.path == path
    sys.modules.pop("shared")


def test_recipe_with_a_mistyped_name_is_suggested(tmp_path):
    (tmp_path / "recipe.py").touch()
    with pytest.raises(UserError, match=r"recpie\.py, but there is .*recipe\.py\. Built in are"):
        config_flags.read_recipe(str(tmp_path / "recpie.py"))
    with pytest.raises(UserError, match="did you mean multi30k"):
        config_flags.read_recipe("multi31k")


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("\nimport nosuchmodule", ["mine.py, line 2: `import nosuchmodule`", "No module named"]),
        ("import sibling", ["sibling.py, line 1: `1 / 0` fails: ZeroDivisionError"]),
        ("def get_config(:", ["mine.py, line 1: invalid syntax"]),
        ("x = 1", ["mine.py has no get_config()"]),
        ("def get_config():\n  return {}", ["returns dict, not a transformer_jax.config.Config"]),
        ("def get_config():\n  return Config(", ["mine.py, line 2", "never closed"]),
        ("def get_config():\n  return x.y", ["mine.py, line 2: `return x.y` fails: NameError"]),
        (None, ["There is no recipe", "mine.py. Built in are", "transformer-jax init"]),
    ],
)
def test_recipe_that_fails_is_one_sentence_with_its_line(recipe, words, tmp_path):
    (tmp_path / "sibling.py").write_text("1 / 0")
    if recipe is not None:
        (tmp_path / "mine.py").write_text(recipe)
    with pytest.raises(UserError) as error:
        config_flags.read_recipe(str(tmp_path / "mine.py"))
    sys.modules.pop("sibling", None)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_recipe_that_fails_under_a_link_names_its_own_line(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "mine.py").write_text("import json\n\njson.loads('{')")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "other.py").symlink_to("real/mine.py")
    for recipe in (tmp_path / "link" / "mine.py", tmp_path / "other.py"):
        with pytest.raises(UserError, match=r"line 3: `json\.loads\('\{'\)` fails: JSONDecode"):
            config_flags.read_recipe(str(recipe))


def test_recipe_that_is_a_folder_is_answered_with_the_file_in_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    for name in ("config.json", "recipe.py"):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=rf"is a folder; name {tmp_path}/{name}\.$"):
            config_flags.read_recipe(str(tmp_path))
    assert config_flags.read_recipe("tiny").model.d_model  # the built-in one, not the folder


def define_for_training(*argv):
    """The config that `train` would have with a command line."""
    values = flags.FlagValues()
    rest = config_flags.define_for_training(["train", *argv], values)
    values(rest, known_only=True)
    return values.config


def test_train_without_a_recipe_resumes_with_the_settings_of_the_run(tmp_path):
    stored = changed(train={"num_steps": 7}, data={"vocab_size": 99, "max_ratio": 4.0})
    (tmp_path / "config.json").write_text(to_json(stored))
    workdir = f"--workdir={tmp_path}"
    assert define_for_training(workdir) == stored
    more = define_for_training("--workdir", str(tmp_path), "--config.train.num_steps=9")
    assert more == dataclasses.replace(stored, train=dataclasses.replace(stored.train, num_steps=9))
    quickstart = importlib.import_module("transformer_jax.configs.quickstart").get_config()
    assert define_for_training(workdir, "--config", "quickstart") == quickstart
    assert define_for_training("--config=configs/quickstart.py", workdir) == quickstart


def test_train_without_a_recipe_and_without_a_run_names_recipes(tmp_path):
    for argv, where in (
        ([], "Name a recipe"),
        ([f"--workdir={tmp_path}"], f"{tmp_path} has no run to resume. Name a recipe"),
    ):
        with pytest.raises(UserError) as error:
            define_for_training(*argv)
        for word in (where, "--config=RECIPE", *RECIPES, "transformer-jax init"):
            assert word in str(error.value)
