"""`transformer-jax convert` where torch is missing, too old, or fails; and what it refuses."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.huggingface_models import small_model, write
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import pickle_process, pickles
from transformer_jax.workdir import directory_kinds

MAIN = "from transformer_jax.commands.entry import main; main()"


@pytest.fixture
def pickled(tokenizers, tmp_path):
    """A model with a `pytorch_model.bin` only, which nothing reads here."""
    folder = write(tmp_path / "m", small_model(tokenizers))
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


def convert(folder):
    pickles.convert_directory(folder, lambda text: None)


def put_process(monkeypatch, tmp_path, code):
    """Replaces the program that reads pickles."""
    program = tmp_path / "process.py"
    program.write_text(code)
    monkeypatch.setattr(pickle_process, "__file__", str(program))


def failing(status, reason):
    """A program that fails as the real one does, after it has begun a file."""
    return (
        "import sys\n"
        "open(sys.argv[2] + '.tmp', 'w').close()\n"
        f"print(sys.argv[1]); print({reason!r}); sys.exit({status})"
    )


FAILURES = {
    "damage": (failing(8, "bad magic"), r"is damaged, or no model \(bad magic\); copy it again"),
    "an unexpected end": (
        failing("print('core dumped', file=sys.stderr) or 77", ""),
        r"was not converted: the program that reads it failed \(core dumped\)",
    ),
    "an unexpected end without a word": (
        "import os; os._exit(77)",
        r"was not converted: the program that reads it failed \(status 77\)",
    ),
    "an error that nothing catches": (
        "import sys; print(sys.argv[1]); raise OSError('no libc')",
        r"was not converted: the program that reads it failed \(OSError: no libc\)",
    ),
    "a full disk": (
        failing(6, "No space left on device"),
        "was read, but its tensors cannot be written: No space left on device",
    ),
    "no permission": (failing(5, "Permission denied"), "cannot be read: Permission denied"),
    "memory": (failing(7, "can't allocate memory"), "needs more memory than this machine has free"),
    "the system's end of it": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "needs more memory than this machine has free",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_convert_says_why_it_fails_and_leaves_no_file(name, pickled, tmp_path, monkeypatch):
    code, words = FAILURES[name]
    put_process(monkeypatch, tmp_path, code)
    before = {path.name for path in pickled.iterdir()}
    with pytest.raises(UserError, match=rf"pytorch_model\.bin {words}") as error:
        convert(pickled)
    assert "\n" not in str(error.value)
    assert {path.name for path in pickled.iterdir()} == before


INSTALL = r"where you convert: pip install 'torch>=2\.6'"
# A stub of torch -> the status of the process, what it prints, and what is said.
STUBS = {
    "raise ModuleNotFoundError('none')": ("NO_TORCH", "none\n", INSTALL),
    # If it was used, its `load` would fail.
    "__version__ = '2.5.1'": ("NO_TORCH", "", INSTALL),
    "__version__ = '1.13.1+cu117'": ("NO_TORCH", "", INSTALL),
    "raise OSError('no libcudnn')": ("BROKEN_TORCH", "no libcudnn\n", r"imported \(no libcudnn\);"),
    "raise ImportError('no libc')": ("BROKEN_TORCH", "no libc\n", r"be imported \(no libc\);"),
}


@pytest.mark.parametrize("stub", STUBS)
def test_convert_refuses_a_torch_that_fails_or_that_pickles_can_break(
    stub, pickled, tmp_path, monkeypatch
):
    status, printed, words = STUBS[stub]
    (tmp_path / "torch.py").write_text(stub)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, pickle_process.__file__, pickled / "pytorch_model.bin", tmp_path / "out"],
        capture_output=True,
        text=True,
    )
    expected = (getattr(pickle_process, status), printed, "")
    assert (done.returncode, done.stdout, done.stderr) == expected
    with pytest.raises(UserError, match=rf"pytorch_model\.bin is a pickle, which .*{words}"):
        convert(pickled)


def test_convert_names_the_file_at_which_its_process_was_killed(tmp_path, monkeypatch):
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors/__init__.py").touch()
    (tmp_path / "safetensors/torch.py").write_text(
        "def save_file(tensors, path, metadata): open(path, 'w').close()"
    )
    (tmp_path / "torch.py").write_text(
        "import os\n"
        "__version__ = '2.6.0'\n"
        "class Tensor: pass\n"
        "def load(path, **_): return {} if path.endswith('1.bin') else os.kill(os.getpid(), 9)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    targets = {}
    for number in (1, 2):
        (tmp_path / f"{number}.bin").touch()
        targets[str(tmp_path / f"{number}.bin")] = str(tmp_path / f"{number}.safetensors")
    with pytest.raises(UserError, match=r"/2\.bin needs more memory"):
        pickles.convert_files(targets)


@pytest.mark.parametrize("index", [{}, {"weight_map": [1]}, {"weight_map": {}}])
def test_convert_names_a_malformed_index(index, pickled):
    (pickled / "pytorch_model.bin").unlink()
    (pickled / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"pytorch_model.bin.index.json has no `weight_map`"):
        convert(pickled)


@pytest.mark.parametrize("part", ["../x", "/etc/x", "..", "", ["x"], 1])
def test_convert_refuses_parts_outside_of_the_folder(part, pickled):
    (pickled / "pytorch_model.bin").unlink()
    index = {"weight_map": {"a": part}}
    (pickled / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"names the file .*; the parts of a model must be in"):
        convert(pickled)


def test_convert_names_paths_of_other_kinds(tiny_run, pickled, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "x.bundle").write_bytes(b"12345678" + directory_kinds.BUNDLE_BEGIN)
    (tmp_path / "spoken").mkdir()
    for path, words in {
        tmp_path / "spokne": f"no such folder, but there is {tmp_path / 'spoken'}.",
        tiny_run[1]: "is a work directory, which all commands read as it is",
        tmp_path / "nowhere": f"there is no such folder; {tmp_path} has m, x.bundle",
        tmp_path / "text": "is no work directory: it has no config.json",
        tmp_path / "x.bundle": "is a bundle",
        pickled / "pytorch_model.bin": "holds weights only; name the folder that it is in",
        pickled.parent: "has models in it (m, x.bundle); name one of them",
        "gs://bucket/m": "must be a local folder; copy the model first",
    }.items():
        with pytest.raises(UserError, match=re.escape(f"{path} ") + ".*" + re.escape(words)):
            convert(path)


def test_convert_takes_the_folder_as_the_first_word(pickled):
    (pickled / "model.safetensors").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "convert", pickled], capture_output=True, text=True
    )
    expected = f"{pickled} has model.safetensors: there is nothing to convert\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_pickle_in_an_object_store_is_to_be_copied_first(pickled, bucket):
    remote = bucket / "m"
    remote.mkdir()
    for path in pickled.iterdir():
        (remote / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="Copy the folder to a disk and convert it once, safely"):
        Translator.load(remote)


def test_pickle_names_the_command_that_converts_it(pickled, tmp_path):
    folder = tmp_path / "with space"
    shutil.move(pickled, folder)
    words = f"is a pickle.*transformer-jax convert '{folder}'$"
    with pytest.raises(UserError, match=words):
        Translator.load(folder)
