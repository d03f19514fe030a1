"""Documents, translated with a model."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from transformer_jax.decoding.alignment import AttentionChoice
from transformer_jax.decoding.text_submitter import TextSubmitter
from transformer_jax.decoding.translation import Translation
from transformer_jax.errors import UserError
from transformer_jax.text import formats
from transformer_jax.text.document import DocumentSentence, SentenceTranslation


@dataclasses.dataclass(frozen=True)
class DocumentTranslation:
    """A document, translated.

    Attributes:
      text: of the whole.
      sentences: each as it was translated, with its translation.
    """

    text: str
    sentences: tuple[tuple[str, str], ...]


def attention_for(model: TextSubmitter) -> AttentionChoice | None:
    """The attention that links words; None where the engine of the model gives none."""
    try:
        model.settings(attention=AttentionChoice())
    except UserError:
        return None
    return AttentionChoice()


def translate_sentences(
    model: Any, sentences: Iterable[DocumentSentence], has_markup: bool, **settings: Any
) -> Iterator[SentenceTranslation]:
    """Translations of sentences, in their order, as they are finished.

    Args:
      model: a `Translator`.
      sentences: of a document, read as results are asked for.
      has_markup: whether any of them has.
      **settings: as of `Translator.translate_iterable`.

    Raises:
      UserError: an impossible setting, or a sentence that cannot be translated.
    """
    attention = attention_for(model) if has_markup else None
    waiting: collections.deque[DocumentSentence] = collections.deque()

    def texts() -> Iterator[str]:
        for sentence in sentences:
            waiting.append(sentence)
            yield sentence.text

    results: Iterator[Translation] = model.translate_iterable(
        texts(), attention=attention, **settings
    )
    for translation in results:
        sentence = waiting.popleft()
        yield SentenceTranslation.of(sentence, translation)


def translate(model: Any, text: str, format: str, **settings: Any) -> DocumentTranslation:
    """The translation of a document.

    Args:
      model: a `Translator`.
      text: of the document.
      format: a name of `formats.READERS`.
      **settings: as of `Translator.translate_iterable`.

    Raises:
      UserError: as of `formats.read` and `translate_sentences`.
    """
    language = settings.get("source_lang") or model.config.data.source_lang
    target_language = settings.get("target_lang") or model.config.data.target_lang
    document = formats.read(text, format, language, target_language=target_language)
    translations = list(
        translate_sentences(model, document.sentences, document.has_markup, **settings)
    )
    return DocumentTranslation(
        document.join(translations),
        tuple(
            (sentence.text, translation.text)
            for sentence, translation in zip(document.sentences, translations, strict=True)
        ),
    )
