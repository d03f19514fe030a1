"""Texts of several sentences on their way through the scheduler: split, checked, put together."""

import concurrent.futures
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.extras.documents import document_translation
from transformer_jax.extras.documents.document import Document, SentenceTranslation
from transformer_jax.extras.documents.document_translation import DocumentOptions
from transformer_jax.extras.documents.sentence_translator import Part, Preparer, join
from transformer_jax.extras.documents.term_placement import Placement
from transformer_jax.extras.serving.context import off_loop
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.jobs import Job, ScoreJob
from transformer_jax.extras.serving.served_model import ServedModel
from transformer_jax.extras.serving.submitted import cancel, in_order, translations_in_order
from transformer_jax.translator.requests import Request
from transformer_jax.translator.translation import TranslatedSentence, Translation, join_parts
from transformer_jax.translator.words import words_of

_JOINING_COST = 10  # of a character, compared with one that is only split into sentences


@dataclasses.dataclass(frozen=True)
class Wanted:
    """How a client wants to have texts translated.

    Attributes:
      client: whose they are.
      format: of the texts, a name in `formats.FORMATS`.
      splitting: into sentences, as of `Reading`.
      options: glossary, what is protected, guards.
      n_best: translations of each text.
      alignment: whether attention to the source comes with the best translation.
      confidence: whether sentences and words come with their confidence.
      search: fields of `DecodeConfig` that differ from the model's own.
      timeout_ms: as of `Job`.
    """

    client: str
    format: str = "txt"
    splitting: str = ""
    options: DocumentOptions = dataclasses.field(default_factory=DocumentOptions)
    n_best: int = 1
    alignment: bool = False
    confidence: bool = False
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    timeout_ms: float | None = None


@dataclasses.dataclass(frozen=True)
class Finished:
    """A text, translated.

    Attributes:
      translations: of the text, best first; scores are the sums of those of its sentences.
      sentences: each with its best translation.
      source_lang: language of the text.
      alignment: words of the text, words of its translation, and links (source word, word); None:
        it was not asked for.
    """

    translations: list[Translation]
    sentences: list[TranslatedSentence]
    source_lang: str
    alignment: tuple[list[str], list[str], list[tuple[int, int]]] | None = None


