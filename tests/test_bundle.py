"""A model as one file: written, read by every command, and refused where it was changed."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from tests.conftest import begin_run, run_command, tiny_config
from tests.huggingface_models import small_model, write
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import bundle
from transformer_jax.extras.interop.model_facts import ModelFacts
from transformer_jax.translator import pretrained

ROOT = Path(__file__).parent.parent
MAIN = "from transformer_jax.commands.entry import main; main()"
TEXTS = ["one two three", "nine", "four four seven"]


def run(*arguments, cwd, text=""):
    done = run_command(*arguments, cwd=cwd, stdin=text)
    return done.returncode, done.stdout, done.stderr


FACTS = ModelFacts("tiny", "a work directory", 60)


def save(path, model, facts=FACTS, card="card"):
    return bundle.write(path, model.config, model.tokenizers, model.params, facts, card)


@pytest.fixture(scope="module")
def model(tiny_run):
    return pretrained.load(tiny_run[1])


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "tiny.bundle"
    save(path, model)
    return path


def manifest_of(path):
    """What is in a bundle besides its parameters, as its document says to read it."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["transformer_jax bundle"])


def rewritten(file, path, change):
    """A copy of a bundle, with a digest that fits; `change` gets its tensors and its manifest."""
    tensors, manifest = load_file(file), manifest_of(file)
    change(tensors, manifest)
    manifest["sha256"] = "0" * 64
    deep = "[" * 100_000 + "]" * 100_000  # which `json.dumps` would not write
    text = json.dumps(manifest).replace('"DEEP"', deep)
    save_file(tensors, path, {"transformer_jax bundle": text})
    data = path.read_bytes()
    place = data.index(b"0" * 64)
    digest = hashlib.sha256(data).hexdigest().encode()
    path.write_bytes(data[:place] + digest + data[place + 64 :])
    return path


def test_bundle_holds_the_model_and_no_optimizer(file, model, tiny_run, translator):
    loaded = pretrained.load(file)
    assert loaded.config == model.config
    assert loaded.step == model.step
    assert loaded.tokenizers.fingerprint == model.tokenizers.fingerprint
    jax.tree.map(np.testing.assert_array_equal, loaded.params, model.params)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(model.params)
    want = [(t.text, t.score) for t in translator.translate(TEXTS)]
    assert [(t.text, t.score) for t in Translator.load(str(file)).translate(TEXTS)] == want
    # Other tools read it: here safetensors.
    stored = load_file(file)
    assert len(stored) == len(jax.tree.leaves(model.params))
    np.testing.assert_array_equal(stored["target_embedding"], model.params["target_embedding"])
    assert manifest_of(file)["card"] == "card"


def test_bundle_of_the_same_model_is_the_same_file(file, model, tmp_path):
    again = tmp_path / "again.bundle"
    digest = save(again, model)
    assert again.read_bytes() == file.read_bytes()
    theirs = subprocess.run(["sha256sum", again], capture_output=True, text=True, check=True)
    assert theirs.stdout.split()[0] == digest
    with pytest.raises(UserError, match="exists; name a new file"):
        save(again, model)
    assert [path.name for path in tmp_path.iterdir()] == ["again.bundle"]


