"""Texts of the APIs of LibreTranslate and DeepL, whose languages are written in any way, or not."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import fastapi

from transformer_jax.extras.documents import languages
from transformer_jax.extras.documents.document_translation import without_markup
from transformer_jax.extras.serving import documents
from transformer_jax.extras.serving.context import charged, collect, off_loop, service_of
from transformer_jax.extras.serving.documents import Finished, ServedText, Wanted
from transformer_jax.extras.serving.service import Service


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
class _Text:
    """A text with its language; without `served`, it is in the target language already."""

    text: str
    source_lang: str
    detected: dict[str, Any] | None
    served: ServedText | None

    def answer(self, finished: Finished | None) -> TextTranslation:
        texts = [one.text for one in finished.translations] if finished else [self.text]
        return TextTranslation(texts, self.detected, self.source_lang)


async def translate(
    request: fastapi.Request,
    texts: Sequence[str],
    source_lang: str,
    target_lang: str,
    wanted: Wanted,
) -> list[TextTranslation]:
    """The translation of each text.

    Args:
      request: of the client.
      texts: of any number of sentences.
      source_lang: as the client writes it; "": it is detected for each text.
      target_lang: as the client writes it.
      wanted: how they are translated; there may be fewer translations of each.

    Raises:
      ServiceError: the request cannot be answered.
    """
    service = service_of(request)
    service.check_ready()
    num_chars = sum(map(len, texts))
    next(iter(service.models.values())).check_size(texts)
    read = await off_loop(num_chars, _read, service, texts, source_lang, target_lang, wanted)
    served = [one.served for one in read if one.served]
    with charged(request, wanted.client, num_chars):
        await off_loop(num_chars, documents.submit, served)
    finished = iter(await collect(request, documents.finished(served)))
    return [one.answer(next(finished) if one.served else None) for one in read]


def _read(
    service: Service, texts: Sequence[str], source_lang: str, target_lang: str, wanted: Wanted
) -> list[_Text]:
    """The texts, each with the model for its language."""
    read = []
    for text in texts:
        detected, source, served = None, source_lang, None
        if not source:
            plain = without_markup(text, wanted.format)
            detected = languages.detect(plain, service.source_langs)[0]
            source = detected["language"]
        if detected is None or languages.find(target_lang, [source]) is None:
            model, source, target = service.find(source, target_lang)
            n_best = 1 + min(wanted.n_best - 1, model.most_alternatives)
            asked = dataclasses.replace(wanted, n_best=n_best)
            served = ServedText(text, model, (source, target), asked)
        read.append(_Text(text, source, detected, served))
    return read
