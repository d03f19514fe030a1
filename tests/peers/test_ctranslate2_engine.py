"""A CTranslate2 directory as an engine of ours, compared with our own on the same weights."""

import concurrent.futures
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from tests.conftest import digit_pairs
from tests.peers import builders
from tests.peers.test_export import random_model
from transformer_jax import Translator
from transformer_jax.data.shortlist import Shortlist
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import term_placement
from transformer_jax.extras.interop.ctranslate2 import reading, writing
from transformer_jax.extras.interop.export import export_model
from transformer_jax.extras.interop.sample_text import SampleText
from transformer_jax.translator import pretrained
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.calibration import Calibration
from transformer_jax.translator.confidence import Logistic
from transformer_jax.translator.pretrained import Pretrained
from transformer_jax.translator.requests import Request
from transformer_jax.translator.words import words_of

SENTENCES = [source for source, _ in digit_pairs(20, seed=9)]
# What CTranslate2 does; the settings of both sides are the same.
SEARCH = {"stopping": "first_k", "at_limit": "cut", "renormalize": True, "max_decode_len": 12}


@pytest.fixture(scope="module")
def ours(tiny_run):
    return Translator.load(tiny_run[1])


def export(translator, folder, quantization="float32"):
    folder = epath.Path(folder)
    writing.write_directory(
        folder, translator.config, translator.tokenizers, translator.params, quantization
    )
    return folder


@pytest.fixture(scope="module")
def folder(ours, tmp_path_factory):
    return export(ours, tmp_path_factory.mktemp("ct2") / "float32")


@pytest.fixture(scope="module")
def theirs(folder):
    return Translator.load(folder)


def check_same(one, other, tolerance=1e-4):
    assert [t.ids for t in one] == [t.ids for t in other]
    assert [(t.text, t.tokens) for t in one] == [(t.text, t.tokens) for t in other]
    for name in ("score", "log_prob"):
        got, want = ([getattr(t, name) for t in side] for side in (one, other))
        np.testing.assert_allclose(got, want, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        {"beam_size": 1},
        {"beam_size": 1, "stopping": "exact"},  # which greedy search has, too
        {"beam_size": 4},
        {"length_penalty": 0.0},
        {"length_penalty": 1.3, "length_penalty_kind": "power"},
        {"length_penalty": 0.0, "length_penalty_kind": "power"},
        {"min_decode_len": 8},
        {"min_decode_len": 1},
        {"max_decode_len": 5},
        {"max_decode_ratio": 0.05, "max_decode_len": 40},  # each text has its own limit
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.4},
        {"suppressed_ids": "frequent"},
        {"beam_size": 1, "suppressed_ids": "frequent", "repetition_penalty": 1.2},
        {"method": "sample", "top_k": 1},
    ],
    ids=str,
)
def test_ctranslate2_engine_translates_as_ours(ours, theirs, settings):
    settings = SEARCH | settings
    plain = ours.translate(SENTENCES, **SEARCH)
    if settings.get("suppressed_ids"):
        ids = [i for t in plain for i in t.ids]
        settings["suppressed_ids"] = tuple({max(set(ids), key=ids.count), ids[0]})
    want = ours.translate(SENTENCES, **settings)
    check_same(theirs.translate(SENTENCES, **settings), want)
    assert len({len(t.ids) for t in want}) > 1


