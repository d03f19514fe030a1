"""Exports, without the programs that read them: refusals, tags, prefixes, sample text."""

import dataclasses
import importlib
import json

import jax
import numpy as np
import pytest

from tests.huggingface_models import small_model
from transformer_jax.config import ModelConfig
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import (
    FORMATS,
    capabilities,
    export,
    layout,
    sample_text,
    stablehlo,
    usage_examples,
)
from transformer_jax.extras.interop.huggingface import tokenizer_writing, writing
from transformer_jax.extras.interop.sample_text import SampleText
from transformer_jax.translator import pretrained

REFUSED = {
    "rotary": ({"positional": "rotary"}, ["config.model.positional=rotary"]),
    "head_dim": ({"head_dim": 5}, ["model.head_dim=5"]),
    "decoder's head_dim": ({"head_dim": 8, "num_decoder_heads": 1}, ["model.head_dim=8"]),
    "pre-norm, two tables": (
        {"norm_position": "pre", "tie_embeddings": "decoder"},
        ["pre-norm", "decoder"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_export_to_marian_refuses_by_name_what_it_cannot_express(name, tokenizers, tmp_path):
    fields, words = REFUSED[name]
    model = small_model(tokenizers, **fields)
    with pytest.raises(UserError) as error:
        writing.plan_export(model.config, tokenizers, model.params)
    for word in ["`format=marian` cannot express", *words]:
        assert word in str(error.value)


def test_export_to_marian_refuses_a_lower_casing_tokenizer(tokenizers):
    from transformer_jax.data.tokenizer import Tokenizer

    lower = Tokenizer(tokenizers.source.model, lowercase=True)
    model = small_model(TokenizerPair(lower, lower))
    with pytest.raises(UserError, match="lower-cases"):
        writing.plan_export(model.config, model.tokenizers, model.params)


def test_permute_model_keeps_the_logits(tokenizers):
    model = small_model(tokenizers, positional="none")
    order = np.random.default_rng(0).permutation(16)
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: x + rng.normal(0, 0.3, x.shape).astype(np.float32), model.params
    )
    turned = layout.permute_model(params, order)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), params, turned)
    untouched = {path for path, leaf in layout.flatten(changed).items() if not leaf}
    assert {path[-2:] for path in untouched} == {
        (name, "bias") for name in ("query", "key", "value", "up")
    }
    from transformer_jax.model.transformer import Transformer

    batch = {
        name: np.ones((2, 4), np.int32)
        for name in ("decoder_inputs", "inputs", "inputs_segment_ids", "targets_segment_ids")
    }
    batch |= {f"{side}_positions": np.tile(np.arange(4), (2, 1)) for side in ("inputs", "targets")}
    batch["inputs"] = batch["decoder_inputs"] = np.array([[5, 9, 11, 7], [8, 30, 6, 6]])
    logits = jax.jit(lambda p: Transformer(model.config.model).apply({"params": p}, batch))
    np.testing.assert_allclose(logits(turned), logits(params), atol=1e-4)


def test_export_to_marian_writes_language_tags_as_marians(tokenizers):
    vocabulary = tokenizer_writing._marian_vocabulary(tokenizers.source, tokenizers.tags)
    assert vocabulary == {p: i for i, p in enumerate(tokenizers.source.tokens(range(295)))}
    renamed = tokenizer_writing._marian_vocabulary(tokenizers.source, LanguageTags("▁{}e"))
    assert ">>on<<" in renamed


def test_exports_begin_with_the_tag_of_their_language(tokenizers):
    model = small_model(tokenizers)
    pair = TokenizerPair(tokenizers.source, tokenizers.target, LanguageTags("<s>", both_sides=True))
    data = dataclasses.replace(model.config.data, target_language_tags=True)
    settings = writing._generation_settings(dataclasses.replace(model.config, data=data), pair)
    assert settings["forced_bos_token_id"] == tokenizers.target.bos_id
    assert "forced_bos_token_id" not in writing._generation_settings(model.config, tokenizers)


def test_programs_of_exports_have_the_prefix_of_every_source(tokenizers):
    model = small_model(tokenizers)
    data = dataclasses.replace(model.config.data, source_prefix="one two: ")
    config = dataclasses.replace(model.config, data=data)
    ids = tokenizers.source.encode("one two: ")
    assert stablehlo._manifest(config, tokenizers)["source_prefix"] == ids
    assert '"one two: A dog."' in usage_examples.huggingface(config, tokenizers, "A dog.")
    program = usage_examples.ctranslate2(config, tokenizers, "A dog.")
    assert json.dumps(tokenizers.source.tokens(ids), ensure_ascii=False)[1:-1] in program
    data = dataclasses.replace(data, source_prefix="", target_language_tags=True)
    pair = TokenizerPair(tokenizers.source, tokenizers.target, LanguageTags("<2{}>", is_word=True))
    with pytest.raises(UserError, match="has no token <2de>"):  # MADLAD's form of a tag
        usage_examples.huggingface(dataclasses.replace(config, data=data), pair, "A dog.")