class ServedText:
    """A text that is translated sentence by sentence.

    Args:
      text: of the client.
      model: that translates it.
      languages: of the text and of its translation, as the model calls them; the first may be
        `auto`.
      wanted: by the client.

    Raises:
      ServiceError: the text is not of its format.
    """

    def __init__(self, text: str, model: ServedModel, languages: tuple[str, str], wanted: Wanted):
        self.model, self._text, self._wanted = model, text, wanted
        source_lang, target_lang = languages
        try:
            source_lang = document_translation.language_of(
                model.translator, text, wanted.format, source_lang
            )
            self._document: Document = document_translation.read(
                model.translator,
                text,
                wanted.format,
                wanted.options,
                source_lang,
                target_lang,
                wanted.splitting,
            )
            self._preparer: Preparer = document_translation.preparer(
                model.translator,
                wanted.options,
                source_lang,
                target_lang,
                wanted.confidence,
                has_links=wanted.alignment,
            )
        except UserError as error:
            raise ServiceError(400, f"The text: {error}") from error
        self._languages = (source_lang, target_lang)
        self._groups = self._preparer.parts(self._document.sentences)
        self._submitted: list[concurrent.futures.Future[Any]] = []

    @property
    def _source_lang(self) -> str:
        return self._languages[0] or self.model.translator.config.data.source_lang

    @property
    def _parts(self) -> list[Part]:
        return [part for parts in self._groups for part in parts]

    @property
    def num_parts(self) -> int:
        """Sentences, or parts of them, that are translated."""
        return len(self._parts)

    def submit(self) -> None:
        """Submits its sentences.

        Raises:
          ServiceError: as of `ServedModel.submit`.
        """
        parts = self._parts
        job = self._job(
            [part.request for part in parts], self._wanted.n_best, self._needs_attention(parts)
        )
        self._submitted = [*self.model.submit(job)]

    def cancel(self) -> None:
        """Frees the places of its sentences."""
        cancel(self._submitted)

    def _needs_attention(self, parts: Sequence[Part]) -> bool:
        is_possible = self.model.can_align or self._wanted.alignment
        return self._preparer.needs_attention(parts) and is_possible

    def _job(self, requests: Sequence[Request], n_best: int, needs_attention: bool) -> Job:
        wanted = self._wanted
        return Job(
            requests,
            wanted.client,
            n_best,
            needs_attention,
            *self._languages,
            wanted.search,
            wanted.timeout_ms,
        )

    async def finish(self) -> Finished:
        """Its translation; what a guard catches is searched again.

        Raises:
          ServiceError: as of `translations_in_order`.
        """
        hypotheses = [best async for best in translations_in_order([*self._submitted])]
        hypotheses = await self._with_terms(self._parts, hypotheses)
        cost = _JOINING_COST * len(self._text)
        results = await off_loop(cost, self._results, self._parts, hypotheses)
        for search in self.model.retries:
            caught = [number for number, best in enumerate(results) if best[0].flags]
            if not caught:
                break
            try:
                again = await self._search_again([self._parts[number] for number in caught], search)
            except ServiceError:
                break  # no room or time for it: what is there comes with its flags
            for number, (translation, result) in zip(caught, again, strict=True):
                if len(result.flags) < len(results[number][0].flags):
                    hypotheses[number] = [translation]
                    results[number] = [result]
        return await off_loop(cost, self._join, hypotheses, results)

    async def _search_again(
        self, parts: Sequence[Part], search: Mapping[str, Any]
    ) -> list[tuple[Translation, SentenceTranslation]]:
        """The translation of each part by another search."""
        job = self._job([part.request for part in parts], 1, self._needs_attention(parts))
        again = await self._with_terms(parts, await self._translations(job, search))
        results = self._results(parts, again)
        return [(best[0], one[0]) for best, one in zip(again, results, strict=True)]

    async def _translations(
        self, job: Job, retry: Mapping[str, Any] | None = None
    ) -> list[list[Translation]]:
        submitted = self.model.submit(job, retry)
        self._submitted += submitted
        return [best async for best in translations_in_order(submitted)]

    async def _with_terms(
        self, parts: Sequence[Part], hypotheses: Sequence[list[Translation]]
    ) -> list[list[Translation]]:
        """The translations of parts with the terms of the glossary, where there is one.

        Where there is no room or time for it, `unmet` says which are missing.
        """
        glossary, wanted = self._preparer.glossary, self._wanted
        if glossary is None:
            return [*hypotheses]
        texts = [part.request.text for part in parts]
        best = [ranked[0] for ranked in hypotheses]
        cost = _JOINING_COST * sum(map(len, texts))
        placement = await off_loop(cost, Placement, glossary, texts, best, self._preparer.engine)
        pairs = [(texts[number], target) for number, target in placement.pairs]
        try:
            submitted = self.model.submit_pairs(
                ScoreJob(pairs, wanted.client, *self._languages, wanted.timeout_ms)
            )
            self._submitted += submitted
            scores = [one async for one in in_order(submitted)]
            placed = await off_loop(cost, placement.result, scores)
            lacking = [number for number, one in enumerate(placed) if one.unmet]
            if lacking and self.model.can_constrain(wanted.search):
                some = [parts[number] for number in lacking]
                job = self._job(
                    [self._preparer.constrained(part.request) for part in some],
                    1,
                    self._needs_attention(some),
                )
                for number, (other, *_) in zip(lacking, await self._translations(job), strict=True):
                    placed[number] = placement.better(number, placed[number], other)
        except ServiceError:
            placed = placement.unplaced()
        return [
            [one, *(other for other in ranked[1:] if placement.has_all(number, other))]
            for number, (one, ranked) in enumerate(zip(placed, hypotheses, strict=True))
        ]

    def _results(
        self, parts: Sequence[Part], hypotheses: Sequence[list[Translation]]
    ) -> list[list[SentenceTranslation]]:
        """Of each part, each of its translations, checked."""
        return [
            [self._preparer.result(part, one) for one in best]
            for part, best in zip(parts, hypotheses, strict=True)
        ]

    def _join(
        self,
        hypotheses: Sequence[list[Translation]],
        results: Sequence[list[SentenceTranslation]],
    ) -> Finished:
        """The text's translations; a sentence with fewer than others repeats its last one."""
        if not results:
            untranslated = dataclasses.replace(join_parts([]), text=self._text)
            return Finished([untranslated], [], self._source_lang)
        translations: list[Translation] = []
        best: list[SentenceTranslation] = []
        for rank in range(max(map(len, results))):
            chosen = iter([ranked[min(rank, len(ranked) - 1)] for ranked in results])
            by_sentence = [join(parts, [next(chosen) for _ in parts]) for parts in self._groups]
            # Links between words say all that attention would.
            parts = [
                dataclasses.replace(ranked[min(rank, len(ranked) - 1)], attention=None)
                for ranked in hypotheses
            ]
            text = self._document.join(by_sentence)
            translations.append(dataclasses.replace(join_parts(parts), text=text))
            best = best or by_sentence
        return Finished(
            translations,
            [*map(document_translation.translated, self._document.sentences, best)],
            self._source_lang,
            self._alignment(best) if self._wanted.alignment else None,
        )

    def _alignment(
        self, translations: Sequence[SentenceTranslation]
    ) -> tuple[list[str], list[str], list[tuple[int, int]]]:
        """As of `Finished`: each word is linked with the one that it attends to most."""
        source_words: list[str] = []
        words: list[str] = []
        links: list[tuple[int, int]] = []
        for sentence, translation in zip(self._document.sentences, translations, strict=True):
            best: dict[int, tuple[float, int]] = {}  # word -> (share, source word)
            for source, target, share in translation.links:
                best[target] = max(best.get(target, (0.0, 0)), (share, source))
            links += (
                (len(source_words) + source, len(words) + target)
                for target, (_, source) in sorted(best.items())
            )
            source_words += map(sentence.marks.plain, words_of(sentence.text))
            words += map(sentence.marks.plain, words_of(translation.text))
        return source_words, words, links


