"""What decoding offers over a small trained model: samples, ensembles, attention, files."""

import collections
import copy
import dataclasses
import io
import itertools
import threading
import tracemalloc
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.conftest import digit_pairs
from tests.test_model import full_logits
from transformer_jax import Translator, waiting
from transformer_jax.commands import decode_format, decode_output, decode_run, search_flags
from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizer_pair import special_ids
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.ctranslate2 import search
from transformer_jax.model import decoder_weights
from transformer_jax.model.transformer import Transformer
from transformer_jax.search.decoder import mean_log_probs
from transformer_jax.translator import alignment, batch_functions, batching, mbr
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batching import TokenRows
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.jax_batch_runner import JaxBatchRunner
from transformer_jax.translator.phrases import begins_word
from transformer_jax.translator.requests import Request
from transformer_jax.translator.translation import Translation, join_parts
from transformer_jax.translator.translation_settings import TranslationSettings

TEXTS = ["one two three", "four five", "six", "seven eight nine one", "two two"]


def test_sampling_gives_the_same_in_any_batch_scored_by_the_model(translator):
    settings = {"method": "sample", "temperature": 1.3, "seed": 3}
    together = translator.translate(TEXTS, n_best=3, **settings)
    backwards = translator.translate([*TEXTS, "nine"][::-1], n_best=3, **settings)[::-1]
    for all_, again, text in zip(together, backwards, TEXTS, strict=False):
        assert [h.ids for h in all_] == [h.ids for h in again]
        for h in all_:
            retokenised = translator.tokenizers.target.encode(h.text)
            if tuple(retokenised) == h.ids:
                assert translator.score([text], [h.text])[0] == pytest.approx(h.log_prob, abs=1e-4)
    other = translator.translate(TEXTS, n_best=3, **(settings | {"seed": 4}))
    assert [h.ids for hs in together for h in hs] != [h.ids for hs in other for h in hs]


@pytest.mark.slow
def test_mbr_returns_the_sample_most_similar_to_the_others(translator):
    settings = {"temperature": 0.5, "seed": 1}
    samples = translator.translate("one two", n_best=8, method="sample", **settings)
    utilities = mbr.expected_utilities([h.text for h in samples], "bleu")
    settings |= {"method": "mbr", "mbr_samples": 8, "mbr_metric": "bleu"}
    (best,) = translator.translate(["one two"], **settings)
    assert best.score == pytest.approx(max(utilities))
    assert best.text == samples[int(np.argmax(utilities))].text
    assert max(utilities) > min(utilities)


