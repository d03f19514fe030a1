"""Documents: sentences to translate, and everything else, which comes back as it is."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from scipy import sparse

from transformer_jax.data import context
from transformer_jax.extras.documents import icu_messages, tag_transfer, tagged_text
from transformer_jax.extras.documents import sentences as sentence_splitting
from transformer_jax.extras.documents.protection import NO_PROTECTION, Marks, Protection
from transformer_jax.extras.documents.tag_transfer import Gap, Translated
from transformer_jax.extras.documents.tagged_text import Element, Item
from transformer_jax.translator import word_links
from transformer_jax.translator.translation import Confidence
from transformer_jax.translator.word_links import Link
from transformer_jax.translator.words import word_spans

_MAX_DEPTH = 4  # of messages in arguments of messages
# Control characters: models with byte tokens may write them, and XML and gettext refuse them.
_NO_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127, 0xFFFE, 0xFFFF])


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a text is read as a document.

    Attributes:
      language: code of the text's language.
      splitting: into sentences, as of `sentences.split`; "": as the format has it.
      target_language: code of that of the translation, which is written in some formats.
      protection: what no translation may change.
      context_sentences: sentences before each that the model reads too.
      ignored_tags: names of elements in HTML that stay, like what is protected.
    """

    language: str
    splitting: str = ""
    target_language: str = ""
    protection: Protection = NO_PROTECTION
    context_sentences: int = 0
    ignored_tags: frozenset[str] = frozenset()

    def with_protected(self, *patterns: str) -> "Reading":
        """The same, where what matches these patterns does not change either."""
        known = self.protection
        protection = Protection((*patterns, *known.shown), known.hidden)
        return dataclasses.replace(self, protection=protection)


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

    def preceded_by(self, text: str) -> "Document":
        """This document, with a text before it that stays as it is."""
        self._parts.insert(0, text)
        return self

    def join(self, translations: Sequence[SentenceTranslation]) -> str:
        """The document with the translation of each sentence in its place.

        A paragraph whose sentences have not changed is as it was.
        """
        rest = iter(translations)
        text = _joined(self._parts, rest)
        assert next(rest, None) is None
        return text


def _joined(
    parts: "Iterable[str | Embedded | _Segment]", rest: Iterator[SentenceTranslation]
) -> str:
    """The parts, with translations of their sentences."""
    return "".join(
        part if isinstance(part, str) else part.join(list(itertools.islice(rest, len(part.shown))))
        for part in parts
    )


