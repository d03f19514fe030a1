"""Confidence: regressions and measures against brute force, calibration of a run, its file."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from tests.conftest import copy_run, digit_pairs, run_command, write_pairs
from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import attention_choice, document_translation
from transformer_jax.translator import calibration, confidence
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.calibration import Calibration
from transformer_jax.translator.confidence import Logistic
from transformer_jax.translator.translation import Translation


def translation(text="Ein Hund rennt.", log_probs=(-0.1, -0.5, -2.0, -0.3, -0.2), **fields):
    tokens = ("▁Ein", "▁Hund", "▁ren", "nt.")[: len(log_probs) - 1]
    return Translation(text, -1.0, -1.0, tokens, (5, 6, 7, 8), token_log_probs=log_probs, **fields)


def test_a_regression_is_fitted_as_by_newtons_method():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 3)) * [1, 5, 0.1] + [0, 3, 0]
    targets = 1 / (1 + np.exp(-(features @ [1.0, -0.3, 4.0] + 0.5)))
    targets = np.clip(targets + rng.normal(size=400) * 0.05, 0, 1)
    fitted = confidence.fit(features, targets)
    # Iteratively reweighted least squares on standardised features, with the same penalty.
    scale, mean = features.std(axis=0), features.mean(axis=0)
    x = np.column_stack([(features - mean) / scale, np.ones(400)])
    penalty = 2 * confidence._PENALTY * np.diag([1, 1, 1, 0])
    weights = np.zeros(4)
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ weights))
        gradient = x.T @ (p - targets) / 400 + penalty @ weights
        hessian = (x.T * (p * (1 - p))) @ x / 400 + penalty
        weights -= np.linalg.solve(hessian, gradient)
    np.testing.assert_allclose(fitted.weights, weights[:3] / scale, rtol=1e-3)
    np.testing.assert_allclose(fitted(features), 1 / (1 + np.exp(-x @ weights)), atol=1e-4)
    # A feature that is the same everywhere has no effect.
    same = confidence.fit(np.column_stack([features, np.ones(400)]), targets)
    np.testing.assert_allclose(
        same(np.column_stack([features, np.ones(400)])), fitted(features), atol=1e-3
    )


def test_auroc_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(1)
    for _ in range(20):
        scores, wanted = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.3
        pairs = [(a, b) for a in scores[wanted] for b in scores[~wanted]]
        share = np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])
        assert confidence.auroc(scores, wanted) == pytest.approx(share)
    assert np.isnan(confidence.auroc(np.ones(3), np.ones(3, bool)))


def test_calibration_error_by_hand():
    expected = np.array([0.1, 0.2, 0.8, 0.9])
    observed = np.array([0.0, 0.0, 1.0, 0.5])
    # Two bins: 0.15 expected and 0 observed, 0.85 expected and 0.75 observed.
    assert confidence.calibration_error(expected, observed, 2) == pytest.approx(0.125)
    assert confidence.calibration_error(expected, expected) == 0.0


def test_features_by_hand():
    one = translation()
    wanted = [np.mean(one.token_log_probs), np.mean(np.exp(one.token_log_probs)), -2.0, np.log(5)]
    np.testing.assert_allclose(confidence.sentence_features(one), wanted)
    words = confidence.word_features(one)
    assert words.shape == (4, 4)  # Ein, Hund, rennt, .
    np.testing.assert_allclose(words[:, 0], np.exp([-0.1, -0.5, -2.3, -0.3]))
    np.testing.assert_allclose(words[:, 2], [-0.1, -0.5, -2.0, -0.3])
    np.testing.assert_allclose(words[:, 3], wanted[1])
    empty = Translation("", -np.inf, -np.inf, (), ())
    assert confidence.confidence(empty, Logistic((0,) * 4, 9), Logistic((0,) * 4, 9)).sentence == 0
    # A word that no token writes has the mean of the sentence.
    other = confidence.word_features(dataclasses.replace(one, text="Ein 漢 Hund"))
    assert np.isfinite(other).all()


def test_words_in_a_reference_count_as_often_as_it_has_them():
    fitted = calibration.words_in_reference("der Hund der der Katze .", "Der Hund . der Hund")
    np.testing.assert_array_equal(fitted, [1, 1, 0, 0, 0, 1])


def test_words_that_both_sides_share():
    pairs = [("a Frisbee flies", "eine Frisbee fliegt")] * 3 + [("the in band", "in Band die")] * 4
    pairs += [("my hand", "meine Hand"), ("hand me", "gib mir"), ("hand in", "gib ab")]
    assert calibration.shared_words(pairs) == ["band", "Frisbee"]


def test_stand_ins_are_words_that_the_model_copies():
    class Model:
        """Copies `Max`, and writes `Moritz` twice."""

        def translate_iterable(self, texts, **settings):
            assert settings == {"beam_size": 1}
            for text in texts:
                yield dataclasses.replace(
                    translation(), text=text.replace("Moritz", "Moritz Moritz").replace("Anna", "x")
                )

    names = ("Max", "Moritz", "Anna")
    pairs = [(f"see {name} run", f"sieh {name} rennen") for name in names for _ in range(5)]
    assert calibration.find_stand_ins(Model(), pairs, beam_size=1) == (("Max",), 1.0)
    assert calibration.find_stand_ins(Model(), [("a b", "c d")] * 9, beam_size=1) == ((), 0.0)


def test_the_head_that_links_equal_words_is_found(translator, monkeypatch):
    """Layers and heads of a model whose attention is made by hand."""
    depth, heads = 2, 2
    right = (1, 0, True)

    def cross_attention(params, source, target):
        del params
        weights = np.full((depth, heads, len(target), len(source)), 0.1)
        layer, head, shift = right
        weights[layer, 1 - head, :, 0] = 5.0  # which the mean of the heads follows
        for token in range(len(target) - 1):
            weights[layer, head, token + shift, min(token, len(source) - 1)] = 1.0
        return weights

    runner = translator.engine.runner
    monkeypatch.setattr(runner, "cross_attention", cross_attention)
    pairs = [(source, source) for source, _ in digit_pairs(60, longest=4)]
    choice, share = attention_choice.choose(translator, pairs)
    assert choice == AttentionChoice(*right)
    assert share > 0.9
    assert attention_choice.choose(translator, digit_pairs(60)) is None  # no equal words
    assert attention_choice.equal_words("Max sees max 12 of of", "Max 12 of of max") == [
        (0, 0),
        (3, 1),
    ]


@pytest.fixture(scope="module")
def calibrated(tiny_run, tmp_path_factory):
    """A run that was calibrated by the command, and what it has printed."""
    folder = tmp_path_factory.mktemp("calibrated")
    run = copy_run(tiny_run[1], folder / "run")
    pairs = [
        (f"{source} Max {n % 7}", f"{target} Max")
        for n, (source, target) in enumerate(digit_pairs(150, seed=8))
    ]
    prefix = write_pairs(folder, "val", pairs)
    done = run_command(
        "eval",
        f"--workdir={run}",
        f"--input={prefix}.en",
        f"--reference={prefix}.de",
        "--calibrate",
        "--beam_size=1",
        f"--json={folder / 'scores.json'}",
    )
    assert not done.returncode, done.stderr
    return folder, run, done.stdout


def test_the_command_calibrates_a_run(calibrated):
    folder, run, printed = calibrated
    assert "calibrated on" in printed
    assert "finds the worst tenth with AUROC" in printed
    assert f"wrote {run / calibration.NAME}" in printed
    fitted = calibration.read(run)
    assert fitted is not None
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["calibration"] == dict(fitted.measured)
    assert fitted.measured["sentence_calibration_error"] < 0.2
    translator = Translator.load(run)
    assert translator.calibration == fitted
    assert translator.alignment in (fitted.attention, AttentionChoice())


def test_a_calibration_goes_with_its_model(calibrated, tmp_path, caplog):
    run = calibrated[1]
    fitted = calibration.read(run)
    done = run_command("bundle", f"--workdir={run}", f"--output={tmp_path / 'one.bundle'}")
    assert not done.returncode, done.stderr
    assert Translator.load(tmp_path / "one.bundle").calibration == fitted
    assert not caplog.records
    # That of another checkpoint may be wrong.
    calibration.write(dataclasses.replace(fitted, checkpoint_step=7), tmp_path)
    assert calibration.read(tmp_path, step=7) is not None
    assert not caplog.records
    assert calibration.read(tmp_path, step=8) is not None
    assert "is of step 7, and this checkpoint of step 8" in caplog.text


def test_translations_come_with_their_confidence(calibrated, translator):
    model = Translator.load(calibrated[1])
    texts = ["one two three", "four", ""]
    plain = model.translate(texts)
    sure = model.translate(texts, confidence=True, n_best=2)
    assert [best[0].text for best in sure] == [one.text for one in plain]
    for best in sure[:2]:
        one = best[0].confidence
        assert 0 < one.sentence < 1
        assert len(one.words) == len(best[0].text.split())
        assert best[1].confidence is None
        assert model.calibration.confidence(best[0]) == one
    result = model.translate_document("one two three\n\nfour {x}")
    for sentence in result.sentences:
        assert 0 < sentence.confidence < 1
        assert " ".join(word for word, _ in sentence.words).split() == sentence.text.split()
    assert ("{x}", 1.0) in result.sentences[1].words
    with pytest.raises(UserError, match="needs a model that was calibrated"):
        translator.translate("one", confidence=True)
    assert translator.translate_document("one").sentences[0].confidence is None


def test_decode_writes_confidence(calibrated, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one two\nthree\n")
    flags = [f"--workdir={calibrated[1]}", f"--input={text}"]
    done = run_command("decode", *flags, "--format=jsonl", "--confidence")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(0 < line["confidence"] < 1 for line in lines)
    assert [[word for word, _ in line["words"]] for line in lines] == [
        line["text"].split() for line in lines
    ]
    done = run_command("decode", *flags, "--confidence")
    assert done.returncode == 2
    assert "--confidence needs --format=jsonl" in done.stderr
    report = tmp_path / "s.jsonl"
    done = run_command("decode", *flags, "--document", f"--sentences={report}")
    assert not done.returncode, done.stderr
    assert all(0 < json.loads(line)["confidence"] < 1 for line in report.read_text().splitlines())


def test_documents_without_links_do_not_ask_for_attention(translator, monkeypatch):
    seen = []
    real = translator.translate_iterable
    monkeypatch.setattr(
        translator,
        "translate_iterable",
        lambda texts, **s: seen.append(s["attention"]) or real(texts, **s),
    )
    for text in ("one two", "one {x}"):
        translator.translate_document(text, guards=False)
    assert seen == [None, translator.alignment]
    assert document_translation.options().guards


def test_calibrations_that_are_damaged_or_impossible_are_refused(calibrated, tiny_run, tmp_path):
    text = (calibrated[1] / calibration.NAME).read_text()
    fields = json.loads(text)
    damage = [
        "",
        "[]",
        text[:-20],
        json.dumps({**fields, "word": {"weights": [1, 2], "bias": 0}}),
        json.dumps({**fields, "sentence": None}),
        json.dumps({**fields, "attention": {"layer": 1, "x": 2}}),
        json.dumps({k: v for k, v in fields.items() if k != "stand_ins"}),
    ]
    for one in damage:
        with pytest.raises(UserError, match=r"is damaged .*eval --calibrate"):
            calibration.from_json(one, "x/calibration.json")
    run = tmp_path / "run"
    shutil.copytree(calibrated[1], run)
    (run / calibration.NAME).write_text("{")
    with pytest.raises(UserError, match=f"{run / calibration.NAME} is damaged"):
        Translator.load(run)
    few = [translation()] * 99
    with pytest.raises(UserError, match="99 translations that are not empty are too few"):
        calibration.fit(few, [""] * 99)
    done = run_command("eval", f"--workdir={tiny_run[1]}", "--calibrate")
    assert done.returncode == 2
    assert "are too few to calibrate" in done.stderr
    done = run_command(
        "eval", f"--workdir={tiny_run[1]}", "--calibrate", f"--ensemble={tiny_run[1]}"
    )
    assert "--calibrate is for one model" in done.stderr


def test_a_calibration_is_written_and_read(tmp_path):
    one = Calibration(
        Logistic((1.0, 2.0, 3.0, 4.0), 5.0),
        Logistic((0.0,) * 4, -1.0),
        ("a", "b"),
        AttentionChoice(1, None, True),
        7,
        {"x": 0.5},
    )
    calibration.write(one, tmp_path)
    assert calibration.read(tmp_path) == one
    calibration.write(dataclasses.replace(one, attention=None), tmp_path)
    assert calibration.read(tmp_path).attention is None
    assert calibration.read(tmp_path / "none") is None


def test_confidence_does_not_rise_for_what_is_unlikely():
    rng = np.random.default_rng(0)
    # Features that say nearly the same, as mean and least log-probability do.
    log_probs = -rng.exponential(0.4, 500)
    features = np.column_stack([log_probs, np.exp(log_probs), 3 * log_probs])
    features[:, 2] += 0.3 * rng.normal(size=500)
    scores = np.clip(np.exp(log_probs) - 0.1 * features[:, 2] - 0.3, 0, 1)
    free = confidence.fit(features, scores)
    assert min(free.weights) < 0
    fitted = confidence.fit(features, scores, num_rising=3)
    assert min(fitted.weights) >= 0
    steps = -np.linspace(0, 20, 50)
    values = fitted(np.column_stack([steps, np.exp(steps), 3 * steps]))
    assert (np.diff(values) <= 0).all()
    assert values[-1] < 0.3
