"""T5, mT5, BART and mBART read by us: the same numbers and the same text as transformers."""

import copy
import dataclasses
import itertools
import json
import random
import shutil

import jax
import numpy as np
import pytest
import safetensors.torch
import sentencepiece
import tokenizers
import torch
import transformers
from etils import epath

from tests.huggingface_models import (
    assert_names_damage,
    edit,
    edit_tensors,
    remove,
    truncate,
)
from tests.peers import builders
from tests.peers.test_import import (
    TOLERANCE,
    altered,
    assert_equal,
    batch_of,
    ours,
    read,
    reconfigured,
    swapped,
    theirs,
)
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import writing
from transformer_jax.extras.interop.huggingface.settings import Settings
from transformer_jax.extras.interop.huggingface.tokenizers import read_tokenizers
from transformer_jax.ops import positional

T5 = {
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 36,
    "num_layers": 3,
    "num_decoder_layers": 2,  # with more than num_layers, transformers' cache fails
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "layer_norm_epsilon": 1e-5,
}
BART = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 30,
    "decoder_ffn_dim": 22,
    "max_position_embeddings": 60,
}
# Class, settings, and whether the projection to the vocabulary has another table.
CONFIGURATIONS = {
    "T5 1.0": ("T5ForConditionalGeneration", T5, False),
    "T5 1.1": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}, True),
    "UL2": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-silu", "num_decoder_layers": None, "d_kv": 8},
        True,
    ),
    "T5, untied, plain": ("T5ForConditionalGeneration", {**T5, "num_heads": 1}, True),
    "mT5": ("MT5ForConditionalGeneration", T5, True),
    "mT5, tied": (
        "MT5ForConditionalGeneration",
        {**T5, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
        False,
    ),
    "mT5, plain": ("MT5ForConditionalGeneration", {**T5, "feed_forward_proj": "relu"}, True),
    "BART": ("BartForConditionalGeneration", BART, False),
    "BART, scaled": (
        "BartForConditionalGeneration",
        {**BART, "scale_embedding": True, "activation_function": "relu"},
        False,
    ),
    "BART, one layer": (
        "BartForConditionalGeneration",
        {**BART, "encoder_layers": 1, "decoder_layers": 1, "activation_function": "gelu_new"},
        False,
    ),
    "mBART": ("MBartForConditionalGeneration", BART, False),
    "mBART, scaled": (
        "MBartForConditionalGeneration",
        {**BART, "scale_embedding": True, "activation_function": "relu"},
        False,
    ),
    "mBART, equal sizes": (
        "MBartForConditionalGeneration",
        {**BART, "decoder_attention_heads": 3, "decoder_ffn_dim": 30, "encoder_layers": 3},
        False,
    ),
}


def make(
    folder, architecture, settings, is_untied=False, vocab_size=50, std=builders.INIT_STD, seed=0
):
    """A directory as `save_pretrained` writes it; every tensor is random."""
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(vocab_size=vocab_size, **settings)
    if getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0 if "T5" in architecture else 2
    model = model_class(config)
    rng = np.random.default_rng(seed)
    if is_untied:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(vocab_size, config.d_model))
    with torch.no_grad():
        buffers = {n: b for n, b in model.named_buffers() if n == "final_logits_bias"}
        for name, tensor in {**dict(model.named_parameters()), **buffers}.items():
            is_norm = "norm" in name and name.endswith("weight")
            tensor.copy_(torch.tensor(rng.normal(0, std, tuple(tensor.shape)) + is_norm))
            if "embed_positions" in name:
                tensor[:2] = 0  # no position has them
    model.generation_config.update(num_beams=4, max_length=30, forced_eos_token_id=None)
    model.save_pretrained(folder)
    if is_untied:
        state = {n: t.clone() for n, t in model.state_dict().items() if "embed_tokens" not in n}
        safetensors.torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        path = folder / "config.json"
        saved = json.loads(path.read_text()) | {"tie_word_embeddings": False}
        saved.pop("scale_decoder_outputs", None)  # published configs do not have it
        path.write_text(json.dumps(saved))
    return model_class.from_pretrained(folder).eval()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_import_of_families_has_equal_logits(name, tmp_path):
    architecture, settings, is_untied = CONFIGURATIONS[name]
    model = make(tmp_path / "m", architecture, settings, is_untied)
    config, params = read(tmp_path / "m")
    assert config.tie_embeddings == ("inputs" if is_untied else "all")
    assert_equal(model, config, params)