@pytest.mark.parametrize("beam_size", [1, 4])
def test_ctranslate2_engine_has_the_shortlist_of_an_export(ours, tmp_path, beam_size):
    """One text at a time, because CTranslate2 lets a text have the tokens of its whole call."""
    rng = np.random.default_rng(0)
    size = ours.tokenizers.target.vocab_size
    frequent = [*{i for t in ours.translate(SENTENCES, **SEARCH) for i in t.ids}]
    by_source = [[*rng.choice(frequent, 3), *rng.integers(4, size, 9)] for _ in range(size)]
    by_source[ours.tokenizers.source.eos_id] = []  # CTranslate2 adds it to a source later
    learned = Shortlist.of_lists(frequent[:2], by_source)
    model = Pretrained(ours.config, ours.tokenizers, ours.params, 0, shortlist=lambda: learned)
    text = SampleText(tuple(SENTENCES))
    export_model(model, "ctranslate2", tmp_path / "ct2", text, say=lambda line: None)
    theirs = Translator.load(tmp_path / "ct2")
    # It always has the start and the unknown symbol, too.
    symbols = (ours.tokenizers.target.bos_id, ours.tokenizers.target.unk_id)
    learned = dataclasses.replace(learned, always=np.array([*learned.always, *symbols]))
    subject = Translator(ours.config, ours.tokenizers, ours.params, shortlist=lambda: learned)
    settings = SEARCH | {"beam_size": beam_size}
    for sentence in SENTENCES:
        got = theirs.translate([sentence], shortlist=True, **settings)
        check_same(got, subject.translate([sentence], shortlist=True, **settings), 1e-3)
    free = ours.translate(SENTENCES, **settings)
    assert [t.ids for t in free] != [
        t.ids for t in subject.translate(SENTENCES, shortlist=True, **settings)
    ]
    (tmp_path / "ct2" / "vmap.txt").unlink()
    with pytest.raises(UserError, match=r"needs .*vmap\.txt: run `transformer-jax shortlist`"):
        Translator.load(tmp_path / "ct2").translate("one", shortlist=True)


@pytest.mark.parametrize("kind", ["gnmt", "power"])
def test_ctranslate2_engine_gives_the_same_n_best(ours, theirs, kind):
    settings = SEARCH | {"beam_size": 4, "length_penalty_kind": kind}
    want = ours.translate(SENTENCES, n_best=4, **settings)
    for got, expected in zip(theirs.translate(SENTENCES, n_best=4, **settings), want, strict=True):
        if kind == "power":
            check_same(got, expected)
        check_same(got[:1], expected[:1])
        assert [t.score for t in got] == sorted((t.score for t in got), reverse=True)


def test_ctranslate2_engine_counts_prefixes_as_ours(ours, theirs):
    prefixes = ["eins", "neun acht", "", "drei", "sechs sechs"]
    requests = [Request(s, p) for s, p in zip(SENTENCES, prefixes, strict=False)]
    for beam_size in (1, 4):
        settings = SEARCH | {"beam_size": beam_size, "min_decode_len": 5}
        got, want = theirs.translate(requests, **settings), ours.translate(requests, **settings)
        check_same(got, want)
        # A text without a prefix is translated as in a call without any.
        assert got[2] == theirs.translate(requests[2], **settings)


def test_ctranslate2_engine_gives_the_same_attention(ours, theirs):
    choice = AttentionChoice()
    settings = SEARCH | {"attention": choice, "n_best": 3, "beam_size": 3}
    want = ours.translate(SENTENCES[:6], **settings)
    got = theirs.translate(SENTENCES[:6], **settings)
    for (best, *others), (expected, *_) in zip(got, want, strict=True):
        assert (best.ids, best.source_tokens) == (expected.ids, expected.source_tokens)
        np.testing.assert_allclose(best.attention, expected.attention, atol=1e-5)
        assert all(one.attention is None for one in others)
    with pytest.raises(UserError, match="all heads of decoder layer 0 only, not of layer -2 with"):
        theirs.translate("one", attention=AttentionChoice(-2, 1))


def test_ctranslate2_engine_has_the_attention_of_the_last_layer_but_one(tokenizers, tmp_path):
    model = random_model(tokenizers)  # of two layers
    data = dataclasses.replace(model.config.data, max_len=model.config.model.max_len)
    ours = Translator(dataclasses.replace(model.config, data=data), tokenizers, model.params)
    theirs = Translator.load(export(ours, tmp_path / "random"))
    requests = [Request(text, "eins zwei") for text in SENTENCES[:4]]
    settings = SEARCH | {"attention": AttentionChoice(), "beam_size": 1}
    for one, other in zip(
        theirs.translate(requests, **settings), ours.translate(requests, **settings), strict=True
    ):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-5)
    with pytest.raises(UserError, match="all heads of decoder layer 0 only, not of layer -1"):
        theirs.translate("one", attention=AttentionChoice(-1))


