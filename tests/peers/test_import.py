"""Hugging Face models read by us: the same numbers, tensor by tensor and step by step."""

import copy
import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
import torch
import transformers

from tests.peers import builders
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import reading
from transformer_jax.extras.interop.layout import flatten, unflatten
from transformer_jax.model import decoder_weights, incremental
from transformer_jax.model.transformer import Transformer

MARIAN = {
    "swish, tied, scaled": {},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu"},
    "embeddings not scaled": {"scale_embedding": False},
    "two vocabularies": {"share_encoder_decoder_embeddings": False},
    "two vocabularies, own output": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
    },
    "one vocabulary, nothing tied": {"tie_word_embeddings": False},
    "more encoder than decoder": {"encoder_layers": 3, "decoder_layers": 1},
    "other sizes in the decoder": {
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 20,
        "encoder_layers": 1,
    },
    "one head": {"encoder_attention_heads": 1, "decoder_attention_heads": 1},
}
PRE_NORM = {
    "M2M-100": ("M2M100ForConditionalGeneration", {"activation_function": "relu"}),
    "M2M-100, gelu, not scaled": (
        "M2M100ForConditionalGeneration",
        {"activation_function": "gelu", "scale_embedding": False, "pad_token_id": 4},
    ),
    "M2M-100, nothing tied": ("M2M100ForConditionalGeneration", {"tie_word_embeddings": False}),
    "Pegasus": ("PegasusForConditionalGeneration", {"scale_embedding": True}),
}
TOLERANCE = 1e-4


def read(folder):
    """Config and parameters of a directory, its tokenizer left alone."""
    from transformer_jax.extras.interop.huggingface import weights
    from transformer_jax.extras.interop.huggingface.settings import Settings
    from transformer_jax.extras.interop.huggingface.tensor_files import open_tensors

    settings = Settings(reading.epath.Path(folder))
    with open_tensors(settings.folder, False) as tensors:
        return weights.read_model(settings, tensors)


@functools.cache
def functions(config):
    """Our encoder, teacher-forced logits, and logits of cached steps, compiled."""
    model = Transformer(config)

    def apply(params, *args, method, **segments):
        return model.apply({"params": params}, *args, method=method, **segments)

    @jax.jit
    def run(params, source, mask, inputs):
        encoded = apply(params, source, method="encode", segment_ids=mask)
        hidden = apply(params, encoded, inputs, method="decode", source_segment_ids=mask)
        weights = decoder_weights.prepare(config, params)
        cache = incremental.init_cache(
            config, weights, encoded, mask.astype(bool), 1, inputs.shape[1]
        )

        def step(cache, tokens):
            logits, cache = incremental.decode_step(config, weights, cache, tokens)
            return cache, logits.T

        stepped = jax.lax.scan(step, cache, inputs.T)[1].swapaxes(0, 1)  # --> [B, T, V]
        return encoded, apply(params, hidden, method="logits"), stepped

    return run


def batch_of(config, seed=5):
    rng = np.random.default_rng(seed)
    lengths = [9, 4, 1]
    source = rng.integers(5, config.source_vocab_size, (3, 9)).astype(np.int32)
    mask = (np.arange(9) < np.array(lengths)[:, None]).astype(np.int32)
    inputs = rng.integers(5, config.target_vocab_size, (3, 7)).astype(np.int32)
    inputs[:, 0] = config.decoder_start_id
    return source, mask, inputs


def ours(config, params, batch):
    with jax.default_matmul_precision("highest"):
        return [np.asarray(x) for x in functions(config)(params, *batch)]


def theirs(model, config, batch):
    """Encoder output, teacher-forced logits, and logits of cached steps."""
    source, mask, inputs = (torch.tensor(x, dtype=torch.long) for x in batch)
    source = torch.where(mask == 1, source, model.config.pad_token_id)
    with torch.no_grad():
        out = model(input_ids=source, attention_mask=mask, decoder_input_ids=inputs)
        encoded = (out.encoder_last_hidden_state,)
        past, stepped = None, []
        for t in range(inputs.shape[1]):
            step = model(
                encoder_outputs=encoded,
                attention_mask=mask,
                past_key_values=past,
                decoder_input_ids=inputs[:, t : t + 1],
                use_cache=True,
            )
            past = step.past_key_values
            stepped.append(step.logits)
    return encoded[0].numpy(), out.logits.numpy(), torch.cat(stepped, dim=1).numpy()


