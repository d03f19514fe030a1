"""From text to text: batching, long and odd input, scoring, n-best, and the scores of a corpus."""

import dataclasses

import numpy as np
import pytest

from tests.conftest import digit_pairs
from transformer_jax.decoding import batching
from transformer_jax.decoding.batch_translator import BatchTranslator
from transformer_jax.decoding.requests import Request
from transformer_jax.errors import UserError
from transformer_jax.evaluation import corpus_metrics, model_metrics
from transformer_jax.model.transformer import Transformer


def test_group_by_length_has_every_sentence_once_in_few_shapes():
    lengths = np.random.default_rng(0).integers(1, 41, 300)
    groups = batching.group_by_length(lengths, 40, 320)
    assert sorted(i for g in groups for i in g.indices) == list(range(300))
    for g in groups:
        assert max(lengths[i] for i in g.indices) <= g.length
        assert len(g.indices) <= g.rows
        assert g.rows * g.length <= 320
    assert len({(g.rows, g.length) for g in groups}) <= len({g.length for g in groups}) + 1
    padded = batching.pad_rows([[7, 7], [7]], 3, 4, 0)
    ids, sizes = padded.ids, padded.lengths
    np.testing.assert_array_equal(ids, [[7, 7, 0, 0], [7, 0, 0, 0], [0] * 4])
    np.testing.assert_array_equal(sizes, [2, 1, 0])


def test_padded_lengths_and_row_options_by_hand():
    assert [batching.padded_length(n, 100) for n in (1, 8, 9, 17, 25, 33, 49, 65, 97, 100)] == [
        8,
        8,
        16,
        24,
        32,
        48,
        64,
        96,
        100,
        100,
    ]
    assert batching.row_options(64) == [1, 8, 64]
    assert batching.row_options(1) == [1]
    assert batching.group_by_length([], 8, 64) == []


@pytest.mark.slow
def test_translate_a_thousand_sentences_alone_and_in_any_batch(translator):
    pairs = digit_pairs(1500, seed=6, longest=9)
    texts = list(dict.fromkeys(source for source, _ in pairs))[:1000]
    assert len(texts) == 1000
    together = translator.translate(texts, beam_size=2)
    order = np.random.default_rng(0).permutation(1000)
    shuffled = translator.translate([texts[i] for i in order], beam_size=2, batch_tokens=600)
    for place, i in enumerate(order):
        assert shuffled[place].text == together[i].text
        assert shuffled[place].score == pytest.approx(together[i].score, abs=1e-5)
    for text, output in zip(texts, together, strict=True):
        alone = translator.translate([text], beam_size=2)[0]
        assert alone.text == output.text
        assert alone.score == pytest.approx(output.score, abs=1e-5)


ODD = [
    "",
    "   ",
    "one",
    "🙂🙃 é\u2028ß",
    "\x00\x01\ufffd",
    "zzz qqq",
    "one two " * 2500,
    "one",
    "x" * 3000,
]


def test_translate_gives_one_output_for_any_input_in_order(translator, capsys):
    outputs = translator.translate(ODD, beam_size=2)
    assert len(outputs) == len(ODD)
    assert outputs[0].text == outputs[1].text == ""
    assert outputs[2] == outputs[7]
    assert outputs[2].text == translator.translate(["one"], beam_size=2)[0].text
    said = capsys.readouterr().err
    assert "line 7: " in said
    assert "line 9: " in said
    assert "translated in" in said


@pytest.mark.slow
def test_translate_does_not_depend_on_the_batch(translator):
    texts = list(dict.fromkeys(source for source, _ in digit_pairs(60, seed=5, longest=9)))
    together = translator.translate(texts, beam_size=3)
    backwards = translator.translate(texts[::-1], beam_size=3)[::-1]
    for i, text in enumerate(texts):
        assert backwards[i].text == together[i].text
        assert backwards[i].score == pytest.approx(together[i].score, abs=1e-5)
        if i % 10 == 0:
            alone = translator.translate([text], beam_size=3)[0]
            assert alone.text == together[i].text
            assert alone.score == pytest.approx(together[i].score, abs=1e-5)


