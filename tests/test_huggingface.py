"""Hugging Face directories, without Hugging Face: damage, refusals, round trips, fine-tuning."""

import dataclasses
import functools
import importlib
import itertools
import json
import shutil
import tracemalloc

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath

from tests.conftest import tiny_config
from transformer_jax import Translator
from transformer_jax.config import Config, DataConfig, DecodeConfig, ModelConfig
from transformer_jax.data.foreign_tokenizers import ByteTokenizer, VocabularyTokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.decoding.requests import Request
from transformer_jax.decoding.search_settings import TranslationSettings
from transformer_jax.errors import UserError
from transformer_jax.interop import (
    FORMATS,
    capabilities,
    export,
    layout,
    pretrained,
    sample_text,
    stablehlo,
    usage_examples,
)
from transformer_jax.interop.huggingface import reading, tokenizer_writing, writing
from transformer_jax.interop.sample_text import SampleText
from transformer_jax.model.transformer import init_params
from transformer_jax.training import partition, setup
from transformer_jax.training.loop import train
from transformer_jax.training.runners import make_runner


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
    params = jax.device_get(init_params(model, jax.random.key(0)))
    return pretrained.Pretrained(config, tokenizers, params, 0)


def write(folder, model):
    plan = writing.plan_export(model.config, model.tokenizers, model.params)
    writing.write_directory(epath.Path(folder), model.config, model.tokenizers, model.params, plan)
    return folder


@pytest.fixture(scope="module")
def marian(tokenizers, tmp_path_factory):
    """A Marian directory, as our export writes it."""
    return write(tmp_path_factory.mktemp("marian") / "m", small_model(tokenizers))


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


QUERY = "model.encoder.layers.0.self_attn.q_proj.weight"
DAMAGE = {
    "no weights": (remove("model.safetensors"), ["has no model.safetensors"]),
    "no source.spm": (remove("source.spm"), ["has no source.spm"]),
    "no vocabulary": (remove("vocab.json"), ["has no vocab.json"]),
    "header cut": (truncate("model.safetensors", 0.01), ["model.safetensors is damaged"]),
    "tensors cut": (truncate("model.safetensors", 0.9), ["model.safetensors is damaged"]),
    "no token model": (truncate("target.spm", 0.5), ["not a SentencePiece model"]),
    "config cut": (truncate("config.json", 0.5), ["config.json is not JSON"]),
    "another shape": (
        edit_tensors(lambda t: t.update({QUERY: t[QUERY][:, :8].copy()})),
        [QUERY, "[16, 8]", "[16, 16]"],
    ),
    "tensor missing": (edit_tensors(lambda t: t.pop(QUERY)), ["no tensor", QUERY]),
    "tensor too many": (
        edit_tensors(lambda t: t.update({"model.extra.weight": np.zeros(3, np.float32)})),
        ["the tensor model.extra.weight is not part of the model"],
    ),
    "table of another size": (
        edit_tensors(lambda t: t.update({"model.shared.weight": np.zeros((90, 16), np.float32)})),
        ["model.shared.weight", "[90, 16]"],
    ),
    "tied tensors differ": (
        edit_tensors(lambda t: t.update({"lm_head.weight": t["model.shared.weight"] + 1})),
        ["ties", "lm_head.weight", "differ"],
    ),
    "vocabulary too small": (
        edit("vocab.json", **{"▁one": None}),
        ["vocab.json has 294 tokens", "says 295"],
    ),
    "vocabulary too large": (edit("vocab.json", **{"▁ten": 295}), ["vocab.json has 296 tokens"]),
    "one id twice": (edit("vocab.json", **{"▁one": 5}), ["to a different id"]),
    "another padding id": (edit("config.json", pad_token_id=7), ["pad_token_id=7", "is 0"]),
    "unknown class": (edit("config.json", model_type="led"), ["'led'", "marian, m2m_100, pegasus"]),
    "unknown activation": (edit("config.json", activation_function="tanh"), ["'tanh'", "swish"]),
    "pre-norm Marian": (edit("config.json", normalize_before=True), ["normalize_before=True"]),
    "normalised embeddings": (
        edit("config.json", normalize_embedding=True),
        ["normalize_embedding=True"],
    ),
    "a size missing": (edit("config.json", d_model=None), ["d_model=None must be an integer"]),
    "sampling": (edit("generation_config.json", do_sample=True), ["do_sample=True"]),
    "diverse beams": (edit("generation_config.json", num_beam_groups=2), ["num_beam_groups=2"]),
    "n-grams": (
        edit("generation_config.json", encoder_no_repeat_ngram_size=3),
        ["encoder_no_repeat_ngram_size=3"],
    ),
    "bad phrase": (edit("generation_config.json", bad_words_ids=[[4, 5]]), ["[4, 5]"]),
    "bad id": (edit("generation_config.json", bad_words_ids=[[999]]), ["999", "295 tokens"]),
    "forced other end": (
        edit("generation_config.json", forced_eos_token_id=9),
        ["forced_eos_token_id=9"],
    ),
    "forced begin": (
        edit("generation_config.json", forced_bos_token_id=9),
        ["forced_bos_token_id=9"],
    ),
    "stopping": (edit("generation_config.json", early_stopping="soon"), ["early_stopping='soon'"]),
    "penalty below 0": (
        edit("generation_config.json", length_penalty=-1.0),
        ["length_penalty=-1.0"],
    ),
    "another tokenizer": (
        edit("tokenizer_config.json", tokenizer_class="BertTokenizer"),
        ["BertTokenizer"],
    ),
    "no tokens": (lambda folder: (folder / "vocab.json").write_text("{}"), ["to a different id"]),
    "no heads": (edit("config.json", encoder_attention_heads=0), ["num_heads=0"]),
    "lengths of text": (edit("generation_config.json", max_length="x"), ["TypeError"]),
    "ids of text": (edit("generation_config.json", bad_words_ids=[5]), ["TypeError"]),
    "a list of activations": (edit("config.json", activation_function=[]), ["[]", "swish"]),
    "two vocabularies named": (
        edit("tokenizer_config.json", separate_vocabs=True),
        ["separate_vocabs=True"],
    ),
    "no end symbol": (edit("tokenizer_config.json", eos_token="<end>"), ["'<end>' (eos_token)"]),
}


