"""Exported models, loaded by the other tools."""

import dataclasses
import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from etils import epath

from tests.conftest import digit_pairs
from tests.peers import builders
from transformer_jax import Translator
from transformer_jax.config import Config, DataConfig, DecodeConfig, ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import export, model_card, parity, sample_text
from transformer_jax.extras.interop.ctranslate2 import writing as ctranslate2_writing
from transformer_jax.extras.interop.ctranslate2.peer import CTranslate2Peer
from transformer_jax.extras.interop.huggingface import checking, reading, writing
from transformer_jax.extras.interop.sample_text import SampleText
from transformer_jax.model.transformer import init_params
from transformer_jax.translator import pretrained
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.pretrained import Pretrained

SENTENCES = [source for source, _ in digit_pairs(20, seed=9)]
TEXT = SampleText(tuple(SENTENCES))


def random_model(tokenizers, tie="all", **fields) -> Pretrained:
    """A model whose every parameter matters."""
    size = tokenizers.source.vocab_size
    model = ModelConfig(
        **{
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "d_model": 24,
            "num_heads": 4,
            "d_ff": 40,
            "max_len": 48,
            "source_vocab_size": size,
            "target_vocab_size": size,
            "decoder_start_id": tokenizers.target.bos_id,
            "tie_embeddings": tie,
            **fields,
        }
    )
    config = Config(
        model=model,
        data=DataConfig(source="files", shared_vocab=tie == "all"),
        decode=DecodeConfig(max_decode_len=20),
    )
    rng = np.random.default_rng(4)
    params = jax.tree.map(
        lambda x: np.asarray(x + rng.normal(0, 0.15, x.shape), np.float32),
        init_params(model, jax.random.key(0)),
    )
    return Pretrained(config, tokenizers, params, 0)


MARIAN = {
    "interleaved": ({}, "MarianMTModel"),
    "halves": ({"positional": "halves"}, "MarianMTModel"),
    "learned": ({"positional": "learned"}, "MarianMTModel"),
    "no positions": ({"positional": "none"}, "MarianMTModel"),
    "tensor2tensor": ({"positional": "tensor2tensor"}, "MarianMTModel"),
    "another base": ({"positional_base": 500.0}, "MarianMTModel"),
    "decoder tied": ({"tie": "decoder"}, "MarianMTModel"),
    "nothing tied": ({"tie": "none"}, "MarianMTModel"),
    "bias, silu, decoder sizes": (
        {"output_bias": True, "activation": "silu", "num_decoder_heads": 2, "decoder_d_ff": 16},
        "MarianMTModel",
    ),
    "not scaled": ({"scale_embeddings": False, "activation": "gelu_tanh"}, "MarianMTModel"),
    "pre-norm": ({"norm_position": "pre"}, "PegasusForConditionalGeneration"),
    "pre-norm, learned": (
        {"norm_position": "pre", "positional": "learned", "output_bias": True},
        "PegasusForConditionalGeneration",
    ),
    "pre-norm, M2M-100's positions": (
        {"norm_position": "pre", "positional": "tensor2tensor", "position_offset": 1},
        "M2M100ForConditionalGeneration",
    ),
}


@pytest.mark.parametrize("name", MARIAN)
def test_export_to_marian_is_loaded_by_hugging_face_and_read_back(name, tokenizers, tmp_path):
    fields, architecture = MARIAN[name]
    model = random_model(tokenizers, **{"norm_epsilon": 1e-5, **fields})
    plan = writing.plan_export(model.config, tokenizers, model.params)
    assert plan.family.architecture == architecture
    folder = epath.Path(tmp_path / "out")
    writing.write_directory(folder, model.config, tokenizers, model.params, plan)
    reference = parity.Reference(model.config, tokenizers, model.params)
    examples = reference.examples(SENTENCES)
    result = parity.compare(
        reference, examples, checking.HuggingFacePeer(folder, reference, examples)
    )
    assert result.largest_difference < 1e-4
    assert result.identical == len(SENTENCES)
    read = reading.read_model(folder)
    config, pair, params = read.config, read.tokenizers, read.params
    assert config.model == model.config.model
    assert jax.tree.structure(params) == jax.tree.structure(model.params)
    jax.tree.map(np.testing.assert_array_equal, params, model.params)
    assert pair.source.encode(SENTENCES[0]) == tokenizers.source.encode(SENTENCES[0])