@pytest.mark.parametrize("num_models", [1, 2])
def test_scoring_keeps_the_logits_of_one_chunk(translator, monkeypatch, num_models):
    """All logits of 4,096 positions and 256,000 tokens take 4 GB. Here: 5 of 24 positions."""
    monkeypatch.setattr(batch_functions, "LOGITS_AT_ONCE", 5 * 295 + 3)
    config, rng = translator.config.model, np.random.default_rng(0)
    trees = [jax.tree.map(lambda x, n=n: x * (1 - n / 9), translator.params) for n in range(2)]
    trees = trees[:num_models]
    ids = special_ids(translator.tokenizers, config)
    source, target = (rng.integers(4, 295, (3, 8)).astype(np.int32) for _ in range(2))
    lengths = np.full(3, 8, np.int32)
    functions = batch_functions.BatchFunctions((config,) * num_models, ids)
    rows = TokenRows(source, lengths), TokenRows(target, lengths)
    laid_out = tuple(decoder_weights.for_inference(config, dict(tree)) for tree in trees)
    device_params = batch_functions.DeviceParams(laid_out, None)
    score = jax.jit(functions.score)
    got = score(device_params, *rows)
    start = np.full((3, 1), ids.decoder_start, np.int32)
    decoder_inputs = np.concatenate([start, target[:, :-1]], axis=1)
    probs = 0.0
    for params in trees:
        logits = full_logits(Transformer(config), params, source, decoder_inputs)
        logits = np.asarray(logits, np.float64)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probs += weights / weights.sum(axis=-1, keepdims=True) / num_models
    want = np.take_along_axis(np.log(probs), target[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(got.log_probs, want, atol=1e-5)
    np.testing.assert_array_equal(got.correct, probs.argmax(axis=-1) == target)
    text = score.lower(device_params, *rows).as_text()
    assert "tensor<5x295xf32>" in text
    assert "24x295" not in text
    assert "x8x295" not in text


def ensemble_engine(translator, *others):
    config, tokenizers = translator.config, translator.tokenizers
    return Engine(config, tokenizers, JaxBatchRunner(config, tokenizers, others))


@pytest.mark.slow
def test_ensemble_averages_probabilities(translator):
    other = jax.tree.map(lambda x: 0.9 * x, translator.params)
    engine = ensemble_engine(translator, translator.config.model)
    sources, targets = ["one two", "six"], ["zwei eins", "sechs acht"]
    alone = [
        [p.log_probs for p in translator.engine.score(params, sources, targets)]
        for params in (translator.params, other)
    ]
    both = engine.score((translator.params, other), sources, targets)
    for i, pair in enumerate(both):
        want = np.logaddexp(np.array(alone[0][i]), np.array(alone[1][i])) - np.log(2)
        np.testing.assert_allclose(pair.log_probs, want, atol=1e-5)
    twice = engine.score((translator.params, translator.params), sources, targets)
    logits = jax.random.normal(jax.random.key(0), (40, 6))
    # To the last bit. Of two programs with other fusions, as below, some CPUs round differently.
    np.testing.assert_array_equal(
        mean_log_probs([logits, logits], axis=0), jax.nn.log_softmax(logits, axis=0)
    )
    for pair, one in zip(twice, alone[0], strict=True):
        np.testing.assert_allclose(pair.log_probs, one, rtol=1e-6)
    decode = dataclasses.replace(translator.config.decode, beam_size=2)
    result = list(
        engine.translate((translator.params, other), TEXTS, TranslationSettings(decode, 2))
    )
    for text, hypotheses in zip(TEXTS, result, strict=True):
        for h in hypotheses:
            scored = engine.score((translator.params, other), [text], [h.text])[0]
            if scored.num_tokens == len(h.ids) + 1:
                assert scored.log_prob == pytest.approx(h.log_prob, abs=1e-4)


@pytest.mark.parametrize("head", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_attention_of_a_translation_equals_the_models(translator, head):
    (best,) = next(
        translator.translate_iterable(
            [TEXTS[0], "one"], n_best=1, attention=AttentionChoice(-1, head), beam_size=2
        )
    )
    engine = translator.engine
    source = [*engine.tokenizers.source.encode(TEXTS[0]), engine.ids.source_eos]
    inputs = np.array([[engine.ids.decoder_start, *best.ids]])
    apply = Transformer(translator.config.model).apply

    @jax.jit
    def decode(variables):
        encoded = apply(variables, np.array([source]), method="encode")
        return apply(variables, encoded, inputs, method="decode", mutable=["intermediates"])

    _, collected = decode({"params": translator.params})
    last = f"decoder_layers_{translator.config.model.num_decoder_layers - 1}"
    (weights,) = collected["intermediates"][last]["cross_attention"]["weights"]
    want = weights[0].mean(axis=0) if head is None else weights[0, head]
    assert best.attention.shape == (len(best.ids), len(source) - 1)
    np.testing.assert_allclose(best.attention, want[:-1, :-1], atol=1e-5)


def test_word_alignment_by_hand():
    source, target = ["▁a", "▁do", "g", "▁runs", "."], ["▁Ein", "▁Hu", "nd", "▁rennt."]
    assert alignment.words_of(source) == [0, 1, 1, 2, 2]
    attention = np.array(
        [
            [0.6, 0.1, 0.1, 0.1, 0.1],
            [0.3, 0.25, 0.25, 0.1, 0.1],  # the word's tokens together have more than 0.3
            [0.0, 0.2, 0.2, 0.5, 0.1],
            [0.1, 0.1, 0.1, 0.3, 0.4],
        ]
    )
    words = alignment.word_attention(attention, source, target)
    np.testing.assert_allclose(words[1], [0.15, 0.45, 0.4])
    assert alignment.pharaoh(alignment.links(words)) == "0-0 1-1 2-2"
    assert alignment.links(alignment.word_attention(np.zeros((0, 5)), source, [])) == []


def test_prefix_and_phrases_of_single_lines(translator):
    requests = [
        Request("one two three", prefix="fünf"),
        Request("one two three", phrases=("neun acht", "sechs")),
        Request("one two three"),
        Request(""),
    ]
    result = translator.translate(requests, beam_size=4)
    assert result[0].text.startswith("fünf")
    assert "neun acht" in result[1].text
    assert "sechs" in result[1].text.split()
    assert result[2].ids == translator.translate(["one two three"], beam_size=4)[0].ids
    assert result[3].text == ""
    assert begins_word("▁neun")
    assert begins_word(".")
    assert not begins_word("n")
    with pytest.raises(UserError, match="in parts, in which phrases"):
        translator.translate([Request("one " * 90, phrases=("eins",))])
    with pytest.raises(UserError, match="the model writes"):
        translator.translate([Request("one", prefix="eins " * 90)])


@pytest.mark.slow
def test_batches_are_sharded_over_devices(translator):
    config = dataclasses.replace(
        translator.config, parallel=dataclasses.replace(translator.config.parallel, data=4)
    )
    spread = Translator(config, translator.tokenizers, translator.params)
    assert spread.engine.runner.programs.num_devices == 4
    texts = [source for source, _ in digit_pairs(40, seed=8)]
    want = translator.translate(texts, beam_size=2)
    result = spread.translate(texts, beam_size=2, batch_tokens=128)
    for a, b in zip(result, want, strict=True):
        assert a.text == b.text
        assert a.score == pytest.approx(b.score, abs=1e-5)
    alone = spread.translate(["one two"], beam_size=2)[0]
    assert alone.text == translator.translate(["one two"], beam_size=2)[0].text


@pytest.mark.slow
def test_translate_uses_few_shapes_and_yields_lines_when_done(translator):
    engine = Engine(translator.config, translator.tokenizers)
    decode = dataclasses.replace(translator.config.decode, beam_size=1, batch_tokens=256)
    texts = [source for source, _ in digit_pairs(300, seed=9, longest=12)]
    read = []

    def endless():
        for text in itertools.cycle(texts):
            read.append(text)
            yield text

    results = engine.translate(
        translator.params, endless(), TranslationSettings(decode), window=100
    )
    first = next(results)
    assert len(read) == 100
    assert first[0].text == translator.translate([texts[0]], beam_size=1)[0].text
    for _ in range(250):
        next(results)
    assert len(read) == 300
    results.close()
    lengths = {batching.padded_length(n, engine.max_len) for n in range(1, engine.max_len + 1)}
    assert engine.num_compiled <= 2 * len(lengths)
    groups = batching.group_by_length([len(t.split()) for t in texts], 64, 256)
    assert len({(g.rows, g.length) for g in groups}) <= len({g.length for g in groups}) + 1


def test_group_by_length_orders_batches_by_their_first_line():
    groups = batching.group_by_length([3, 20, 4, 30, 5, 9], 64, 48, num_devices=2)
    assert [g.indices[0] for g in groups] == sorted(g.indices[0] for g in groups)
    assert sorted(i for g in groups for i in g.indices) == list(range(6))
    assert all(g.rows == 1 or g.rows % 2 == 0 for g in groups)


def write(output, requests, stop_after=None):
    with output:
        for number, request in enumerate(output.remaining(iter(requests))):
            if number == stop_after:
                raise KeyboardInterrupt
            output.write(f"{request}!\nsecond line of {request}\n")
        output.finish()


def make_output(path, **settings):
    describe = lambda: {"decode": {"beam_size": 2, "seed": 1}, **settings}  # noqa: E731
    return decode_output.ResumableOutput(str(path), describe)


def test_decode_output_resumes_after_an_interruption(tmp_path):
    path, requests = tmp_path / "out", ["ä", "b", "c", "d"]
    write(make_output(path), requests)
    complete = path.read_text()
    assert not (tmp_path / "out.unfinished").exists()
    path.write_text("of an earlier job\n")
    with pytest.raises(KeyboardInterrupt):
        write(make_output(path), requests, stop_after=2)
    with path.open("a") as out:
        out.write("half a li")  # what a crash leaves
    with pytest.raises(UserError, match=r"differs in decode\.beam_size, checkpoint; use"):
        write(make_output(path, decode={"beam_size": 3, "seed": 1}, checkpoint="60"), requests)
    assert path.read_text().endswith("half a li")
    with pytest.raises(UserError, match="other input in its first 2 lines"):
        write(make_output(path), ["ä", "x", "c", "d"])
    resumed = make_output(path)
    write(resumed, requests)
    assert path.read_text() == complete
    assert resumed.done == 4
    assert not (tmp_path / "out.unfinished").exists()
    with pytest.raises(KeyboardInterrupt):
        write(make_output(path), requests, stop_after=3)
    path.write_text("")
    with pytest.raises(UserError, match="shorter than recorded"):
        write(make_output(path), requests)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"beam_groups": 3, "beam_size": 4}, "`beam_groups=3` does not divide"),
        ({"temperature": 0.7}, "`temperature` is for"),
        ({"method": "sample", "coverage_penalty": 0.1}, "`coverage_penalty` is for"),
        ({"method": "guess"}, "method='guess'"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"suppressed_ids": (9999,)}, "ids below"),
    ],
)
def test_decode_refuses_impossible_settings(translator, settings, word):
    with pytest.raises(UserError, match=word):
        translator.translate(["one"], **settings)


