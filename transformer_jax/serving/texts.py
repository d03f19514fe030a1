"""Texts of several sentences, translated for the APIs of LibreTranslate and DeepL."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import fastapi

from transformer_jax.decoding.translation import Translation
from transformer_jax.serving.context import charged, collect, off_loop, service_of
from transformer_jax.serving.jobs import Job
from transformer_jax.serving.served_model import ServedModel
from transformer_jax.serving.service import Service
from transformer_jax.serving.submitted import Submitted, cancel, translations_in_order
from transformer_jax.text import formats, languages
from transformer_jax.text.document import (
    Document,
    DocumentSentence,
    Reading,
    SentenceTranslation,
)

_JOINING_COST = 10  # of a character, compared with one that is only split into sentences


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a client asks for.

    Attributes:
      texts: of any number of sentences.
      client: whose they are.
      target_lang: as the client writes it.
      source_lang: as the client writes it; "": it is detected for each text.
      num_alternatives: further translations; there may be fewer.
      is_html: whether the texts are HTML.
      splitting: into sentences, as of `formats.read`.
    """

    texts: Sequence[str]
    client: str
    target_lang: str
    source_lang: str = ""
    num_alternatives: int = 0
    is_html: bool = False
    splitting: str = ""


@dataclasses.dataclass(frozen=True)
class TextTranslation:
    """Of one text.

    Attributes:
      texts: translations, best first.
      detected: its language and how sure that is; None: the client has said it.
      source_lang: its language.
    """

    texts: list[str]
    detected: dict[str, Any] | None
    source_lang: str


@dataclasses.dataclass(frozen=True)
class _Part:
    """A text that waits for its sentences; without a model, it stays as it is."""

    text: str
    source_lang: str
    detected: dict[str, Any] | None
    document: Document
    model: ServedModel | None
    target_lang: str

    @property
    def sentences(self) -> list[DocumentSentence]:
        return self.document.sentences if self.model else []


async def translate(request: fastapi.Request, wanted: Wanted) -> list[TextTranslation]:
    """The translation of each text.

    Raises:
      ServiceError: the request cannot be answered.
    """
    service_of(request).check_ready()
    num_chars = sum(map(len, wanted.texts))
    next(iter(service_of(request).models.values())).check_size(wanted.texts)
    parts = await off_loop(num_chars, _parts, service_of(request), wanted)
    with charged(request, wanted.client, num_chars):
        submitted = await off_loop(num_chars, _submit, parts, wanted)
    results = iter(await collect(request, translations_in_order(submitted)))
    return await off_loop(num_chars * _JOINING_COST, _joined, parts, results)


def _joined(parts: Sequence[_Part], results: Iterator[list[Translation]]) -> list[TextTranslation]:
    """The answer of each text, from the translations of all sentences."""
    answers = []
    for part in parts:
        by_sentence = [
            [SentenceTranslation.of(sentence, one) for one in next(results)]
            for sentence in part.sentences
        ]
        texts = _by_rank(part.document, by_sentence) if part.model else [part.text]
        answers.append(TextTranslation(texts, part.detected, part.source_lang))
    return answers


def _by_rank(document: Document, by_sentence: Sequence[Sequence[SentenceTranslation]]) -> list[str]:
    """Translations of a text, best first. A sentence with fewer than others repeats its last."""
    return [
        document.join([best[min(rank, len(best) - 1)] for best in by_sentence])
        for rank in range(max(map(len, by_sentence), default=1))
    ]


def _parts(service: Service, wanted: Wanted) -> list[_Part]:
    """The sentences of each text, and the model for its language."""
    kind = "html" if wanted.is_html else "txt"
    parts = []
    for text in wanted.texts:
        detected, source, target = None, wanted.source_lang, wanted.target_lang
        if not source:
            detected = languages.detect(text, service.source_langs)[0]
            source = detected["language"]
        model = None
        if detected is None or languages.find(target, [source]) is None:
            model, source, target = service.find(source, target)
        document = formats.read(text, kind, Reading(source, wanted.splitting))
        parts.append(_Part(text, source, detected, document, model, target))
    return parts


def _submit(parts: Sequence[_Part], wanted: Wanted) -> Submitted:
    """The future translations of the sentences of all parts, in order."""
    submitted: Submitted = []
    total = sum(len(part.sentences) for part in parts)
    try:
        for part in parts:
            if part.model is None:
                continue
            part.model.check_room(total)
            n_best = 1 + min(wanted.num_alternatives, part.model.most_alternatives)
            submitted += part.model.submit(
                Job(
                    [sentence.text for sentence in part.sentences],
                    wanted.client,
                    n_best,
                    alignment=part.model.can_align and part.document.has_markup,
                    source_lang=part.source_lang,
                    target_lang=part.target_lang,
                )
            )
    except BaseException:
        cancel(submitted)
        raise
    return submitted
