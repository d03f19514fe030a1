"""`transformer-jax convert`: pickles of published models become safetensors, once."""

import json
import os
import subprocess
import sys

import pytest
import safetensors.torch
import torch
import transformers

from tests.peers import builders
from tests.peers.test_import import assert_equal
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import pickles

MAIN = "from transformer_jax.commands.entry import main; main()"


def make_pickled(folder, spm_models, **options):
    """A directory as OPUS-MT's often are: only `pytorch_model.bin`, with its tied tables."""
    model = builders.make_marian(folder, spm_models)
    torch.save(model.state_dict(), folder / "pytorch_model.bin", **options)
    (folder / "model.safetensors").unlink()
    return model


@pytest.mark.parametrize("zipped", [True, False])  # before torch 1.6 they were no zip files
def test_convert_writes_safetensors_next_to_a_pickle(zipped, spm_models, tmp_path):
    folder = tmp_path / "m"
    model = make_pickled(folder, spm_models, _use_new_zipfile_serialization=zipped)
    pickled = (folder / "pytorch_model.bin").read_bytes()
    translator = Translator.load(folder, allow_pickle=True)
    assert_equal(model, translator.config.model, translator.params)
    with pytest.raises(UserError, match="is a pickle") as error:
        Translator.load(folder)
    command = str(error.value).partition("transformer-jax ")[2].split()
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *command],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"wrote {folder}/model.safetensors" in done.stdout
    assert (folder / "pytorch_model.bin").read_bytes() == pickled
    translator = Translator.load(folder)
    assert_equal(model, translator.config.model, translator.params)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    want = model.state_dict()
    assert all(torch.equal(x, want[name]) for name, x in theirs.state_dict().items())
    # A tied table is stored once.
    assert "lm_head.weight" not in safetensors.torch.load_file(folder / "model.safetensors")
    said = []
    pickles.convert_directory(folder, said.append)
    assert said == [f"{folder} has model.safetensors: there is nothing to convert"]


def test_convert_writes_an_index_for_pickles_in_parts(spm_models, tmp_path):
    folder = tmp_path / "m"
    model = make_pickled(folder, spm_models)
    (folder / "pytorch_model.bin").unlink()
    state = list(model.state_dict().items())
    parts = {
        "pytorch_model-00001-of-00002.bin": state[:9],
        "pytorch_model-00002-of-00002.bin": state[9:],
    }
    for part, tensors in parts.items():
        torch.save(dict(tensors), folder / part)
    index = {"weight_map": {name: part for part, tensors in parts.items() for name, _ in tensors}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    pickles.convert_directory(folder, lambda text: None)
    translator = Translator.load(folder)
    assert_equal(model, translator.config.model, translator.params)
    transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert {p.name for p in folder.glob("model*")} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }


class Program:
    """A pickle that runs a program when it is read."""

    def __reduce__(self):
        return os.mkdir, (os.environ["PROGRAM_RAN"],)


def test_convert_runs_no_program_and_leaves_no_file(spm_models, tmp_path, monkeypatch):
    folder, ran = tmp_path / "m", tmp_path / "ran"
    model = make_pickled(folder, spm_models)
    monkeypatch.setenv("PROGRAM_RAN", str(ran))
    pickle = folder / "pytorch_model.bin"
    torch.save({**model.state_dict(), "x": Program()}, pickle)
    torch.load(pickle, weights_only=False)
    ran.rmdir()  # so it would run
    before = set(folder.iterdir())
    for content in (pickle.read_bytes(), b"\x80\x04 not a pickle", b""):
        pickle.write_bytes(content)
        for attempt in (
            lambda: pickles.convert_directory(folder, lambda text: None),
            lambda: Translator.load(folder, allow_pickle=True),
        ):
            with pytest.raises(UserError, match=r"pytorch_model\.bin is damaged, or no model") as e:
                attempt()
            assert "\n" not in str(e.value)
            assert "torch.load" not in str(e.value)  # torch's advice, which would run the program
    torch.save([1, 2], pickle)
    with pytest.raises(UserError, match="tensors by name"):
        pickles.convert_directory(folder, lambda text: None)
    assert not ran.exists()
    assert set(folder.iterdir()) == before


def test_convert_keeps_the_permissions_of_the_pickle_and_the_values_of_views(spm_models, tmp_path):
    folder = tmp_path / "m"
    model = make_pickled(folder, spm_models)
    state = model.state_dict()
    # Views of one storage, one of them transposed, as a checkpoint of a sharded model may have.
    name = "model.encoder.layers.0.fc1.weight"
    storage = torch.stack([state[name].T, state[name].T])
    state[name] = storage[1].T
    assert not state[name].is_contiguous()
    pickle = folder / "pytorch_model.bin"
    torch.save(state, pickle)
    for mode in (0o644, 0o600):
        pickle.chmod(mode)
        pickles.convert_directory(folder, lambda text: None)
        assert (folder / "model.safetensors").stat().st_mode & 0o777 == mode
        translator = Translator.load(folder)
        assert_equal(model, translator.config.model, translator.params)
        (folder / "model.safetensors").unlink()


def test_convert_loads_torch_only_in_its_own_process(spm_models, tmp_path):
    make_pickled(tmp_path / "m", spm_models)
    code = (
        "import sys; from transformer_jax import Translator; "
        f"Translator.load({str(tmp_path / 'm')!r}, allow_pickle=True); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_convert_process_has_no_network_where_the_system_permits_it():
    code = (
        "import socket\n"
        "from transformer_jax.extras.interop.huggingface.pickle_process import leave_network\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "address = server.getsockname()\n"
        "leave_network()\n"
        "try: socket.create_connection(address, 1); print('connected')\n"
        "except OSError: print('none')\n"
    )
    allowed = subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0
    if not allowed:
        pytest.skip("the system permits no namespace")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "none\n"


def test_convert_takes_a_name_on_the_hub(spm_models, tmp_path, monkeypatch):
    """The cache's files are links; the new file is next to them."""
    model = make_pickled(tmp_path / "m", spm_models)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub/models--Some--opus"
    snapshot = folder / "snapshots/c0ffee"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("c0ffee")
    for path in (tmp_path / "m").iterdir():
        (snapshot / path.name).symlink_to(path)
    with pytest.raises(UserError, match=f"transformer-jax convert {snapshot}$"):
        Translator.load("Some/opus")
    pickles.convert_directory("Some/opus", lambda text: None)
    translator = Translator.load("Some/opus")
    assert_equal(model, translator.config.model, translator.params)