@pytest.mark.parametrize(
    "choice", [AttentionChoice(1, 2, True), AttentionChoice(0, 1), AttentionChoice(1, None, True)]
)
def test_ctranslate2_engine_has_the_attention_that_was_calibrated(tokenizers, tmp_path, choice):
    model = random_model(tokenizers)  # of two layers of four heads
    data = dataclasses.replace(model.config.data, max_len=model.config.model.max_len)
    config = dataclasses.replace(model.config, data=data)
    logistic = Logistic((0.0,) * 4, 0.0)
    measured = Calibration(logistic, logistic, ("x",), choice)
    model = dataclasses.replace(model, config=config, calibration=measured)
    text = SampleText(tuple(SENTENCES))
    export_model(model, "ctranslate2", tmp_path / "random", text, say=lambda line: None)
    ours = Translator(config, tokenizers, model.params)
    theirs = Translator.load(tmp_path / "random")
    assert theirs.calibration == measured
    # A single head has become the first one.
    exported = dataclasses.replace(choice, head=None if choice.head is None else 0)
    assert theirs.alignment == exported
    requests = [Request(text, "eins zwei") for text in SENTENCES[:4]]
    for one, other in zip(
        theirs.translate(requests, attention=exported, **SEARCH),
        ours.translate(requests, attention=choice, **SEARCH),
        strict=True,
    ):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-5)
        np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, atol=1e-4)


def test_ctranslate2_engine_translates_documents_as_ours(ours, theirs):
    text = "<p>one <b>two</b> {x} three. four <i>six</i></p><p translate=no>one</p>"
    for guards in (False, True):  # caught ones are searched again by what CTranslate2 can do
        got, want = (
            model.translate_document(text, "html", guards=guards, **SEARCH)
            for model in (theirs, ours)
        )
        assert len(got.sentences) == len(want.sentences) == 2
        assert got.text.count("{x}") == got.text.count("<b>") == 1
        if not guards:
            assert got == want


def test_ctranslate2_engine_places_terms_by_attention(ours, theirs, monkeypatch):
    text, asked = "one two three. four", {"glossary": [("two", "neun|acht")], "guards": False}
    monkeypatch.setattr(term_placement, "_LEAST_SHARE", 0.0)  # some word attends enough
    got, want = (model.translate_document(text, **asked, **SEARCH) for model in (theirs, ours))
    assert got == want
    assert not got.sentences[0].unmet
    assert {"neun", "acht"} & {*words_of(got.text.casefold())}
    # Where no word does, the search would have to write it; CTranslate2's cannot, and it is said.
    monkeypatch.setattr(term_placement, "_LEAST_SHARE", 2.0)
    got = theirs.translate_document(text, **asked, **SEARCH)
    assert got.text == theirs.translate_document(text, guards=False, **SEARCH).text
    assert "neun" in got.sentences[0].unmet[0]


def test_ctranslate2_engine_scores_as_ours(ours, theirs):
    targets = [t.text for t in ours.translate(SENTENCES, **SEARCH)][::-1]
    for got, want in zip(
        theirs.score_tokens(SENTENCES, targets), ours.score_tokens(SENTENCES, targets), strict=True
    ):
        assert got.tokens == want.tokens
        np.testing.assert_allclose(got.log_probs, want.log_probs, atol=1e-4)
        np.testing.assert_allclose(got.log_prob, want.log_prob, atol=1e-3)
    assert theirs.score("one", "eins") == pytest.approx(ours.score("one", "eins"), abs=1e-4)
    assert theirs.score("", "") == pytest.approx(ours.score("", ""), abs=1e-4)


def test_ctranslate2_engine_joins_long_texts_and_keeps_empty_ones(ours, theirs, capsys):
    long = " ".join(SENTENCES)
    texts = [long, "", "one"]
    check_same(theirs.translate(texts, **SEARCH), ours.translate(texts, **SEARCH))
    assert "translated in" in capsys.readouterr().err


