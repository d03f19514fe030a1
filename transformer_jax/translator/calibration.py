"""What is learned about a model from a validation set, kept in its folder as `calibration.json`.

How sure it is of its translations (`confidence`), which words it copies (`copying`), and which of
its heads aligns words (`attention_choice`).
"""

import collections
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sacrebleu
from absl import logging
from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError
from transformer_jax.translator import confidence
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.confidence import Logistic
from transformer_jax.translator.translation import Confidence, Translation
from transformer_jax.translator.words import words_of

NAME = "calibration.json"
LEAST_SENTENCES = 100
_FOLDS = 5  # of the validation set: each part is judged by what the others give
_WORST = 0.1  # share of the sentences that the confidence should tell apart
# Words that a model copies: occurrences in the sources, share of them whose reference has the word.
_LEAST_COUNT, _LEAST_SHARE = 3, 0.8
_CANDIDATES, _SLOTS = 24, 32  # words that are tried, and sentences that each is tried in
_LEAST_COPIED = 0.7  # of those sentences
_MOST_STAND_INS = 8
_LEAST_LETTERS = 4  # of a word without capital letters and digits, which may have another meaning


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What is known about a model.

    Attributes:
      sentence: confidence of a sentence, from `confidence.sentence_features`.
      word: that of a word, from `confidence.word_features`.
      stand_ins: words that the model copies, the best first.
      attention: that links words best; None: it is not known.
      checkpoint_step: of the parameters.
      measured: on sentences that were not fitted; names as `fit` gives them.
    """

    sentence: Logistic
    word: Logistic
    stand_ins: tuple[str, ...] = ()
    attention: AttentionChoice | None = None
    checkpoint_step: int = 0
    measured: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def confidence(self, translation: Translation) -> Confidence:
        """That of a translation, which has its `token_log_probs`."""
        return confidence.confidence(translation, self.sentence, self.word)


def fit(
    translations: Sequence[Translation], references: Sequence[str]
) -> tuple[Logistic, Logistic, dict[str, float]]:
    """The confidence of sentences and of words, and how good it is.

    Args:
      translations: with their `token_log_probs`.
      references: of each.

    Returns:
      Both regressions; and, by cross-validation, the expected calibration error of each, and the
      area under the curve (AUROC) by which sentences find the tenth with the lowest chrF.

    Raises:
      UserError: there are too few sentences.
    """
    pairs = [
        (one, reference)
        for one, reference in zip(translations, references, strict=True)
        if one.tokens and one.token_log_probs
    ]
    if len(pairs) < LEAST_SENTENCES:
        raise UserError(
            f"{len(pairs)} translations that are not empty are too few to calibrate; use at least "
            f"{LEAST_SENTENCES}."
        )
    chrf = sacrebleu.CHRF()
    scores = np.array([chrf.sentence_score(one.text, [ref]).score / 100 for one, ref in pairs])
    features = np.array([confidence.sentence_features(one) for one, _ in pairs])
    by_word = [confidence.word_features(one) for one, _ in pairs]
    words = np.concatenate(by_word)
    is_right = np.concatenate([words_in_reference(one.text, ref) for one, ref in pairs])
    folds = np.arange(len(pairs)) % _FOLDS
    word_folds = np.repeat(folds, [len(one) for one in by_word])
    rising, words_rising = confidence.SENTENCE_RISING, confidence.WORD_RISING
    expected = _cross_validated(features, scores, folds, rising)
    expected_words = _cross_validated(words, is_right, word_folds, words_rising)
    is_worst = scores <= np.quantile(scores, _WORST)
    measured = {
        "num_sentences": float(len(pairs)),
        "sentence_calibration_error": confidence.calibration_error(expected, scores),
        "word_calibration_error": confidence.calibration_error(expected_words, is_right),
        "worst_tenth_auroc": confidence.auroc(-expected, is_worst),
        "wrong_word_auroc": confidence.auroc(-expected_words, is_right < 0.5),
    }
    return (
        confidence.fit(features, scores, rising),
        confidence.fit(words, is_right, words_rising),
        measured,
    )


def _cross_validated(
    features: np.ndarray, targets: np.ndarray, folds: np.ndarray, num_rising: int
) -> np.ndarray:
    """What regressions that were fitted without a fold give for it."""
    expected = np.zeros(len(targets))
    for fold in range(_FOLDS):
        inside = folds == fold
        fitted = confidence.fit(features[~inside], targets[~inside], num_rising)
        expected[inside] = fitted(features[inside])
    return expected


def words_in_reference(text: str, reference: str) -> np.ndarray:
    """`[words]`: 1 where the reference has a word of the text too, as often as it does; else 0."""
    left = collections.Counter(words_of(reference))
    is_there = []
    for word in words_of(text):
        is_there.append(float(left[word] > 0))
        left[word] -= 1
    return np.array(is_there)


def find_stand_ins(
    model: Any, pairs: Sequence[tuple[str, str]], **settings: Any
) -> tuple[tuple[str, ...], float]:
    """Words that a model copies, the best first; and how often it copies them, in 0 .. 1.

    Words that sources and references share are put into each other's places and translated.

    Args:
      model: a `Translator`.
      pairs: of the validation set.
      **settings: as of `Translator.translate_iterable`.
    """
    candidates = shared_words(pairs)[:_CANDIDATES]
    slots = [
        (source, word)
        for source, _ in pairs
        for word in candidates
        if words_of(source).count(word) == 1
    ][: 10 * _SLOTS]
    rates: list[tuple[float, str]] = []
    for word in candidates:
        places = [(source, other) for source, other in slots if other != word][:_SLOTS]
        texts = [_replaced(source, other, word) for source, other in places]
        texts = [text for text in texts if words_of(text).count(word) == 1]
        if len(texts) < _LEAST_COUNT:
            continue
        outputs = model.translate_iterable(texts, **settings)
        rate = np.mean([_folded(one.text).count(word.casefold()) == 1 for one in outputs])
        rates.append((float(rate), word))
    chosen = sorted((one for one in rates if one[0] >= _LEAST_COPIED), key=lambda one: -one[0])
    chosen = chosen[:_MOST_STAND_INS]
    share = float(np.mean([rate for rate, _ in chosen])) if chosen else 0.0
    return tuple(word for _, word in chosen), share


def shared_words(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Words that are in sources and, where they are, in their references; the most usual first.

    Capital letters may differ: nouns begin with one in German.
    """
    in_source: collections.Counter[str] = collections.Counter()
    in_both: collections.Counter[str] = collections.Counter()
    for source, reference in pairs:
        words, others = {*words_of(source)}, {*_folded(reference)}
        in_source.update(words)
        in_both.update(word for word in words if word.casefold() in others)
    return [
        word
        for word, count in in_both.most_common()
        if count >= _LEAST_COUNT
        and count >= _LEAST_SHARE * in_source[word]
        and word.isalnum()
        and (len(word) >= _LEAST_LETTERS or not word.islower())
    ]


