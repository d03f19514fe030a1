"""Texts as translators see them: sentences, and all else, which stays as it is.

A document gives its sentences, and is put together again from their translations. Markup of HTML is
kept byte for byte; each text between two tags is translated by itself.
"""

import html
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from transformer_jax.serving import passages
from transformer_jax.serving.passages import Sentence

# How plain text becomes sentences, as DeepL's `split_sentences` numbers them.
NO_SPLIT, SENTENCES, NO_LINES = "0", "1", "nonewlines"

_ATTRIBUTE = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)?+"""
# No part gives back what it has matched, so the time is linear.
_TAG = re.compile(rf"<(/?)([a-zA-Z][^\s/>]*+)((?:[\s/]++|{_ATTRIBUTE})*+)>")
_BEGINNING = re.compile(r"<(?=[a-zA-Z/!?])")
_UNTRANSLATED = {"script", "style", "code", "textarea", "math", "svg"}
_RAW = {"script", "style"}  # tags inside are text
_VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "track",
    "wbr",
}
_NO_TRANSLATION = re.compile(
    r"""(?:^|\s)(?:translate\s*=\s*["']?no\b|class\s*=\s*(?:notranslate\b|"[^"]*\bnotranslate\b"""
    r"""|'[^']*\bnotranslate\b))""",
    re.IGNORECASE,
)


class Document(Protocol):
    """A text that is translated sentence by sentence."""

    sentences: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """The text with the translation of each sentence in its place."""


class PlainText:
    """A text without markup.

    Args:
      text: any.
      language: its code.
      splitting: `NO_SPLIT`: the text is one sentence; `NO_LINES`: lines do not end sentences.
    """

    def __init__(self, text: str, language: str, splitting: str = SENTENCES):
        if splitting == NO_LINES:
            text = re.sub(r"[\n\r\u2028\u2029]", " ", text)
        self._text = text
        self._places = (
            [Sentence(text, 0)] if splitting == NO_SPLIT else passages.split(text, language)
        )
        self.sentences = [sentence.text for sentence in self._places]

    def join(self, translations: Sequence[str]) -> str:
        """The text with the translation of each sentence in its place."""
        return passages.join(self._text, self._places, translations)


class Html:
    """A text with markup of HTML.

    Args:
      text: a document or a part of one.
      language: its code.
      splitting: as of `PlainText`.
    """

    def __init__(self, text: str, language: str, splitting: str = SENTENCES):
        # Markup as it is, and texts to translate, in order.
        self._parts: list[str | PlainText] = [
            PlainText(html.unescape(part), language, splitting) if is_text else part
            for part, is_text in _parts(text)
        ]
        self.sentences = [
            sentence
            for part in self._parts
            if isinstance(part, PlainText)
            for sentence in part.sentences
        ]

    def join(self, translations: Sequence[str]) -> str:
        """The text with the translation of each sentence in its place."""
        rest = iter(translations)
        return "".join(
            part
            if isinstance(part, str)
            else html.escape(part.join([next(rest) for _ in part.sentences]), quote=False)
            for part in self._parts
        )


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Markup and texts, each with whether it is to be translated."""
    position = 0
    open_tags: list[tuple[str, bool]] = []  # names, and whether what they enclose is translated
    while position < len(text):
        beginning = _BEGINNING.search(text, position)
        end = beginning.start() if beginning else len(text)
        words = text[position:end]
        if words:
            is_translated = not open_tags or open_tags[-1][1]
            yield words, is_translated and any(map(str.isalnum, html.unescape(words)))
        if not beginning:
            return
        position = _end_of_markup(text, end)
        tag = _TAG.fullmatch(text, end, position)
        if tag:
            name = tag[2].lower()
            _enter(open_tags, name, bool(tag[1]), tag[3])
            if name in _RAW and not tag[1]:
                closing = re.compile(rf"</{name}(?![a-zA-Z0-9])", re.IGNORECASE)
                last = closing.search(text, position)
                position = last.start() if last else len(text)
        yield text[end:position], False


def _end_of_markup(text: str, start: int) -> int:
    """Where a tag, comment or declaration ends; the end of the text where it is not closed."""
    if text.startswith("<!--", start):
        end, length = text.find("-->", start + 4), 3
    elif tag := _TAG.match(text, start):
        return tag.end()
    elif text.startswith(("<!", "<?", "</"), start):
        end, length = text.find(">", start), 1
    else:
        end, length = -1, 0
    return len(text) if end < 0 else end + length


def _enter(open_tags: list[tuple[str, bool]], name: str, is_closing: bool, rest: str) -> None:
    """Notes that a tag begins or ends."""
    if not is_closing:
        if name in _VOID or rest.rstrip().endswith("/"):
            return
        is_translated = not open_tags or open_tags[-1][1]
        is_own = name not in _UNTRANSLATED and not _NO_TRANSLATION.search(rest)
        open_tags.append((name, is_translated and is_own))
        return
    for index in range(len(open_tags) - 1, max(-1, len(open_tags) - 65), -1):
        if open_tags[index][0] == name:
            del open_tags[index:]
            return