def test_ctranslate2_engine_samples_and_chooses_by_mbr(ours, theirs):
    samples = theirs.translate("one two", n_best=8, method="sample", top_p=0.9, temperature=1.5)
    assert len({t.ids for t in samples}) > 1
    for one in samples:  # log-probabilities are those of the model, not of the samples
        want = ours.score("one two", one.text)
        if ours.tokenizers.target.encode(one.text) == list(one.ids) and len(one.ids) < 20:
            assert one.log_prob == pytest.approx(want, abs=1e-3)
    best = theirs.translate("one two", method="mbr", mbr_samples=8, top_k=3)
    assert 0 <= best.score <= 100


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"stopping": "exact"}, "`stopping=exact`"),
        ({"at_limit": "end"}, "`at_limit=end`"),
        ({"min_decode_ratio": 0.5}, "`min_decode_ratio=0.5`"),
        ({"coverage_penalty": 0.2}, "`coverage_penalty=0.2`"),
        ({"beam_groups": 2}, "`beam_groups=2`"),
        ({"method": "sample", "min_p": 0.1}, "`min_p=0.1`"),
        ({"seed": 0}, "`seed`"),
        ({"renormalize": False, "no_repeat_ngram_size": 2}, "`renormalize=False`"),
    ],
)
def test_ctranslate2_engine_refuses_a_setting_by_name(theirs, settings, name):
    with pytest.raises(UserError) as caught:
        theirs.translate("one", **settings)
    message = str(caught.value)
    assert message.startswith("A CTranslate2 model ")
    assert f" no {name}" in message
    assert message.endswith(".")
    assert ". " not in message


def test_ctranslate2_engine_refuses_what_is_no_setting(theirs, folder):
    # What has no effect is not refused.
    assert theirs.translate("one", renormalize=False).text == theirs.translate("one").text
    with pytest.raises(UserError, match="cannot place phrases"):
        theirs.translate(Request("one", phrases=["zwei"]))
    for arguments, name in (
        ({"checkpoint": "latest"}, "checkpoint"),
        ({"ensemble": [folder]}, "ensemble"),
        ({"processors": [lambda x, _: x]}, "processors"),
    ):
        with pytest.raises(UserError, match=f"is a CTranslate2 model: it has no `{name}`"):
            Translator.load(folder, **arguments)
    with pytest.raises(UserError, match="its parameters cannot be read; name the model"):
        pretrained.load(folder)


def test_ctranslate2_engine_compiles_nothing_and_shares_batches(ours, theirs):
    assert theirs.warmup([8, 16], num_texts=4) == 0
    theirs.engine.freeze()
    assert theirs.engine.num_compiled == 0
    sizes = []
    original = theirs.engine.runner.translate_batch

    def counted(params, settings):
        function = original(params, settings)

        def translate(batch, texts):
            sizes.append(len(texts))
            return function(batch, texts)

        return translate

    theirs.engine.runner.translate_batch = counted
    try:
        with concurrent.futures.ThreadPoolExecutor(5) as threads:
            futures = list(
                threads.map(
                    lambda text: theirs.submit(text, client=text, wait_ms=200, **SEARCH), SENTENCES
                )
            )
        check_same([f.result() for f in futures], ours.translate(SENTENCES, **SEARCH))
    finally:
        del theirs.engine.runner.translate_batch
    assert max(sizes) > 4
    assert sum(sizes) == len(SENTENCES)


@builders.NEEDS_VNNI
def test_ctranslate2_engine_runs_int8_and_keeps_the_run_config(ours, tmp_path):
    data = dataclasses.replace(ours.config.data, source_lang="en", target_lang="xx", lowercase=True)
    config = dataclasses.replace(ours.config, data=data)
    ours = Translator(config, ours.tokenizers, ours.params)
    folder = export(ours, tmp_path / "int8", "int8")
    int8 = Translator.load(folder)
    assert (int8.config.data, int8.config.decode.stopping) == (data, "first_k")
    assert int8.tokenizers.fingerprint == ours.tokenizers.fingerprint
    want = ours.translate(SENTENCES, **SEARCH)
    same = [
        a.text == b.text for a, b in zip(int8.translate(SENTENCES, **SEARCH), want, strict=True)
    ]
    assert sum(same) > len(same) / 2
    (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:500])
    with pytest.raises(UserError, match=r"model\.bin is damaged"):
        Translator.load(folder)


