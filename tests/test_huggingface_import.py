"""Reading Hugging Face directories, without Hugging Face: damage, settings, memory, placement."""

import dataclasses
import functools
import json
import shutil
import tracemalloc

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath

from tests.huggingface_models import (
    assert_names_damage,
    edit,
    edit_tensors,
    remove,
    small_model,
    truncate,
    write,
)
from transformer_jax.data.foreign_tokenizers import ByteTokenizer, VocabularyTokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import reading
from transformer_jax.training import partition
from transformer_jax.training.runners import make_runner
from transformer_jax.translator import pretrained


@pytest.fixture(scope="module")
def marian(tokenizers, tmp_path_factory):
    """A Marian directory, as our export writes it."""
    return write(tmp_path_factory.mktemp("marian") / "m", small_model(tokenizers))


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
    read, original = reading.read_model(tmp_path / "m"), reading.read_model(marian)
    config, params = read.config, read.params
    want_config, want = original.config, original.params
    assert config == want_config
    jax.tree.map(np.testing.assert_array_equal, params, want)


def test_import_passes_over_what_classes_do_not_read(marian, tmp_path):
    """Old files have numbers of versions; files of a model without its head have other names."""
    shutil.copytree(marian, tmp_path / "m")
    want = reading.read_model(marian).params
    version = {"model.encoder.version": np.ones(1, np.float32)}
    edit_tensors(lambda tensors: tensors.update(version))(tmp_path / "m")
    jax.tree.map(np.testing.assert_array_equal, reading.read_model(tmp_path / "m").params, want)

    def without_head(tensors):
        bare = {name.removeprefix("model."): x for name, x in tensors.items()}
        tensors.clear()
        tensors |= {name: x for name, x in bare.items() if name != "final_logits_bias"}

    edit_tensors(without_head)(tmp_path / "m")
    jax.tree.map(np.testing.assert_array_equal, reading.read_model(tmp_path / "m").params, want)


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
        reading.read_model(tmp_path / "m").params,
        reading.read_model(marian).params,
    )
    (tmp_path / "m/b.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no b\.safetensors"):
        reading.read_model(tmp_path / "m")


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


@pytest.mark.parametrize(("tied", "want"), [(True, "all"), (False, "inputs")])
def test_config_of_a_t5_without_weights_says_which_tables_are_one(tied, want, tmp_path):
    config = {"model_type": "t5", "tie_word_embeddings": tied, "d_model": 8, "d_kv": 4, "d_ff": 8}
    config |= {"num_layers": 1, "num_heads": 2, "vocab_size": 384, "decoder_start_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert reading.read_config(tmp_path).model.tie_embeddings == want


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


def test_import_reads_one_tensor_at_a_time(tokenizers, tmp_path):
    folder = write(tmp_path / "m", small_model(tokenizers, d_model=192, d_ff=768))
    reading.read_model(folder)  # loads what is loaded once
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    params = reading.read_model(folder).params
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(params)]
    # Of a tensor there may be two forms at once, of the others one.
    assert peak < sum(sizes) + 3 * max(sizes)
    assert peak < 1.8 * sum(sizes)


def test_import_puts_each_tensor_on_its_devices(marian):
    original = reading.read_model(marian)
    config, want = original.config, original.params
    parallel = dataclasses.replace(config.parallel, data=1, fsdp=4, tensor=2)
    config = dataclasses.replace(config, parallel=parallel)
    runner = make_runner(config, jax.devices())
    shapes = functools.partial(partition.sharded_shapes, config)
    params = pretrained.load(marian, shapes=shapes).params
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
        reading.read_model(tmp_path / "m")