@pytest.mark.parametrize("name", ["T5 1.0", "T5 1.1"])
@pytest.mark.parametrize("table", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])
def test_import_reads_the_table_of_a_t5_by_any_of_its_names(name, table, tmp_path):
    """MADLAD-400 has no `shared.weight`. Files of old versions have a bias that nothing reads."""
    make(tmp_path / "m", *CONFIGURATIONS[name])
    want = read(tmp_path / "m")

    def rename(tensors):
        tensors[table] = tensors.pop("shared.weight")
        unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        tensors[unread] = np.ones((8, 3), np.float32)

    edit_tensors(rename)(tmp_path / "m")
    config, params = read(tmp_path / "m")
    assert config == want[0]
    jax.tree.map(np.testing.assert_array_equal, params, want[1])


def test_relative_buckets_equal_those_of_transformers():
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-3000, 3001)
    for is_bidirectional, buckets, largest in itertools.product(
        (True, False), (8, 12, 32, 64), (20, 128, 200, 1000)
    ):
        want = T5Attention._relative_position_bucket(
            torch.tensor(distances), is_bidirectional, buckets, largest
        )
        got = positional.relative_buckets(distances, is_bidirectional, buckets, largest)
        np.testing.assert_array_equal(got, want, err_msg=f"{buckets} up to {largest}")


def leaf(change, *names):
    """Changes the leaves whose path ends with `names`."""
    return altered(lambda path, x, _: change(x) if path[-len(names) :] == names else x)


GATED = {
    "gate and up swapped": swapped("gate", "up"),
    "norm gain dropped": leaf(np.ones_like, "norm", "scale"),
    "query and key swapped": swapped("query", "key"),
    "key and value swapped": swapped("key", "value"),
    "norms swapped": swapped("self_attention_norm", "feed_forward_norm"),
    "biases of encoder and decoder swapped": swapped(
        "encoder_position_bias", "decoder_position_bias"
    ),
    "biases of heads rolled": leaf(lambda x: np.roll(x, 1, 1), "table"),
    "biases of buckets rolled": leaf(lambda x: np.roll(x, 1, 0), "table"),
    "scores scaled": reconfigured(attention_scale=None),
    "outputs scaled": reconfigured(logit_scale=24**-0.5),
    "embeddings scaled": reconfigured(scale_embeddings=True),
    "exact gelu": reconfigured(activation="relu"),
    "other distances": reconfigured(relative_max_distance=20),
    "not gated": reconfigured(feed_forward="plain"),
}
LEARNED = {
    "query bias dropped": leaf(np.zeros_like, "query", "bias"),
    "value bias dropped": leaf(np.zeros_like, "value", "bias"),
    "output bias dropped": leaf(np.zeros_like, "out", "bias"),
    "feed-forward bias dropped": leaf(np.zeros_like, "up", "bias"),
    "final_logits_bias dropped": leaf(np.zeros_like, "output_bias"),
    "positions of encoder and decoder swapped": swapped("embed_source", "embed_target"),
    "positions one later": leaf(lambda x: np.roll(x, 1, 0), "positions"),
    "norms of embeddings dropped": reconfigured(embedding_norm=False),
    "norms swapped": swapped("self_attention_norm", "feed_forward_norm"),
    "query and key swapped": swapped("query", "key"),
    "embeddings scaled": reconfigured(scale_embeddings=True),
    "wrong activation": reconfigured(activation="relu"),
}
MISTAKES = {"T5 1.1": GATED, "mT5": GATED, "BART": LEARNED, "mBART": LEARNED}


