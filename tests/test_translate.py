"""From text to text: batching, long and odd input, scoring, n-best, and the scores of a corpus."""

import dataclasses
import math
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import digit_pairs, tiny_config
from transformer_jax import Translation
from transformer_jax.errors import UserError
from transformer_jax.evaluation import corpus_metrics
from transformer_jax.model.transformer import Transformer
from transformer_jax.translator import batching, model_metrics
from transformer_jax.translator.batch_translator import BatchTranslator
from transformer_jax.translator.requests import Request

ROOT = Path(__file__).parent.parent
TYPED = """
from transformer_jax import Request, Translator

t = Translator.load("run")
reveal_type(t.translate("one"))
reveal_type(t.translate(Request("one"), n_best=2))
reveal_type(t.translate(["one", Request("one")], beam_size=2))
reveal_type(t.translate(["one"], n_best=3))
reveal_type(t.translate_iterable(["one"]))
reveal_type(t.score("one", "eins"))
reveal_type(t.score(["one"], ["eins"]))
"""


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


@pytest.mark.all_programs
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
    assert batching.row_options(64) == [1, 4, 16, 64]
    assert batching.row_options(100) == [1, 4, 16, 64, 100]
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
    assert "texts[6]: longer" in said
    assert "texts[8]: longer" in said
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
        translator.translate(sources, n_best=4, beam_size=4, length_penalty=0.6),
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
        (lambda t: t.translate(["one"], beam_size=0), "^`beam_size=0` must be >= 1"),
        (lambda t: t.translate("one", method="best"), "^`method='best'` must be one of"),
        (lambda t: t.translate("one", suppressed_ids=[-3]), r"^`suppressed_ids=\(-3,\)` must be"),
        (lambda t: t.translate("one", n_best=5, beam_size=4), "^`n_best=5` needs `beam_size` of"),
        (lambda t: t.translate("one", n_best=3, method="mbr", mbr_samples=2), "`mbr_samples`"),
        (lambda t: t.translate("one", n_best=0), "^`n_best=0` must be a number of at least 1"),
        (lambda t: t.warmup([8], num_texts=0), "^`num_texts=0` must be a number of at least 1"),
        (lambda t: t.warmup([10_000]), "^No text has 10000 tokens"),
        (lambda t: t.translate([Request("a", prefix="\udfff")]), r"^texts\[0\]\.prefix: no valid"),
        (lambda t: t.score(["a"], []), "1 sources"),
        (lambda t: t.score(["a", "\udc80"], ["a", "b"]), r"sources\[1\]: .*U\+DC80"),
        (lambda t: t.translate(["one"], on_error="ignore"), "`on_error=ignore`"),
        (lambda t: t.translate("one", window=0), "^`window=0` must be a number of at least 1"),
        (lambda t: t.translate("one", temperature=0.5), "^`temperature` is for `method=sample` or"),
    ],
)
def test_translate_refuses_impossible_calls(translator, call, word):
    with pytest.raises(UserError, match=word):
        call(translator)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.translate(["a", "b", "c", math.nan]), "texts[3] is a float (nan), not a str"),
        (lambda t: t.translate(np.array(["a", None])), "texts[1] is None, not a string."),
        (lambda t: t.translate([Request("a", phrases=[3])]), "texts[0].phrases[0] is an int (3)"),
        (lambda t: t.translate(Request("a", prefix=None)), "texts[0].prefix is None, not a str"),
        (lambda t: t.translate(Request(3)), "texts[0] is an int (3), not a string."),
        (lambda t: t.translate(["a", ["b"]]), "texts[1] is a list (['b']), not a string."),
        (lambda t: t.translate(None), "`texts` is None, not a list of strings."),
        (lambda t: t.translate(b"one"), "`texts` is bytes (b'one'), not a list of strings."),
        (lambda t: t.translate_iterable("one"), "`texts` is a str ('one'), not a list of strings."),
        (lambda t: t.score(["a", "b"], ["a", b"b"]), "targets[1] is bytes (b'b'), not a string;"),
        (lambda t: t.score("a", ["a"]), "`sources` is a str ('a'), not a list of strings."),
        (lambda t: t.score_tokens(["a"], 3), "`targets` is an int (3), not a list of strings."),
        (lambda t: t.translate("one", attention=True), "`attention` is a bool (True), not an Att"),
        (lambda t: t.translate("one", beam_size="3"), "`beam_size='3'` is not of type int."),
        (lambda t: t.translate("one", n_best="3"), "`n_best` is a str ('3'), not a whole number."),
        (lambda t: t.translate("one", n_best=True), "`n_best` is a bool (True), not a whole"),
        (
            lambda t: t.translate("one", window=2.5),
            "`window` is a float (2.5), not a whole number.",
        ),
        (lambda t: t.warmup(8), "`lengths` is an int (8), not a list of numbers."),
        (lambda t: t.warmup([8, "8"]), "`lengths[1]` is a str ('8'), not a whole number."),
        (lambda t: t.warmup([8], num_texts="3"), "`num_texts` is a str ('3'), not a whole number."),
        (lambda t: t.load(None), "`path` is None, not a path."),
        (lambda t: t.load("run", config="x"), "`config` is a str ('x'), not a Config."),
        (lambda t: t.load("run", processors=5), "`processors` is an int (5), not a list of func"),
        (lambda t: t.load("run", processors=[5]), "`processors[0]` is an int (5), not a function."),
        (lambda t: t.load("a", ensemble="runs/b"), "`ensemble` is a str ('runs/b'), not a list"),
        (lambda t: t.load("a", ensemble=["b", 5]), "`ensemble[1]` is an int (5), not a path or"),
        (lambda t: t.translate("one", beam=3), "There is no search setting beam; did you mean"),
        (lambda t: Request("one", phrases=None), "`phrases` is None, not a list of strings."),
        (lambda t: t.translate(["x" * 90, 10**90]), "texts[1] is an int (1000000"),
    ],
)
def test_translate_names_the_item_of_a_wrong_type(translator, call, message):
    with pytest.raises(TypeError) as error:
        call(translator)
    assert isinstance(error.value, UserError)
    assert str(error.value).startswith(message)
    assert len(str(error.value)) < 100 or "There are" in str(error.value)