def read(
    texts: Sequence[str], model: ServedModel, languages: tuple[str, str], wanted: Wanted
) -> list[ServedText]:
    """Texts of the same languages.

    Raises:
      ServiceError: as of `ServedText`, with the number of the text.
    """
    served = []
    for number, text in enumerate(texts):
        try:
            served.append(ServedText(text, model, languages, wanted))
        except ServiceError as error:
            error.item = number
            raise
    return served


def submit(texts: Sequence[ServedText]) -> None:
    """Submits all of the texts, or none.

    Raises:
      ServiceError: one cannot be translated, or there are too many sentences.
    """
    try:
        for text in texts:
            text.model.check_room(sum(one.num_parts for one in texts))
            text.submit()
    except BaseException:
        cancel_all(texts)
        raise


def cancel_all(texts: Sequence[ServedText]) -> None:
    """Frees the places of all sentences."""
    for text in texts:
        text.cancel()


async def finished(texts: Sequence[ServedText]) -> AsyncIterator[Finished]:
    """Each text's translation, as soon as it and all before it are there.

    Where the reader ends early, or a text fails, the others are cancelled.

    Raises:
      ServiceError: as of `ServedText.finish`, with the number of the text.
    """
    try:
        for number, text in enumerate(texts):
            try:
                yield await text.finish()
            except ServiceError as error:
                error.item = number
                raise
    finally:
        cancel_all(texts)
