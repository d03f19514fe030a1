"""Fine-tuning of imported models: start, tags, runners."""

import dataclasses
import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from tests.conftest import tiny_config
from tests.huggingface_models import small_model, write
from transformer_jax import Translator
from transformer_jax.config import DecodeConfig
from transformer_jax.data.foreign_tokenizers import VocabularyTokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.training import setup
from transformer_jax.training.loop import train
from transformer_jax.training.runners import make_runner
from transformer_jax.translator import pretrained
from transformer_jax.translator.requests import Request
from transformer_jax.translator.translation_settings import TranslationSettings


def losses_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line["train_loss"] for line in lines if "train_loss" in line]


@pytest.mark.slow
def test_fine_tuning_starts_from_the_imported_model(tiny_run, translator, tmp_path):
    model = pretrained.Pretrained(
        translator.config, translator.tokenizers, jax.device_get(translator.params), 0
    )
    folder = write(tmp_path / "m", model)
    data, workdir = tiny_run
    config = tiny_config(
        data,
        num_steps=6,
        eval_every_steps=0,
        checkpoint_every_steps=6,
        log_every_steps=1,
        init_from=str(folder),
    )
    config = dataclasses.replace(
        config,
        # Another shape, on purpose: the imported one counts.
        model=dataclasses.replace(config.model, d_model=32, dropout_rate=0.0),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=0.001, warmup_steps=1),
    )
    train(config, tmp_path / "run")
    before = losses_of(workdir)[-1]
    tuned = losses_of(tmp_path / "run")
    assert tuned[0] < before + 0.1
    # On one batch, every step lowers the loss, the first included.
    prepared_config, prepared = setup.prepare(config, epath.Path(tmp_path / "b"), lambda text: None)
    runner = make_runner(prepared_config, jax.devices()[:1])
    state, falling = runner.init(0, prepared.initial_params), []
    batch = prepared.batches(prepared_config, 1)[0]
    for _ in range(4):
        state, metrics = runner.step(state, batch)
        falling.append(float(metrics["loss_sum"]))
    assert all(later < earlier for earlier, later in itertools.pairwise(falling))
    config_of_run = pretrained.read_config(tmp_path / "run")
    assert config_of_run.model.d_model == translator.config.model.d_model
    assert config_of_run.model.dropout_rate == 0.0
    # It resumes without the directory, which may be deleted.
    shutil.rmtree(folder)
    longer = dataclasses.replace(config.train, num_steps=10)
    train(dataclasses.replace(config, train=longer), tmp_path / "run")
    assert len(losses_of(tmp_path / "run")) == 10
    elsewhere = dataclasses.replace(config.train, init_from="elsewhere")
    with pytest.raises(UserError, match="was started from"):
        train(dataclasses.replace(config, train=elsewhere), tmp_path / "run")


def test_fine_tuning_keeps_marians_start_id_and_language_tags(tokenizers, tmp_path):
    """The first batch: the padding id starts the decoder, the tag starts the source."""
    spm = tokenizers.source
    tokens = ["</s>", "<unk>", ">>de<<", ">>fr<<", *spm.tokens(range(4, 295)), "<pad>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    special = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    one = VocabularyTokenizer(spm.model, vocabulary, special, len(vocabulary))
    pair = TokenizerPair(one, one, LanguageTags(">>{}<<"))
    pad = vocabulary["<pad>"]
    folder = write(
        tmp_path / "m",
        small_model(
            pair,
            decoder_start_id=pad,
            source_vocab_size=len(tokens),
            target_vocab_size=len(tokens),
            max_len=48,
        ),
    )
    config = tiny_config(tmp_path, init_from=str(folder))
    data = dataclasses.replace(config.data, target_language_tags=True)
    config, prepared = setup.prepare(
        dataclasses.replace(config, data=data), epath.Path(tmp_path / "run"), lambda text: None
    )
    batch = prepared.batches(config, 1)[0]
    first = batch["targets_positions"] == 0
    begins = first & (batch["targets_segment_ids"] > 0)
    assert begins.sum() > 20
    assert set(batch["decoder_inputs"][begins]) == {pad}
    starts = (batch["inputs_positions"] == 0) & (batch["inputs_segment_ids"] > 0)
    assert set(batch["inputs"][starts]) == {vocabulary[">>de<<"]}
    assert config.model.decoder_start_id == pad
    # And back: the export notes that tags are used.
    model = pretrained.Pretrained(config, prepared.tokenizers, prepared.initial_params, 0)
    model = dataclasses.replace(model, params=jax.device_get(model.params))
    again = Translator.load(write(tmp_path / "again", model))
    assert again.engine.language_tags() == ([vocabulary[">>de<<"]], [])


def test_long_text_parts_keep_the_language_tag_of_the_text(tokenizers):
    spm = tokenizers.source
    vocabulary = {p: i for i, p in enumerate([">>de<<", *spm.tokens(range(295))])}
    special = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    one = VocabularyTokenizer(spm.model, vocabulary, special, len(vocabulary))
    pair = TokenizerPair(one, one, LanguageTags(">>{}<<"))
    model = small_model(pair, max_len=12, source_vocab_size=296, target_vocab_size=296)
    engine = Translator(model.config, pair, model.params).engine
    request, settings = Request(">>de<< " + "one two " * 12), TranslationSettings(DecodeConfig())
    (parts,) = engine.encoder().encode([request], settings)
    assert len(parts) > 2
    assert {part.source[0] for part in parts} == {0}
    assert all(len(part.source) <= 12 for part in parts)


@pytest.mark.parametrize("runner", ["jit", "pmap"])
def test_runner_starts_from_given_parameters(runner, translator):
    config = dataclasses.replace(
        translator.config, parallel=dataclasses.replace(translator.config.parallel, runner=runner)
    )
    params = jax.tree.map(lambda x: x + 1.0, translator.params)
    fine_tuner = make_runner(config, jax.devices()[:2])
    state = fine_tuner.to_checkpoint_layout(fine_tuner.init(0, params))
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    assert int(state.step) == 0
