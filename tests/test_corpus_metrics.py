"""Scores of text: BLEU by convention, tokenizers by language, comparison of two systems."""

import dataclasses
import importlib.util
import itertools
import json
import random
import re
import sys
import typing
import urllib.error
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import sacrebleu
from etils import epath
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest
from sacremoses.corpus import NonbreakingPrefixes

from tests.conftest import run_command
from transformer_jax.commands import eval_run
from transformer_jax.config import CheckpointConfig, Config, DataConfig
from transformer_jax.config.metrics import METRICS
from transformer_jax.errors import UserError
from transformer_jax.evaluation import (
    bleu_tokenizers,
    chosen_metrics,
    comet,
    corpus_metrics,
    robustness,
    significance,
)
from transformer_jax.training import evaluate, setup
from transformer_jax.translator import model_metrics
from transformer_jax.workdir import retention, summary

REFERENCES = [
    'Er sagt: "Ein blau-weißes Hemd!"',
    "Zwei Hunde, die spielen.",
    "Max's U-Bahn ist da.",
]
HYPOTHESES = ['Er sagt: "Ein blau-rotes Hemd!"', "zwei Hunde, die spielen.", "Max's U-Bahn ist da."]
# By Moses' rules, written by hand.
TOKENISED = [
    "Er sagt : &quot; Ein blau-weißes Hemd ! &quot;",
    "Zwei Hunde , die spielen .",
    "Max &apos;s U-Bahn ist da .",
]
TOKENISED_HYPOTHESES = [
    "Er sagt : &quot; Ein blau-rotes Hemd ! &quot;",
    "zwei Hunde , die spielen .",
    "Max &apos;s U-Bahn ist da .",
]
SPLIT = [
    "Er sagt : &quot; Ein blau ##AT##-##AT## weißes Hemd ! &quot;",
    "Zwei Hunde , die spielen .",
    "Max &apos;s U ##AT##-##AT## Bahn ist da .",
]


def lower(texts):
    return [text.lower() for text in texts]


def none(hypotheses, references, **settings):
    return sacrebleu.corpus_bleu(
        hypotheses, [references], tokenize="none", force=True, **settings
    ).score


def test_conventions_score_what_their_names_say():
    rows = {row.name: row for row in corpus_metrics.conventions(HYPOTHESES, REFERENCES, "en")}
    want = {
        "13a, cased": sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score,
        "intl, cased": sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], tokenize="intl").score,
        "intl, lower-cased": sacrebleu.corpus_bleu(
            HYPOTHESES, [REFERENCES], tokenize="intl", lowercase=True
        ).score,
        "tokenised, cased": none(TOKENISED_HYPOTHESES, TOKENISED),
        "tokenised, lower-cased": none(lower(TOKENISED_HYPOTHESES), lower(TOKENISED)),
        "tokenised, compounds split": none(
            [corpus_metrics.split_compounds(text) for text in TOKENISED_HYPOTHESES], SPLIT
        ),
    }
    assert {name: row.bleu for name, row in rows.items()} == pytest.approx(want)
    assert len({round(score, 6) for score in want.values()}) >= 5
    moses = r"sacremoses\.[\d.]+"
    for name, steps in (
        ("13a, cased", ""),
        ("tokenised, cased", rf"\|text:{moses}"),
        ("tokenised, lower-cased", rf"\|text:lc\.{moses}"),
        ("tokenised, compounds split", rf"\|text:{moses}\.compounds"),
    ):
        assert re.search(rf"version:[\d.]+{steps}$", rows[name].signature)
    for name, words in (
        ("13a, cased", "case:mixed"),
        ("intl, lower-cased", "case:lc"),
        ("intl, cased", "tok:intl"),
        ("tokenised, cased", "tok:none"),
    ):
        assert words in rows[name].signature


