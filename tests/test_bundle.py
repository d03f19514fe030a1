"""A model as one file: written, read by every command, and refused where it was changed."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.conftest import tiny_config
from tests.test_huggingface import small_model, write
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.interop import pretrained
from transformer_jax.runs import bundle
from transformer_jax.training.loop import train

ROOT = Path(__file__).parent.parent
MAIN = "from transformer_jax.commands.main import main; main()"
TEXTS = ["one two three", "nine", "four four seven"]


def run(*arguments, cwd, text=""):
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        input=text,
        text=True,
        capture_output=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stdout, done.stderr


def save(path, model, readme="card", **facts):
    return bundle.write(
        path, model.config, model.tokenizers, model.params, readme, {"step": model.step, **facts}
    )


@pytest.fixture(scope="module")
def model(tiny_run):
    return pretrained.load(tiny_run[1])


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "tiny.bundle"
    save(path, model)
    return path


def rewritten(file, path, change):
    """A copy of a bundle; `change` gets the members by name, and may replace them."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
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
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    with zipfile.ZipFile(file) as archive:
        arrays = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        assert sum(info.file_size for info in arrays) < num_bytes + 200 * len(arrays)
        assert len(arrays) == len(jax.tree.leaves(model.params))
        # Other tools read it: here NumPy.
        with archive.open("params/target_embedding.npy") as member:
            np.testing.assert_array_equal(np.load(member), model.params["target_embedding"])


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

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        save(tmp_path / "x.bundle", model)
    assert not list(tmp_path.iterdir())


def flip(name):
    def change(members):
        data = bytearray(members[name])
        data[-1] ^= 1
        members[name] = bytes(data)

    return change


def add(name):
    return lambda members: members.update({name: b"x"})


def replace_embedding(members):
    """A member and its digest are changed, so only its shape differs."""
    import hashlib
    import io

    data = io.BytesIO()
    np.save(data, np.zeros((3, 2), np.float32))
    manifest = json.loads(members["manifest.json"])
    name = "params/target_embedding.npy"
    members[name] = data.getvalue()
    manifest["sha256"][name] = hashlib.sha256(data.getvalue()).hexdigest()
    members["manifest.json"] = json.dumps(manifest).encode()


def newer(members):
    manifest = json.loads(members["manifest.json"]) | {"version": 2}
    members["manifest.json"] = json.dumps(manifest).encode()


NORM = "params/decoder_norm/norm/scale.npy"
CHANGES = {
    "a flipped bit of a parameter": (flip(NORM), f"damaged: {NORM} does not contain what was"),
    "a flipped bit of the config": (flip("config.json"), "config.json does not contain what was"),
    "a flipped bit of the tokenizer": (flip("tokenizer/shared.model"), "tokenizer/shared.model"),
    "a flipped bit of the card": (flip("README.md"), "README.md does not contain what was"),
    "a missing parameter": (lambda members: members.pop(NORM), f"{NORM} is missing"),
    "another file": (add("params/x.npy"), "params/x.npy was added"),
    "no manifest": (lambda members: members.pop("manifest.json"), "zip archive, but not a bundle"),
    "another shape": (replace_embedding, "target_embedding.npy has the shape"),
    "a newer format": (newer, "in a form that this version does not know"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_bundle_that_was_changed_is_refused_by_name(name, file, tmp_path):
    change, words = CHANGES[name]
    path = rewritten(file, tmp_path / "x.bundle", change)
    with pytest.raises(UserError, match=re.escape(words)) as error:
        Translator.load(path)
    assert str(path) in str(error.value)


def test_bundle_with_any_flipped_byte_or_cut_short_is_refused_or_the_same(file, tmp_path, model):
    """Some bytes of a zip archive mean nothing, such as dates. All others are noticed."""
    data, path = file.read_bytes(), tmp_path / "x.bundle"
    refused = 0
    for place in range(0, len(data), 2999):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            params = bundle.read(path).params if place > 3 else None
        except UserError:
            refused += 1
        else:
            assert params is None or jax.tree.all(
                jax.tree.map(np.array_equal, params, model.params)
            )
    assert refused > len(data) / 2999 / 2
    for length in (len(data) - 1, len(data) // 2, 100):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"damaged: .*Copy it again"):
            Translator.load(path)


def test_bundle_is_read_without_a_second_copy(tokenizers, tmp_path):
    large = small_model(tokenizers, d_model=256, d_ff=2048)
    save(tmp_path / "x.bundle", large)
    bundle.read(tmp_path / "x.bundle")  # loads what is loaded once
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    params = bundle.read(tmp_path / "x.bundle").params
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
    settings = {"init_from": str(file), "num_steps": 1, "eval_every_steps": 0}
    config = tiny_config(tiny_run[0], **settings, checkpoint_every_steps=1)
    rate = dataclasses.replace(config.optimizer, learning_rate=1e-9, warmup_steps=1)
    train(dataclasses.replace(config, optimizer=rate), tmp_path / "run")
    tuned = pretrained.load(tmp_path / "run", "latest").params
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), tuned, model.params)


# --- Commands -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_bundle_command_and_the_commands_that_read_its_file(tiny_run, tmp_path):
    workdir, text = f"--workdir={tiny_run[1]}", "\n".join(TEXTS)
    status, out, _ = run(
        "bundle", workdir, "--output=m/tiny.bundle", "--licence=cc-by-4.0", cwd=tmp_path
    )
    assert status == 0
    assert re.fullmatch(r"wrote m/tiny.bundle: 0.1 MB, .* SHA-256 [0-9a-f]{64}\n", out)
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
            with zipfile.ZipFile(moved / "tiny.bundle") as archive:
                card = archive.read("README.md").decode()
        else:
            card = (moved / "out/README.md").read_text()
        assert 'license: "cc-by-4.0"' in card
        assert "| validation set | 8 |" in card  # the scores of the run are in the bundle
    status, _, err = run("bundle", workdir, "--output=tiny.bundle", cwd=moved)
    assert (status, err) == (2, "error: --output=tiny.bundle exists; name a new file.\n")


@pytest.mark.slow
def test_bundle_card_has_a_program_that_runs(tiny_run, translator, tmp_path):
    run("bundle", f"--workdir={tiny_run[1]}", "--output=tiny.bundle", cwd=tmp_path)
    with zipfile.ZipFile(tmp_path / "tiny.bundle") as archive:
        card = archive.read("README.md").decode()
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
