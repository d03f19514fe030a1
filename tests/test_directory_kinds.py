"""A path that is no model is named for what it is."""

import re
import sys

import pytest
from etils import epath

from tests.huggingface_models import small_model, write
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.translator import pretrained
from transformer_jax.workdir import directory_kinds, history
from transformer_jax.workdir import folder as workdir_lib

# Files of a folder -> what it is.
FOLDERS = {
    ("decode_step.jax", "manifest.json", "params.npz"): "is a StableHLO export",
    ("adapter_config.json", "adapter_model.safetensors"): "is an adapter for another model",
    ("encoder_model.onnx", "decoder_model.onnx"): "is an ONNX export",
    ("model.deen.intgemm.alphas.bin", "vocab.deen.spm"): "is a model of Bergamot, as in Firefox",
    ("source.spm", "target.spm"): "is the tokenizer of a Marian model without its config.json",
    ("text.en", "text.de"): "is no work directory: it has no config.json",
}


@pytest.mark.parametrize("names", FOLDERS)
def test_folder_of_another_kind_is_named(names, tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}")
    with pytest.raises(UserError, match=re.escape(f"{folder} {FOLDERS[names]}")):
        Translator.load(folder)


@pytest.mark.parametrize("name", ["shared_vocabulary.json", "source_vocabulary.txt"])
def test_ctranslate2_folder_needs_its_package_and_gives_no_parameters(name, tmp_path, monkeypatch):
    folder = tmp_path / "m"
    folder.mkdir()
    for file in ("model.bin", "config.json", name):
        (folder / file).write_text("{}")
    assert "is a CTranslate2 model" in directory_kinds.describe(folder)
    with pytest.raises(UserError, match="m is a CTranslate2 model: it translates and scores, but"):
        pretrained.load(folder)
    with pytest.raises(UserError, match=r"m/model\.bin is damaged"):
        pretrained.read_config(folder)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # so that an import of it fails
    with pytest.raises(UserError, match="m, a CTranslate2 model, needs ctranslate2; install it"):
        Translator.load(folder)


FILES = {
    "model.safetensors": "holds weights only; name the folder",
    "pytorch_model.bin": "holds weights only; name the folder",
    "source.spm": "is a tokenizer",
    "model.pt": "is a checkpoint of PyTorch",
    "model.tar.gz": "is an archive; unpack it",
    "model.bundle": "is damaged, or no bundle of this package; copy it again",
    "notes.txt": "is a file; name the folder of a model, or a bundle",
}


@pytest.mark.parametrize("name", FILES)
def test_file_of_another_kind_is_named(name, tmp_path):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match=re.escape(f"{tmp_path / name} {FILES[name]}")):
        Translator.load(tmp_path / name)


@pytest.mark.parametrize("name", ["secret.bin", "secret"])
def test_folder_with_an_entry_that_cannot_be_read_is_named(name, tmp_path, monkeypatch):
    """The user who runs the tests may read everything, so the error is made here."""
    (tmp_path / "m").mkdir()
    if name == "secret":
        (tmp_path / "m" / name).mkdir()
    else:
        (tmp_path / "m" / name).touch()
    kind = type(epath.Path(tmp_path))

    def guarded(method):
        original = getattr(kind, method)

        def call(path, *arguments, **options):
            if name in path.parts[-2:]:
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *arguments, **options)

        monkeypatch.setattr(kind, method, call)

    for method in ("open", "exists", "read_text"):
        guarded(method)
    with pytest.raises(UserError, match="m is no work directory: it has no config"):
        Translator.load(tmp_path / "m")


@pytest.mark.parametrize("inside", ["..", "checkpoints", "checkpoints/60", "tokenizer"])
def test_folder_in_or_around_a_run_names_the_run(inside, tiny_run):
    words = {
        "..": "has models in it (run); name one of them",
        "checkpoints": f"has the checkpoints of a run; name {tiny_run[1]}",
        "checkpoints/60": "is a checkpoint of a run; name the work directory, two folders above",
        "tokenizer": "is the tokenizer of a run",
    }
    path = tiny_run[0] if inside == ".." else tiny_run[1] / inside
    with pytest.raises(UserError, match=re.escape(f"{path} {words[inside]}")):
        Translator.load(path)


def test_commands_of_runs_name_a_published_model(tokenizers, tmp_path):
    folder = write(tmp_path / "m", small_model(tokenizers))
    with pytest.raises(UserError, match="m is a Hugging Face model, and no work directory"):
        workdir_lib.read_config(folder)
    with pytest.raises(UserError, match="m is a Hugging Face model, and no work directory"):
        history.read_metrics(folder)
    before = (folder / "config.json").read_bytes()
    with pytest.raises(UserError, match="is a Hugging Face model"), workdir_lib.lock(folder):
        pass
    assert (folder / "config.json").read_bytes() == before
    assert not (folder / ".lock").exists()


def test_damaged_config_of_a_run_is_reported_as_such(tmp_path):
    (tmp_path / "config.json").write_text('{"train": ')
    assert directory_kinds.describe_other_tools(tmp_path) is None
    with pytest.raises(UserError, match="is not JSON"):
        workdir_lib.read_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b'\xff\xfe{"train": {}}')
    with pytest.raises(UserError, match=r"config\.json is damaged: it is not UTF-8"):
        Translator.load(tmp_path)