@pytest.mark.parametrize("name", MISTAKES)
def test_import_mistakes_in_families_change_the_logits(name, tmp_path):
    model = make(tmp_path / "m", *CONFIGURATIONS[name])
    config, params = read(tmp_path / "m")
    batch = batch_of(config)
    want = theirs(model, config, batch)[1]
    assert np.max(np.abs(ours(config, params, batch)[1] - want)) < TOLERANCE
    for mistake, change in MISTAKES[name].items():
        broken = ours(*change(config, copy.deepcopy(params)), batch)[1]
        assert np.max(np.abs(broken - want)) > 1e-3, mistake


# --- Tokenizers and generation -------------------------------------------------------------------

TEXTS = [*builders.SENTENCES["en"][:20], "Zwölf Boxkämpfer, 3 × ½ …", "x", "two   spaces"]


def t5_pieces(extra=()):
    """A unigram model with T5's ids: <pad>, </s>, <unk>."""
    import io

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(builders.SENTENCES["en"]),
        model_writer=model,
        vocab_size=90,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        user_defined_symbols=list(extra),
        minloglevel=2,
        hard_vocab_limit=False,
    )
    return model.getvalue()


@pytest.mark.parametrize("kind", ["spiece.model", "tokenizer.json"])
def test_tokens_of_pegasus_are_those_of_transformers(kind, tmp_path):
    (tmp_path / "spiece.model").write_bytes(t5_pieces())
    tokenizer = transformers.PegasusTokenizer.from_pretrained(tmp_path)
    if kind == "tokenizer.json":
        tokenizer.save_pretrained(tmp_path)
    config = {"model_type": "pegasus", "vocab_size": len(tokenizer), "pad_token_id": 0}
    config |= {"eos_token_id": 1, "tokenizer_class": "PegasusTokenizer"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = read_tokenizers(Settings(epath.Path(tmp_path))).pair.source
    for text in TEXTS:
        ids = ours.encode(text)
        assert [*ids, ours.eos_id] == tokenizer(text).input_ids, text
        theirs = tokenizer.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids).split() == theirs.split()


def t5_directory(folder, kind, extra=()):
    folder.mkdir()
    path = folder / "spiece.model"
    path.write_bytes(t5_pieces(extra))
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder)
    vocab_size = len(tokenizer) + 5  # published tables are padded
    model = make(folder, *CONFIGURATIONS["T5 1.1"], vocab_size=vocab_size, std=0.5, seed=1)
    if kind == "tokenizer.json":
        path.unlink()
        tokenizer.save_pretrained(folder)
    return model, tokenizer


def bart_directory(folder, kind):
    folder.mkdir()
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        builders.SENTENCES["en"],
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    )
    bpe.save_model(str(folder))
    tokenizer = transformers.BartTokenizer.from_pretrained(folder)
    model = make(folder, *CONFIGURATIONS["BART"], vocab_size=len(tokenizer), std=0.5, seed=1)
    model.generation_config.forced_bos_token_id = 0
    model.generation_config.save_pretrained(folder)
    if kind == "tokenizer.json":
        (folder / "merges.txt").unlink()
        (folder / "vocab.json").unlink()
        tokenizer.save_pretrained(folder)
    return model, tokenizer


def mbart_directory(folder, kind, models):
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(models["en"])
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(
        folder, src_lang="en_XX", tgt_lang="de_DE"
    )
    model = make(folder, *CONFIGURATIONS["mBART"], vocab_size=len(tokenizer), std=0.5, seed=1)
    if kind == "tokenizer.json":
        (folder / "sentencepiece.bpe.model").unlink()
        tokenizer.save_pretrained(folder)
    return model, tokenizer