class _Segment:
    """A paragraph: what is translated together, with its tags."""

    def __init__(
        self,
        items: Sequence[Item],
        splitting: str,
        reading: Reading,
        escape: Callable[[str], str],
        marks: Marks,
        depth: int = 0,
    ):
        self._escape, self._marks = escape, marks
        self._before, items, self._after = _without_outer(items)
        self._raw = tagged_text.raw_of(items)
        self._arguments: list[tuple[str, list[str | _Segment]]] = []

        def marked(text: str, argument: icu_messages.Argument) -> str:
            mark = marks.add(text, text)
            within = reading.with_protected(icu_messages.NUMBER) if argument.is_plural else reading
            parts = [
                part
                if isinstance(part, str)
                else _Segment(part, splitting, within, escape, marks, depth + 1)
                for part in argument.parts
            ]
            self._arguments += [(mark, parts)] if mark else []
            return mark

        if depth < _MAX_DEPTH:
            items = icu_messages.extracted(items, escape, marked)
        protected = reading.protection.apply(items, escape, marks)
        self._inner_before, self._items, self._inner_after = _without_outer(protected)
        self._texts = tagged_text.Run(tagged_text.texts_of(self._items), escape)
        self._plain = self._texts.plain
        self._sentences = sentence_splitting.split(self._plain, reading.language, splitting)
        self._has_markup = tagged_text.has_markup(self._items)

    @functools.cached_property
    def shown(self) -> list[DocumentSentence]:
        """The sentences to translate: those of the paragraph, then those of ICU arguments in it."""
        sentences = [
            DocumentSentence(" ".join(sentence.text.split()), self._has_markup, self._marks)
            for sentence in self._sentences
        ]
        inner = (part for _, parts in self._arguments for part in parts)
        return [
            *sentences,
            *(one for part in inner if isinstance(part, _Segment) for one in part.shown),
        ]

    def join(self, translations: Sequence[SentenceTranslation]) -> str:
        """The paragraph, translated."""
        if [one.text for one in translations] == [one.text for one in self.shown]:
            return self._before + self._raw + self._after
        rest = iter(translations[len(self._sentences) :])
        for mark, parts in self._arguments:
            self._marks.write(mark, _joined(parts, rest))
        translations = translations[: len(self._sentences)]
        texts = [one.text for one in translations]
        between = sentence_splitting.between(self._plain, self._sentences, texts)
        gaps = self._gaps(between, texts)
        if self._has_markup:
            inner = tag_transfer.write(self._items, self._translated(gaps, translations))
        else:
            written = [self._write_gap(gap, 0, len(gap.text)) for gap in gaps]
            pairs = itertools.zip_longest(written, map(self._write, texts), fillvalue="")
            inner = "".join(itertools.chain.from_iterable(pairs))
        return self._before + self._inner_before + inner + self._inner_after + self._after

    def _write(self, text: str) -> str:
        """A text as it is written into the document, with what its marks are."""
        return self._marks.raw(self._escape(text.translate(_NO_CONTROLS)))

    def _write_gap(self, gap: Gap, start: int, end: int) -> str:
        """A part of what is between sentences; what has not changed is as it was."""
        first, last = gap.source
        if gap.text == self._plain[first:last]:
            return self._marks.raw(self._texts.raw(first + start, first + end))
        return self._write(gap.text[start:end])

    def _gaps(self, between: Sequence[str], texts: Sequence[str]) -> list[Gap]:
        """What is before each sentence, and after the last one."""
        gaps, source_end, end = [], 0, 0
        starts = [*(sentence.start for sentence in self._sentences), len(self._plain)]
        for number, (text, start) in enumerate(zip(between, starts, strict=True)):
            gaps.append(Gap((source_end, start), end, text))
            if number < len(texts):
                source_end = self._sentences[number].end
                end += len(text) + len(texts[number])
        return gaps

    def _translated(
        self, gaps: Sequence[Gap], translations: Sequence[SentenceTranslation]
    ) -> Translated:
        """The words of all sentences, and of what is between them."""
        text = ""
        words: list[tuple[int, int]] = []
        source_words: list[tuple[int, int]] = []
        blocks: list[Any] = []
        borders: dict[int, int] = {}
        writes: list[Callable[[int, int], str]] = []

        def add(source: str, source_start: int, written: str, links: Sequence[Link] | None) -> None:
            nonlocal text
            spans, source_spans = word_spans(written), word_spans(source)
            if links is None:
                links = [(n, n, 1.0) for n in range(min(len(spans), len(source_spans)))]
            blocks.append(word_links.matrix(links, len(spans), len(source_spans)))
            words.extend((len(text) + a, len(text) + b) for a, b in spans)
            source_words.extend((source_start + a, source_start + b) for a, b in source_spans)
            text += written
            borders[len(source_words)] = len(words)

        rest = iter(zip(self._sentences, translations, strict=True))
        for gap in gaps:
            # A gap is nearly always white space; other marks in it are linked to themselves.
            add(self._plain[slice(*gap.source)], gap.source[0], gap.text, None)
            writes.append(functools.partial(self._write_gap, gap))
            for sentence, translation in itertools.islice(rest, 1):
                add(sentence.text, sentence.start, translation.text, translation.links)
                writes.append(functools.partial(self._write_part, translation.text))
        weights = sparse.csc_array(sparse.block_diag(blocks, format="csc"))
        return Translated(text, self._plain, words, source_words, weights, borders, gaps, writes)

    def _write_part(self, text: str, start: int, end: int) -> str:
        return self._write(text[start:end])


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