def _folded(text: str) -> list[str]:
    return [word.casefold() for word in words_of(text)]


def _replaced(text: str, word: str, other: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", other, text)


def to_json(calibration: Calibration) -> str:
    """Inverse of `from_json`."""
    return json.dumps(dataclasses.asdict(calibration), indent=2, ensure_ascii=False)


def write(calibration: Calibration, folder: epath.PathLike) -> None:
    """Writes `calibration.json`."""
    paths.write_atomically(epath.Path(folder) / NAME, to_json(calibration) + "\n")


def read(folder: epath.PathLike, step: int | None = None) -> Calibration | None:
    """The calibration of a model; None where its folder has none.

    That of another checkpoint than the one of `step` is given with a warning.

    Raises:
      UserError: the file is damaged.
    """
    path = epath.Path(folder) / NAME
    if not path.exists():
        return None
    calibration = from_json(path.read_text(encoding="utf-8"), str(path))
    if step is not None and step != calibration.checkpoint_step:
        logging.warning(
            "%s is of step %d, and this checkpoint of step %d: its confidence may be wrong. Run "
            "`transformer-jax eval --calibrate` again.",
            path,
            calibration.checkpoint_step,
            step,
        )
    return calibration


def from_json(text: str, path: str) -> Calibration:
    """The calibration of a file.

    Raises:
      UserError: it is damaged.
    """
    try:
        fields = json.loads(text)
        regressions = {
            name: Logistic(tuple(map(float, fields[name]["weights"])), float(fields[name]["bias"]))
            for name in ("sentence", "word")
        }
        if any(len(one.weights) != 4 for one in regressions.values()):
            raise ValueError("4 weights are needed")
        return Calibration(
            **regressions,
            stand_ins=tuple(map(str, fields["stand_ins"])),
            attention=AttentionChoice(**fields["attention"]) if fields["attention"] else None,
            checkpoint_step=int(fields["checkpoint_step"]),
            measured={str(k): float(v) for k, v in fields["measured"].items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); write it again with `transformer-jax eval --calibrate`."
        ) from error