def test_conventions_do_not_tokenise_tokenised_text_again():
    rows = corpus_metrics.conventions(TOKENISED_HYPOTHESES, TOKENISED, "en", tokenized=True)
    bleu = {row.name: row.bleu for row in rows}
    assert bleu["tokenised, cased"] == pytest.approx(none(TOKENISED_HYPOTHESES, TOKENISED))
    scores = corpus_metrics.corpus_scores(TOKENISED_HYPOTHESES, TOKENISED, tokenizer="none")
    assert scores.bleu == bleu["tokenised, cased"]
    assert "tok:none" in scores.bleu_signature


def test_conventions_of_chinese_use_its_tokenizer():
    pair = ["两只狗在玩。"], ["两只狗在跑。"]
    first, *rest = corpus_metrics.conventions(*pair, "zho_Hans", tokenizer="zh")
    want = sacrebleu.corpus_bleu(pair[0], [pair[1]], tokenize="zh").score
    assert (first.name, first.bleu) == ("zh, cased", pytest.approx(want))
    assert not [row for row in rest if "sacremoses" in row.signature]
    words = ["两 只 狗 在 玩 。"], ["两 只 狗 在 跑 。"]
    first, *_ = corpus_metrics.conventions(*words, "zh", tokenized=True, tokenizer="none")
    assert (first.name, first.bleu) == ("tokenised, cased", pytest.approx(none(*words)))


# From the codes of NLLB, mBART-50, M2M-100, OPUS-MT and BCP 47.
TOKENIZERS = {
    "zh": "zh zho zho_Hans zho_Hant zh_CN zh-TW zh-Hant-HK cmn cmn_Hans yue yue_Hant chi lzh ZH",
    "ja-mecab": "ja jpn jpn_Jpan ja_XX ja-JP jpn_Hira jpn_Hani",
    "ko-mecab": "ko kor kor_Hang ko_KR kor_Hani",
    "char": "th tha tha_Thai th_TH lo lao_Laoo km khm_Khmr km_KH my mya_Mymr my_MM shn_Mymr bo "
    "bod_Tibt dzo_Tibt pli_Mymr",
    "13a": "de deu_Latn en_XX fr hi hin_Deva ar zh_Latn jpn_Latn nan_Latn vi tl zu mn",
}


@pytest.mark.parametrize(("tokenizer", "codes"), TOKENIZERS.items())
def test_bleu_tokenizer_is_chosen_by_language_code(tokenizer, codes):
    for code in codes.split():
        assert bleu_tokenizers.choose(code) == tokenizer, code
    assert bleu_tokenizers.choose(codes.split()[0], tokenized=True) == "none"
    assert bleu_tokenizers.choose(codes.split()[0], True, "intl") == "intl"


@pytest.mark.parametrize(("code", "tokenizer"), [("zh_CN", "zh"), ("tha_Thai", "char")])
def test_bleu_signature_names_the_tokenizer(code, tokenizer):
    data = DataConfig(target_lang=code)
    hypotheses, references = ["两只狗在玩。"], ["两只狗在跑。"]
    name = bleu_tokenizers.for_data(data)
    scores = corpus_metrics.corpus_scores(hypotheses, references, name)
    want = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenizer).score
    assert f"tok:{tokenizer}|" in scores.bleu_signature
    assert scores.bleu == pytest.approx(want)
    assert want > sacrebleu.corpus_bleu(hypotheses, [references]).score


@pytest.mark.parametrize("code", ["ja", "kor_Hang"])
def test_bleu_tokenizer_that_is_not_installed_is_named_before_training(tmp_path, monkeypatch, code):
    for name in ("ja", "ko"):  # as if the packages were missing
        importlib.import_module(f"sacrebleu.tokenizers.tokenizer_{name}_mecab")
        monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{name}_mecab.MeCab", None)
    for language in ("en", code):
        (tmp_path / f"train.{language}").write_text("one\n")
    data = DataConfig(source="files", train=str(tmp_path / "train"), target_lang=code)
    config = Config(data=data)
    message = rf"not installed: pip install 'sacrebleu\[{code[:2]}\]'"
    with pytest.raises(UserError, match=message):
        setup.prepare(config, epath.Path(tmp_path / "run"), print)
    assert not (tmp_path / "run").exists()
    data = dataclasses.replace(config.data, bleu_tokenizer="char")
    assert bleu_tokenizers.for_data(data) == "char"