def test_ctranslate2_engine_reads_an_export_without_our_settings(ours, theirs, folder, tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    for path in Path(folder).iterdir():
        if path.name != reading.SETTINGS_FILE:
            (old / path.name).write_bytes(path.read_bytes())
    check_same(
        Translator.load(old).translate(SENTENCES, beam_size=3, **SEARCH),
        ours.translate(
            SENTENCES, beam_size=3, length_penalty_kind="power", length_penalty=1.0, **SEARCH
        ),
    )
    (old / "source.spm").unlink()
    with pytest.raises(UserError, match=r"has no source\.spm\. Copy what is missing from"):
        Translator.load(old)


def test_ctranslate2_engine_reads_converted_marian_models(spm_models, tmp_path):
    import ctranslate2

    source = tmp_path / "marian"
    model = builders.make_marian(source, spm_models)
    model.model.shared.weight.data[-1] = 0.0  # of <pad>, as in Marian's models
    model.save_pretrained(source)
    converted = tmp_path / "converted"
    converter = ctranslate2.converters.TransformersConverter(
        str(source), copy_files=["source.spm", "target.spm"]
    )
    converter.convert(str(converted))
    texts = builders.SENTENCES["en"][:12]
    settings = SEARCH | {"max_decode_len": 30, "length_penalty_kind": "power", "beam_size": 4}
    theirs, ours = Translator.load(converted), Translator.load(source)
    assert theirs.engine.max_len == ours.engine.max_len == 64
    got = theirs.translate(texts, **settings)
    want = ours.translate(texts, **settings)
    assert [t.text for t in got] == [t.text for t in want]
    np.testing.assert_allclose([t.score for t in got], [t.score for t in want], atol=1e-4)
    # The converter leaves out <pad>, which has a share of the probability in the original.
    assert theirs.score(texts[0], "eins") == pytest.approx(ours.score(texts[0], "eins"), abs=0.01)
    (best,) = theirs.translate(texts[:1], attention=AttentionChoice(-1, 0), **settings)
    (expected,) = ours.translate(texts[:1], attention=AttentionChoice(-1, 0), **settings)
    np.testing.assert_allclose(best.attention, expected.attention, atol=1e-5)
    with pytest.raises(UserError, match="first 1 heads of decoder layer 1 only"):
        theirs.translate("one", attention=AttentionChoice())
    # As converters before config.json wrote it; ctranslate2 gives what is right.
    model_file = converted / "model.bin"
    model_file.write_bytes((5).to_bytes(4, "little") + model_file.read_bytes()[4:])
    (converted / "config.json").unlink()
    peer = ctranslate2.Translator(str(converted))
    tokenizer = ours.tokenizers.source
    tokens = [[*tokenizer.tokens(tokenizer.encode(text)), "</s>"] for text in texts]
    limits = {"beam_size": 4, "max_decoding_length": 30}
    want = [one.hypotheses[0] for one in peer.translate_batch(tokens, **limits)]
    old = Translator.load(converted).translate(texts, **settings)
    assert [list(one.tokens) for one in old] == want
    model_file.write_bytes((3).to_bytes(4, "little") + model_file.read_bytes()[4:])
    with pytest.raises(UserError, match="version 3 of CTranslate2's format, and 4 to 6 can be"):
        Translator.load(converted)


def test_decode_command_translates_with_a_ctranslate2_directory(theirs, folder, tmp_path):
    text = tmp_path / "text.en"
    text.write_text("\n".join(SENTENCES) + "\n")
    output = tmp_path / "out.jsonl"

    def decode(*flags):
        root = Path(__file__).parents[2]
        return subprocess.run(
            [sys.executable, "decode.py", f"--workdir={folder}", f"--input={text}", *flags],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )

    done = decode(f"--output={output}", "--beam_size=2", "--format=jsonl", "--alignment")
    assert done.returncode == 0, done.stderr
    assert "compiled programs: 0" in done.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    want = theirs.translate(SENTENCES, beam_size=2)
    assert [line["text"] for line in lines] == [t.text for t in want]
    refused = decode("--stopping=exact")
    assert refused.returncode == 2
    assert "A CTranslate2 model has no --stopping=exact: " in refused.stderr