def assert_equal(model, config, params):
    batch = batch_of(config)
    mask = batch[1][..., None]
    for name, a, b in zip(
        ("encoder", "teacher-forced", "cached"),
        ours(config, params, batch),
        theirs(model, config, batch),
        strict=True,
    ):
        factor = mask if name == "encoder" else 1
        np.testing.assert_allclose(a * factor, b * factor, atol=TOLERANCE, rtol=0, err_msg=name)


@pytest.mark.parametrize("name", MARIAN)
def test_import_of_marian_has_equal_logits(name, spm_models, tmp_path):
    model = builders.make_marian(tmp_path / "m", spm_models, **MARIAN[name])
    config, params = read(tmp_path / "m")
    assert config.norm_position == "post"
    assert config.positional == "halves"
    assert_equal(model, config, params)


@pytest.mark.parametrize("name", PRE_NORM)
def test_import_of_pre_norm_classes_has_equal_logits(name, spm_models, tmp_path):
    architecture, settings = PRE_NORM[name]
    model = builders.make_pre_norm(tmp_path / "m", spm_models, architecture, **settings)
    config, params = read(tmp_path / "m")
    assert config.norm_position == "pre"
    assert_equal(model, config, params)


def test_import_uses_stored_positions(spm_models, tmp_path):
    from safetensors.numpy import load_file, save_file

    builders.make_marian(tmp_path / "m", spm_models)
    tensors = load_file(tmp_path / "m/model.safetensors")
    rng = np.random.default_rng(3)
    for side in ("encoder", "decoder"):
        table = rng.normal(0, 0.5, (64, 32)).astype(np.float32)
        tensors[f"model.{side}.embed_positions.weight"] = table
    save_file(tensors, tmp_path / "m/model.safetensors", metadata={"format": "pt"})
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "m").eval()
    config, params = read(tmp_path / "m")
    assert config.positional == "learned"
    assert_equal(model, config, params)


def test_import_reads_half_precision_and_copies_of_tied_tables(spm_models, tmp_path):
    """As version 4 wrote them: every use of a tied tensor, in float16 or bfloat16."""
    from safetensors.torch import save_file

    model = builders.make_marian(tmp_path / "m", spm_models)
    for dtype in (torch.float16, torch.bfloat16):
        model = model.to(dtype).float()
        state = {name: tensor.to(dtype).clone() for name, tensor in model.state_dict().items()}
        assert "model.decoder.embed_tokens.weight" in state
        save_file(state, tmp_path / "m/model.safetensors", metadata={"format": "pt"})
        config, params = read(tmp_path / "m")
        assert config.tie_embeddings == "all"
        if config.positional == "learned":  # the sinusoids, rounded
            model.load_state_dict({n: t.float() for n, t in state.items()})
        assert_equal(model, config, params)


def altered(change):
    """A copy of the parameters whose leaves `change(path, leaf)` may replace."""

    def apply(config, params):
        leaves = flatten(params)
        return config, unflatten({p: np.asarray(change(p, x, leaves)) for p, x in leaves.items()})

    return apply


def reconfigured(**fields):
    return lambda config, params: (dataclasses.replace(config, **fields), params)


def zeroed(*names):
    return altered(lambda path, x, _: 0 * x if path[-len(names) :] == names else x)


def swapped(one, other):
    """Swaps two modules wherever both exist."""

    def change(path, x, leaves):
        names = {one: other, other: one}
        return leaves[tuple(names.get(part, part) for part in path)]

    return altered(change)