def assert_names_damage(intact, change, words, folder):
    """A copy of the directory is read, and not after the change: one sentence with the words."""
    shutil.copytree(intact, folder)
    reading.read_directory(folder)
    change(folder)
    with pytest.raises(UserError) as error:
        Translator.load(folder)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", DAMAGE)
def test_import_names_what_is_damaged_or_not_supported(name, marian, tmp_path):
    assert_names_damage(marian, *DAMAGE[name], tmp_path / "m")


# Of config.json of the published opus-mt-en-de, besides sizes; today's transformers writes fewer.
OPUS_MT = {
    "_num_labels": 3,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "classif_dropout": 0.0,
    "decoder_layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "gradient_checkpointing": False,
    "normalize_before": False,
    "normalize_embedding": False,
    "num_hidden_layers": 6,
    "static_position_embeddings": True,
    "transformers_version": "4.22.0.dev0",
}


def test_import_follows_the_keys_of_published_models(marian, tmp_path):
    shutil.copytree(marian, tmp_path / "m")
    edit("config.json", **OPUS_MT)(tmp_path / "m")
    config, _, params = reading.read_directory(tmp_path / "m")
    want_config, _, want = reading.read_directory(marian)
    assert config == want_config
    jax.tree.map(np.testing.assert_array_equal, params, want)


def test_import_passes_over_what_classes_do_not_read(marian, tmp_path):
    """Old files have numbers of versions; files of a model without its head have other names."""
    shutil.copytree(marian, tmp_path / "m")
    want = reading.read_directory(marian)[2]
    version = {"model.encoder.version": np.ones(1, np.float32)}
    edit_tensors(lambda tensors: tensors.update(version))(tmp_path / "m")
    jax.tree.map(np.testing.assert_array_equal, reading.read_directory(tmp_path / "m")[2], want)

    def without_head(tensors):
        bare = {name.removeprefix("model."): x for name, x in tensors.items()}
        tensors.clear()
        tensors |= {name: x for name, x in bare.items() if name != "final_logits_bias"}

    edit_tensors(without_head)(tmp_path / "m")
    jax.tree.map(np.testing.assert_array_equal, reading.read_directory(tmp_path / "m")[2], want)