def test_export_note_marian_drops_stored_positions_when_saving_again(tokenizers, tmp_path):
    """The note of the export is true. If this fails, transformers has changed: fix the note."""
    import transformers

    model = random_model(tokenizers, positional="learned")
    plan = writing.plan_export(model.config, tokenizers, model.params)
    assert any("drops them" in note for note in plan.notes)
    folder = epath.Path(tmp_path / "out")
    writing.write_directory(folder, model.config, tokenizers, model.params, plan)
    transformers.MarianMTModel.from_pretrained(folder).save_pretrained(tmp_path / "again")
    from safetensors.numpy import load_file

    assert "model.encoder.embed_positions.weight" in load_file(folder / "model.safetensors")
    again = load_file(tmp_path / "again/model.safetensors")
    assert "model.encoder.embed_positions.weight" not in again


CTRANSLATE2 = {
    "post-norm": {},
    "pre-norm": {"norm_position": "pre"},
    "decoder tied": {"tie": "decoder"},
    "nothing tied, pre-norm": {"tie": "none", "norm_position": "pre"},
    "learned": {"positional": "learned"},
    "rotary": {"positional": "rotary"},
    "rotary, another base": {"positional": "rotary", "positional_base": 300.0},
    "no positions": {"positional": "none"},
    "head_dim": {"head_dim": 10},
    "decoder sizes, bias": {"num_decoder_heads": 2, "decoder_d_ff": 16, "output_bias": True},
    "gelu": {"activation": "gelu"},
    "another epsilon": {"norm_epsilon": 0.03},
    "gelu_tanh": {"activation": "gelu_tanh", "norm_position": "pre"},
    "silu, not scaled": {"activation": "silu", "scale_embeddings": False},
    "embedding norm": {"embedding_norm": True, "positional": "learned"},
    "rms norm, no biases": {"norm": "rms", "use_bias": False, "norm_position": "pre"},
    "gated": {"feed_forward": "gated", "activation": "gelu_tanh"},
    "T5": {
        "norm": "rms",
        "use_bias": False,
        "norm_position": "pre",
        "feed_forward": "gated",
        "activation": "gelu_tanh",
        "positional": "relative",
        "relative_buckets": 6,
        "relative_max_distance": 9,
        "attention_scale": 1.0,
        "logit_scale": 0.3,
        "scale_embeddings": False,
        "head_dim": 10,
    },
    "relative, per layer": {"positional": "relative", "relative_per_layer": True},
    "2 heads of keys": {"num_kv_heads": 2, "norm_position": "pre"},
}


@pytest.mark.parametrize("name", CTRANSLATE2)
def test_export_to_ctranslate2_scores_as_our_model(name, tokenizers, tmp_path):
    model = random_model(tokenizers, **CTRANSLATE2[name])
    folder = epath.Path(tmp_path / "out")
    ctranslate2_writing.write_directory(folder, model.config, tokenizers, model.params)
    reference = parity.Reference(model.config, tokenizers, model.params)
    examples = reference.examples(SENTENCES)
    peer = CTranslate2Peer(folder, reference, examples, "float32")
    result = parity.compare(reference, examples, peer)
    assert result.largest_difference < 1e-4
    assert result.identical == len(SENTENCES)