BREAKAGES = {
    "query bias dropped": zeroed("query", "bias"),
    "value bias dropped": zeroed("value", "bias"),
    "output projection's bias dropped": zeroed("out", "bias"),
    "first feed-forward bias dropped": zeroed("up", "bias"),
    "second feed-forward bias dropped": zeroed("down", "bias"),
    "norm bias dropped": zeroed("norm", "bias"),
    "norm gain dropped": altered(lambda p, x, _: 1 + 0 * x if p[-1] == "scale" else x),
    "final_logits_bias dropped": zeroed("output_bias"),
    "norms swapped": swapped("self_attention_norm", "feed_forward_norm"),
    "query and key swapped": swapped("query", "key"),
    "key and value swapped": swapped("key", "value"),
    "heads cut the other way": altered(
        lambda p, x, _: (
            x.reshape(x.shape[0], x.shape[2], x.shape[1]).swapaxes(1, 2)
            if p[-2:] == ("query", "kernel")
            else x
        )
    ),
    "output projection not transposed": altered(
        lambda p, x, _: x.reshape(32, 32).T.reshape(x.shape) if p[-2:] == ("out", "kernel") else x
    ),
    "embeddings not scaled": reconfigured(scale_embeddings=False),
    "wrong sinusoids": reconfigured(positional="interleaved"),
    "positions from 1": reconfigured(position_offset=1),
    "pre-norm": lambda config, params: (
        dataclasses.replace(config, norm_position="pre"),
        {
            **params,
            **{
                f"{s}_norm": params["encoder_layers_0"]["feed_forward_norm"]
                for s in ("encoder", "decoder")
            },
        },
    ),
    "wrong activation": reconfigured(activation="relu"),
}


@pytest.fixture(scope="module")
def intact_model(spm_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian") / "m"
    model = builders.make_marian(folder, spm_models)
    return model, *read(folder)


@pytest.mark.parametrize("name", BREAKAGES)
def test_import_mistakes_change_the_logits(name, intact_model):
    model, config, params = intact_model
    batch = batch_of(config)
    want = theirs(model, config, batch)[1]
    assert np.max(np.abs(ours(config, params, batch)[1] - want)) < TOLERANCE
    broken = ours(*BREAKAGES[name](config, copy.deepcopy(params)), batch)[1]
    assert np.max(np.abs(broken - want)) > 1e-2


# --- Tokenisation and generation -----------------------------------------------------------------

TEXTS = [*builders.SENTENCES["en"][:20], "Zwölf Boxkämpfer, 3 × ½ …", "x", "  two   spaces "]


@pytest.mark.parametrize("clean_up", [True, False])
def test_import_follows_clean_up_tokenization_spaces(clean_up, spm_models, tmp_path):
    builders.make_marian(tmp_path / "m", spm_models)
    path = tmp_path / "m/tokenizer_config.json"
    options = {**json.loads(path.read_text()), "clean_up_tokenization_spaces": clean_up}
    path.write_text(json.dumps(options))
    their = transformers.MarianTokenizer.from_pretrained(tmp_path / "m")
    pair = Translator.load(tmp_path / "m").tokenizers
    comma = their.convert_tokens_to_ids(",")
    row = [
        *their("one").input_ids[:-1],
        their.convert_tokens_to_ids("▁"),
        comma,
        *their("two").input_ids[:-1],
    ]
    assert comma != their.unk_token_id
    assert pair.target.decode(row) == their.decode(row, skip_special_tokens=True)
    assert (" ," in pair.target.decode(row)) == (not clean_up)


def damaged(folder, name, change):
    tree = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(change(tree)))


