"""Models of JoeyNMT: settings that are followed; one sentence for what is damaged or refused."""

import re
import shutil

import numpy as np
import pytest
import sentencepiece
import yaml
from safetensors.numpy import load_file, save_file

from tests import joeynmt_models
from tests.joeynmt_models import CONFIG, STACK, changed
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.joeynmt import reading, vocabularies
from transformer_jax.workdir import directory_kinds

TEXTS = ["one two three four", "five six seven", "eight nine ten eleven", "twelve thirteen"] * 5


@pytest.fixture(scope="module")
def joeynmt(tmp_path_factory):
    """A model with a vocabulary of each side."""
    folder = tmp_path_factory.mktemp("joeynmt") / "m"
    models = [joeynmt_models.spm_model(TEXTS, 45), joeynmt_models.spm_model(TEXTS, 40)]
    joeynmt_models.write_joeynmt(folder, models, CONFIG)
    return folder


def settings(**changes):
    """Changes `config.yaml`, as `changed` does."""

    def change(folder):
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(changed(yaml.safe_load(path.read_text()), **changes)))

    return change


def tensors(edit):
    """Changes the tensors of the model."""

    def change(folder):
        stored = load_file(folder / "best.safetensors")
        edit(stored)
        save_file(stored, folder / "best.safetensors")

    return change