def test_import_refuses_added_tokens_that_it_would_lose(marian, tmp_path):
    shutil.copytree(marian, tmp_path / "m")
    size = json.loads((marian / "config.json").read_text())["vocab_size"]
    known = {"</s>": json.loads((marian / "vocab.json").read_text())["</s>"]}
    (tmp_path / "m" / "added_tokens.json").write_text(json.dumps(known))
    reading.read_config(tmp_path / "m")
    (tmp_path / "m" / "added_tokens.json").write_text(json.dumps({**known, "<sep>": size - 1}))
    with pytest.raises(UserError, match=r"the token '<sep>' \(id \d+\) was added"):
        reading.read_config(tmp_path / "m")


def test_bytes_are_tokens_with_names():
    tokenizer = ByteTokenizer(b"", 384)
    ids = [0, 1, 2, *range(3, 259)]
    assert [tokenizer.token_id(token) for token in tokenizer.tokens(ids)] == ids
    assert tokenizer.tokens([260]) == ["<unused>"]


def test_import_reads_weights_in_several_files(marian, tmp_path):
    shutil.copytree(marian, tmp_path / "m")
    tensors = safetensors.numpy.load_file(tmp_path / "m/model.safetensors")
    (tmp_path / "m/model.safetensors").unlink()
    parts = {
        "a.safetensors": dict(list(tensors.items())[:9]),
        "b.safetensors": dict(list(tensors.items())[9:]),
    }
    for name, part in parts.items():
        safetensors.numpy.save_file(part, tmp_path / "m" / name)
    index = {"weight_map": {t: name for name, part in parts.items() for t in part}}
    (tmp_path / "m/model.safetensors.index.json").write_text(json.dumps(index))
    jax.tree.map(
        np.testing.assert_array_equal,
        reading.read_directory(tmp_path / "m")[2],
        reading.read_directory(marian)[2],
    )
    (tmp_path / "m/b.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no b\.safetensors"):
        reading.read_directory(tmp_path / "m")


def test_import_converts_generation_settings(marian, tmp_path):
    shutil.copytree(marian, tmp_path / "m")
    edit(
        "generation_config.json",
        num_beams=6,
        max_length=21,
        length_penalty=0.8,
        early_stopping=True,
        bad_words_ids=[[0], [7], [2]],
        suppress_tokens=[9],
        min_length=4,
        no_repeat_ngram_size=3,
        renormalize_logits=True,
        forced_eos_token_id=2,
    )(tmp_path / "m")
    decode = reading.read_config(tmp_path / "m").decode
    assert (decode.beam_size, decode.max_decode_len, decode.length_penalty) == (6, 20, 0.8)
    assert (decode.length_penalty_kind, decode.stopping) == ("power", "first_k")
    # The end symbol, 2, is never a bad word.
    assert (decode.suppressed_ids, decode.renormalize) == ((0, 7, 9), True)
    assert decode.at_limit == "free_end"
    assert (decode.min_decode_len, decode.no_repeat_ngram_size) == (4, 3)
    edit("generation_config.json", forced_eos_token_id=None, max_length=None)(tmp_path / "m")
    assert reading.read_config(tmp_path / "m").decode.at_limit == "cut"
    assert reading.read_config(tmp_path / "m").decode.max_decode_len == 32
    # Without the file, config.json speaks, and the class: Marian forces its end.
    (tmp_path / "m/generation_config.json").unlink()
    edit("config.json", num_beams=3, forced_eos_token_id=2)(tmp_path / "m")
    decode = reading.read_config(tmp_path / "m").decode
    assert (decode.beam_size, decode.at_limit) == (3, "free_end")


REFUSED = {
    "rotary": ({"positional": "rotary"}, ["config.model.positional=rotary"]),
    "head_dim": ({"head_dim": 5}, ["model.head_dim=5"]),
    "decoder's head_dim": ({"head_dim": 8, "num_decoder_heads": 1}, ["model.head_dim=8"]),
    "pre-norm, two tables": (
        {"norm_position": "pre", "tie_embeddings": "decoder"},
        ["pre-norm", "decoder"],
    ),
}