@pytest.mark.parametrize("make", [builders.make_marian, builders.make_m2m_100])
def test_import_reads_tables_that_were_enlarged(make, spm_models, tmp_path):
    """As `resize_token_embeddings(pad_to_multiple_of=...)` does before a fine-tuning."""
    model = make(tmp_path / "m", spm_models)
    model.resize_token_embeddings(model.config.vocab_size + 5)
    builders.randomise(model)
    model.save_pretrained(tmp_path / "m")
    translator = Translator.load(tmp_path / "m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    forced = translator.engine.language_tags()[1][:1]
    inputs = tokenizer(TEXTS[:1], return_tensors="pt")
    settings = {"forced_bos_token_id": forced[0]} if forced else {}
    outputs = model.generate(**inputs, num_beams=1, **settings)[0].tolist()
    (got,) = translator.translate(TEXTS[:1], beam_size=1)
    eos = translator.engine.ids.target_eos
    want = outputs[1 + len(forced) :]
    assert list(got.ids) == (want[: want.index(eos)] if eos in want else want)


def test_import_refuses_vocabularies_of_another_size(spm_models, tmp_path):
    builders.make_m2m_100(tmp_path / "m", spm_models)
    builders.make_nllb(tmp_path / "n", spm_models)
    damaged(tmp_path / "m", "config.json", lambda t: {**t, "vocab_size": 100})
    with pytest.raises(UserError, match=r"and 100 language tags are \d+ tokens"):
        Translator.load(tmp_path / "m")
    (tmp_path / "n" / "tokenizer.json").rename(tmp_path / "fast.json")
    (tmp_path / "n" / "sentencepiece.bpe.model").touch()
    with pytest.raises(UserError, match=r"only sentencepiece\.bpe\.model\. Let transformers write"):
        Translator.load(tmp_path / "n")
    (tmp_path / "fast.json").rename(tmp_path / "n" / "tokenizer.json")
    with pytest.raises(UserError, match="does not know 'en'"):
        Translator.load(tmp_path / "n").engine.language_tags(target_lang="en")
    damaged(
        tmp_path / "n",
        "tokenizer.json",
        lambda t: {
            **t,
            "added_tokens": [
                *t["added_tokens"],
                {**t["added_tokens"][0], "content": "<x>", "id": 238},
            ],
        },
    )
    with pytest.raises(UserError, match="a token of id 238"):
        Translator.load(tmp_path / "n")
    (tmp_path / "n/tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        Translator.load(tmp_path / "n")


def test_import_refuses_m2m_100_that_starts_with_padding(spm_models, tmp_path):
    builders.make_m2m_100(tmp_path / "m", spm_models, decoder_start_token_id=1)
    with pytest.raises(UserError, match="decoder_start_token_id=1 is the padding id"):
        Translator.load(tmp_path / "m")


@pytest.mark.parametrize("shared", [True, False])
def test_import_of_marian_tokenizes_as_hugging_face(shared, spm_models, tmp_path):
    codes = (">>de<<", ">>fr<<") if shared else ()
    builders.make_marian(
        tmp_path / "m", spm_models, codes=codes, share_encoder_decoder_embeddings=shared
    )
    their = transformers.MarianTokenizer.from_pretrained(tmp_path / "m")
    pair = Translator.load(tmp_path / "m").tokenizers
    for text in [*TEXTS, ">>de<< two", ">>fr<<three", ">>xx<< four"]:
        assert pair.source.encode(text) == their(text).input_ids[:-1], text
        targets = their(text_target=text).input_ids[:-1]
        assert pair.target.encode(text) == targets, text
    size = pair.target.vocab_size
    rng = np.random.default_rng(1)
    for row in rng.integers(0, size, (50, 8)).tolist():
        # With two vocabularies theirs cannot tell the target's special tokens apart.
        if not shared and set(row) & {*pair.target.special_ids, their.pad_token_id}:
            continue
        assert pair.target.decode(row) == their.decode(row, skip_special_tokens=True), row


@pytest.mark.parametrize("make", [builders.make_m2m_100, builders.make_nllb])
def test_import_treats_names_of_special_tokens_as_text(make, spm_models, tmp_path):
    """Unlike in their tokenizers, where `</s>` in a text ends it."""
    make(tmp_path / "m", spm_models)
    translator = Translator.load(tmp_path / "m")
    source = translator.tokenizers.source
    (tag,), _ = translator.engine.language_tags()
    (name,) = source.tokens([tag])
    for text in (f"one </s> {name} two", name, "</s>", f"<pad>{name}<s>"):
        ids = source.encode(text)
        assert not set(ids) & {tag, source.eos_id, source.pad_id, source.bos_id}
        assert ids
    plain = source.encode("one two")
    assert translator.engine.encoder().source_ids(["one two"]) == [[tag, *plain]]


@pytest.mark.parametrize("make", [builders.make_m2m_100, builders.make_nllb])
def test_import_of_m2m_100_and_nllb_tokenizes_as_hugging_face(make, spm_models, tmp_path):
    make(tmp_path / "m", spm_models)
    their = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    translator = Translator.load(tmp_path / "m")
    source_prefix, target_prefix = translator.engine.language_tags()
    for text in TEXTS:
        assert [*source_prefix, *translator.tokenizers.source.encode(text)] == (
            their(text).input_ids[:-1]
        )
    other = {"__de__": ("fr", "__fr__"), "deu_Latn": ("fra_Latn", "fra_Latn")}
    (tag,) = translator.tokenizers.target.tokens(target_prefix)
    language, token = other[tag]
    assert translator.engine.language_tags(target_lang=language)[1] == [
        their.convert_tokens_to_ids(token)
    ]
    with pytest.raises(UserError, match="does not know 'xx'"):
        translator.engine.language_tags(target_lang="xx")
    with pytest.raises(UserError, match="does not know 'yy'"):
        translator.engine.language_tags(source_lang="yy")


GENERATION = {
    "unchanged": {},
    "greedy": {"num_beams": 1},
    "nothing forced at the end": {"forced_eos_token_id": None, "max_length": 12},
    "forced end, early": {"max_length": 12},
    "not renormalised": {"renormalize_logits": False, "bad_words_ids": [[5], [7], [20], [21]]},
    "renormalised": {"renormalize_logits": True, "bad_words_ids": [[5], [7], [20], [21]]},
    "first K": {"early_stopping": True, "length_penalty": 1.5},
    "never": {"early_stopping": "never", "length_penalty": 0.5},
    "suppressed": {"suppress_tokens": [3, 9, 11]},
    "new tokens": {"max_new_tokens": 9, "max_length": None},
}


def write_generation(folder, **settings):
    path = folder / "generation_config.json"
    tree = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({k: v for k, v in tree.items() if v is not None}))


@pytest.fixture(scope="module")
def trained_like(spm_models, tmp_path_factory):
    """Weights small enough that outputs vary, and end."""
    folder = tmp_path_factory.mktemp("generation") / "m"
    model = builders.make_marian(folder, spm_models, seed=3)
    builders.randomise(model, 3, 0.5)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", GENERATION)
def test_import_searches_with_the_generation_settings(name, trained_like, tmp_path):
    shutil.copytree(trained_like, tmp_path / "m")
    write_generation(tmp_path / "m", **GENERATION[name])
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "m").eval()
    their = transformers.MarianTokenizer.from_pretrained(tmp_path / "m")
    batch = their(builders.SENTENCES["en"][:30], return_tensors="pt", padding=True)
    rows = model.generate(**batch)[:, 1:].tolist()
    want = [tuple(row[: row.index(0)] if 0 in row else row) for row in rows]
    pad = model.config.pad_token_id
    want = [tuple(i for i in row if i != pad) for row in want]
    outputs = Translator.load(tmp_path / "m").translate(builders.SENTENCES["en"][:30])
    assert len(set(want)) > 3
    assert [output.ids for output in outputs] == want


def test_import_of_m2m_100_decodes_the_language_tag_first(spm_models, tmp_path):
    model = builders.make_m2m_100(tmp_path / "m", spm_models)
    their = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    texts = builders.SENTENCES["en"][:10]
    batch = their(texts, return_tensors="pt", padding=True)
    translator = Translator.load(tmp_path / "m")
    for language in ("de", "fr"):
        forced = their.convert_tokens_to_ids(f"__{language}__")
        rows = model.generate(**batch, forced_bos_token_id=forced)[:, 1:].tolist()
        assert {row[0] for row in rows} == {forced}
        want = [tuple(row[1 : row.index(2)] if 2 in row else row[1:]) for row in rows]
        outputs = translator.translate(texts, target_lang=language)
        assert [output.ids for output in outputs] == want
