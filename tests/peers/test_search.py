"""Search options compared with Hugging Face's `generate` and CTranslate2, on the same weights."""

import collections
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath

from tests.peers.test_export import SENTENCES, random_model
from transformer_jax import Translator
from transformer_jax.extras.interop.ctranslate2 import writing as ctranslate2_writing
from transformer_jax.extras.interop.huggingface import writing
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.requests import Request

LIMIT = 12
BASE = {
    "length_penalty": 1.0,
    "length_penalty_kind": "power",
    "stopping": "first_k",
    "max_decode_len": LIMIT,
    "max_decode_ratio": 100.0,
}


@pytest.fixture(scope="module")
def ours(tokenizers):
    model = random_model(tokenizers, norm_epsilon=1e-5, output_bias=True)
    bias = np.array(model.params["output_bias"])
    bias[tokenizers.target.eos_id] += 4.6  # outputs of several lengths
    model.params["output_bias"] = bias
    data = dataclasses.replace(model.config.data, max_len=model.config.model.max_len)
    config = dataclasses.replace(model.config, data=data)
    return Translator(config, tokenizers, model.params)


@pytest.fixture(scope="module")
def hugging_face(ours, tmp_path_factory):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    folder = epath.Path(tmp_path_factory.mktemp("hf"))
    plan = writing.plan_export(ours.config, ours.tokenizers, ours.params)
    writing.write_directory(folder, ours.config, ours.tokenizers, ours.params, plan)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    source, eos = ours.tokenizers.source, ours.tokenizers.target.eos_id

    def generate(beam_size, **settings):
        rows = [[*ids, eos] for ids in source.encode_batch(SENTENCES)]
        longest = max(map(len, rows))
        ids = torch.tensor([[*r, *[source.pad_id] * (longest - len(r))] for r in rows])
        mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows])
        if beam_size > 1:
            settings |= {"length_penalty": 1.0, "early_stopping": True}
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            num_beams=beam_size,
            do_sample=False,
            max_length=LIMIT + 1,
            forced_eos_token_id=None,
            **settings,
        )[:, 1:].tolist()
        return [tuple(row[: row.index(eos)] if eos in row else row) for row in out]

    generate.model = model  # type: ignore[attr-defined]
    return generate


def outputs(ours, beam_size, **settings):
    translations = ours.translate(
        SENTENCES, beam_size=beam_size, at_limit="cut", **BASE, **settings
    )
    return [translation.ids for translation in translations]


@pytest.mark.peers
@pytest.mark.parametrize(
    ("settings", "theirs", "beams"),
    [
        ({}, {}, (1, 4)),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}, (1, 4)),
        ({"min_decode_len": 9}, {"min_length": 9}, (1, 4)),
        # Under beam search Hugging Face has it on log-probabilities, its paper on logits.
        ({"repetition_penalty": 1.6}, {"repetition_penalty": 1.6}, (1,)),
        ({"suppressed_ids": "frequent"}, {}, (1, 4)),
    ],
)
def test_search_options_equal_hugging_face_generate(ours, hugging_face, settings, theirs, beams):
    changed = False
    settings, theirs = dict(settings), dict(theirs)
    if "suppressed_ids" in settings:
        written = collections.Counter(i for ids in outputs(ours, 1) for i in ids)
        settings["suppressed_ids"] = tuple(i for i, _ in written.most_common(3))
        theirs["bad_words_ids"] = [[i] for i in settings["suppressed_ids"]]
    for beam_size in beams:
        # Their sequence begins with the start symbol, which ours does not count as written.
        start = {"bad_words_ids": [[ours.config.model.decoder_start_id]]}
        our_settings = dict(settings)
        our_settings["suppressed_ids"] = (
            ours.config.model.decoder_start_id,
            *settings.get("suppressed_ids", ()),
        )
        start["bad_words_ids"] += theirs.get("bad_words_ids", [])
        ids = outputs(ours, beam_size, **our_settings)
        assert ids == hugging_face(beam_size, **(theirs | start))
        changed |= ids != outputs(ours, beam_size)
    assert changed or not settings