@pytest.mark.parametrize("head", [1, 2, 3])
def test_export_to_ctranslate2_of_a_head_only_numbers_heads_anew(head, tokenizers, tmp_path):
    model = random_model(tokenizers, num_kv_heads=2, norm_position="pre")
    choice = AttentionChoice(-1, head)
    folder = epath.Path(tmp_path / "out")
    arguments = model.config, tokenizers, model.params
    ctranslate2_writing.write_directory(folder, *arguments, attention=choice)
    reference = parity.Reference(*arguments)
    examples = reference.examples(SENTENCES[:5])
    peer = CTranslate2Peer(folder, reference, examples, "float32")
    assert parity.compare(reference, examples, peer).largest_difference < 1e-4
    # CTranslate2 returns the first head's attention.
    changed = ctranslate2_writing._with_first_head(model.params, choice, 2)
    for part, old in (("query", head), ("key", head // 2)):
        kernels = [
            params["decoder_layers_1"]["cross_attention"][part]["kernel"]
            for params in (changed, model.params)
        ]
        np.testing.assert_array_equal(kernels[0][:, 0], kernels[1][:, old])


ARGUMENTS = [
    ("marian",),
    ("stablehlo",),
    ("ctranslate2",),
    ("ctranslate2", "float16"),
    pytest.param(("ctranslate2", "int8"), marks=builders.NEEDS_VNNI),
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_export_of_a_trained_run_in_every_format(arguments, tiny_run, translator, tmp_path):
    format_name, *quantization = arguments
    said: list[str] = []
    model = pretrained.load(tiny_run[1])
    text = sample_text.find(tiny_run[1], translator.config)
    facts = model_card.collect_facts(tiny_run[1], model)
    export.export_model(
        model,
        format_name,
        tmp_path / "out",
        text,
        *quantization,
        say=said.append,
        max_bleu_loss=5.0,
        facts=facts,
    )
    assert said[-1] == f"wrote {tmp_path / 'out'}"
    assert any("identical outputs" in line for line in said)
    assert any("BLEU" in line for line in said) == bool(quantization)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    card = (tmp_path / "out/README.md").read_text()
    assert "| validation set | 8 |" in card
    assert all(line in card for line in said[:-1])  # the results and what differs
    # Each has the SentencePiece models of both sides.
    models = [*(tmp_path / "out").glob("*.spm"), *(tmp_path / "out").glob("*.model")]
    assert {p.stem for p in models} == {"source", "target"}
    assert all(p.read_bytes() == translator.tokenizers.source.model for p in models)
    search = {"beam_size": 1} if format_name == "stablehlo" else comparable(translator.config)
    sentence = text.sentences[0]
    assert json.dumps(sentence) in card
    want = translator.translate([sentence], **search)[0].text
    assert run_program(tmp_path / "out") == want
    if format_name == "ctranslate2":
        assert Translator.load(tmp_path / "out").engine.runner.kind == "ctranslate2"
    if format_name == "stablehlo":
        with pytest.raises(UserError, match="out is a StableHLO export"):
            Translator.load(tmp_path / "out")


def comparable(config):
    """Our search with what the other tools do instead of our length penalty and limit."""
    power = round(writing.power_of_length(config.decode), 3)
    search = {"length_penalty": power, "length_penalty_kind": "power", "stopping": "first_k"}
    return {**search, "max_decode_ratio": 48.0}


def run_program(folder):
    """What the Python of an export's README prints, in its folder and a process of its own."""
    card = (folder / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(program.splitlines()) < 30
    assert all(len(line) <= 100 for line in program.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    assert f"It prints:\n\n```\n{done.stdout}```" in card or not done.stdout.strip()
    return done.stdout.rstrip("\n")


def own_outputs(translator, count=120):
    """Sentences whose references are the model's own outputs: BLEU is 100 before rounding."""
    sentences = [source for source, _ in digit_pairs(count, seed=11)]
    outputs = translator.translate(sentences, **comparable(translator.config))
    return SampleText(tuple(sentences), tuple(output.text for output in outputs), "own outputs")


@builders.NEEDS_VNNI
def test_export_prints_bleu_and_chrf_before_and_after_quantization(translator, tmp_path):
    """The oracle is sacreBLEU on what ctranslate2 itself translates with the exported folders."""
    import ctranslate2 as library
    import sacrebleu

    model = Pretrained(translator.config, translator.tokenizers, translator.params, 0)
    text, said = own_outputs(translator), []
    scores = []
    for quantization in ("float32", "int8"):
        folder = epath.Path(tmp_path / quantization)
        if quantization == "int8":
            export.export_model(
                model, "ctranslate2", folder, text, "int8", said.append, max_bleu_loss=60.0
            )
        else:
            ctranslate2_writing.write_directory(
                folder, model.config, model.tokenizers, model.params
            )
        spm = translator.tokenizers.source
        tokens = [spm.tokens(spm.encode(sentence)) for sentence in text.sentences]
        results = library.Translator(str(folder)).translate_batch(
            tokens,
            beam_size=translator.config.decode.beam_size,
            length_penalty=comparable(translator.config)["length_penalty"],
            max_decoding_length=translator.config.decode.max_decode_len,
        )
        outputs = [spm.decode(map(spm.token_id, r.hypotheses[0])) for r in results]
        bleu = sacrebleu.corpus_bleu(outputs, [list(text.references)]).score
        scores.append((bleu, sacrebleu.corpus_chrf(outputs, [list(text.references)]).score))
    (line,) = [line for line in said if "before" in line]
    printed = [float(x) for x in re.findall(r"([\d.]+) (?:before|after)", line)]
    (before, chrf_before), (after, chrf_after) = scores
    assert printed == [round(x, 2) for x in (before, after, chrf_before, chrf_after)]
    assert after < before > 80  # int8 changes some outputs of this model


def test_export_with_a_broken_quantization_is_refused(translator, tmp_path, monkeypatch):
    original = ctranslate2_writing.write_directory

    def broken(folder, config, tokenizers, params, quantization, attention):
        if quantization != "float32":
            scale = params["decoder_norm"]["norm"]["scale"]
            norm = {"norm": {**params["decoder_norm"]["norm"], "scale": scale[::-1].copy()}}
            params = {**params, "decoder_norm": norm}
        original(folder, config, tokenizers, params, quantization, attention)

    monkeypatch.setattr(ctranslate2_writing, "write_directory", broken)
    model = Pretrained(translator.config, translator.tokenizers, translator.params, 0)
    text, said = own_outputs(translator), []
    for quantization, words in (("int8", "loses .* BLEU"), ("float16", "beyond the tolerance")):
        with pytest.raises(UserError, match=words):
            export.export_model(
                model,
                "ctranslate2",
                tmp_path / "new/out",
                text,
                quantization,
                said.append,
                max_bleu_loss=60.0,
            )
        assert not list(tmp_path.iterdir())


def test_export_to_int8_without_references_has_to_accept_any_loss(translator, tmp_path):
    model = Pretrained(translator.config, translator.tokenizers, translator.params, 0)
    text, said = TEXT, []
    with pytest.raises(UserError, match="is judged by BLEU, which needs references"):
        export.export_model(model, "ctranslate2", tmp_path / "x", text, "int8")
    assert not list(tmp_path.iterdir())
    export.export_model(
        model, "ctranslate2", tmp_path / "x", text, "int8", said.append, max_bleu_loss=100.0
    )
    assert any("by those of float32 (there are no references)" in line for line in said)
    # float16 has a tolerance, so it needs no references.
    export.export_model(model, "ctranslate2", tmp_path / "y", text, "float16", said.append)


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_export_that_differs_is_not_written(quantization, translator, tmp_path, monkeypatch):
    model = Pretrained(translator.config, translator.tokenizers, translator.params, 0)
    original = ctranslate2_writing._fill_norm

    def wrong(spec, params):
        original(spec, params)
        spec.beta = spec.beta + 0.05

    monkeypatch.setattr(ctranslate2_writing, "_fill_norm", wrong)
    with pytest.raises(UserError, match="beyond the tolerance"):
        export.export_model(
            model, "ctranslate2", tmp_path / "out", TEXT, quantization, max_bleu_loss=100.0
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("epsilon", "accepted"), [(1e-3, True), (0.3, False)])
def test_export_to_marian_with_another_epsilon_tolerates_small_differences(
    epsilon, accepted, tokenizers, tmp_path
):
    said: list[str] = []

    def run_export():
        export.export_model(
            random_model(tokenizers, norm_epsilon=epsilon),
            "marian",
            tmp_path / "out",
            TEXT,
            say=said.append,
        )

    if accepted:
        run_export()
    else:
        with pytest.raises(UserError, match="beyond the tolerance"):
            run_export()
    same_epsilon, our_epsilon = [
        float(line.split("logit difference ")[1].split()[0]) for line in said if "parity" in line
    ]
    assert same_epsilon < 1e-4
    assert our_epsilon > 1e-3  # the effect of the epsilon
    assert (tmp_path / "out").exists() == accepted


def test_export_check_detects_a_tokenizer_that_decodes_differently(translator, tmp_path):
    """Two tokens are swapped in the vocabulary, so the same ids mean something else."""
    from tests.huggingface_models import write

    model = Pretrained(translator.config, translator.tokenizers, translator.params, 0)
    folder = epath.Path(write(tmp_path / "m", model))
    reference = parity.Reference(model.config, model.tokenizers, model.params)
    examples = reference.examples(SENTENCES)
    checking.HuggingFacePeer(folder, reference, examples)
    tokens = model.tokenizers.target.tokens(examples.output_ids[0])
    vocabulary = json.loads((folder / "vocab.json").read_text())
    used = {p for ids in examples.source_ids for p in model.tokenizers.source.tokens(ids)}
    one = next(p for p in tokens if p not in used)
    other = next(p for p in vocabulary if p not in {*used, *tokens} and not p.startswith("<"))
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(UserError, match=r"decodes|for the target"):
        checking.HuggingFacePeer(folder, reference, examples)


def test_export_to_ctranslate2_adds_the_end_symbol_itself(translator, tmp_path):
    """`Translator(DIR).translate_batch(tokens)` adds the end symbol to sources."""
    import ctranslate2 as library

    model = Pretrained(translator.config, translator.tokenizers, translator.params, 0)
    export.export_model(model, "ctranslate2", tmp_path / "out", TEXT)
    tokens = translator.tokenizers.source.tokens(translator.tokenizers.source.encode("one two"))
    results = library.Translator(str(tmp_path / "out")).translate_batch([tokens], beam_size=1)
    want = translator.translate(["one two"], beam_size=1)[0]
    assert tuple(results[0].hypotheses[0]) == want.tokens


def test_export_of_an_imported_directory_is_the_same_model(spm_models, tmp_path):
    from tests.peers import builders

    builders.make_marian(tmp_path / "in", spm_models, generation={"early_stopping": True})
    t = Translator.load(tmp_path / "in")
    model = Pretrained(t.config, t.tokenizers, t.params, 0)
    text = SampleText(tuple(builders.SENTENCES["en"][:20]))
    export.export_model(model, "marian", tmp_path / "out", text)
    again = Translator.load(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again.params, t.params)
    assert again.config.decode == t.config.decode
    assert dataclasses.replace(again.config.model) == t.config.model
    assert again.tokenizers.fingerprint == t.tokenizers.fingerprint


@pytest.mark.parametrize("make", ["make_m2m_100", "make_nllb"])
def test_export_of_imported_models_with_language_tags(make, spm_models, tmp_path):
    from tests.peers import builders

    getattr(builders, make)(tmp_path / "in", spm_models)
    t = Translator.load(tmp_path / "in")
    model = Pretrained(t.config, t.tokenizers, t.params, 0)
    text = SampleText(tuple(s for s in builders.SENTENCES["en"] if len(s) < 40)[:10])
    for format_name in ("marian", "ctranslate2"):
        export.export_model(model, format_name, tmp_path / format_name, text)
        is_json = (tmp_path / format_name / "tokenizer.json").exists()
        readme = (tmp_path / format_name / "README.md").read_text()
        packages = {"marian": "torch transformers", "ctranslate2": "ctranslate2"}[format_name]
        assert f"pip install {packages} {'tokenizers' if is_json else 'sentencepiece'}\n" in readme
        want = t.translate(text.sentences[:1])[0].text
        # The untrained model writes language tags; neither tool leaves out those of M2M-100.
        assert re.sub(r"__\w+__", "", run_program(tmp_path / format_name)).split() == want.split()
    again = Translator.load(tmp_path / "marian")
    jax.tree.map(np.testing.assert_array_equal, again.params, t.params)
    assert again.engine.language_tags() == t.engine.language_tags()


def test_stablehlo_export_translates_by_its_program_without_this_package(
    translator, tmp_path, monkeypatch
):
    model = Pretrained(translator.config, translator.tokenizers, translator.params, 0)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    export.export_model(model, "stablehlo", ".", TEXT)
    assert "# out: " in (tmp_path / "out/README.md").read_text()
    assert not (tmp_path / "out/__pycache__").exists()
    code = (
        "import runpy, sys; runpy.run_path('out/translate.py', run_name='__main__'); "
        "assert not any(m.startswith(('transformer_jax', 'flax', 'torch')) for m in sys.modules)"
    )
    outputs = translator.translate(SENTENCES, beam_size=1)
    # Only outputs that were not cut: the program has no limit for each sentence.
    want = {s: o.text for s, o in zip(SENTENCES, outputs, strict=True) if len(o.ids) < 10}
    assert len(want) > 3
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(want),
        text=True,
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == list(want.values())


def test_export_command_and_decode_of_its_output(tiny_run, tmp_path):
    from pathlib import Path

    root = Path(__file__).parents[2]

    def run(command, *arguments, text=""):
        done = subprocess.run(
            [sys.executable, root / f"{command}.py", *arguments],
            input=text,
            text=True,
            capture_output=True,
            cwd=tmp_path,
        )
        return done.returncode, done.stdout, done.stderr

    status, out, _ = run("export", f"--workdir={tiny_run[1]}", "--format=marian", "--output=m")
    assert status == 0
    assert "identical outputs 12 of 12" in out
    assert out.splitlines()[-1] == "wrote m"
    lines = "one two\nthree\n"
    settings = ("--beam_size=3", "--config.decode.length_penalty=0.0")
    want = run("decode", f"--workdir={tiny_run[1]}", *settings, text=lines)
    assert want[0] == 0
    limits = ("--config.decode.max_decode_ratio=3.0", "--config.decode.at_limit=end")
    result = run("decode", "--workdir=m", *settings, *limits, text=lines)
    assert result[:2] == want[:2]
    status, _, err = run("export", f"--workdir={tiny_run[1]}", "--format=marian", "--output=m")
    assert (status, err) == (2, "error: --output=m exists; name a new folder.\n")