def test_export_refuses_wrong_arguments(translator, tmp_path):
    model = pretrained.Pretrained(translator.config, translator.tokenizers, translator.params, 0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    text = SampleText(("one two",))
    for arguments, words in (
        (("marian", tmp_path / "full", text), "exists"),
        (("marian", "gs://bucket/out", text), "local folder"),
        (("marian", tmp_path / "out", text, "int8"), "is for `format=ctranslate2`"),
        (("ctranslate2", tmp_path / "out", text, "int8"), "needs references"),
    ):
        with pytest.raises(UserError, match=words):
            export.export_model(model, *arguments)
    assert (tmp_path / "full/file").exists()


def test_export_needs_the_tokenizer_of_bleu_before_it_begins(translator, tmp_path, monkeypatch):
    importlib.import_module("sacrebleu.tokenizers.tokenizer_ja_mecab")
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    monkeypatch.setattr(export, "_Exporter", None)  # nothing is computed
    data = dataclasses.replace(translator.config.data, target_lang="ja")
    config = dataclasses.replace(translator.config, data=data)
    model = pretrained.Pretrained(config, translator.tokenizers, translator.params, 0)
    text = SampleText(("one two",), ("eins zwei",))
    with pytest.raises(UserError, match=r"not installed: pip install 'sacrebleu\[ja\]'"):
        export.export_model(model, "ctranslate2", tmp_path / "out", text, "int8")
    assert not list(tmp_path.iterdir())


def test_sample_text_is_the_validation_set_the_test_set_or_samples(tiny_run, tmp_path, translator):
    config, (data, workdir) = translator.config, tiny_run
    text = sample_text.find(workdir, config)
    assert text.name == "the validation set"
    assert text.sentences == tuple((data / "val.en").read_text().splitlines())
    assert text.references == tuple((data / "val.de").read_text().splitlines())

    def moved(**splits):
        return dataclasses.replace(config, data=dataclasses.replace(config.data, **splits))

    test = sample_text.find(workdir, moved(validation="gone"))
    assert (test.name, len(test.sentences), len(test.references)) == ("the test set", 20, 20)
    samples = sample_text.find(workdir, moved(validation="gone", test="gone"))
    assert set(zip(*samples[:2], strict=True)) <= set(zip(*text[:2], strict=True))
    assert len(samples.sentences) == 5
    line = '{"source": "a\u2028b", "reference": "c"}'  # a line separator inside a sentence
    (tmp_path / "samples.jsonl").write_text(f"{line}\n{line[:20]}")  # and a line that was cut
    assert sample_text.find(tmp_path, moved(validation="gone", test="gone"))[:2] == (
        ("a\u2028b",),
        ("c",),
    )
    (tmp_path / "samples.jsonl").unlink()
    with pytest.raises(UserError, match="Set `sentences` to a file"):
        sample_text.find(tmp_path, moved(validation="gone", test="gone"))


def test_sample_text_is_read_from_files(tiny_run, tmp_path, translator):
    def find(*names):
        return sample_text.find(tiny_run[1], translator.config, *(str(tmp_path / n) for n in names))

    (tmp_path / "text").write_text("one\n\ntwo\n" + "three\n" * 600)
    (tmp_path / "translation").write_text("eins\nnull\n\n" + "drei\n" * 600)
    assert find("text")[:2] == (("one", "two", *["three"] * 498), ())
    # An empty reference counts: the output should be empty.
    assert find("text", "translation").references == ("eins", "", *["drei"] * 498)
    (tmp_path / "short").write_text("eins\n")
    with pytest.raises(UserError, match=r"has 603 lines, but .*short .* 1; it needs one for each"):
        find("text", "short")
    with pytest.raises(UserError, match=r"no file .*nowhere \(`sentences`\)"):
        find("nowhere")
    with pytest.raises(UserError, match="name it by `sentences`"):
        sample_text.find(tiny_run[1], translator.config, "", "translation")


@pytest.mark.parametrize("format_name", FORMATS)
def test_capabilities_are_about_fields_of_the_model_and_allow_its_defaults(format_name):
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    assert set(capabilities.EXPRESSIBLE[format_name]) <= fields
    capabilities.check(format_name, ModelConfig())


def test_capabilities_refuse_a_field_that_the_format_does_not_name(monkeypatch):
    gelu = ModelConfig(activation="gelu")
    capabilities.check("marian", gelu)
    monkeypatch.delitem(capabilities.EXPRESSIBLE["marian"], "activation")
    capabilities.check("marian", ModelConfig())
    with pytest.raises(UserError, match=r"config\.model\.activation=gelu, only relu"):
        capabilities.check("marian", gelu)