def test_attention_choice_refuses_missing_layers_and_heads(translator):
    for choice, word in (
        (AttentionChoice(7), "layer 7"),
        (AttentionChoice(-1, 9), "head 9"),
        (AttentionChoice(-3), "layer -3; the model has 1"),
    ):
        with pytest.raises(UserError, match=word):
            translator.translate("one", attention=choice)
    deep = dataclasses.replace(translator.config.model, num_decoder_layers=4)
    AttentionChoice(-4).check(deep)
    ensemble = copy.copy(translator)
    ensemble.engine = ensemble_engine(translator, deep)
    with pytest.raises(UserError, match="layer 3; the model has 1"):
        ensemble.translate("one", attention=AttentionChoice(3))


def test_attention_choice_of_a_one_layer_decoder_is_that_layer(translator):
    assert translator.config.model.num_decoder_layers == 1
    default, last = (
        translator.translate(TEXTS[0], attention=choice, beam_size=2).attention
        for choice in (AttentionChoice(), AttentionChoice(-1))
    )
    np.testing.assert_array_equal(default, last)


def test_attention_of_a_long_text_is_that_of_its_parts(translator):
    text = " ".join(a for a, _ in digit_pairs(12, seed=4))
    choice = AttentionChoice()
    best = translator.translate(text, attention=choice, beam_size=2)
    assert best.attention.shape == (len(best.tokens), len(best.source_tokens))
    assert len(best.source_tokens) > translator.engine.max_len
    dense = best.attention.toarray()
    assert best.attention.nnz < dense.size / 1.5  # outside its part nothing is stored
    words = alignment.word_attention(best.attention, best.source_tokens, best.tokens)
    want = alignment.word_attention(dense, best.source_tokens, best.tokens)
    np.testing.assert_allclose(words.toarray(), want, atol=1e-7)
    assert alignment.links(words) == alignment.links(want)
    result = decode_format._attention_json(best.attention)
    for values, start, row in zip(
        result["attention"], result["attention_starts"], dense, strict=True
    ):
        np.testing.assert_allclose(row[start : start + len(values)], values, atol=1e-6)
        assert not row[:start].any()
        assert not row[start + len(values) :].any()