@pytest.mark.parametrize(("tied", "want"), [(True, "all"), (False, "inputs")])
def test_config_of_a_t5_without_weights_says_which_tables_are_one(tied, want, tmp_path):
    config = {"model_type": "t5", "tie_word_embeddings": tied, "d_model": 8, "d_kv": 4, "d_ff": 8}
    config |= {"num_layers": 1, "num_heads": 2, "vocab_size": 384, "decoder_start_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert reading.read_config(tmp_path).model.tie_embeddings == want


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


def test_vocabulary_tokenizer_uses_the_ids_of_its_vocabulary(tokenizers, tmp_path):
    """By hand: tokens 0 .. in another order than the model's, and a language code."""
    spm = tokenizers.source
    tokens = spm.tokens(range(spm.vocab_size))[::-1]
    vocabulary = {token: i for i, token in enumerate([">>de<<", *tokens])}
    special = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    tokenizer = VocabularyTokenizer(spm.model, vocabulary, special, len(vocabulary))
    want = [vocabulary[p] for p in spm.tokens(spm.encode("one two"))]
    assert tokenizer.encode("one two") == want
    assert tokenizer.encode(">>de<< one two") == [0, *want]
    assert tokenizer.encode_batch([">>xx<<one"])[0][0] == tokenizer.unk_id
    assert tokenizer.encode_batch([]) == []
    ids = [tokenizer.pad_id, *want[:1], tokenizer.unk_id, *want[1:], tokenizer.eos_id]
    assert tokenizer.decode(ids) == "one two"
    assert tokenizer.bos_id == -1
    pair = TokenizerPair(tokenizer, tokenizer, LanguageTags(">>{}<<"))
    assert pair.language_tags("en", "de") == ([0], [])
    pair.save(epath.Path(tmp_path))
    loaded = TokenizerPair.load(epath.Path(tmp_path))
    assert loaded.source.encode(">>de<< one two") == [0, *want]
    assert (loaded.tags, loaded.fingerprint) == (pair.tags, pair.fingerprint)
    both = TokenizerPair(tokenizer, tokenizer, LanguageTags(">>{}<<", both_sides=True))
    assert both.language_tags("de", "de") == ([0], [0])
    with pytest.raises(UserError, match="name source_lang and target_lang"):
        both.language_tags("de", "")


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


# --- Memory, and parts ---------------------------------------------------------------------------


def test_import_reads_one_tensor_at_a_time(tokenizers, tmp_path):
    folder = write(tmp_path / "m", small_model(tokenizers, d_model=192, d_ff=768))
    reading.read_directory(folder)  # loads what is loaded once
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    params = reading.read_directory(folder)[2]
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
    # Of a tensor there may be two forms at once, of the others one.
    assert peak < sum(sizes) + 3 * max(sizes)
    assert peak < 1.8 * sum(sizes)


def test_import_puts_each_tensor_on_its_devices(marian):
    config, _, want = reading.read_directory(marian)
    parallel = dataclasses.replace(config.parallel, data=1, fsdp=4, tensor=2)
    config = dataclasses.replace(config, parallel=parallel)
    runner = make_runner(config, jax.devices())
    shardings = functools.partial(partition.param_shardings, config)
    params = pretrained.load(marian, shardings=shardings).params
    jax.tree.map(np.testing.assert_array_equal, params, want)
    assert jax.tree.map(lambda x: x.sharding, params) == runner.shardings.params
    kernel = params["encoder_layers_0"]["feed_forward"]["up"]["kernel"]
    assert {shard.data.size for shard in kernel.addressable_shards} == {kernel.size // 8}


@pytest.mark.parametrize("name", ["../other/{}.safetensors", "/{}/x.safetensors", "a/{}", "..", ""])
def test_import_refuses_weight_files_outside_the_folder(marian, tmp_path, name):
    shutil.copytree(marian, tmp_path / "m")
    names = {"x": name.format(str(tmp_path)[1:] if name.startswith("/") else 0)}
    if name.startswith(".."):
        (tmp_path / "other").mkdir()
        shutil.copy(marian / "model.safetensors", tmp_path / "other" / "0.safetensors")
    (tmp_path / "m" / "model.safetensors").unlink()
    index = tmp_path / "m" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    with pytest.raises(UserError, match=r"names the file .*must be in its folder"):
        reading.read_directory(tmp_path / "m")


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
