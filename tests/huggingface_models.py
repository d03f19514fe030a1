"""Small Hugging Face directories for the tests, and changes that damage them."""

import json
import shutil

import pytest
import safetensors.numpy
from etils import epath

from tests.test_step import random_params
from transformer_jax import Translator
from transformer_jax.config import Config, DataConfig, ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import reading, writing
from transformer_jax.translator import pretrained


def small_model(tokenizers, **fields):
    size = tokenizers.source.vocab_size
    model = ModelConfig(
        **{
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "d_model": 16,
            "num_heads": 2,
            "d_ff": 24,
            "max_len": 32,
            "source_vocab_size": size,
            "target_vocab_size": size,
            "decoder_start_id": tokenizers.target.bos_id,
            **fields,
        }
    )
    shared = model.tie_embeddings == "all"
    data = DataConfig(source="files", max_len=32, shared_vocab=shared)
    config = Config(model=model, data=data)
    params = random_params(model)
    return pretrained.Pretrained(config, tokenizers, params, 0)


def write(folder, model):
    plan = writing.plan_export(model.config, model.tokenizers, model.params)
    writing.write_directory(epath.Path(folder), model.config, model.tokenizers, model.params, plan)
    return folder


def edit(name, **changes):
    """Changes settings in a JSON file; None removes one."""

    def change(folder):
        tree = json.loads((folder / name).read_text())
        tree = {k: v for k, v in {**tree, **changes}.items() if v is not None}
        (folder / name).write_text(json.dumps(tree))

    return change


def edit_tensors(change):
    def apply(folder):
        path = folder / "model.safetensors"
        tensors = {k: v.copy() for k, v in safetensors.numpy.load_file(path).items()}
        change(tensors)
        safetensors.numpy.save_file(tensors, path)

    return apply


def remove(name):
    return lambda folder: (folder / name).unlink()


def truncate(name, share):
    def change(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return change


def assert_names_damage(intact, change, words, folder):
    """A copy of the directory is read, and not after the change: one sentence with the words."""
    shutil.copytree(intact, folder)
    reading.read_model(folder)
    change(folder)
    with pytest.raises(UserError) as error:
        Translator.load(folder)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