def file(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def without(name):
    return lambda folder: (folder / name).unlink()


def as_two_checkpoints(folder):
    shutil.copy(folder / "best.safetensors", folder / "1.safetensors")
    (folder / "best.safetensors").rename(folder / "2.safetensors")


QUERY = "encoder.layers.0.src_src_att.q_layer.weight"
DAMAGE = {
    "config of another type": (file("config.yaml", b"- a"), ["must hold settings of JoeyNMT"]),
    "config that is no YAML": (file("config.yaml", b"a: [b"), ["config.yaml is not YAML"]),
    "no checkpoint": (without("best.safetensors"), ["has no checkpoint, best.ckpt"]),
    "two checkpoints": (as_two_checkpoints, ["(1, 2)", "name one best.ckpt"]),
    "missing vocabulary": (without("trg_vocab.txt"), ["trg_vocab.txt is missing"]),
    "missing source vocabulary": (without("src_vocab.txt"), ["src_vocab.txt is missing"]),
    "vocabulary that is no text": (file("src_vocab.txt", b"\xff\xfe"), ["is no text in UTF-8"]),
    "short vocabulary": (file("src_vocab.txt", b"a\nb\n"), ["shape [46, 24]", "imply [6, 24]"]),
    "missing SentencePiece model": (without("src.model"), ["model_file names data/src.model"]),
    "no SentencePiece model": (settings(data__src__tokenizer_cfg=None), ["=None must name a file"]),
    "damaged SentencePiece model": (file("src.model", b"x"), ["src.model is damaged"]),
    "words": (settings(data__src__level="word"), ["data.src.level='word' is not supported"]),
    "subword-nmt": (settings(data__trg__tokenizer_type="subword-nmt"), ["tokenizer_type='subword"]),
    "lower case": (settings(data__src__lowercase=True), ["data.src.lowercase=True is not"]),
    "Moses": (settings(data__src__tokenizer_cfg__pretokenizer="moses"), ["pretokenizer='moses'"]),
    "prompts": (settings(data__special_symbols__sep_token="<sep>"), ["sep_token='<sep>'"]),
    "languages": (settings(data__special_symbols__lang_tags=["<de>"]), ["lang_tags=['<de>']"]),
    "recurrent encoder": (
        settings(model__encoder__type=None),
        ["encoder.type, so it is recurrent"],
    ),
    "recurrent decoder": (settings(model__decoder__type="recurrent"), ["decoder.type='recurrent'"]),
    "DeepNet": (settings(model__encoder__alpha=1.2), ["model.encoder.alpha=1.2 is not supported"]),
    "DeepNet by its initializer": (
        settings(model__initializer="xavier_normal"),
        ["initializer='xavier_normal' (DeepNet) is not supported"],
    ),
    "beams of text": (settings(testing__beam_size="x"), ["beam_size='x' must be a number"]),
    "activation of another type": (
        settings(model__encoder__activation=["relu"], model__decoder__activation=["relu"]),
        ["activation=['relu'] is not supported"],
    ),
    "another checkpoint that is missing": (
        settings(testing__load_model="models/9.ckpt"),
        ["testing.load_model names models/9.ckpt", "is missing"],
    ),
    "no norm position": (
        settings(model__encoder__layer_norm=None),
        ["layer_norm of encoder and decoder, ['', 'post'], must be the same"],
    ),
    "tanh": (
        settings(model__encoder__activation="tanh", model__decoder__activation="tanh"),
        ["activation='tanh' is not supported; relu, gelu, swish are"],
    ),
    "width of text": (settings(model__decoder__hidden_size="24"), ["='24' must be an integer"]),
    "repetitions": (settings(testing__repetition_penalty=1.5), ["repetition_penalty=1.5 is not"]),
    "tied sides with two vocabularies": (
        settings(model__tied_embeddings=True),
        ["tie_embeddings=inputs", "shared_vocab"],
    ),
    "tied tables that differ": (
        settings(model__tied_softmax=True),
        ["ties trg_embed.lut.weight and decoder.output_layer.weight; they differ"],
    ),
    "missing tensor": (tensors(lambda t: t.pop(QUERY)), [f"has no tensor {QUERY}"]),
    "other shape": (
        tensors(lambda t: t.update({QUERY: t[QUERY][:-1]})),
        [f"tensor {QUERY} has shape [23, 24]", "imply [24, 24]"],
    ),
    "further tensor": (
        tensors(lambda t: t.update(more=np.zeros(3, np.float32))),
        ["the tensor more is not part of the model"],
    ),
    "cut checkpoint": (
        lambda folder: (folder / "best.safetensors").write_bytes(
            (folder / "best.safetensors").read_bytes()[:-99]
        ),
        ["best.safetensors is damaged"],
    ),
    "pickle": (
        lambda folder: (folder / "best.safetensors").rename(folder / "best.ckpt"),
        ["best.ckpt is a pickle, which can run any program", "transformer-jax convert"],
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_joeynmt_model_names_what_is_damaged_or_not_supported(name, joeynmt, tmp_path):
    change, parts = DAMAGE[name]
    shutil.copytree(joeynmt, tmp_path / "m")
    change(tmp_path / "m")
    with pytest.raises(UserError) as caught:
        Translator.load(tmp_path / "m")
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert re.search(re.escape(part), message), message


def test_joeynmts_settings_are_followed(joeynmt, tmp_path):
    what = directory_kinds.describe(joeynmt)
    assert what == "is a model of JoeyNMT, and no work directory"
    config = reading.read_config(joeynmt)
    assert (config.data.source_lang, config.data.target_lang) == ("en", "de")
    assert (config.model.num_encoder_layers, config.model.num_decoder_layers) == (2, 3)
    assert (config.model.dropout_rate, config.model.norm_position) == (0.1, "post")
    decode = config.decode
    assert (decode.beam_size, decode.length_penalty, decode.max_decode_len) == (3, 0.7, 12)
    assert (decode.length_penalty_kind, decode.min_decode_len) == ("gnmt", 2)
    assert decode.suppressed_ids == (1, 2)  # padding and start
    shutil.copytree(joeynmt, tmp_path / "m")
    settings(testing={"generate_unk": False}, model__encoder={**STACK, "dropout": 0.3})(
        tmp_path / "m"
    )
    config = reading.read_config(tmp_path / "m")
    decode = config.decode
    assert config.model.attention_dropout_rate == 0.3
    assert (decode.beam_size, decode.length_penalty, decode.max_decode_ratio) == (1, 0.0, 1.5)
    assert decode.suppressed_ids == (0, 1, 2)


def test_text_is_split_into_tokens_of_the_vocabulary(tmp_path):
    """As `SetVocabulary` of SentencePiece 0.2.0 does, with this model and without these tokens."""
    model = joeynmt_models.spm_model(TEXTS, 45)
    (tmp_path / "m.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokens = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    assert processor.encode("five seven", out_type=str) == ["▁f", "ive", "▁s", "even"]
    for left_out in ("▁t", "ee", "▁f", "een", "w", "ve", "▁s"):
        tokens.pop(left_out, None)
    proto = vocabularies.restricted(tmp_path / "m.model", tokens)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    for text, split in {
        "one two three": "▁o ne ▁tw o ▁th ree",
        "five seven": "▁ f ive ▁ s even",
        "thirteen eleven": "▁th ir te en ▁el even",
        "nine tweet": "▁ ni ne ▁tw e e t",
    }.items():
        assert processor.encode(text, out_type=str) == split.split()
