"""How good a translation and each of its words can be expected to be, as numbers from 0 to 1.

Logistic regressions on the log-probabilities that the model gives its own tokens. They are fitted
to a validation set (`calibration`), so the numbers can be taken at their word: of the words with
0.8, about 80% are in the reference.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import special

from transformer_jax.translator.translation import Confidence, Translation
from transformer_jax.translator.word_links import token_of_characters
from transformer_jax.translator.words import word_spans

SENTENCE_RISING, WORD_RISING = 3, 4  # features that grow with a translation's probability
_PENALTY = 1e-3  # on the squared weights of standardised features, for each observation
_LEAST_LOG_PROB = -20.0  # less is not finite in some precision


@dataclasses.dataclass(frozen=True)
class Logistic:
    """Logistic regression: 1 / (1 + exp(-(features · weights + bias)))."""

    weights: tuple[float, ...]
    bias: float

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Values `[N]` in 0 .. 1 of features `[N, F]`."""
        return special.expit(features @ np.asarray(self.weights) + self.bias)


def fit(features: np.ndarray, targets: np.ndarray, num_rising: int = 0) -> Logistic:
    """The regression that gives the targets the least cross-entropy.

    Args:
      features: `[N, F]`.
      targets: `[N]`, in 0 .. 1; not only 0 and 1, as for a metric that is to be expected.
      num_rising: the first features, with which values may not fall. Without that, features that
        say nearly the same get weights of both signs, and what is unlike all of `features` any
        value.
    """
    # Imported here: only calibration needs it, and every command would start later.
    from scipy import optimize

    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    inputs = np.column_stack([(features - mean) / scale, np.ones(len(features))])

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = inputs @ weights
        cross_entropy = np.mean(np.logaddexp(0, logits) - targets * logits)
        gradient = inputs.T @ (special.expit(logits) - targets) / len(inputs)
        penalized = np.append(weights[:-1], 0)
        return cross_entropy + _PENALTY * penalized @ penalized, gradient + 2 * _PENALTY * penalized

    bounds = [(0.0 if number < num_rising else None, None) for number in range(inputs.shape[1])]
    start = np.zeros(inputs.shape[1])
    solution = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    weights = solution[:-1] / scale
    return Logistic(tuple(map(float, weights)), float(solution[-1] - mean @ weights))


def sentence_features(translation: Translation) -> np.ndarray:
    """`[4]`: mean log-probability, mean probability, least log-probability, log of the length."""
    log_probs = _log_probs(translation)
    return np.array(
        [log_probs.mean(), np.exp(log_probs).mean(), log_probs.min(), np.log(len(log_probs))]
    )


def word_features(translation: Translation) -> np.ndarray:
    """`[words, 4]`: probability, mean and least log-probability, and mean of the sentence's."""
    log_probs = _log_probs(translation)
    sentence = np.exp(log_probs).mean()
    owners = token_of_characters(translation.text, translation.tokens)
    rows = []
    for start, end in word_spans(translation.text):
        tokens = np.unique(owners[start:end])
        of_word = log_probs[tokens[tokens >= 0]] if (tokens >= 0).any() else log_probs
        rows.append([np.exp(of_word.sum()), of_word.mean(), of_word.min(), sentence])
    return np.array(rows).reshape(-1, 4)


def _log_probs(translation: Translation) -> np.ndarray:
    """Of each token and the end."""
    assert translation.token_log_probs
    return np.maximum(np.asarray(translation.token_log_probs, np.float64), _LEAST_LOG_PROB)


def confidence(translation: Translation, sentence: Logistic, word: Logistic) -> Confidence:
    """That of a translation.

    Args:
      translation: with its `token_log_probs`; one without tokens has none.
      sentence: of `sentence_features`.
      word: of `word_features`.
    """
    if not translation.tokens or not translation.token_log_probs:
        return Confidence(0.0, (0.0,) * len(word_spans(translation.text)))
    (expected,) = sentence(sentence_features(translation)[None])
    by_word = word(word_features(translation))
    return Confidence(round(float(expected), 4), tuple(round(float(p), 4) for p in by_word))


def calibration_error(expected: np.ndarray, observed: np.ndarray, num_bins: int = 10) -> float:
    """Expected calibration error (Naeini et al., 2015), in bins of equally many observations.

    The mean, over bins, of the difference between what was expected and what was observed.
    """
    order = np.argsort(expected, kind="stable")
    bins: Sequence[np.ndarray] = np.array_split(order, min(num_bins, len(order)))
    errors = (len(one) * abs(expected[one].mean() - observed[one].mean()) for one in bins)
    return float(sum(errors) / len(order))


def auroc(scores: np.ndarray, is_wanted: np.ndarray) -> float:
    """Probability that a wanted one has a higher score than another; ties count a half.

    NaN where all are wanted, or none.
    """
    wanted, others = np.sort(scores[is_wanted]), np.sort(scores[~is_wanted])
    if not len(wanted) or not len(others):
        return float("nan")
    below = np.searchsorted(others, wanted, "left") + np.searchsorted(others, wanted, "right")
    return float(below.mean() / 2 / len(others))