@pytest.mark.parametrize(
    ("code", "text"), [("ja", "今日は晴れです。"), ("ko", "두 마리 개가 놀고 있다.")]
)
def test_bleu_of_japanese_and_korean_uses_their_dictionaries(code, text):
    pytest.importorskip({"ja": "MeCab", "ko": "mecab_ko"}[code])
    name = bleu_tokenizers.choose(code)
    scores = corpus_metrics.corpus_scores([text], [text], name)
    assert f"tok:{code}-mecab-" in scores.bleu_signature
    row = corpus_metrics.conventions([text], [text], code, tokenizer=name)[0]
    assert (row.name, row.bleu) == (f"{code}-mecab, cased", pytest.approx(100))
    assert len(corpus_metrics.compare([text] * 100, ["一"] * 100, [text] * 100, name)) == 2


def test_bleu_tokenizer_names_a_model_that_cannot_be_downloaded(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(UserError, match=r"flores200 needs a model .* no network"):
        bleu_tokenizers.for_data(DataConfig(bleu_tokenizer="flores200"))


def test_moses_language_accepts_any_code_of_a_language():
    known = NonbreakingPrefixes().available_langs.values()
    for code, want in (
        ("deu_Latn", "de"),
        ("ger", "de"),
        ("de-AT", "de"),
        ("fr_XX", "fr"),
        ("ces", "cs"),
        ("xyz", "xyz"),
    ):
        assert bleu_tokenizers.moses_language(code) == want
    assert set(bleu_tokenizers._TWO_LETTERS.values()) == set(known) - {"yue", "zh", "mni", "tdt"}
    text = "L'homme a dit qu'il vient."
    rows = [
        corpus_metrics.conventions([text], ["L' homme a dit."], code)
        for code in ("fr", "fra_Latn", "en")
    ]
    assert [r.bleu for r in rows[0]] == [r.bleu for r in rows[1]] != [r.bleu for r in rows[2]]


def test_split_compounds_splits_hyphens_within_words_only():
    want = "U ##AT##-##AT## Bahn - hier , Rock-'n ##AT##-##AT## Roll"
    text = "U-Bahn - hier , Rock-'n-Roll"
    # As s/(\S)-(\S)/…/g in the script, which replaces the first of overlapping matches.
    assert corpus_metrics.split_compounds(text) == want.replace("Rock-'", "Rock ##AT##-##AT## '")


def test_conventions_without_sacremoses_say_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    rows = corpus_metrics.conventions(HYPOTHESES, REFERENCES, "de")
    assert [row.bleu is None for row in rows] == [False] * 3 + [True] * 3
    assert "pip install sacremoses" in rows[-1].signature


def noisy(references, share, seed):
    rng = random.Random(seed)
    return [
        " ".join("falsch" if rng.random() < share else word for word in text.split())
        for text in references
    ]


def test_compare_tells_a_better_system_from_chance():
    rng = random.Random(0)
    words = [f"wort{i}" for i in range(50)]
    references = [" ".join(rng.choices(words, k=12)) for _ in range(200)]
    good, bad = noisy(references, 0.1, 1), noisy(references, 0.2, 2)
    bleu, chrf = corpus_metrics.compare(good, bad, references)
    assert (bleu.metric, chrf.metric) == ("BLEU", "chrF2")
    assert bleu.score == pytest.approx(sacrebleu.corpus_bleu(good, [references]).score)
    assert bleu.other_score == pytest.approx(sacrebleu.corpus_bleu(bad, [references]).score)
    assert bleu.score > bleu.other_score
    assert max(bleu.p_value, chrf.p_value) < 0.01
    assert 0 < bleu.interval < bleu.score - bleu.other_score
    alike = corpus_metrics.compare(good, noisy(references, 0.1, 3), references)
    assert min(c.p_value for c in alike) > 0.05


def test_compare_without_ties_equals_sacrebleu():
    rng = random.Random(0)
    references = [" ".join(rng.choices([f"wort{i}" for i in range(50)], k=12)) for _ in range(120)]
    good = noisy(references, 0.1, 1)
    for share in (0.1, 0.12, 0.3):
        bad = noisy(references, share, 2)
        test = PairedTest(
            [("other", bad), ("this", good)],
            {"BLEU": BLEU(), "chrF2": CHRF()},
            [references],
            test_type="bs",
            n_samples=1000,
        )
        signatures, scores = test()
        for ours in corpus_metrics.compare(good, bad, references):
            other, this = scores[ours.metric]
            assert (ours.score, ours.other_score) == (this.score, other.score)
            assert ours.p_value == this.p_value
            assert ours.interval == pytest.approx(this.ci, abs=1e-4)  # theirs is in float32
            assert ours.other_interval == pytest.approx(other.ci, abs=1e-4)
            assert ours.signature == str(signatures[ours.metric])
            assert not ours.identical


def exact_chrf(hypotheses, references):
    """chrF2 as a fraction: matches are counted over the corpus, then averaged over the orders."""
    precisions, recalls = [], []
    for size in range(1, 7):
        counts = [
            [Counter(text[i : i + size] for i in range(len(text) - size + 1)) for text in pair]
            for pair in zip(hypotheses, references, strict=True)
        ]
        given, wanted = (sum(pair[side].total() for pair in counts) for side in (0, 1))
        matches = sum((ours & reference).total() for ours, reference in counts)
        if given and wanted:
            precisions.append(Fraction(matches, given))
            recalls.append(Fraction(matches, wanted))
    precision, recall = (sum(values) / len(values) for values in (precisions, recalls))
    return 500 * precision * recall / (4 * precision + recall) if precision + recall else 0


SHORT = ["abcdefgh", "abcdefgh", "hgfedcba", "aabbccdd"]


@pytest.mark.parametrize(
    ("hypotheses", "others", "p_value"),
    [
        (["abcdefgx", *SHORT[1:]], ["abcdefgx", *SHORT[1:]], 1),  # identical
        (["abcdefgx", *SHORT[1:]], ["abcdefgh", "abcdefgx", *SHORT[2:]], 1),  # equal scores
        (SHORT, ["abcdxxgh", *SHORT[1:]], None),  # many resamples lack the sentence that differs
        (["abcdefgx", *SHORT[1:]], ["abxxefgh", "abcdefgh", "hgfxxcba", "aabbxcdd"], None),
        (["abcdefgx", "abcdefgy", "hgfedcbz", "aabbccdw"], ["a", "b", "c", "d"], None),
    ],
)
def test_compare_with_ties_by_all_resamples_in_exact_arithmetic(hypotheses, others, p_value):
    everyone = list(itertools.product(range(4), repeat=4))

    def difference(indices):
        pick = [[texts[i] for i in indices] for texts in (hypotheses, others, SHORT)]
        return exact_chrf(pick[0], pick[2]) - exact_chrf(pick[1], pick[2])

    observed, differences = difference(range(4)), [difference(indices) for indices in everyone]
    mean = sum(map(abs, differences)) / len(differences)
    as_large = [d == 0 or abs(d) - mean >= abs(observed) for d in differences]
    want = Fraction(sum(as_large) + 1, len(everyone) + 1) if observed else Fraction(1)
    assert p_value is None or want == p_value
    resamples = [np.array(indices) for indices in everyone]
    this, other = (
        significance.of_sacrebleu(CHRF(), texts, SHORT) for texts in (hypotheses, others)
    )
    ours = significance.paired_bootstrap(this, other, resamples)
    assert ours.score - ours.other_score == pytest.approx(float(observed))
    assert ours.p_value == float(want)


def test_p_value_counts_a_difference_that_is_exactly_as_large():
    # Their mean is 2; they exceed it by -1.5, -0.5, 0.5 and 1.5.
    assert significance.p_value(np.array([0.5, -1.5, 2.5, 3.5]), 1.5) == 2 / 5
    assert significance.p_value(np.array([0.5, -1.5, 2.5, 3.5]), -1.6) == 1 / 5
    # As above, and not as numbers of the computer: 0.7 - 0.4 is less than 0.3.
    assert significance.p_value(np.array([0.1, 0.3, 0.5, 0.7]), 0.3) == 2 / 5
    assert significance.p_value(np.array([0.0, 0.0, 5.0, 5.0]), 5.0) == 3 / 5
    assert significance.p_value(np.zeros(4), 0.0) == significance.p_value(np.ones(4), 0.0) == 1


def test_chosen_metrics_equal_sacrebleu_and_are_compared_too():
    rng = random.Random(0)
    references = [" ".join(rng.choices([f"wort{i}" for i in range(50)], k=12)) for _ in range(120)]
    pairs = [("x", reference) for reference in references]
    good, bad = noisy(references, 0.1, 1), noisy(references, 0.3, 2)
    both = [chosen_metrics.statistics(["chrf++", "ter"], texts, pairs) for texts in (good, bad)]
    more = list(zip(*both, strict=True))
    bleu, chrf, words, ter = corpus_metrics.compare(good, bad, references, more=more)
    assert [bleu.metric, chrf.metric, words.metric, ter.metric] == [
        "BLEU",
        "chrF2",
        "chrF2++",
        "TER",
    ]
    for ours, metric in ((words, CHRF(word_order=2)), (ter, TER())):
        assert ours.score == metric.corpus_score(good, [references]).score
        assert ours.other_score == metric.corpus_score(bad, [references]).score
        assert ours.p_value < 0.01
        assert ours.signature.replace("|bs:1000|seed:12345", "") == str(metric.get_signature())
    assert ter.score < ter.other_score


# The arguments of COMET's command, and a score that depends on all three texts of a line.
COMET_SCORE = """#!{python}
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
for name in ("-s", "-t", "-r", "--model", "--to_json"):
    parser.add_argument(name)
parser.add_argument("--gpus", type=int)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--only_system", action="store_true")
args = parser.parse_args()
if "kiwi" not in args.model and not args.r:
    sys.exit("this model requires references")
if args.model == "gone":
    print("downloading")
    sys.exit("ValueError: there is no model gone")
columns = [pathlib.Path(name).read_text().splitlines() for name in (args.s, args.t, args.r) if name]
rows = [{{"COMET": sum(map(len, row)) / 1000 + args.gpus}} for row in zip(*columns, strict=True)]
pathlib.Path(args.to_json).write_text(json.dumps({{args.t: rows}}))
"""


@pytest.fixture
def comet_score(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "comet-score"
    program.parent.mkdir()
    program.write_text(COMET_SCORE.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


def test_comet_is_computed_by_its_command(comet_score):
    pairs = [("a\u2028b", "ccc"), ("", "dd")]
    (one,) = chosen_metrics.statistics(["comet"], ["eeee", "f"], pairs)
    assert one.sentences[:, 0] == pytest.approx([1.0, 0.3])  # 100 times 10 and 3 letters by 1,000
    assert (one.metric, one.total) == ("COMET", pytest.approx(0.65))
    assert one.signature == "Unbabel/wmt22-comet-da|times:100"
    command = f"{comet_score} --gpus 1 --model=other-kiwi.ckpt"
    (other,) = chosen_metrics.statistics(["comet_qe"], ["eeee", "f"], pairs, command)
    assert other.sentences[:, 0] == pytest.approx([100.7, 100.1])
    assert (other.metric, other.signature) == ("COMET-QE", "other-kiwi.ckpt|times:100")
    compared = significance.paired_bootstrap(one, other, [np.array([0, 0]), np.array([0, 1])])
    assert (compared.score, compared.other_score) == (one.total, other.total)
    assert compared.signature == "Unbabel/wmt22-comet-da|bs:2|seed:12345|times:100"


def test_comet_that_is_missing_or_fails_is_named(comet_score, monkeypatch):
    with pytest.raises(UserError, match="status 1: ValueError: there is no model gone"):
        comet.sentence_scores("comet", ["a"], ["b"], ["c"], "comet-score --gpus 0 --model gone")
    with pytest.raises(UserError, match="no command line: No closing quotation"):
        comet.check("comet-score 'x")
    assert chosen_metrics.parse("bleu, chrf,ter,comet,ter") == ["ter", "comet"]
    chosen_metrics.require(["ter", "comet", "comet_qe"])
    with pytest.raises(UserError, match="names one model for comet and comet_qe"):
        chosen_metrics.require(["comet", "comet_qe"], "comet-score --model=x")
    with pytest.raises(
        UserError, match=r"no metric 'tre'; did you mean ter\? There are bleu, chrf,"
    ):
        chosen_metrics.parse("tre")
    for program, message in (
        ("#!/bin/sh\n", "wrote no scores that can be read"),
        (f"#!{sys.executable}\nopen(__import__('sys').argv[-1], 'w').write('[]')\n", "no scores"),
        ("#!/nowhere\n", "cannot be started: No such file"),
    ):
        comet_score.write_text(program)
        with pytest.raises(UserError, match=message):
            comet.sentence_scores("comet", ["a"], ["b"], ["c"])
    monkeypatch.setenv("PATH", "")
    chosen_metrics.require(["ter"])
    with pytest.raises(UserError, match="'comet-score', which is not here: `pipx install unbabel-"):
        chosen_metrics.require(["ter", "comet"])


@pytest.mark.parametrize(("language", "edits"), [("zh", 25.0), ("jpn_Jpan", 25.0), ("ko", 100.0)])
def test_ter_of_languages_without_spaces_counts_characters(language, edits):
    (ter,) = chosen_metrics.statistics(["ter"], ["我喜欢猫"], [("", "我喜欢狗")], "", language)
    assert ter.total == pytest.approx(edits)


def test_training_scores_by_the_metric_of_its_best_checkpoint(monkeypatch, comet_score, caplog):
    translations = [SimpleNamespace(text=text) for text in HYPOTHESES]
    monkeypatch.setattr(
        evaluate.model_metrics, "evaluate", lambda *_: (model_scores(loss=2.0), translations)
    )
    monkeypatch.setattr(evaluate, "JaxBatchRunner", mock.MagicMock())
    monkeypatch.setattr(evaluate, "Engine", mock.MagicMock())
    monkeypatch.setattr(evaluate.Evaluator, "_params", lambda *_: None)
    pairs = [("x", reference) for reference in REFERENCES]

    def scores_of(config):
        return evaluate.Evaluator(config, mock.MagicMock(), mock.MagicMock())(None, pairs)[0]

    for name, want in (
        ("eval_ter", TER().corpus_score(HYPOTHESES, [REFERENCES]).score),
        ("eval_chrf++", CHRF(word_order=2).corpus_score(HYPOTHESES, [REFERENCES]).score),
        ("eval_comet", 100 * sum(map(len, ["xxx", *HYPOTHESES, *REFERENCES])) / 3000),
        ("eval_bleu", 1.0),
    ):
        config = Config(checkpoint=CheckpointConfig(best_metric=name))
        comet.require_best_metric(config)
        metrics = scores_of(config)
        assert metrics[name] == pytest.approx(want)
        assert len([key for key in metrics if key.endswith("_signature")]) == 2 + (
            name != "eval_bleu"
        )
    broken = CheckpointConfig(best_metric="eval_comet", comet_command="comet-score --model gone")
    with pytest.raises(UserError, match="there is no model gone"):
        comet.require_best_metric(Config(checkpoint=broken))
    # An evaluation whose score fails does not end the run; it is the worst.
    metrics = scores_of(Config(checkpoint=broken))
    assert "so it is not the best" in caplog.text
    assert "eval_comet" not in metrics
    assert retention.quality(metrics, "eval_comet")[0] == -np.inf
    monkeypatch.setenv("PATH", "")
    config = Config(checkpoint=CheckpointConfig(best_metric="eval_comet_qe"))
    with pytest.raises(UserError, match="comet-score"):
        comet.require_best_metric(config)
    lower, higher = ({"eval_loss": 2.0, "eval_ter": ter} for ter in (40.0, 50.0))
    assert retention.quality(lower, "eval_ter") > retention.quality(higher, "eval_ter")
    assert retention.quality(higher, "eval_loss") == [-2.0, -2.0]


def model_scores(loss):
    return model_metrics.Evaluation(loss, 1.0, 1.0, 1.0, 1.0, "b", 1.0, "c", 3)


def test_compare_refuses_few_sentences():
    with pytest.raises(UserError, match="at least 100 sentences, here are 3"):
        corpus_metrics.compare(HYPOTHESES, HYPOTHESES, REFERENCES)


def test_eval_knows_a_slice_of_a_split():
    assert eval_run.is_part(DataConfig(test="test[:10]"), "test")
    assert not eval_run.is_part(DataConfig(test="test"), "test")
    assert not eval_run.is_part(DataConfig(source="files", test="a[1]"), "test")


def test_translation_of_a_test_set_has_the_sentences_before_as_context():
    seen = []

    def translate(params, requests, settings):
        seen.extend((request.text, tuple(request.context), request.line) for request in requests)
        return [[SimpleNamespace(text=request.text.upper())] for request in requests]

    config = SimpleNamespace(data=SimpleNamespace(context_sentences=1))
    engine = SimpleNamespace(config=config, translate=translate)
    assert model_metrics.translate(engine, None, ["a", "b", "c"], None) == ["A", "B", "C"]
    assert seen == [("a", (), 1), ("b", ("a",), 2), ("c", ("b",), 3)]


def test_robustness_scores_translations_of_noisy_sources():
    texts = [f"Der Hund läuft zum {number}. Haus." for number in range(20)] + ["ok"]
    pairs = [(text, text) for text in texts]
    rows = {row.noise: row for row in robustness.scores(list, pairs, "13a", (100.0, 100.0))}
    assert list(rows) == ["upper_case", "lower_case", "no_punctuation", "typos"]
    upper = sacrebleu.corpus_chrf([text.upper() for text in texts], [texts]).score
    assert rows["upper_case"].chrf == pytest.approx(upper)
    assert rows["upper_case"].chrf_change == pytest.approx(upper - 100)
    assert rows["upper_case"].changed == 100
    assert rows["lower_case"].changed == pytest.approx(100 * 20 / 21)
    bleu = sacrebleu.corpus_bleu([text.lower() for text in texts], [texts]).score
    assert rows["lower_case"].bleu == pytest.approx(bleu)
    assert rows["lower_case"].bleu_change == pytest.approx(bleu - 100)
    assert rows["typos"].chrf > rows["upper_case"].chrf


@pytest.mark.slow
def test_eval_shows_conventions_and_compares(tiny_run, tmp_path):
    data, workdir = tiny_run
    lines = (data / "train.de").read_text().splitlines()[:120]
    for language in ("en", "de"):
        text = (data / f"train.{language}").read_text().splitlines(keepends=True)[:120]
        (tmp_path / f"some.{language}").write_text("".join(text))
    others = tmp_path / "others.txt"
    others.write_text("".join(line + "\n" for line in lines))
    out = tmp_path / "scores.json"
    arguments = [f"--workdir={workdir}", f"--config.data.test={tmp_path / 'some'}"]
    flags = ["--conventions", "--robustness", "--metrics=bleu,ter", f"--compare={others}"]
    flags += [f"--json={out}", f"--errors={tmp_path / 'errors.html'}"]
    done = run_command("eval", *arguments, *flags)
    assert done.returncode == 0, done.stderr
    assert "compounds split" in done.stdout
    assert "  no punctuation  BLEU " in done.stdout
    scores = json.loads(out.read_text())
    assert [row["noise"] for row in scores["robustness"]] == list(robustness.KINDS)
    assert len(scores["conventions"]) == 6
    page = (tmp_path / "errors.html").read_text()
    assert f"<td>{scores['bleu']:.2f}</td><td>100.00</td>" in page
    assert "targets of the training data" in page
    (ter,) = scores["metrics"]
    assert (ter["name"], ter["metric"]) == ("ter", "TER")
    assert f"TER             {ter['score']:.2f}  {ter['signature']}" in done.stdout
    assert [row["score"] for row in scores["compare"]["metrics"][2:]] == [ter["score"]]
    recorded = summary.summarize(workdir).evals[-1]
    assert (recorded["ter"], recorded["ter_signature"]) == (ter["score"], ter["signature"])
    bleu = scores["compare"]["metrics"][0]
    assert bleu["score"] == scores["bleu"]
    assert bleu["other_score"] == pytest.approx(100)
    # Both systems search by the flags: only so are the translations of few tokens identical.
    flags = ["--max_decode_len=2", f"--compare={workdir}@best", f"--json={out}"]
    same = run_command("eval", *arguments, *flags)
    assert same.returncode == 0, same.stderr
    assert "by paired bootstrap: identical translations\n" in same.stdout
    assert same.stdout.count("p = 1.0000") == 2
    bleu = json.loads(out.read_text())["compare"]["metrics"][0]
    assert bleu["score"] == bleu["other_score"]
    assert (bleu["p_value"], bleu["identical"]) == (1, True)
    # A metric that fails takes nothing else with it.
    (tmp_path / "errors.html").unlink()
    flags = ["--metrics=comet", "--comet_command=false", f"--errors={tmp_path / 'errors.html'}"]
    failed = run_command("eval", *arguments, *flags, f"--compare={others}")
    assert (failed.returncode, "false with the model" in failed.stderr) == (2, True)
    assert "by paired bootstrap" in failed.stdout
    assert (tmp_path / "errors.html").exists()
    over = run_command("eval", *arguments, f"--compare={others}", f"--output={others}")
    assert over.returncode == 0, over.stderr
    assert len(others.read_text().splitlines()) == 120
    others.write_text("eins\n")
    refused = run_command("eval", *arguments, f"--compare={others}")
    assert refused.returncode == 2
    assert "has 1 translations, test has 120 sentences" in refused.stderr
    missing = run_command("eval", *arguments, f"--compare={tmp_path / 'none'}", f"--json={out}")
    assert missing.returncode == 2
    assert json.loads(out.read_text())["compare"]


def test_records_of_metrics_agree_with_what_computes_them():
    always = {name for name, metric in METRICS.items() if not metric.on_request}
    assert always <= {field.name for field in dataclasses.fields(model_metrics.Evaluation)}
    assert METRICS.keys() - always == chosen_metrics._SACREBLEU.keys() | comet.MODELS.keys()
    types = typing.get_type_hints(CheckpointConfig)
    assert set(typing.get_args(types["best_metric"])) == {
        f"eval_{name}" for name, metric in METRICS.items() if metric.chooses_best
    }
    # Of an error or a loss, which grow as a model gets worse.
    lower = {name for name, metric in METRICS.items() if metric.lower_is_better}
    assert lower == {"loss", "perplexity", "ter"}