def byt5_directory(folder):
    tokenizer = transformers.ByT5Tokenizer()
    model = make(folder, *CONFIGURATIONS["T5 1.1"], vocab_size=384, std=0.5, seed=5)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def sentences(count, seed=3):
    numbers = random.Random(seed).sample(range(10**6), count)
    return [builders.num2words(n, lang="en") for n in numbers]


DIRECTORIES = {
    "T5, spiece.model": lambda folder, _: t5_directory(folder, "spiece.model"),
    "T5, tokenizer.json": lambda folder, _: t5_directory(folder, "tokenizer.json"),
    "ByT5": lambda folder, _: byt5_directory(folder),
    "BART, merges.txt": lambda folder, _: bart_directory(folder, "merges.txt"),
    "BART, tokenizer.json": lambda folder, _: bart_directory(folder, "tokenizer.json"),
    "mBART, SentencePiece": lambda folder, models: mbart_directory(folder, "spm", models),
    "mBART, tokenizer.json": lambda folder, models: mbart_directory(
        folder, "tokenizer.json", models
    ),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_import_of_families_writes_what_generate_writes(name, spm_models, tmp_path):
    model, tokenizer = DIRECTORIES[name](tmp_path / "m", spm_models)
    languages = {"source_lang": "en_XX", "target_lang": "de_DE"} if "mBART" in name else {}
    translator = Translator.load(tmp_path / "m")
    encoder = translator.engine.encoder(*reversed(languages.values()))
    eos = tokenizer.eos_token_id
    for text in TEXTS:
        assert [*encoder.source_ids([text])[0], eos] == tokenizer(text).input_ids
    texts = sentences(200)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    forced = model.generation_config.forced_bos_token_id
    if languages:
        forced = tokenizer.convert_tokens_to_ids("de_DE")
    for beams in (1, 4):
        outputs = model.generate(**inputs, num_beams=beams, forced_bos_token_id=forced)
        rows = outputs[:, 1 if forced is None else 2 :].tolist()
        want = [row[: row.index(eos)] if eos in row else row for row in rows]
        got = translator.translate(texts, beam_size=beams, **languages)
        assert len(set(map(str, want))) > 3
        assert [list(output.ids) for output in got] == want
        decoded = tokenizer.batch_decode(want, skip_special_tokens=True)
        assert [output.text.split() for output in got] == [text.split() for text in decoded]
    # Exported again: the same class, bits and tokens.
    arguments = translator.config, translator.tokenizers, translator.params
    plan = writing.plan_export(*arguments)
    writing.write_directory(tmp_path / "again", *arguments, plan)
    again = type(model).from_pretrained(tmp_path / "again")
    state = again.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, state[n]) for n, tensor in model.state_dict().items())
    assert again.generation_config.num_beams == 4
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert [other(text).input_ids for text in TEXTS] == [tokenizer(t).input_ids for t in TEXTS]
    same = Translator.load(tmp_path / "again").translate(texts, beam_size=4, **languages)
    assert [output.ids for output in same] == [output.ids for output in got]


@pytest.mark.parametrize("kind", ["spiece.model", "tokenizer.json"])
def test_import_of_t5_reads_madlads_tags_and_a_task_as_words_of_the_text(kind, tmp_path):
    t5_directory(tmp_path / "m", kind, extra=("<2de>", "<2sr_Latn>"))
    tokenizer = transformers.T5Tokenizer.from_pretrained(tmp_path / "m")
    translator = Translator.load(tmp_path / "m")
    assert translator.tokenizers.languages == ["de", "sr_Latn"]
    for language in ("de", "sr_Latn"):
        (ids,) = translator.engine.encoder(target_lang=language).source_ids(["ten two"])
        assert [*ids, 1] == tokenizer(f"<2{language}> ten two").input_ids
    with pytest.raises(UserError, match="does not know 'fr'"):
        translator.engine.encoder(target_lang="fr")
    # As MADLAD's card has it: the tag in the text.
    (ids,) = translator.engine.encoder().source_ids(["<2de> ten two"])
    assert [*ids, 1] == tokenizer("<2de> ten two").input_ids
    for text in ("ten two", " ten two"):
        (named,) = translator.translate([text], target_lang="de")
        (tagged,) = translator.translate([f"<2de> {text.strip()}"])
        assert tagged.ids == named.ids
    with pytest.raises(UserError, match="'ten two' has no target language: set `target_lang`, or"):
        translator.translate(["ten two"])

    _, tokenizer = t5_directory(tmp_path / "task", kind)
    plain = Translator.load(tmp_path / "task").config
    data = dataclasses.replace(plain.data, source_prefix="one seven: ")
    with_task = Translator.load(tmp_path / "task", config=dataclasses.replace(plain, data=data))
    (ids,) = with_task.engine.encoder().source_ids(["ten two"])
    assert [*ids, 1] == tokenizer("one seven: ten two").input_ids


