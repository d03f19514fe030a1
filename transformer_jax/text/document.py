"""Documents: sentences to translate, and everything else, which comes back as it is."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from scipy import sparse

from transformer_jax.data import context
from transformer_jax.decoding.translation import Confidence
from transformer_jax.text import sentences as sentence_splitting
from transformer_jax.text import tag_transfer, tagged_text, word_links
from transformer_jax.text.protection import NO_PROTECTION, Marks, Protection
from transformer_jax.text.tag_transfer import Translated
from transformer_jax.text.tagged_text import Element, Item
from transformer_jax.text.word_links import Link
from transformer_jax.text.words import word_spans


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a text is read as a document.

    Attributes:
      language: code of the text's language.
      splitting: into sentences, as of `sentences.split`; "": as the format has it.
      target_language: code of that of the translation, which is written in some formats.
      protection: what no translation may change.
      context_sentences: sentences before each that the model reads too.
    """

    language: str
    splitting: str = ""
    target_language: str = ""
    protection: Protection = NO_PROTECTION
    context_sentences: int = 0


@dataclasses.dataclass(frozen=True)
class DocumentSentence:
    """A sentence as it is translated.

    Attributes:
      text: with a space for each white space, and with marks.
      has_markup: whether there is markup in its paragraph.
      marks: of its document.
      context: sentences before it that the model reads too, without marks.
    """

    text: str
    has_markup: bool
    marks: Marks = dataclasses.field(default_factory=Marks, compare=False, repr=False)
    context: tuple[str, ...] = ()

    @property
    def plain(self) -> str:
        """Its text with what the marks are."""
        return self.marks.plain(self.text)


@dataclasses.dataclass(frozen=True)
class SentenceTranslation:
    """What a document needs of a sentence's translation.

    Attributes:
      text: of the translation, with the marks of the sentence.
      links: between its words and those of the sentence, where tags or marks are in it.
      flags: what a guard has found, as names of `guards.MEANINGS`.
      unmet: what was asked for and is not so, as of `Translation`.
      confidence: None: the model was not calibrated.
    """

    text: str
    links: tuple[Link, ...] = ()
    flags: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    confidence: Confidence | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "SentenceTranslation":
        """The translation whose fields were written as JSON, which has no tuples."""
        confidence = fields["confidence"]
        return cls(
            fields["text"],
            tuple(map(tuple, fields["links"])),
            tuple(fields["flags"]),
            tuple(fields["unmet"]),
            Confidence(confidence["sentence"], tuple(confidence["words"])) if confidence else None,
        )


@dataclasses.dataclass(frozen=True)
class Embedded:
    """A text that a document writes in another way, such as in quotation marks.

    Attributes:
      raw: as it is in the document.
      text: what is written there.
      document: of this text.
      write: gives the text in the way of the document.
    """

    raw: str
    text: str
    document: "Document"
    write: Callable[[str], str]

    @property
    def shown(self) -> "list[DocumentSentence]":
        """Its sentences, as they are translated."""
        return self.document.sentences

    def join(self, translations: "Sequence[SentenceTranslation]") -> str:
        """The text, translated and written."""
        text = self.document.join(translations)
        return self.raw if text == self.text else self.write(text)


# What stays as it is; a paragraph, a tree of text and tags, and how it becomes sentences, as of
# `sentences.split`; a text within the document.
Part = str | tuple[Sequence[Item], str] | Embedded


class Document:
    """A text that is translated sentence by sentence.

    Args:
      parts: in order.
      text: of the document.
      reading: how it is read.
      escape: writes text into the document.
    """

    def __init__(
        self,
        parts: Iterable[Part],
        text: str,
        reading: Reading,
        escape: Callable[[str], str] = str,
    ):
        marks = Marks(text)
        self._parts: list[str | Embedded | _Segment] = [
            _Segment(*part, reading, escape, marks) if isinstance(part, tuple) else part
            for part in parts
        ]
        self.sentences = [
            sentence for part in self._parts if not isinstance(part, str) for sentence in part.shown
        ]
        if reading.context_sentences:
            plain = (sentence.plain for sentence in self.sentences)
            before = context.previous(plain, reading.context_sentences)
            self.sentences = [
                dataclasses.replace(sentence, context=texts)
                for sentence, texts in zip(self.sentences, before, strict=True)
            ]

    @property
    def has_markup(self) -> bool:
        """Whether a paragraph has markup within."""
        return any(sentence.has_markup for sentence in self.sentences)

    def after(self, text: str) -> "Document":
        """This document, with a text before it that stays as it is."""
        self._parts.insert(0, text)
        return self

    def join(self, translations: Sequence[SentenceTranslation]) -> str:
        """The document with the translation of each sentence in its place.

        A paragraph whose sentences have not changed is as it was.
        """
        rest = iter(translations)
        text = "".join(
            part
            if isinstance(part, str)
            else part.join(list(itertools.islice(rest, len(part.shown))))
            for part in self._parts
        )
        assert next(rest, None) is None
        return text