def test_translate_takes_one_text_or_several_and_n_best_of_each(translator):
    settings = {"beam_size": 4}
    one = translator.translate("one two", **settings)
    assert isinstance(one, Translation)
    assert translator.translate(["one two"], **settings) == [one]
    assert translator.translate((t for t in ["one two"]), **settings) == [one]
    assert translator.translate(Request("one two"), **settings) == one
    best = translator.translate("one two", n_best=3, **settings)
    assert len(best) == len({t.ids for t in best}) == 3
    assert best[0] == one
    assert translator.translate(["one two", ""], n_best=3, **settings)[0] == best
    assert translator.translate(["one two"], n_best=1, **settings) == [[one]]
    assert translator.translate([], n_best=3) == translator.translate([]) == []
    assert translator.translate("").text == ""
    samples = translator.translate("one two", n_best=3, method="sample", seed=1)
    assert len(samples) == 3
    lazily = translator.translate_iterable(iter(["one two", 3]), window=1, **settings)
    assert next(lazily) == one  # the next item is not read yet
    with pytest.raises(TypeError, match=r"texts\[1\] is an int"):
        next(lazily)
    assert next(translator.translate_iterable(["one two"], n_best=3, **settings)) == best
    numbers = {"n_best": np.int64(3), "beam_size": np.int32(4), "length_penalty": np.float64(0.6)}
    assert translator.translate("one two", **numbers) == translator.translate(
        "one two", n_best=3, beam_size=4, length_penalty=0.6
    )