def test_attention_of_parts_is_joined_sparsely():
    parts = [np.array([[1.0, 2.0], [0.0, 3.0]]), np.zeros((0, 2)), np.array([[4.0], [5.0]])]
    want = [[1, 2, 0, 0, 0], [0, 3, 0, 0, 0], [0, 0, 0, 0, 4], [0, 0, 0, 0, 5]]
    joined = alignment.block_diagonal(parts)
    np.testing.assert_array_equal(joined.toarray(), want)
    assert joined.nnz == 6  # a part's zeros are its own
    tokens = ["▁a"] * 100
    many = [
        Translation(
            "a",
            0.0,
            0.0,
            tuple(tokens),
            tuple(range(100)),
            tuple(tokens),
            np.full((100, 100), 0.01, np.float32),
        )
    ] * 40
    tracemalloc.start()
    joined = join_parts(many)
    links = alignment.links(
        alignment.word_attention(joined.attention, joined.source_tokens, joined.tokens)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert links == [(i // 100 * 100, i) for i in range(4000)]
    assert peak < 4000 * 4000 * 8 / 4  # bytes: a quarter of a dense matrix


def test_decode_record_changes_with_all_that_could_change_the_output(translator, monkeypatch):
    def described(params=None, flags=None, **data):
        given = collections.defaultdict(lambda: types.SimpleNamespace(value=None))
        given |= {name: types.SimpleNamespace(value=value) for name, value in (flags or {}).items()}
        monkeypatch.setattr(decode_run, "FLAGS", given)
        monkeypatch.setattr(search_flags, "FLAGS", given)
        other = copy.copy(translator)
        other.device_params = translator.params if params is None else params
        data = dataclasses.replace(translator.config.data, **data)
        other.config = dataclasses.replace(translator.config, data=data)
        return decode_output._flat(decode_run.description(other))

    def differing(**changes):
        result = described(**changes)
        return {name for name in result if result[name] != base[name]}

    base = described()
    assert differing() == set()
    copied = jax.tree.map(np.array, translator.params)
    assert differing(params=copied) == set()
    copied["target_embedding"][3, 1] += 1e-6
    ensembles = [(translator.params, other) for other in (translator.params, copied)]
    seen = {base["parameters"]}
    for params in (copied, *ensembles):
        assert differing(params=params) == {"parameters"}
        seen.add(described(params=params)["parameters"])
    assert len(seen) == 4
    assert differing(target_lang="fr") == {"data.target_lang"}
    assert differing(source_prefix="task: ") == {"data.source_prefix"}
    assert differing(flags={"checkpoint": "latest"}) == {"checkpoint"}
    assert differing(flags={"seed": 7}) == {"decode.seed"}


def test_documents_have_the_settings_of_ctranslate2_models():
    assert list(search.SETTINGS) == [field.name for field in dataclasses.fields(DecodeConfig)]
    same = [f"`{name}`" for name, setting in search.SETTINGS.items() if setting is search.SAME]
    others = [
        f"| `{name}` | {setting.meaning} |\n"
        for name, setting in search.SETTINGS.items()
        if setting is not search.SAME
    ]
    page = (Path(__file__).parents[1] / "docs" / "decoding.md").read_text()
    assert "".join([f"| {', '.join(same)} | same |\n", *others]) in page


@pytest.mark.parametrize("case", ["file", "pipe at a terminal", "pipe", "typed", "terminal"])
def test_decoding_says_how_far_it_is_where_that_disturbs_nothing(case, tmp_path, monkeypatch):
    """It does not between the results, nor while it waits for a writer."""
    is_said_here = case in ("file", "pipe at a terminal")

    class Terminal(io.StringIO):
        def write(self, text):
            is_said.set()
            return super().write(text)

    is_said, errors = threading.Event(), Terminal()

    def items():
        yield "eins"
        output.done = 1234
        while is_said_here and "1,234" not in errors.getvalue():
            assert is_said.wait(60)
            is_said.clear()
        yield "zwei"

    (tmp_path / "text").write_text("one\ntwo\n")
    output = types.SimpleNamespace(done=0, skip=0)
    path = str(tmp_path / "text") if case in ("file", "terminal") else "-"
    errors.isatty = lambda: case in ("pipe at a terminal", "typed")
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: case == "typed"))
    given = types.SimpleNamespace(input=path, output="-" if case == "terminal" else "out")
    monkeypatch.setattr("sys.stdout", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(decode_run, "FLAGS", given)
    monkeypatch.setattr(decode_run, "is_stream", lambda path: path == "-")
    monkeypatch.setattr(waiting, "SILENCE", 0.001)
    monkeypatch.setattr(decode_run, "FIRST_REMINDER", 0.001)
    if not is_said_here:
        monkeypatch.setattr(waiting, "reminded", None)  # a call would fail
    monkeypatch.setattr("sys.stderr", errors)
    assert list(decode_run.with_progress(items(), output, "line", lambda: 2000)) == ["eins", "zwei"]
    assert ("1,234 of 2,000 lines after 0 s\n" in errors.getvalue()) == is_said_here
    assert is_said_here or not errors.getvalue()
