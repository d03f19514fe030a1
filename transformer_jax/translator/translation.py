"""The results for a text and for a document, and how translations of parts are combined."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from transformer_jax.translator import alignment, long_texts


@dataclasses.dataclass(frozen=True)
class Confidence:
    """How good a translation can be expected to be, of a model that was calibrated.

    Attributes:
      sentence: the chrF against a reference that can be expected, in 0 .. 1.
      words: for each word and mark of the text (`translator.words`), the probability that a
        reference has it too.
    """

    sentence: float
    words: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Translation:
    """One hypothesis."""

    text: str
    score: float  # log-probability over length penalty; of `mbr`, the expected metric
    log_prob: float  # natural log-probability of all tokens and the end symbol
    tokens: tuple[str, ...]
    ids: tuple[int, ...]  # of the tokens
    source_tokens: tuple[str, ...] = ()  # where attention was asked for
    # [T, S]; of a text that was translated in parts, sparse
    attention: np.ndarray | sparse.csr_array | None = dataclasses.field(default=None, compare=False)
    # Natural, of each token and of the end symbol, where attention was asked for.
    token_log_probs: tuple[float, ...] = dataclasses.field(default=(), compare=False)
    # Where it was asked for.
    confidence: Confidence | None = dataclasses.field(default=None, compare=False)
    error: str = ""  # why the text was not translated, with on_error="skip"; text is then ""
    unmet: tuple[str, ...] = ()  # what was asked for and is not so, such as "phrase 'Haus'"

    def as_json(self) -> dict[str, Any]:
        """The fields of a line of JSON; a score of -inf, of no output, is None."""
        fields: dict[str, Any] = {
            name: getattr(self, name) for name in ("text", "score", "log_prob")
        }
        fields["tokens"] = list(self.tokens)
        if self.unmet:
            fields["unmet"] = list(self.unmet)
        return {name: None if value == -math.inf else value for name, value in fields.items()}


@dataclasses.dataclass(frozen=True)
class TranslatedSentence:
    """A sentence of a document with its translation.

    Attributes:
      source: the sentence.
      text: of the translation.
      flags: what is wrong with it, as names of `extras.documents.guards.MEANINGS`; () where
        nothing is.
      unmet: terms of the glossary that it does not contain.
      confidence: the chrF that it can be expected to have, in 0 .. 1; None: the model was not
        calibrated.
      words: (word, probability that a reference has it too) of each word.
    """

    source: str
    text: str
    flags: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    confidence: float | None = None
    words: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class DocumentTranslation:
    """A document, translated.

    Attributes:
      text: of the document.
      sentences: in order.
      source_lang: the language of the document.
    """

    text: str
    sentences: tuple[TranslatedSentence, ...]
    source_lang: str = ""


def no_translation(error: str = "", unmet: tuple[str, ...] = ()) -> Translation:
    """An empty translation, whose score is below all others."""
    return Translation("", -math.inf, -math.inf, (), (), error=error, unmet=unmet)


def join_parts(parts: Sequence[Translation]) -> Translation:
    """The translations of a text's parts as one; of no part, an empty one."""
    attention = [part.attention for part in parts if part.attention is not None]
    return Translation(
        text=long_texts.join([part.text for part in parts]),
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        tokens=tuple(token for part in parts for token in part.tokens),
        ids=tuple(i for part in parts for i in part.ids),
        source_tokens=tuple(token for part in parts for token in part.source_tokens),
        attention=alignment.block_diagonal(attention) if attention else None,
        # Of the end symbols only the last one, as of any translation.
        token_log_probs=tuple(
            value
            for number, part in enumerate(parts, start=1)
            for value in part.token_log_probs[: None if number == len(parts) else len(part.tokens)]
        ),
        unmet=tuple(dict.fromkeys(name for part in parts for name in part.unmet)),
    )


def join_hypotheses(parts: Sequence[list[Translation]]) -> list[Translation]:
    """The translations of a text, given those of each part; of several parts the best, joined."""
    return parts[0] if len(parts) == 1 else [join_parts([part[0] for part in parts])]


def distinct(hypotheses: Iterable[Translation]) -> Iterator[Translation]:
    """The first of those with the same tokens, which groups and samples may repeat."""
    seen: set[tuple[int, ...]] = set()
    for hypothesis in hypotheses:
        if hypothesis.ids not in seen:
            seen.add(hypothesis.ids)
            yield hypothesis


def fewest_unmet(hypotheses: Sequence[Translation]) -> list[Translation]:
    """Those that lack the fewest phrases, best score first."""
    fewest = min(len(hypothesis.unmet) for hypothesis in hypotheses)
    kept = [hypothesis for hypothesis in hypotheses if len(hypothesis.unmet) == fewest]
    return list(distinct(sorted(kept, key=lambda hypothesis: -hypothesis.score)))