@pytest.mark.slow
def test_python_api_page_runs(tiny_run, tmp_path, monkeypatch, capsys):
    data, workdir = tiny_run
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(workdir)
    quickstart = types.SimpleNamespace(get_config=lambda: tiny_config(data, num_steps=2))
    configs = types.SimpleNamespace(quickstart=quickstart)
    monkeypatch.setitem(sys.modules, "transformer_jax.configs", configs)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/python_api.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
        said = capsys.readouterr().out
        if printed := re.search(r"print\(error\)  # (.*)", block):
            assert said == printed[1] + "\n"
        elif "process_time" in block:
            assert re.fullmatch(r"\d+\.\d s of CPU time\n", said)
    assert (tmp_path / "runs/new/checkpoints/2").exists()


def test_score_takes_one_pair_or_several(translator):
    one = translator.score("one two", "zwei eins")
    assert isinstance(one, float)
    assert translator.score(iter(["one two"]), ("zwei eins",)) == [one]


@pytest.mark.slow
def test_translate_and_score_have_types_for_mypy(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(TYPED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    shown = re.findall(r'note: Revealed type is "(.*)"', done.stdout)
    plain = [re.sub(r"[\w.]+\.(\w+)", r"\1", kind) for kind in shown]
    assert plain == [
        "Translation",
        "list[Translation]",
        "list[Translation]",
        "list[list[Translation]]",
        "Iterator[Translation]",
        "float",
        "list[float]",
    ], done.stdout


BAD = [("a\ud800", "character 1 is U.D800"), (None, "is None"), (b"one", "not a string; decode")]


@pytest.mark.parametrize(("bad", "word"), BAD)
def test_translate_names_a_bad_text_before_anything_runs(translator, monkeypatch, bad, word):
    ran = []
    monkeypatch.setattr(BatchTranslator, "translate_batch", lambda *_: ran.append(1))
    texts = [*["one"] * 5, bad]
    with pytest.raises(UserError, match=rf"texts\[5\].*{word}"):
        translator.translate_iterable(texts, window=2)
    assert not ran
    result = translator.translate_iterable(iter([*[""] * 5, bad]), window=2)
    assert [next(result).text for _ in range(4)] == [""] * 4
    with pytest.raises(UserError, match=rf"texts\[5\].*{word}"):  # known by its window only
        next(result)


def test_translate_skips_bad_texts_with_their_error(translator):
    too_long = Request("one " * 90, phrases=("eins",))
    texts = ["one", *(bad for bad, _ in BAD), too_long, Request("two", prefix="\udfff"), "", "one"]
    result = translator.translate(texts, on_error="skip", beam_size=2)
    assert [bool(one.error) for one in result] == [False, *[True] * 5, False, False]
    assert [one.text for one in result[1:6]] == [""] * 5
    assert max(one.score for one in result[1:6]) == -np.inf
    assert result[3].error == "texts[3] is bytes (b'one'), not a string; decode it first."
    assert "in parts, in which phrases" in result[4].error
    assert result[0] == result[7] == translator.translate(["one"], beam_size=2)[0]
    with pytest.raises(UserError, match=r"texts\[1\]: .* in parts, in which phrases"):
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


def test_score_counts_every_sentence(translator, capsys):
    pairs = [*digit_pairs(10, seed=9), ("", "nichts"), ("one", ""), ("one " * 100, "eins " * 100)]
    decode = dataclasses.replace(translator.config.decode, beam_size=1)
    scores, outputs = model_metrics.evaluate(translator.engine, translator.params, pairs, decode)
    assert scores.num_sentences == len(outputs) == 13
    assert "line 13: longer than the" in capsys.readouterr().err
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


def test_languages_of_a_model_of_one_direction_are_only_its_own(translator):
    text = "one two"
    expected = translator.translate([text], source_lang="en", target_lang="de")
    assert expected[0].text == translator.translate([text])[0].text
    for name, language in (("target_lang", "fr"), ("source_lang", "de")):
        expected = f"`{name}={language}`: this model translates from en to de only"
        with pytest.raises(UserError, match=expected):
            translator.translate([text], **{name: language})
