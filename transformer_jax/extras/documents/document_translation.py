"""Documents, translated with a model."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from transformer_jax.data import context
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import glossary, languages, protection
from transformer_jax.extras.documents.document import (
    Document,
    DocumentSentence,
    Reading,
    SentenceTranslation,
)
from transformer_jax.extras.documents.formats import readers
from transformer_jax.extras.documents.glossary import Glossary
from transformer_jax.extras.documents.guards import Guards
from transformer_jax.extras.documents.protection import NO_PROTECTION, Protection
from transformer_jax.extras.documents.sentence_translator import Preparer, SentenceTranslator
from transformer_jax.extras.documents.sentences import NO_SPLIT, SPLITTINGS
from transformer_jax.extras.documents.term_placement import why_no_terms
from transformer_jax.translator import WINDOW, call_settings
from transformer_jax.translator.translation import DocumentTranslation, TranslatedSentence
from transformer_jax.translator.words import words_of

AUTO = "auto"  # as the language of a document: it is detected


@dataclasses.dataclass(frozen=True)
class DocumentOptions:
    """How documents are translated.

    Attributes:
      glossary: terms that translations have to contain.
      protection: what translations may not change.
      guards: whether translations are checked, and caught ones searched again.
      context_sentences: sentences before each that the model reads too; None: as many as it was
        trained with.
      ignored_tags: as of `Reading`.
    """

    glossary: Glossary | None = None
    protection: Protection = NO_PROTECTION
    guards: bool = True
    context_sentences: int | None = None
    ignored_tags: frozenset[str] = frozenset()


def options(
    glossary_of: Any = None,
    protect: Sequence[str] = (),
    protect_usual: bool = True,
    guards: bool = True,
    context_sentences: int | None = None,
) -> DocumentOptions:
    """Options, as a caller gives them.

    Args:
      glossary_of: a path, rows of (source, target) or (source, target, flags), or a `Glossary`.
      protect: regular expressions of what translations may not change.
      protect_usual: whether what is usual may not change either.
      guards: whether translations are checked.
      context_sentences: as of `DocumentOptions`.

    Raises:
      UserError: the glossary or a regular expression is wrong.
    """
    protected = protection.of(protect, protect_usual)
    return DocumentOptions(glossary.of(glossary_of), protected, guards, context_sentences)


def read(
    model: Any,
    text: str,
    format: str,
    options: DocumentOptions,
    source_lang: str = "",
    target_lang: str = "",
    splitting: str = "",
) -> Document:
    """Reads a document for a model.

    Args:
      model: a `Translator`.
      text: of the document.
      format: a name in `formats.FORMATS`.
      options: of the document.
      source_lang: of a multilingual model; "": the model's own.
      target_lang: of a multilingual model; "": the model's own.
      splitting: into sentences, as of `Reading`.

    Raises:
      UserError: as of `readers.read`; or the model reads no sentences before another.
    """
    data = model.config.data
    if splitting and splitting not in SPLITTINGS:
        raise UserError(f"`splitting` is {splitting!r}, not one of {', '.join(SPLITTINGS)}.")
    return readers.read(
        text,
        format,
        Reading(
            source_lang or data.source_lang,
            splitting,
            target_lang or data.target_lang,
            options.protection,
            context.num_sentences(data, model.tokenizers, options.context_sentences),
            options.ignored_tags,
        ),
    )


def language_of(model: Any, text: str, format: str, source_lang: str) -> str:
    """The language of a document, which is detected where `source_lang` is `auto`.

    It is one of those that the model reads.

    Raises:
      UserError: as of `readers.read`.
    """
    if source_lang != AUTO:
        return source_lang
    tokenizers = model.tokenizers
    known = tokenizers.languages if tokenizers.tags.both_sides else []
    known = known or [model.config.data.source_lang]
    return languages.detect(without_markup(text, format), known)[0]["language"]


def without_markup(text: str, format: str) -> str:
    """What is translated of a document, of which its language can be detected.

    Raises:
      UserError: as of `readers.read`.
    """
    document = readers.read(text, format, Reading("", NO_SPLIT))
    return "\n".join(sentence.plain for sentence in document.sentences)


def sentence_translator(
    model: Any, options: DocumentOptions, **settings: Any
) -> SentenceTranslator:
    """What translates the sentences of documents.

    Args:
      model: a `Translator`.
      options: of the documents.
      **settings: as of `Translator.translate_iterable`.

    Raises:
      UserError: terms cannot be placed with these settings.
    """
    source_lang, target_lang = (settings.pop(f"{side}_lang", "") for side in ("source", "target"))
    call_settings.decode_config(model.config, settings)
    method = settings.get("method", model.config.decode.method)
    return SentenceTranslator(
        model,
        preparer(model, options, source_lang, target_lang, method=method),
        model.alignment,
        settings,
    )


def preparer(
    model: Any,
    options: DocumentOptions,
    source_lang: str = "",
    target_lang: str = "",
    has_confidence: bool = True,
    has_links: bool = False,
    method: str = "beam",
) -> Preparer:
    """What prepares the sentences of documents, and checks their translations.

    Args:
      model: a `Translator`.
      options: of the documents.
      source_lang: of a multilingual model that needs it; "": the model's own.
      target_lang: of a multilingual model; "": the model's own.
      has_confidence: whether translations come with their confidence.
      has_links: whether all words are linked.
      method: of the search.

    Raises:
      UserError: terms cannot be placed by this method, or by this engine.
    """
    if options.glossary and (why_not := why_no_terms(model, {"method": method})):
        raise UserError(f"`glossary`: {why_not}")
    data = model.config.data
    codes = (source_lang or data.source_lang, target_lang or data.target_lang)
    return Preparer(
        model.engine,
        target_lang,
        source_lang,
        options.glossary,
        Guards(*map(languages.two_letters, codes)) if options.guards else None,
        model.calibration,
        has_confidence,
        has_links,
        data.max_len,  # of what the model was trained on, it may read more and then leave out some
    )


def translate(
    model: Any,
    text: str,
    format: str,
    options: DocumentOptions,
    splitting: str = "",
    window: int = WINDOW,
    **settings: Any,
) -> DocumentTranslation:
    """The translation of a document.

    Args:
      model: a `Translator`.
      text: of the document.
      format: a name in `formats.FORMATS`.
      options: of the document.
      splitting: into sentences, as of `Reading`.
      window: sentences that are read ahead.
      **settings: as of `Translator.translate_iterable`; `source_lang` may be `auto`.

    Raises:
      UserError: as of `readers.read` and `SentenceTranslator.translate`.
    """
    source_lang = settings["source_lang"] = language_of(
        model, text, format, settings.get("source_lang", "")
    )
    target_lang = settings.get("target_lang", "")
    document = read(model, text, format, options, source_lang, target_lang, splitting)
    translator = sentence_translator(model, options, **settings)
    translations = list(translator.translate(document.sentences, window))
    return DocumentTranslation(
        document.join(translations),
        tuple(map(translated, document.sentences, translations)),
        source_lang or model.config.data.source_lang,
    )


def translated(sentence: DocumentSentence, translation: SentenceTranslation) -> TranslatedSentence:
    """A sentence and its translation, as readers see them."""
    plain, confidence = sentence.marks.plain, translation.confidence
    words: Iterable[tuple[str, float]] = ()
    if confidence:
        words = zip(map(plain, words_of(translation.text)), confidence.words, strict=False)
    return TranslatedSentence(
        sentence.plain,
        plain(translation.text),
        translation.flags,
        translation.unmet,
        confidence.sentence if confidence else None,
        tuple(words),
    )