@pytest.mark.peers
def test_sampling_truncation_equals_hugging_face_generate():
    import jax.numpy as jnp
    import torch
    from transformers.generation import logits_process as theirs

    from transformer_jax.config import DecodeConfig
    from transformer_jax.ops.top_k import NEVER
    from transformer_jax.search.sampling import warp
    from transformer_jax.search.search_settings import values_of

    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (6, 500)).astype(np.float32)
    log_probs = torch.log_softmax(torch.tensor(logits), dim=-1)
    cases = [
        ({"temperature": 0.7}, [theirs.TemperatureLogitsWarper(0.7)]),
        ({"top_k": 20}, [theirs.TopKLogitsWarper(20)]),
        ({"top_p": 0.8}, [theirs.TopPLogitsWarper(0.8)]),
        ({"min_p": 0.05}, [theirs.MinPLogitsWarper(0.05)]),
        (
            {"temperature": 1.5, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
            [
                theirs.TemperatureLogitsWarper(1.5),
                theirs.TopKLogitsWarper(50),
                theirs.TopPLogitsWarper(0.9),
                theirs.MinPLogitsWarper(0.02),
            ],
        ),
    ]
    for settings, warpers in cases:
        want = log_probs
        for warper in warpers:
            want = warper(None, want)
        config = DecodeConfig(method="sample", **settings)
        columns = jnp.asarray(log_probs.numpy().T[:, :, None])
        got = np.asarray(warp(columns, values_of([config], 6)))[..., 0].T
        np.testing.assert_array_equal(got > NEVER, np.isfinite(want.numpy()))
        np.testing.assert_allclose(
            np.asarray(torch.softmax(torch.tensor(got), -1)),
            torch.softmax(want, -1).numpy(),
            atol=1e-5,
        )


@pytest.mark.peers
def test_attention_equals_hugging_face(ours, hugging_face):
    import torch

    source, eos = ours.tokenizers.source, ours.tokenizers.target.eos_id
    for layer, head in ((0, None), (1, 2)):
        results = ours.translate_iterable(
            SENTENCES[:4], n_best=1, attention=AttentionChoice(layer, head), beam_size=1, **BASE
        )
        for text, (best,) in zip(SENTENCES, results, strict=False):
            ids = torch.tensor([[*source.encode(text), eos]])
            inputs = torch.tensor([[ours.config.model.decoder_start_id, *best.ids]])
            hugging_face.model.set_attn_implementation("eager")
            with torch.inference_mode():
                out = hugging_face.model(
                    input_ids=ids, decoder_input_ids=inputs, output_attentions=True
                )
            weights = out.cross_attentions[layer][0]
            want = weights.mean(0) if head is None else weights[head]
            np.testing.assert_allclose(best.attention, want[:-1, :-1].numpy(), atol=1e-5)


@pytest.fixture(scope="module")
def translator_there(ours, tmp_path_factory):
    import ctranslate2 as library

    folder = str(tmp_path_factory.mktemp("ct2"))
    ctranslate2_writing.write_directory(
        epath.Path(folder), ours.config, ours.tokenizers, ours.params
    )
    return library.Translator(folder, device="cpu")


@pytest.mark.peers
@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        # What is forbidden there is so before probabilities are made.
        ({"no_repeat_ngram_size": 2, "renormalize": True}, {"no_repeat_ngram_size": 2}),
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
        # They count without the end symbol.
        ({"min_decode_len": 8, "renormalize": True}, {"min_decoding_length": 7}),
    ],
)
@pytest.mark.parametrize("beam_size", [1, 4])
def test_search_options_equal_ctranslate2(ours, translator_there, settings, theirs, beam_size):
    tokens = [
        ours.tokenizers.source.tokens(i) for i in ours.tokenizers.source.encode_batch(SENTENCES)
    ]
    results = translator_there.translate_batch(
        tokens,
        beam_size=beam_size,
        patience=1,
        length_penalty=1.0,
        max_decoding_length=LIMIT,
        **({"min_decoding_length": 0} | theirs),
    )
    target = ours.tokenizers.target
    want = [tuple(target.token_id(p) for p in r.hypotheses[0]) for r in results]
    same = sum(a == b for a, b in zip(outputs(ours, beam_size, **settings), want, strict=True))
    assert same == len(SENTENCES)


@pytest.mark.peers
def test_prefixes_equal_ctranslate2(ours, translator_there):
    source, target = ours.tokenizers.source, ours.tokenizers.target
    prefixes = ["eins", "neun acht", "", "drei"]
    results = translator_there.translate_batch(
        [source.tokens(source.encode(s)) for s in SENTENCES[:4]],
        target_prefix=[target.tokens(target.encode(p)) or None for p in prefixes],
        beam_size=4,
        patience=1,
        length_penalty=1.0,
        max_decoding_length=LIMIT,
    )
    requests = [Request(s, p) for s, p in zip(SENTENCES, prefixes, strict=False)]
    translations = ours.translate(requests, beam_size=4, at_limit="cut", **BASE)
    want = [tuple(target.token_id(p) for p in r.hypotheses[0]) for r in results]
    for one, ids in zip(translations, want, strict=True):
        n = min(len(one.ids), len(ids))
        assert one.ids[:n] == ids[:n]


@pytest.mark.peers
def test_scores_of_pairs_equal_ctranslate2(ours, translator_there):
    source, target = ours.tokenizers.source, ours.tokenizers.target
    texts = [one.text for one in ours.translate(SENTENCES[:6], beam_size=2, **BASE)]
    scored = translator_there.score_batch(
        [source.tokens(source.encode(s)) for s in SENTENCES[:6]],
        [target.tokens(target.encode(t)) for t in texts],
    )
    for pair, theirs in zip(ours.score_tokens(SENTENCES[:6], texts), scored, strict=True):
        np.testing.assert_allclose(pair.log_probs, theirs.log_probs, atol=1e-4)
        assert dataclasses.asdict(pair)["num_tokens"] == len(theirs.log_probs)


@pytest.mark.peers
def test_decode_benchmark_runs(tmp_path):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [
            sys.executable,
            "benchmarks/decode.py",
            "--size=tiny",
            "--vocab_size=64",
            "--batches=3,1",
            "--turns=1",
            "--num_tokens=4",
            "--length=6",
            f"--json={tmp_path / 'out.json'}",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["engine"] for row in rows] == 4 * ["ours", "ctranslate2", "transformers"]
