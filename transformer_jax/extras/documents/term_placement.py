"""Terms of a glossary, in the place of the words that a translation has for them.

A text is searched without its terms. Words of the translation that attend to a term become one of
its forms, the one that the model finds likeliest. Constraints of the search are for terms to which
no word attends: forced to write a word that it would not choose, a model appends it to a sentence
that has its own word too (`benchmarks/text_quality.py` compares both).
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.documents.glossary import Glossary, Occurrence, Term
from transformer_jax.translator import phrases
from transformer_jax.translator.phrases import OneOf, Phrase
from transformer_jax.translator.requests import Request
from transformer_jax.translator.scoring import PairScores
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.word_links import links_of, matrix, token_of_characters
from transformer_jax.translator.words import word_spans

_LEAST_SHARE = 0.3  # of what a word attends to, to be a translation of a term
_MOST_DRAFTS = 32  # of a translation


@dataclasses.dataclass(frozen=True)
class Draft:
    """A translation in which terms are in the place of other words.

    Attributes:
      text: of the translation.
      replaced: (first character, end) of each term, and those of what was there before, in order.
    """

    text: str
    replaced: tuple[tuple[int, int, int, int], ...]

    def tokens_before(self, before: Translation, tokens: Sequence[str]) -> Any:
        """`[tokens, tokens before]`: shares of the tokens of `before` in each of the new ones."""
        owners, owners_before = (
            token_of_characters(text, some)
            for text, some in ((self.text, tokens), (before.text, before.tokens))
        )
        rows: list[int] = []
        columns: list[int] = []
        # Of what was not replaced, each character; of a term, all that was in its place.
        end, end_before = 0, 0
        for first, last, first_before, last_before in (
            *self.replaced,
            (len(self.text), len(self.text), len(before.text), len(before.text)),
        ):
            rows += range(end, first)
            columns += range(end_before, first_before)
            for row, column in itertools.product(
                range(first, last), range(first_before, last_before)
            ):
                rows.append(row)
                columns.append(column)
            end, end_before = last, last_before
        pairs = [
            (owners[row], owners_before[column])
            for row, column in zip(rows, columns, strict=True)
            if owners[row] >= 0 and owners_before[column] >= 0
        ]
        shares = np.zeros((len(tokens), len(before.tokens)))
        for row, column in pairs:
            shares[row, column] += 1
        return shares / np.maximum(shares.sum(axis=1, keepdims=True), 1)


def drafts(source: str, occurrences: Sequence[Occurrence], translation: Translation) -> list[Draft]:
    """Translations with a form of each term that the translation lacks; none where none is placed.

    Args:
      source: of the translation.
      occurrences: of terms in the source.
      translation: with attention.
    """
    text = translation.text
    spans = word_spans(text)
    links = links_of(source, translation)
    weights = matrix(links, len(spans), len(word_spans(source))).toarray()
    is_free = np.array([text[start].isalnum() for start, _ in spans], bool)
    wanted = collections.Counter(one.term for one in occurrences)
    choices: list[tuple[int, int, tuple[str, ...]]] = []
    for one in occurrences:
        if _count(text, one.term) >= wanted[one.term] or not is_free.any():
            continue
        shares = np.where(is_free, weights[:, one.first : one.end].sum(axis=1), 0)
        first, last = _run(shares)
        if first == last:
            continue
        start, end = spans[first][0], spans[last - 1][1]
        if _count(text[start:end], one.term):
            continue
        is_free[first:last] = False
        is_beginning = not any(map(str.isalnum, text[:start]))
        forms = (f[:1].upper() + f[1:] if is_beginning else f for f in one.term.forms)
        choices.append((start, end, tuple(dict.fromkeys(forms))))
    return [*_combined(text, sorted(choices))] if choices else []


def _run(shares: np.ndarray) -> tuple[int, int]:
    """The words (first, end) that attend to a term; an empty run where none does."""
    first = int(shares.argmax())
    if shares[first] < _LEAST_SHARE:
        return 0, 0
    last = first + 1
    while first and shares[first - 1] >= _LEAST_SHARE:
        first -= 1
    while last < len(shares) and shares[last] >= _LEAST_SHARE:
        last += 1
    return first, last


def _count(text: str, term: Term) -> int:
    """How often a text has a form of a term."""
    return len({at for one in term.phrase.forms for at in phrases.places(text, one, term.inflect)})


def _combined(text: str, choices: Sequence[tuple[int, int, tuple[str, ...]]]) -> Iterator[Draft]:
    """The text with each combination of forms; where there are too many, with the first forms."""
    options = [forms for _, _, forms in choices]
    while math.prod(map(len, options)) > _MOST_DRAFTS:
        longest = max(range(len(options)), key=lambda number: len(options[number]))
        options[longest] = options[longest][:-1]
    for forms in itertools.product(*options):
        parts, replaced, length, done = [], [], 0, 0
        for (start, end, _), form in zip(choices, forms, strict=True):
            parts += [text[done:start], form]
            first = length + start - done
            length, done = first + len(form), end
            replaced.append((first, length, start, end))
        yield Draft("".join([*parts, text[done:]]), tuple(replaced))


class Placement:
    """Places terms in translations of several texts.

    Args:
      glossary: with the terms.
      texts: that were translated.
      translations: of each, searched without terms.
      engine: of the model.

    Attributes:
      pairs: (number of the text, draft of its translation), which have to be scored.
    """

    def __init__(
        self,
        glossary: Glossary,
        texts: Sequence[str],
        translations: Sequence[Translation],
        engine: Any,
    ):
        self._translations, self._target = translations, engine.tokenizers.target
        occurrences = [glossary.occurrences(text) for text in texts]
        self._phrases = [_phrases(self._target, some) for some in occurrences]
        # Attention of a text in several parts is sparse; it is too long to be scored.
        possible = (
            drafts(text, some, one) if some and isinstance(one.attention, np.ndarray) else []
            for text, some, one in zip(texts, occurrences, translations, strict=True)
        )
        most = engine.max_len - 2  # tokens without the end and a tag of a language
        self._drafts = [
            [one for one in some if len(self._target.encode(one.text)) <= most] for some in possible
        ]
        self.pairs = [
            (number, draft.text) for number, some in enumerate(self._drafts) for draft in some
        ]

    def result(self, scores: Sequence[PairScores]) -> list[Translation]:
        """The translations with their terms; `unmet` names those that are not placed.

        Args:
          scores: of each of `pairs`.
        """
        rest, results = iter(scores), []
        for number, (translation, some) in enumerate(
            zip(self._translations, self._drafts, strict=True)
        ):
            scored = [(draft, next(rest)) for draft in some]
            if scored:
                draft, best = max(scored, key=lambda one: one[1].log_prob)
                translation = self._rewritten(translation, draft, best)
            results.append(self._checked(number, translation))
        return results

    def unplaced(self) -> list[Translation]:
        """The translations as they are; `unmet` names the terms that they lack."""
        return [self._checked(number, one) for number, one in enumerate(self._translations)]

    def better(self, number: int, placed: Translation, other: Translation) -> Translation:
        """The one of two translations of a text that lacks fewer terms; else the first."""
        other = self._checked(number, other)
        return other if len(other.unmet) < len(placed.unmet) else placed

    def has_all(self, number: int, translation: Translation) -> bool:
        """Whether a translation of a text has all of its terms."""
        return not phrases.missing(translation.text, self._phrases[number])

    def _checked(self, number: int, translation: Translation) -> Translation:
        unmet = phrases.missing(translation.text, self._phrases[number])
        if translation.error or not self._phrases[number]:
            return translation
        return dataclasses.replace(
            translation, unmet=tuple(dict.fromkeys((*translation.unmet, *unmet)))
        )

    def _rewritten(self, before: Translation, draft: Draft, scores: PairScores) -> Translation:
        ids = self._target.encode(draft.text)
        tokens = tuple(self._target.tokens(ids))
        assert before.attention is not None
        attention = draft.tokens_before(before, tokens) @ before.attention[: len(before.tokens)]
        # Of about as many tokens, the penalty on length is about the same.
        is_likelihood = before.score < 0 and math.isfinite(before.log_prob)
        score = scores.log_prob * before.score / before.log_prob if is_likelihood else before.score
        return dataclasses.replace(
            before,
            text=draft.text,
            score=score,
            log_prob=scores.log_prob,
            tokens=tokens,
            ids=tuple(ids),
            attention=attention,
            token_log_probs=scores.log_probs,
        )


def _phrases(tokenizer: Any, occurrences: Sequence[Occurrence]) -> tuple[Phrase, ...]:
    """What a translation has to contain for the terms of its source."""
    terms = dict.fromkeys(one.term for one in occurrences)
    encoded = (phrases.encode(tokenizer, term.phrase) for term in terms)
    return tuple(phrase for phrase in encoded if phrase is not None)


def constrained(
    glossary: Glossary, request: Request, tokenizers: TokenizerPair, room: int
) -> Request:
    """A request whose search has to place its terms, as far as there is room.

    Args:
      glossary: with the terms.
      request: without them.
      tokenizers: of the model.
      room: tokens that terms may need.
    """
    kept: list[str | OneOf] = [*request.phrases]
    for term in dict.fromkeys(one.term for one in glossary.occurrences(request.text)):
        phrase = phrases.encode(tokenizers.target, term.phrase)
        if phrase is not None and phrase.most_tokens <= room:
            kept.append(term.phrase)
            room -= phrase.most_tokens
    return dataclasses.replace(request, phrases=tuple(kept))


def translate(
    model: Any, glossary: Glossary, requests: Sequence[Request], **settings: Any
) -> list[list[Translation]]:
    """Translations of texts with their terms, best first.

    Terms are placed in the best translation of each; of others, those without them are left out.

    Args:
      model: a `Translator`.
      glossary: with the terms.
      requests: a text each.
      **settings: as of `Translator.translate_iterable`.

    Raises:
      UserError: as of `Translator.translate_iterable`; or the engine can place no terms.
    """
    if why_not := why_no_terms(model, settings):
        raise UserError(f"`glossary`: {why_not}")
    settings = {**settings, "n_best": settings.get("n_best") or 1}
    results = list(model.translate_iterable(requests, **settings))
    texts = [one.text for one in requests]
    placement = Placement(glossary, texts, [best for best, *_ in results], model.engine)
    scores = model.score_tokens(
        [texts[number] for number, _ in placement.pairs],
        [target for _, target in placement.pairs],
        settings.get("target_lang", ""),
        settings.get("source_lang", ""),
        [requests[number].context for number, _ in placement.pairs],
    )
    placed = placement.result(scores)
    if settings.get("confidence"):
        placed = [
            dataclasses.replace(one, confidence=model.calibration.confidence(one))
            if one.confidence
            else one
            for one in placed
        ]
    lacking = [number for number, one in enumerate(placed) if one.unmet and not one.error]
    if lacking and not _why_no_phrases(model, settings):
        room = model.engine.max_len // 2
        again = [constrained(glossary, requests[n], model.engine.tokenizers, room) for n in lacking]
        forced = model.translate_iterable(again, **settings)
        for number, (best, *_) in zip(lacking, forced, strict=True):
            placed[number] = placement.better(number, placed[number], best)
    return [
        [best, *(one for one in others if placement.has_all(number, one))]
        for number, (best, (_, *others)) in enumerate(zip(placed, results, strict=True))
    ]


def why_no_terms(model: Any, settings: Mapping[str, Any]) -> str:
    """Why a model cannot place terms; "" where it can.

    Args:
      model: a `Translator`.
      settings: of its search.
    """
    return "" if model.alignment is not None else _why_no_phrases(model, settings)


def _why_no_phrases(model: Any, settings: Mapping[str, Any]) -> str:
    method = settings.get("method", model.config.decode.method)
    return model.engine.runner.why_no_phrases(method)