# --- Damaged and unsupported directories ---------------------------------------------------------

T5_QUERY = "encoder.block.0.layer.0.SelfAttention.q.weight"
T5_BIAS = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
BART_NORM = "model.encoder.layernorm_embedding.weight"
BART_POSITIONS = "model.decoder.embed_positions.weight"


def cut(name, width=-1):
    return edit_tensors(lambda t: t.update({name: t[name][:width].copy()}))


def without(name):
    return edit_tensors(lambda t: t.pop(name))


DAMAGE = {
    "no layers": ("T5", edit("config.json", num_layers=None), ["num_layers=None", "an integer"]),
    "no head size": ("T5", edit("config.json", d_kv=None), ["d_kv=None", "an integer"]),
    "heads of text": ("T5", edit("config.json", num_heads="3"), ["num_heads='3'"]),
    "unknown activation": (
        "T5",
        edit("config.json", feed_forward_proj="gated-tanh"),
        ["feed_forward_proj='gated-tanh'", "silu"],
    ),
    "unknown gate": ("T5", edit("config.json", feed_forward_proj="geglu"), ["'geglu'", "silu"]),
    "few distances": (
        "T5",
        edit("config.json", relative_attention_max_distance=3),
        ["relative_max_distance=3", "relative_buckets=8"],
    ),
    "other buckets": (
        "T5",
        edit("config.json", relative_attention_num_buckets=12, relative_attention_max_distance=9),
        ["relative_attention_bias", "[8, 3]", "[12, 3]"],
    ),
    "not gated": (
        "T5",
        edit("config.json", feed_forward_proj="relu"),
        ["no tensor", "DenseReluDense.wi.weight"],
    ),
    "epsilon of text": ("T5", edit("config.json", layer_norm_epsilon="x"), ["ValueError"]),
    "no biases of distance": ("T5", without(T5_BIAS), ["no tensor", T5_BIAS]),
    "another query": ("T5", cut(T5_QUERY), [T5_QUERY, "[14, 24]", "[15, 24]"]),
    "another output": ("T5", cut("lm_head.weight"), ["lm_head.weight", "config.json implies"]),
    "a decoder alone": ("T5", edit("config.json", is_decoder=True), ["is_decoder=True"]),
    "tokenizer cut": ("T5", truncate("spiece.model", 0.5), ["spiece.model is damaged"]),
    "no tokenizer": ("T5", remove("spiece.model"), ["has no spiece.model"]),
    "few rows": ("T5", edit("config.json", vocab_size=90), ["spiece.model has", "says 90"]),
    "another padding": ("T5", edit("config.json", pad_token_id=3), ["pad_token_id=3", "is 0"]),
    "no merges": ("BART", remove("merges.txt"), ["has no merges.txt"]),
    "other merges": (
        "BART",
        lambda folder: (folder / "merges.txt").write_text("qq zz\n"),
        ["merges.txt does not fit vocab.json"],
    ),
    "few positions": ("BART", cut(BART_POSITIONS), [BART_POSITIONS, "[61, 24]", "[62, 24]"]),
    "no norm": ("BART", without(BART_NORM), ["no tensor", BART_NORM]),
    "pre-norm BART": ("BART", edit("config.json", normalize_before=True), ["normalize_before"]),
    "sinusoids": (
        "BART",
        edit("config.json", static_position_embeddings=True),
        ["static_position_embeddings=True"],
    ),
    "another begin": (
        "BART",
        edit("generation_config.json", forced_bos_token_id=9),
        ["forced_bos_token_id=9", "not a language tag"],
    ),
    "mBART of 25 languages": (
        "mBART",
        edit("tokenizer_config.json", tokenizer_class="MBartTokenizer"),
        ["MBartTokenizer", "MBart50Tokenizer"],
    ),
    "no start": ("mBART", edit("config.json", decoder_start_token_id=None), ["must be one id"]),
    "another size": ("mBART", edit("config.json", vocab_size=99), ["further tokens", "says 99"]),
    "no positions": ("mBART", without(BART_POSITIONS), ["no tensor", BART_POSITIONS]),
}


