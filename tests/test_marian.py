"""Models of Marian itself that are damaged or not supported: one sentence each."""

import re
import shutil

import numpy as np
import pytest
import yaml

from tests import marian_models
from tests.marian_models import SETTINGS
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.marian import reading, vocabularies
from transformer_jax.workdir import directory_kinds

TEXTS = ["one two three four", "five six seven", "eight nine ten eleven", "twelve thirteen"] * 5


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A model with a vocabulary file for each side."""
    folder = tmp_path_factory.mktemp("marian") / "m"
    models = [marian_models.spm_model(TEXTS, 40)] * 2
    settings = {**SETTINGS, "tied-embeddings-all": False}
    marian_models.write_marian(folder, models, settings)
    return folder


def search(**changes):
    """Changes `decoder.yml`; None removes a setting."""

    def change(folder):
        path = folder / "decoder.yml"
        options = yaml.safe_load(path.read_text()) | changes
        path.write_text(yaml.safe_dump({k: v for k, v in options.items() if v is not None}))

    return change


def tensors(edit):
    """Changes the tensors of the model."""

    def change(folder):
        stored = dict(np.load(folder / "model.npz"))
        edit(stored)
        np.savez(folder / "model.npz", **stored)

    return change


def settings(**changes):
    """Changes the settings that are stored with the tensors."""

    def edit(stored):
        text = yaml.safe_load(stored["special:model.yml"].tobytes().rstrip(b"\0"))
        text |= {name.replace("_", "-"): value for name, value in changes.items()}
        stored["special:model.yml"] = np.frombuffer(yaml.safe_dump(text).encode(), np.int8)

    return tensors(edit)


def file(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def without(name):
    return lambda folder: (folder / name).unlink()


QUERY = "encoder_l1_self_Wq"
DAMAGE = {
    "search of another type": (file("decoder.yml", b"- a"), ["decoder.yml must hold settings"]),
    "search that is no YAML": (file("decoder.yml", b"a: [b"), ["decoder.yml is not YAML"]),
    "no models": (search(models=None), ["lists no `models`"]),
    "two models": (search(models=["a.npz", "b.npz"]), ["lists 2 models", "ensemble"]),
    "missing model": (without("model.npz"), ["names model.npz, which is not there"]),
    "binary model": (search(models=["source.spm"]), ["source.spm cannot be read", ".npz"]),
    "one vocabulary": (search(vocabs=["source.vocab.yml"]), ["must list two `vocabs`"]),
    "missing vocabulary": (without("target.vocab.yml"), ["target.vocab.yml, which is not there"]),
    "missing SentencePiece model": (without("source.spm"), ["source.spm is missing", "split"]),
    "damaged SentencePiece model": (file("source.spm", b"x"), ["source.spm is damaged"]),
    "vocabulary of words": (file("source.vocab.yml", b"- a\n- b"), ["TOKEN: ID"]),
    "vocabulary with a gap": (file("source.vocab.yml", b"</s>: 0\na: 2"), ["ids from 0 to 1"]),
    "vocabulary without end": (file("source.vocab.yml", b"a: 0\n<unk>: 1"), ["no token </s>"]),
    "small vocabulary": (
        file("source.vocab.yml", b"</s>: 0\n<unk>: 1"),
        ["source tokens, the vocabulary 2"],
    ),
    "factored vocabulary": (
        lambda folder: (
            (folder / "source.fsv").touch(),
            search(vocabs=["source.fsv"] * 2)(folder),
        ),
        ["source.fsv is no vocabulary that can be read"],
    ),
    "shortlist": (search(shortlist=["lex.s2t", 50, 50]), ["shortlist=", "not supported"]),
    "word penalty": (search(**{"word-penalty": 0.5}), ["word-penalty=0.5 is not supported"]),
    "no settings": (tensors(lambda t: t.pop("special:model.yml")), ["no special:model.yml"]),
    "recurrent model": (settings(type="s2s"), ["type='s2s' is not supported"]),
    "average attention": (
        settings(transformer_decoder_autoreg="average-attention"),
        ["transformer-decoder-autoreg='average-attention' is not supported"],
    ),
    "other norms": (settings(transformer_preprocess="n"), ["transformer-preprocess='n'", "'an'"]),
    "other activation": (settings(transformer_ffn_activation="gelu"), ["='gelu'", "relu, swish"]),
    "width of text": (settings(dim_emb="24"), ["dim-emb='24' must be an integer"]),
    "missing tensor": (tensors(lambda t: t.pop(QUERY)), [f"no tensor {QUERY}"]),
    "other shape": (
        tensors(lambda t: t.update({QUERY: t[QUERY][:-1]})),
        [f"tensor {QUERY} has shape [23, 24]"],
    ),
    "further tensor": (
        tensors(lambda t: t.update(Wpos=np.zeros((3, 24)))),
        ["the tensor Wpos is not part"],
    ),
    "pickled tensor": (
        tensors(lambda t: t.update({QUERY: np.array([None])})),
        ["model.npz is damaged", "allow_pickle=False"],
    ),
    "cut file": (
        lambda folder: (folder / "model.npz").write_bytes(
            (folder / "model.npz").read_bytes()[:-99]
        ),
        ["model.npz is damaged"],
    ),
    "several models": (
        lambda folder: [
            shutil.move(folder / "decoder.yml", folder / "model.npz.decoder.yml"),
            shutil.copy(folder / "model.npz.decoder.yml", folder / "best.npz.decoder.yml"),
        ],
        ["has several models (best.npz.decoder.yml, model.npz.decoder.yml); name one"],
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_marian_model_names_what_is_damaged_or_not_supported(name, marian, tmp_path):
    change, parts = DAMAGE[name]
    shutil.copytree(marian, tmp_path / "m")
    change(tmp_path / "m")
    with pytest.raises(UserError) as caught:
        Translator.load(tmp_path / "m")
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path) in message
    for part in parts:
        assert re.search(re.escape(part), message), message


def test_marian_model_is_named_by_its_file_and_read_from_anywhere(marian, tmp_path):
    want = reading.read_model(marian)
    shutil.copytree(marian, tmp_path / "m")
    (tmp_path / "m" / "decoder.yml").rename(tmp_path / "m" / "best.npz.decoder.yml")
    search_file = tmp_path / "m" / "best.npz.decoder.yml"
    options = yaml.safe_load(search_file.read_text())
    options["models"] = ["/elsewhere/model.npz"]  # as Marian writes it
    search_file.write_text(yaml.safe_dump(options))
    read = reading.read_model(search_file)
    params = read.params
    assert read.config == want.config == reading.read_config(search_file)
    for folder in (marian, tmp_path / "m"):
        what = directory_kinds.describe(folder)
        assert what == "is a model of Marian itself, and no work directory"
    assert read.tokenizers.fingerprint == want.tokenizers.fingerprint
    np.testing.assert_array_equal(params["output_bias"], want.params["output_bias"])
    # The row of zeros, with which decoding starts, is never written.
    assert not np.any(params["target_embedding"][-1])
    assert params["output_bias"][-1] == -100


def test_tokens_of_a_vocabulary_may_have_line_ends_of_yaml(tmp_path):
    """Marian's texts are lines that end with a line feed only."""
    path = tmp_path / "vocab.yml"
    tokens = ["</s>", "<unk>", "\x85", "a\u2028b", "no", "\ue000"]
    lines = [f'"{token}": {number}\n' for number, token in enumerate(tokens)]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    assert vocabularies._yaml_ids(path) == {token: n for n, token in enumerate(tokens)}
