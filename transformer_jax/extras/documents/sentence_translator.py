"""Sentences of documents, translated: with terms and marks, checked, and again if need be."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.extras.documents import copying, term_placement
from transformer_jax.extras.documents.copying import STAND_INS, Marked, Shown
from transformer_jax.extras.documents.document import DocumentSentence, SentenceTranslation
from transformer_jax.extras.documents.glossary import Glossary
from transformer_jax.extras.documents.guards import Guards
from transformer_jax.translator import WINDOW, long_texts, word_links
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.calibration import Calibration
from transformer_jax.translator.requests import Request, windows
from transformer_jax.translator.translation import Confidence, Translation
from transformer_jax.translator.words import words_of

# Searches for a sentence whose translation a guard has caught, in this order. Those that the engine
# of a model cannot do are left out.
RETRIES: tuple[Mapping[str, Any], ...] = (
    {"method": "beam", "beam_size": 8, "no_repeat_ngram_size": 3},
    {
        "method": "mbr",
        "mbr_samples": 16,
        "no_repeat_ngram_size": 3,
        "top_p": 0.9,
        "shortlist": False,  # samples have none
    },
)


@dataclasses.dataclass(frozen=True)
class Part:
    """A sentence as it is translated, or a part of one that is longer than the model reads.

    Attributes:
      shown: what the model sees.
      request: for it.
      needs_links: whether tags, marks or terms are in its sentence.
    """

    shown: Shown
    request: Request
    needs_links: bool


@dataclasses.dataclass(frozen=True)
class Preparer:
    """Turns sentences into requests, and translations into those of sentences.

    Attributes:
      engine: of the model.
      target_lang: of a multilingual model; "": the model's own.
      source_lang: of a multilingual model that needs it; "": the model's own.
      glossary: terms that translations have to contain.
      guards: check translations; None: nothing does.
      calibration: of the model; None: it has none.
      has_confidence: whether translations come with their confidence, if it has one.
      has_links: whether words are linked where that is not needed.
      longest: most tokens of a sentence with its end; longer ones are translated in parts. 0: as
        many as the model reads.
    """

    engine: Any
    target_lang: str = ""
    source_lang: str = ""
    glossary: Glossary | None = None
    guards: Guards | None = None
    calibration: Calibration | None = None
    has_confidence: bool = True
    has_links: bool = False
    longest: int = 0

    @functools.cached_property
    def _stand_ins(self) -> tuple[str, ...]:
        known = (*(self.calibration.stand_ins if self.calibration else ()), *STAND_INS)
        return tuple(one for one in known if not (self.glossary and self.glossary.find(one)))

    def parts(self, sentences: Sequence[DocumentSentence]) -> list[list[Part]]:
        """What is translated of each sentence: one part, or several of a long one."""
        shown = [copying.shown(sentence.text, self._stand_ins) for sentence in sentences]
        encoder = self.engine.encoder(self.target_lang, self.source_lang)
        ids = encoder.source_ids([one.text for one in shown])
        limit = min(self.longest or encoder.max_len, encoder.max_len) - 1  # without the end
        return [
            [
                self._part(sentence, part)
                for part in ([one] if len(row) <= limit else self._split(one, row, limit))
            ]
            for sentence, one, row in zip(sentences, shown, ids, strict=True)
        ]

    def _part(self, sentence: DocumentSentence, shown: Shown) -> Part:
        has_terms = self.glossary is not None and bool(self.glossary.find(shown.text))
        needs_links = self.has_links or sentence.has_markup or bool(shown.marks) or has_terms
        return Part(shown, Request(shown.text, context=sentence.context), needs_links)

    def constrained(self, request: Request) -> Request:
        """A request whose search has to place the terms of its text."""
        assert self.glossary
        room = self.engine.max_len // 2
        return term_placement.constrained(self.glossary, request, self.engine.tokenizers, room)

    def _split(self, shown: Shown, ids: Sequence[int], limit: int) -> list[Shown]:
        """Parts of a sentence that the model reads at once.

        Args:
          shown: the sentence.
          ids: its token ids, with language tags.
          limit: most tokens of a part.
        """
        tokenizer = self.engine.tokenizers.source
        num_tags = len(ids) - len(tokenizer.encode(shown.text))
        body = ids[num_tags:]
        tokens = tokenizer.tokens(body)
        owners = word_links.token_of_characters(shown.text, tokens)
        num_tokens, places = 0, list[int]()
        for part in long_texts.split_ids(body, tokens, limit - num_tags)[:-1]:
            num_tokens += len(part)
            later = np.flatnonzero(owners >= num_tokens)
            if len(later) and later[0] > max(places, default=0):
                places.append(int(later[0]))
        return copying.split(shown, places)

    def result(self, part: Part, translation: Translation) -> SentenceTranslation:
        """The translation of a part, checked."""
        links: Sequence[word_links.Link] = ()
        if part.needs_links:
            links = word_links.links_of(part.shown.text, translation)
        confidence = None
        if self.calibration and self.has_confidence and translation.token_log_probs:
            confidence = self.calibration.confidence(translation)
        words = confidence.words if confidence else ()
        marked = Marked(translation.text, tuple(links), words)
        marked = copying.with_marks(part.shown, marked)
        if confidence:
            confidence = Confidence(confidence.sentence, marked.confidences)
        flags = self.guards.problems(part.shown.text, translation.text) if self.guards else ()
        return SentenceTranslation(marked.text, marked.links, flags, translation.unmet, confidence)

    def needs_attention(self, parts: Iterable[Part]) -> bool:
        """Whether translations of the parts need attention and log-probabilities."""
        is_calibrated = self.calibration is not None and self.has_confidence
        return is_calibrated or any(part.needs_links for part in parts)


def join(parts: Sequence[Part], translations: Sequence[SentenceTranslation]) -> SentenceTranslation:
    """The translation of a sentence, from those of its parts."""
    if len(parts) == 1:
        return translations[0]
    links: list[word_links.Link] = []
    num_source, num_target = 0, 0
    for part, one in zip(parts, translations, strict=True):
        links += ((s + num_source, t + num_target, share) for s, t, share in one.links)
        num_source += len(words_of(part.shown.text))
        num_target += len(words_of(one.text))
    return SentenceTranslation(
        long_texts.join([one.text for one in translations]),
        tuple(links),
        tuple(dict.fromkeys(flag for one in translations for flag in one.flags)),
        tuple(dict.fromkeys(name for one in translations for name in one.unmet)),
        _joined_confidence([one.confidence for one in translations]),
    )


def _joined_confidence(parts: Sequence[Confidence | None]) -> Confidence | None:
    """That of a sentence from those of its parts, which count by their words."""
    known = [part for part in parts if part]
    words = tuple(one for part in known for one in part.words)
    if len(known) < len(parts) or not words:
        return None
    total = sum(part.sentence * len(part.words) for part in known)
    return Confidence(total / len(words), words)


@dataclasses.dataclass(frozen=True)
class SentenceTranslator:
    """Translates sentences of documents.

    Attributes:
      model: a `Translator`.
      preparer: of the sentences.
      attention: that links words; None: the engine gives none.
      settings: of `Translator.translate_iterable`.
    """

    model: Any
    preparer: Preparer
    attention: AttentionChoice | None
    settings: Mapping[str, Any]

    def translate(
        self, sentences: Iterable[DocumentSentence], window: int = WINDOW
    ) -> Iterator[SentenceTranslation]:
        """Translations of sentences, in their order, as they are finished.

        Args:
          sentences: read as results are asked for.
          window: sentences that are read ahead.

        Raises:
          UserError: an impossible setting, or a sentence that cannot be translated.
        """
        for some in windows(iter(sentences), window):
            groups = self.preparer.parts(some)
            results = self._checked([part for parts in groups for part in parts])
            for parts in groups:
                yield join(parts, [next(results) for _ in parts])

    def _checked(self, parts: Sequence[Part]) -> Iterator[SentenceTranslation]:
        """Translations of the parts; those that a guard catches are searched again.

        The first ones are given before the last ones are finished, up to one that is caught.
        """
        results: dict[int, SentenceTranslation] = {}
        num_given = 0
        for number, result in enumerate(self._search(parts, {})):
            results[number] = result
            while num_given in results and not results[num_given].flags:
                yield results[num_given]
                num_given += 1
        for search in RETRIES:
            caught = [number for number in range(num_given, len(parts)) if results[number].flags]
            again = caught if self._is_possible(search) else []
            outputs = self._search([parts[number] for number in again], search)
            for number, result in zip(again, outputs, strict=True):
                if len(result.flags) < len(results[number].flags):
                    results[number] = result
        yield from (results[number] for number in range(num_given, len(parts)))

    def _search(
        self, parts: Sequence[Part], search: Mapping[str, Any]
    ) -> Iterator[SentenceTranslation]:
        if not parts:
            return
        requests = [part.request for part in parts]
        settings = {
            "attention": self.attention if self.preparer.needs_attention(parts) else None,
            "target_lang": self.preparer.target_lang,
            "source_lang": self.preparer.source_lang,
            **self.settings,
            **search,
        }
        translations: Iterable[Translation]
        if self.preparer.glossary:
            hypotheses = term_placement.translate(
                self.model, self.preparer.glossary, requests, **settings
            )
            translations = [best for best, *_ in hypotheses]
        else:
            translations = self.model.translate_iterable(requests, **settings)
        for part, translation in zip(parts, translations, strict=True):
            yield self.preparer.result(part, translation)

    def _is_possible(self, search: Mapping[str, Any]) -> bool:
        """Whether the engine can do a search."""
        try:
            self.model.settings(settings={**self.settings, **search})
        except UserError:
            return False
        return True