class _Segment:
    """A paragraph: what is translated together, with its tags."""

    def __init__(
        self,
        items: Sequence[Item],
        splitting: str,
        reading: Reading,
        escape: Callable[[str], str],
        marks: Marks,
    ):
        self._escape, self._marks = escape, marks
        self._before, items, self._after = _without_outer(items)
        self._raw = tagged_text.raw_of(items)
        protected = reading.protection.apply(items, escape, marks)
        self._inner_before, self._items, self._inner_after = _without_outer(protected)
        self._plain = tagged_text.plain_of(self._items)
        self._sentences = sentence_splitting.split(self._plain, reading.language, splitting)
        self._has_markup = tagged_text.has_markup(self._items)

    @functools.cached_property
    def shown(self) -> list[DocumentSentence]:
        """Its sentences, as they are translated."""
        return [
            DocumentSentence(" ".join(sentence.text.split()), self._has_markup, self._marks)
            for sentence in self._sentences
        ]

    def join(self, translations: Sequence[SentenceTranslation]) -> str:
        """The paragraph, translated."""
        texts = [one.text for one in translations]
        if texts == [one.text for one in self.shown]:
            return self._before + self._raw + self._after
        between = sentence_splitting.between(self._plain, self._sentences, texts)
        if self._has_markup:
            inner = tag_transfer.write(self._items, self._translated(between, translations))
        else:
            pairs = itertools.zip_longest(between, texts, fillvalue="")
            inner = self._write("".join(itertools.chain.from_iterable(pairs)))
        return self._before + self._inner_before + inner + self._inner_after + self._after

    def _write(self, text: str) -> str:
        """A text as it is written into the document, with what its marks are."""
        return self._marks.raw(self._escape(text))

    def _translated(
        self, between: Sequence[str], translations: Sequence[SentenceTranslation]
    ) -> Translated:
        """The words of all sentences, and of what is between them."""
        text, source_end = "", 0
        words: list[tuple[int, int]] = []
        source_words: list[tuple[int, int]] = []
        blocks: list[Any] = []
        borders: dict[int, int] = {}
        for (sentence, translation), gap in zip(
            self._with_gaps(translations), _doubled(between), strict=True
        ):
            # A gap is nearly always white space; other marks in it are linked to themselves.
            source = self._plain[source_end : sentence[0]] if translation is None else sentence[1]
            written = gap if translation is None else translation.text
            start = source_end if translation is None else sentence[0]
            target_spans, source_spans = map(word_spans, (written, source))
            if translation is None:
                links: Sequence[Link] = [
                    (n, n, 1.0) for n in range(min(len(target_spans), len(source_spans)))
                ]
            else:
                links = translation.links
            blocks.append(word_links.matrix(links, len(target_spans), len(source_spans)))
            words += ((len(text) + a, len(text) + b) for a, b in target_spans)
            source_words += ((start + a, start + b) for a, b in source_spans)
            text += written
            source_end = start + len(source)
            borders[len(source_words)] = len(words)
        weights = sparse.csc_array(sparse.block_diag(blocks, format="csc"))
        return Translated(text, self._plain, words, source_words, weights, borders, self._write)

    def _with_gaps(
        self, translations: Sequence[SentenceTranslation]
    ) -> Iterator[tuple[tuple[int, str], SentenceTranslation | None]]:
        """For each gap and sentence in turn: (end of the gap or start, text), and translation."""
        for sentence, translation in zip(self._sentences, translations, strict=True):
            yield (sentence.start, ""), None
            yield (sentence.start, sentence.text), translation
        yield (len(self._plain), ""), None


def _doubled(between: Sequence[str]) -> Iterator[str]:
    """Each gap, and "" for the sentence after it."""
    for gap in between[:-1]:
        yield gap
        yield ""
    yield between[-1]


def _without_outer(items: Sequence[Item]) -> tuple[str, Sequence[Item], str]:
    """What encloses all text, which is never moved: (what is before, items, what is after)."""
    before, after = "", ""
    while True:
        with_text = [n for n, item in enumerate(items) if tagged_text.plain_of([item]).strip()]
        if not with_text:
            return before, items, after
        first, last = with_text[0], with_text[-1]
        before += tagged_text.raw_of(items[:first])
        after = tagged_text.raw_of(items[last + 1 :]) + after
        items = items[first : last + 1]
        only = items[0]
        if first != last or not isinstance(only, Element):
            return before, items, after
        before, after = before + only.opening, only.closing + after
        items = only.items