def test_bundle_that_cannot_be_written_leaves_no_file(model, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    def fail_in_rust(*_, **__):
        raise safetensors.SafetensorError("No space left on device")

    def write_otherwise(tensors, path, metadata):
        save_file(tensors, path, {"first": "", "second": "".join(metadata.values())})

    full = "cannot be written: No space left on device"
    failures = {fail: full, fail_in_rust: full, write_otherwise: "writes metadata in another order"}
    for failure, words in failures.items():
        monkeypatch.setattr(bundle, "save_file", failure)
        with pytest.raises(UserError, match=words):
            save(tmp_path / "new/x.bundle", model)
        assert not list(tmp_path.iterdir())


def replace_embedding(tensors, manifest):
    tensors["target_embedding"] = np.zeros((3, 2), np.float32)


def with_model(**fields):
    """Changes the config, and its parameters not."""
    return lambda _, manifest: manifest["config"]["model"].update(fields)


NORM = "decoder_norm/norm/scale"
CHANGES = {
    "a missing parameter": (lambda tensors, _: tensors.pop(NORM), f"damaged: .*{NORM}"),
    "another tensor": (lambda tensors, _: tensors.update(x=np.zeros(2)), "x is not a parameter"),
    "another shape": (replace_embedding, r"target_embedding has the shape \(3, 2\)"),
    "a newer format": (lambda _, rest: rest.update(version=2), "this version does not know"),
    "no name": (lambda _, rest: rest["facts"].pop("name"), "damaged: .*'name'"),
    "an unknown score": (lambda _, rest: rest["facts"].update(scores=[{"x": 1}]), "damaged: .*'x'"),
    "no config": (lambda _, rest: rest.pop("config"), "damaged: 'config'"),
    "a tokenizer outside": (
        lambda _, rest: rest["tokenizers"].update({"../x": ""}),
        "'../x' is no name of a tokenizer's file",
    ),
    "a list of tokenizers": (lambda _, rest: rest.update(tokenizers=["x"]), "damaged: "),
    "a number of tokenizers": (lambda _, rest: rest.update(tokenizers=7), "damaged: "),
    "a parent as tokenizer": (
        lambda _, rest: rest["tokenizers"].update({"..": ""}),
        r"'\.\.' is no name of a tokenizer's file",
    ),
    "a nameless tokenizer": (
        lambda _, rest: rest["tokenizers"].update({"": ""}),
        "'' is no name of a tokenizer's file",
    ),
    "a tokenizer of a long name": (
        lambda _, rest: rest["tokenizers"].update({300 * "x": ""}),
        "'x{60}' is no name of a tokenizer's file",
    ),
    "nested facts": (lambda _, rest: rest.update(facts="DEEP"), "damaged: maximum recursion"),
    "facts that are a list": (lambda _, rest: rest.update(facts=[1]), "damaged: "),
    "wide layers": (with_model(d_model=10**7), r"d_model is 10000000, more than its parameters"),
    "many layers": (with_model(num_encoder_layers=10**7), "num_encoder_layers is 10000000, more"),
    "long texts": (with_model(max_len=10**12), "needs more memory than this machine has free"),
    "a feed-forward block": (with_model(d_ff=10**30), "damaged: "),
    "no tokenizer": (lambda _, rest: rest.update(tokenizers={}), "no usable tokenizer"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_bundle_that_was_made_otherwise_is_refused_in_a_sentence(name, file, tmp_path):
    change, words = CHANGES[name]
    path = rewritten(file, tmp_path / "x.bundle", change)
    with pytest.raises(UserError, match=words) as error:
        Translator.load(path)
    assert str(path) in str(error.value)
    assert tempfile.gettempdir() not in str(error.value).replace(str(path), "")


def test_bundle_with_any_changed_byte_or_cut_short_is_refused_by_name(file, tmp_path):
    data, path = file.read_bytes(), tmp_path / "x.bundle"
    header = 8 + int.from_bytes(data[:8], "little")
    places = [*range(140), *range(140, header, 499), *range(header - 9, header)]
    places += [*range(header, len(data), 7919), len(data) - 1]
    for place in places:
        for other in {data[place] ^ 0x10, ord("\t")} - {data[place]}:
            path.write_bytes(data[:place] + bytes([other]) + data[place + 1 :])
            with pytest.raises(UserError, match=r"x\.bundle.*[Cc]opy it again") as error:
                pretrained.load(path)
            assert "\n" not in str(error.value)
            with contextlib.suppress(UserError):  # which commands call first
                pretrained.read_config(path)
    for length in (0, 5, 100, header, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"[Cc]opy it again"):
            pretrained.load(path)
    path.write_bytes(data + b"x")
    with pytest.raises(UserError, match="does not contain what was written"):
        pretrained.load(path)


@pytest.mark.parametrize("name", ["m.ckpt", "m.bin", "m.pt", "m.safetensors", "m.gz", "m"])
def test_bundle_is_recognised_by_its_content(name, file, tmp_path):
    path = tmp_path / name
    shutil.copy(file, path)
    assert pretrained.load(path).step == 60


def test_bundle_keeps_the_type_of_its_parameters(file, model, tmp_path):
    halves = jax.tree.map(lambda x: x.astype("bfloat16"), model.params)
    path = tmp_path / "half.bundle"
    bundle.write(path, model.config, model.tokenizers, halves, FACTS)
    assert path.stat().st_size < file.stat().st_size - 10_000
    stored = load_file(path)["target_embedding"]
    want = np.asarray(model.params["target_embedding"]).astype(ml_dtypes.bfloat16)
    assert stored.dtype == want.dtype
    loaded = bundle.read_model(path).params["target_embedding"]
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, want.astype(np.float32))


def test_bundle_is_readable_by_whom_new_files_are(file):
    umask = os.umask(0)
    os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask


def test_bundle_is_read_without_a_second_copy(tokenizers, tmp_path):
    large = small_model(tokenizers, d_model=256, d_ff=2048)
    save(tmp_path / "x.bundle", large)
    bundle.read_model(tmp_path / "x.bundle")  # loads what is loaded once
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    params = bundle.read_model(tmp_path / "x.bundle").params
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
    # Arrays that JAX has copied are not traced; of the others there is one at a time.
    assert peak < sum(sizes) + 2 * max(sizes)
    assert peak < 1.5 * sum(sizes)


def test_bundle_has_no_checkpoints(file):
    with pytest.raises(UserError, match="is a bundle: it has no checkpoint latest"):
        Translator.load(file, checkpoint="latest")


def test_bundle_of_a_hugging_face_model(tokenizers, tmp_path):
    folder = write(tmp_path / "m", small_model(tokenizers))
    save(tmp_path / "m.bundle", pretrained.load(folder))
    want = Translator.load(folder).score(TEXTS, TEXTS)
    shutil.rmtree(folder)
    assert Translator.load(tmp_path / "m.bundle").score(TEXTS, TEXTS) == want


def test_bundle_in_an_object_store(file, bucket, model):
    remote = bucket / "tiny.bundle"
    remote.write_bytes(file.read_bytes())
    loaded = pretrained.load(remote)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, model.params)


def test_fine_tuning_starts_from_a_bundle(file, model, tiny_run, tmp_path):
    begin_run(tiny_config(tiny_run[0], init_from=str(file)), tmp_path / "run")
    begun = pretrained.load(tmp_path / "run", "latest").params
    jax.tree.map(np.testing.assert_array_equal, begun, model.params)


# --- Commands -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_bundle_command_and_the_commands_that_read_its_file(tiny_run, tmp_path):
    workdir, text = f"--workdir={tiny_run[1]}", "\n".join(TEXTS)
    status, out, _ = run(
        "bundle", workdir, "--output=m/tiny.bundle", "--licence=cc-by-4.0", cwd=tmp_path
    )
    assert status == 0
    assert re.fullmatch(r"wrote m/tiny.bundle: (59|60) kB, .* SHA-256 [0-9a-f]{64}\n", out)
    moved = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "m", moved)
    file = "--workdir=tiny.bundle"
    want = run("decode", workdir, cwd=moved, text=text)
    assert want[0] == 0
    assert run("decode", file, cwd=moved, text=text)[:2] == want[:2]
    want = run("eval", workdir, cwd=moved)
    assert run("eval", file, cwd=moved)[:2] == want[:2]
    # Compared with itself: the bundle is a system, not a file of translations.
    # A bundle is a system to compare with, and no file of translations.
    status, out, err = run("eval", file, "--split=train", "--compare=tiny.bundle", cwd=moved)
    assert (status, "compared with tiny.bundle" in out) == (0, True), err
    status, out, err = run("export", file, "--format=stablehlo", "--output=out", cwd=moved)
    assert (status, out.splitlines()[-1]) == (0, "wrote out"), err
    for name in ("bundle", "stablehlo"):
        if name == "bundle":
            card = manifest_of(moved / "tiny.bundle")["card"]
        else:
            card = (moved / "out/README.md").read_text()
        assert "from a work directory" in card  # also the export of the bundle
        assert 'license: "cc-by-4.0"' in card
        assert "| validation set | 8 |" in card  # the scores of the run are in the bundle
    status, _, err = run("bundle", workdir, "--output=tiny.bundle", cwd=moved)
    assert (status, err) == (2, "error: --output=tiny.bundle exists; name a new file.\n")


@pytest.mark.slow
def test_bundle_card_has_a_program_that_runs(tiny_run, translator, tmp_path):
    run("bundle", f"--workdir={tiny_run[1]}", "--output=tiny.bundle", cwd=tmp_path)
    card = manifest_of(tmp_path / "tiny.bundle")["card"]
    (program,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(program.splitlines()) <= 10
    sentence = (tiny_run[0] / "val.en").read_text().splitlines()[0]
    assert json.dumps(sentence) in program
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == translator.translate([sentence])[0].text + "\n"