@pytest.mark.slow
def test_n_best_is_sorted_distinct_and_scored_as_by_force_decoding(translator):
    sources = ["one two three", "nine"]
    for source, hypotheses in zip(
        sources,
        translator.translate_n_best(sources, 4, beam_size=4, length_penalty=0.6),
        strict=True,
    ):
        assert len(hypotheses) == 4
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({h.tokens for h in hypotheses}) == 4
        for h in hypotheses:
            length = len(h.tokens) + 1
            assert h.score == pytest.approx(h.log_prob / ((5 + length) / 6) ** 0.6, rel=1e-5)
            ids = translator.engine.tokenizers.target.encode(h.text)
            if translator.engine.tokenizers.target.tokens(ids) == list(h.tokens):
                assert translator.score([source], [h.text])[0] == pytest.approx(
                    h.log_prob, abs=1e-4
                )


def test_translate_searches_duplicates_once(translator, monkeypatch):
    counted = []
    original = BatchTranslator.translate_batch

    def count(translator, batch, texts):
        counted.append(len(texts))
        return original(translator, batch, texts)

    monkeypatch.setattr(BatchTranslator, "translate_batch", count)
    translator.translate(["one", "two", "one", "", "two"], beam_size=1)
    assert counted == [2]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda t: t.translate("one"), "list of texts"),
        (lambda t: t.translate(["one"], beam=3), "beam"),
        (lambda t: t.translate(["one"], beam_size=0), "beam_size=0"),
        (lambda t: t.translate_n_best(["one"], 5, beam_size=4), "beam of at least that size"),
        (lambda t: t.score(["a"], []), "1 sources"),
        (lambda t: t.score(["a", "b"], ["a", b"b"]), r"targets\[1\] \(line 2\): of type bytes"),
        (lambda t: t.score(["a", "\udc80"], ["a", "b"]), r"sources\[1\] .*U\+DC80"),
        (lambda t: t.translate(None), "not a NoneType"),
        (lambda t: t.translate(["one", None]), r"texts\[1\] \(line 2\): of type NoneType"),
        (lambda t: t.translate(["one", Request("two", phrases=[3])]), r"texts\[1\].*type int"),
        (lambda t: t.translate(["one"], on_error="ignore"), "on_error='ignore'"),
        (lambda t: Request("one", phrases=None), "phrases=None must be a list"),
    ],
)
def test_translate_refuses_impossible_calls(translator, call, word):
    with pytest.raises(UserError, match=word):
        call(translator)


BAD = [("a\ud800", "character 1 is U.D800"), (None, "NoneType"), (b"one", "bytes, not a string")]


@pytest.mark.parametrize(("bad", "word"), BAD)
def test_translate_names_a_bad_text_before_anything_runs(translator, monkeypatch, bad, word):
    ran = []
    monkeypatch.setattr(BatchTranslator, "translate_batch", lambda *_: ran.append(1))
    texts = [*["one"] * 5, bad]
    with pytest.raises(UserError, match=rf"texts\[5\] \(line 6\): .*{word}"):
        translator.translate_n_best(texts, 1, window=2)
    assert not ran
    result = translator.translate_n_best(iter([*[""] * 5, bad]), 1, window=2)
    assert [next(result)[0].text for _ in range(4)] == [""] * 4
    with pytest.raises(UserError, match=rf"texts\[5\] .*{word}"):  # known by its window only
        next(result)


