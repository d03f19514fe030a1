"""Scores of text: conventions side by side, and the comparison of two systems."""

import importlib.util
import json
import random
import re

import pytest
import sacrebleu

from tests.test_cli import command
from transformer_jax import corpus_metrics, eval_command
from transformer_jax.config import DataConfig
from transformer_jax.errors import UserError

REFERENCES = [
    'Er sagt: "Ein blau-weißes Hemd!"',
    "Zwei Hunde, die spielen.",
    "Max's U-Bahn ist da.",
]
HYPOTHESES = ['Er sagt: "Ein blau-rotes Hemd!"', "zwei Hunde, die spielen.", "Max's U-Bahn ist da."]
# Moses' rules, by hand.
TOKENISED = ["Er sagt : &quot; Ein blau-weißes Hemd ! &quot;", "Zwei Hunde , die spielen .",
             "Max &apos;s U-Bahn ist da ."]  # fmt: skip
TOKENISED_HYPOTHESES = ["Er sagt : &quot; Ein blau-rotes Hemd ! &quot;",
                        "zwei Hunde , die spielen .", "Max &apos;s U-Bahn ist da ."]  # fmt: skip
SPLIT = ["Er sagt : &quot; Ein blau ##AT##-##AT## weißes Hemd ! &quot;",
         "Zwei Hunde , die spielen .", "Max &apos;s U ##AT##-##AT## Bahn ist da ."]  # fmt: skip


def lower(texts):
    return [text.lower() for text in texts]


def none(hypotheses, references, **settings):
    return sacrebleu.corpus_bleu(
        hypotheses, [references], tokenize="none", force=True, **settings
    ).score


def test_every_convention_is_what_its_name_says():
    found = {row.name: row for row in corpus_metrics.conventions(HYPOTHESES, REFERENCES, "en")}
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
    assert {name: row.bleu for name, row in found.items()} == pytest.approx(want)
    assert len({round(score, 6) for score in want.values()}) >= 5
    moses = r"sacremoses\.[\d.]+"
    for name, steps in (("13a, cased", ""), ("tokenised, cased", rf"\|text:{moses}"),
                        ("tokenised, lower-cased", rf"\|text:lc\.{moses}"),
                        ("tokenised, compounds split", rf"\|text:{moses}\.compounds")):  # fmt: skip
        assert re.search(rf"version:[\d.]+{steps}$", found[name].signature)
    for name, words in (("13a, cased", "case:mixed"), ("intl, lower-cased", "case:lc"),
                        ("intl, cased", "tok:intl"), ("tokenised, cased", "tok:none")):  # fmt: skip
        assert words in found[name].signature


def test_tokenised_text_is_not_tokenised_again():
    found = corpus_metrics.conventions(TOKENISED_HYPOTHESES, TOKENISED, "en", tokenized=True)
    rows = {row.name: row.bleu for row in found}
    assert rows["tokenised, cased"] == pytest.approx(none(TOKENISED_HYPOTHESES, TOKENISED))
    scores = corpus_metrics.corpus_scores(TOKENISED_HYPOTHESES, TOKENISED, tokenized=True)
    assert scores["bleu"] == rows["tokenised, cased"]
    assert "tok:none" in scores["bleu_signature"]


def test_chinese_is_scored_by_its_own_tokeniser():
    first, *rest = corpus_metrics.conventions(["两只狗在玩。"], ["两只狗在跑。"], "zh")
    want = sacrebleu.corpus_bleu(["两只狗在玩。"], [["两只狗在跑。"]], tokenize="zh").score
    assert (first.name, first.bleu) == ("zh, cased", pytest.approx(want))
    assert not [row for row in rest if "sacremoses" in row.signature]


def test_hyphens_within_words_are_split_and_others_not():
    want = "U ##AT##-##AT## Bahn - hier , Rock-'n ##AT##-##AT## Roll"
    text = "U-Bahn - hier , Rock-'n-Roll"
    # As the script's s/(\S)-(\S)/…/g: of overlapping matches only the first, here none overlap.
    assert corpus_metrics.split_compounds(text) == want.replace("Rock-'", "Rock ##AT##-##AT## '")


def test_what_cannot_be_computed_says_why(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = corpus_metrics.conventions(HYPOTHESES, REFERENCES, "de")
    assert [row.bleu is None for row in found] == [False] * 3 + [True] * 3
    assert "pip install sacremoses" in found[-1].signature


def noisy(references, share, seed):
    rng = random.Random(seed)
    return [
        " ".join("falsch" if rng.random() < share else word for word in text.split())
        for text in references
    ]


def test_the_better_system_is_found_and_chance_is_not():
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


def test_few_sentences_are_not_resampled():
    with pytest.raises(UserError, match="at least 100 sentences, here are 3"):
        corpus_metrics.compare(HYPOTHESES, HYPOTHESES, REFERENCES)


def test_a_slice_of_a_split_is_known():
    assert eval_command.is_part(DataConfig(test="test[:10]"), "test")
    assert not eval_command.is_part(DataConfig(test="test"), "test")
    assert not eval_command.is_part(DataConfig(source="files", test="a[1]"), "test")


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
    done = command("eval.py", *arguments, "--conventions", f"--compare={others}", f"--json={out}")
    assert done.returncode == 0, done.stderr
    assert "compounds split" in done.stdout
    scores = json.loads(out.read_text())
    assert len(scores["conventions"]) == 6
    bleu = scores["compare"]["metrics"][0]
    assert bleu["score"] == scores["bleu"]
    assert bleu["other_score"] == pytest.approx(100)
    same = command("eval.py", *arguments, f"--compare={workdir}@best", f"--json={out}")
    assert same.returncode == 0, same.stderr
    bleu = json.loads(out.read_text())["compare"]["metrics"][0]
    assert bleu["score"] == bleu["other_score"]
    over = command("eval.py", *arguments, f"--compare={others}", f"--output={others}")
    assert over.returncode == 0, over.stderr
    assert len(others.read_text().splitlines()) == 120
    others.write_text("eins\n")
    refused = command("eval.py", *arguments, f"--compare={others}")
    assert refused.returncode == 2
    assert "has 1 translations, the test set 120 sentences" in refused.stderr
    missing = command("eval.py", *arguments, f"--compare={tmp_path / 'none'}", f"--json={out}")
    assert missing.returncode == 2
    assert json.loads(out.read_text())["compare"]