@pytest.fixture(scope="module")
def directories(spm_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    t5_directory(folder / "T5", "spiece.model")
    bart_directory(folder / "BART", "merges.txt")
    mbart_directory(folder / "mBART", "spm", spm_models)
    # Without the class, the usual tokenizer of the model is read.
    (folder / "mBART/tokenizer_config.json").write_text("{}")
    edit("generation_config.json", decoder_start_token_id=None)(folder / "mBART")
    return folder


@pytest.mark.parametrize("name", DAMAGE)
def test_import_of_families_names_what_is_damaged(name, directories, tmp_path):
    family, *damage = DAMAGE[name]
    assert_names_damage(directories / family, *damage, tmp_path / "m")


def test_import_of_families_accepts_settings_of_what_a_class_does_anyway(directories, tmp_path):
    for family, settings in {
        "BART": {"normalize_embedding": True, "normalize_before": False, "extra_pos_embeddings": 2},
        "mBART": {"normalize_embedding": True, "normalize_before": True},
    }.items():
        shutil.copytree(directories / family, tmp_path / family)
        edit("config.json", add_final_layer_norm=family == "mBART", **settings)(tmp_path / family)
        assert Translator.load(tmp_path / family).config.model.embedding_norm


@pytest.mark.parametrize("kind", ["spiece.model", "tokenizer.json"])
def test_spaces_before_punctuation_are_removed_where_transformers_does(kind, tmp_path):
    t5_directory(tmp_path / "m", kind, extra=[",", "."])
    path = tmp_path / "m" / "tokenizer_config.json"
    options = json.loads(path.read_text()) if path.exists() else {"tokenizer_class": "T5Tokenizer"}
    path.write_text(json.dumps(options | {"clean_up_tokenization_spaces": True}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    ours = read_tokenizers(Settings(epath.Path(tmp_path / "m"))).pair.source
    ids = ours.encode("two , three .")
    want = tokenizer.decode(ids, skip_special_tokens=True)
    assert ours.decode(ids) == want == "two, three."


def test_the_class_of_a_tokenizer_may_be_in_the_config(spm_models, tmp_path):
    mbart_directory(tmp_path / "m", "tokenizer.json", spm_models)
    edit("tokenizer_config.json", tokenizer_class=None)(tmp_path / "m")
    read_tokenizers(Settings(epath.Path(tmp_path / "m")))  # starts with the end symbol: mBART-50
    edit("config.json", decoder_start_token_id=0)(tmp_path / "m")
    edit("generation_config.json", decoder_start_token_id=0)(tmp_path / "m")
    with pytest.raises(UserError, match="has the tokenizer MBartTokenizer"):
        read_tokenizers(Settings(epath.Path(tmp_path / "m")))
    edit("config.json", tokenizer_class="MBart50Tokenizer")(tmp_path / "m")
    read_tokenizers(Settings(epath.Path(tmp_path / "m")))