def test_translate_skips_bad_texts_with_their_error(translator):
    too_long = Request("one " * 90, phrases=("eins",))
    texts = ["one", *(bad for bad, _ in BAD), too_long, Request("two", prefix="\udfff"), "", "one"]
    result = translator.translate(texts, on_error="skip", beam_size=2)
    assert [bool(one.error) for one in result] == [False, *[True] * 5, False, False]
    assert [one.text for one in result[1:6]] == [""] * 5
    assert max(one.score for one in result[1:6]) == -np.inf
    assert "bytes, not a string" in result[3].error
    assert "in parts, in which phrases" in result[4].error
    assert result[0] == result[7] == translator.translate(["one"], beam_size=2)[0]
    with pytest.raises(UserError, match=r"texts\[1\] .* in parts, in which phrases"):
        translator.translate(["one", too_long])


def test_request_takes_lists_and_a_string_is_one_phrase(translator):
    assert Request("a", phrases="abc") == Request("a", phrases=["abc"])
    assert Request("a", phrases=["b", "c"]).phrases == ("b", "c")
    phrases = [Request("one two", phrases=p) for p in ("sechs", ["sechs"], ("sechs",))]
    first, *others = translator.translate(phrases, beam_size=4)
    assert "sechs" in first.text.split()
    assert others == [first, first]
    ids = translator.translate(["one"], beam_size=2)[0].ids[:1]
    settings = [{"suppressed_ids": kind(ids), "beam_size": 2} for kind in (list, tuple)]
    assert len({translator.translate(["one"], **one)[0].text for one in settings}) == 1


def test_score_equals_the_full_forward_pass(translator):
    import jax

    engine = translator.engine
    source, target = "one two", "zwei eins"
    source_ids = [*engine.tokenizers.source.encode(source), engine.ids.source_eos]
    target_ids = [*engine.tokenizers.target.encode(target), engine.ids.target_eos]
    model = Transformer(translator.config.model)
    apply = lambda *a, method: model.apply({"params": translator.params}, *a, method=method)  # noqa: E731
    encoded = apply(np.array([source_ids]), method="encode")
    inputs = np.array([[engine.ids.decoder_start, *target_ids[:-1]]])
    logits = apply(apply(encoded, inputs, method="decode"), method="logits")
    log_probs = jax.nn.log_softmax(logits[0])
    want = float(log_probs[np.arange(len(target_ids)), np.array(target_ids)].sum())
    padded = engine.score(translator.params, [source, "three " * 9], [target, "drei " * 9])
    assert padded[0].log_prob == pytest.approx(want, abs=1e-4)
    assert padded[0].num_tokens == len(target_ids)


def test_score_counts_every_sentence(translator):
    pairs = [*digit_pairs(10, seed=9), ("", "nichts"), ("one", ""), ("one " * 100, "eins " * 100)]
    decode = dataclasses.replace(translator.config.decode, beam_size=1)
    scores, outputs = model_metrics.evaluate(translator.engine, translator.params, pairs, decode)
    assert scores.num_sentences == len(outputs) == 13
    assert scores.perplexity == pytest.approx(np.exp(scores.loss))
    parts = translator.engine.score(translator.params, *zip(*pairs, strict=True))
    tokens = sum(p.num_tokens for p in parts)
    assert scores.loss == pytest.approx(-sum(p.log_prob for p in parts) / tokens)
    assert scores.token_accuracy == pytest.approx(100 * sum(p.num_correct for p in parts) / tokens)


def test_corpus_scores_equal_sacrebleu_with_signatures():
    references = ["The cat sat on the mat today.", "A dog runs."]
    scores = corpus_metrics.corpus_scores(references, references)
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert scores.exact_match == 100
    assert "case:mixed" in scores.bleu_signature
    assert "tok:13a" in scores.bleu_signature
    assert "nc:6" in scores.chrf_signature
    # By hand: 5 of 6 words, 3 of 5 pairs, 2 of 4 triples and 1 of 3 quadruples match.
    worse = corpus_metrics.corpus_scores(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert worse.bleu == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert worse.exact_match == 0
    cased = corpus_metrics.corpus_scores([r.lower() for r in references], references)
    assert cased.bleu < 100
