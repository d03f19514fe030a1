"""Models by their name on the Hugging Face Hub, without a network."""

import json
import shutil
import sys
import types

import pytest

from tests.huggingface_models import small_model, write
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import hub
from transformer_jax.translator import pretrained

NAME = "Some-Owner/opus-mt-en-de"


@pytest.fixture(scope="module")
def marian(tokenizers, tmp_path_factory):
    return write(tmp_path_factory.mktemp("marian") / "m", small_model(tokenizers))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache; there is no `huggingface_hub`."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    return tmp_path / "hub"


def put(cache, marian, commit="c0ffee"):
    """A model as Hugging Face's tools keep it: files are links to blobs."""
    folder = cache / "models--Some-Owner--opus-mt-en-de"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    snapshot = folder / "snapshots" / commit
    shutil.copytree(marian, folder / "blobs")
    snapshot.mkdir(parents=True)
    for path in (folder / "blobs").iterdir():
        (snapshot / path.name).symlink_to(path)
    return snapshot


def test_hub_name_is_located_in_the_local_cache(cache, marian):
    snapshot = put(cache, marian)
    assert str(hub.locate(NAME)) == str(snapshot)
    assert pretrained.read_config(NAME) == pretrained.read_config(marian)
    texts = ["one two"]
    want = Translator.load(marian).score(texts, ["zwei eins"])
    assert Translator.load(NAME).score(texts, ["zwei eins"]) == want


def test_hub_ignores_incomplete_weights_in_the_cache(cache, marian):
    snapshot = put(cache, marian)
    (weights,) = snapshot.glob("model*.safetensors")
    parts = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"weight_map": {str(i): part for i, part in enumerate(parts)}}
    shutil.copy(weights, snapshot / parts[0])
    weights.unlink()
    for file in (None, snapshot / "model.safetensors.index.json"):  # nor without the index
        if file:
            file.write_text(json.dumps(index))
        with pytest.raises(UserError, match="Install huggingface_hub"):
            hub.locate(NAME)
    shutil.copy(snapshot / parts[0], snapshot / parts[1])
    assert str(hub.locate(NAME)) == str(snapshot)


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HOME": "home"}, "home/hub"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/huggingface/hub"),
        ({"HOME": "me"}, "me/.cache/huggingface/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "old", "HF_HOME": "home"}, "old"),
        ({"HF_HUB_CACHE": "new", "HF_HOME": "home"}, "new"),
    ],
)
def test_hub_cache_folder_is_hugging_faces(cache, monkeypatch, tmp_path, variables, place):
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    assert str(hub.cache_folder()) == str(tmp_path / place)


def test_hub_without_cache_and_package_says_what_to_do(cache, marian):
    with pytest.raises(
        UserError, match=f"no folder {NAME}.*{cache}. Install huggingface_hub"
    ) as error:
        Translator.load(NAME)
    command = str(error.value).partition("give its path: ")[2].split()
    assert command[:3] == ["hf", "download", NAME]
    assert command[-2:] == ["--local-dir", "opus-mt-en-de"]
    (put(cache, marian) / "model.safetensors").unlink()  # another tool asked for single files
    with pytest.raises(UserError, match="Install huggingface_hub"):
        Translator.load(NAME)


def test_hub_downloads_missing_models_without_a_second_copy(cache, marian, monkeypatch):
    asked = []

    def snapshot_download(name, allow_patterns, cache_dir):
        asked.append((name, allow_patterns[-1], cache_dir))
        return str(marian)

    package = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    assert str(hub.locate(NAME)) == str(marian)
    assert asked == [(NAME, "model*.safetensors", str(cache))]

    def fail(*_, **__):
        raise OSError("no route\nto host")

    package.snapshot_download = fail
    with pytest.raises(UserError, match=r"downloading it failed \(no route to host\)"):
        hub.locate(NAME)


def test_hub_does_not_treat_paths_as_names(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in ("runs/typo", "nowhere", "/a/b", "a/b/c", "../x", "./x", "gs://b/x", "~/x"):
        assert str(hub.locate(path)) == path.removeprefix("./")
    with pytest.raises(UserError, match="runs/typo is no work directory"):
        Translator.load("runs/typo")
