"""What the model sees in the place of a mark, and where the mark is in its translation.

It sees a *stand-in*: a word that it knows and copies (`calibration` finds such words). Where the
translation has another word, or none, attention says where the mark belongs.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_jax.extras.documents.protection import is_mark
from transformer_jax.translator.word_links import Link, matrix
from transformer_jax.translator.words import word_spans, words_of

# For models of which nothing better is known.
_STEM = 3  # letters of a word that has other forms
STAND_INS = ("X1", "X2", "X3", "X4", "X5", "X6", "X7", "X8")


@dataclasses.dataclass(frozen=True)
class Shown:
    """A sentence as the model sees it.

    Attributes:
      text: with stand-ins.
      marks: in their order, each with its stand-in.
    """

    text: str
    marks: tuple[tuple[str, str], ...] = ()

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """The words that the translation should have, one for each mark."""
        return tuple(stand_in for _, stand_in in self.marks)


def shown(text: str, stand_ins: Sequence[str] = STAND_INS) -> Shown:
    """A sentence with stand-ins, other ones than its words, in the place of its marks.

    Args:
      text: of the sentence.
      stand_ins: words, the best first; where there are more marks, they are taken again. Those
        that look like a word of the sentence are not used.
    """
    marks = list(filter(is_mark, text))
    if not marks:
        return Shown(text)
    used = {word.casefold() for word in words_of(text)}
    free = [word for word in stand_ins if not any(_is_alike(word.casefold(), one) for one in used)]
    free = free or [f"X{n}" for n in itertools.islice(_numbers(used), len(marks))]
    chosen = dict(zip(marks, itertools.cycle(free), strict=False))
    if text[0] in chosen:  # where a sentence begins
        chosen[text[0]] = chosen[text[0]][:1].upper() + chosen[text[0]][1:]
    return Shown(
        "".join(chosen.get(char, char) for char in text),
        tuple((mark, chosen[mark]) for mark in marks),
    )


def _is_alike(word: str, other: str) -> bool:
    """Whether words are the same, or one may be a form of the other."""
    shorter, longer = sorted((word, other), key=len)
    return longer == shorter or (len(shorter) >= _STEM and longer.startswith(shorter))


def _numbers(used: set[str]) -> Iterator[int]:
    return (n for n in itertools.count(1) if f"x{n}" not in used)


def split(sentence: Shown, places: Sequence[int]) -> list[Shown]:
    """A sentence in parts.

    Args:
      sentence: as the model sees it.
      places: characters of its text before which it is cut, rising.
    """
    parts = []
    waiting = [*sentence.marks]
    for start, end in itertools.pairwise([0, *places, len(sentence.text)]):
        text = sentence.text[start:end].strip()
        marks: list[tuple[str, str]] = []
        for word in words_of(text):
            while waiting and _has_stand_in(word, waiting[0][1]):
                marks.append(waiting.pop(0))
        parts.append(Shown(text, tuple(marks)))
    return parts


@dataclasses.dataclass(frozen=True)
class Marked:
    """A translation with marks.

    Attributes:
      text: of the translation.
      links: between its words and those of the sentence.
      confidences: of its words; 1 for those that are marks; () where there are none.
    """

    text: str
    links: tuple[Link, ...]
    confidences: tuple[float, ...] = ()


def with_marks(sentence: Shown, translated: Marked) -> Marked:
    """A translation with each mark of its sentence once.

    Args:
      sentence: what was translated.
      translated: its translation, which has words in the place of marks.
    """
    if not sentence.marks:
        return translated
    source_words = words_of(sentence.text)
    words = _Words(translated, len(source_words))
    waiting = [*sentence.marks]
    places = set()
    for place, source_word in enumerate(source_words):
        while waiting and _has_stand_in(source_word, waiting[0][1]):
            words.put(*waiting.pop(0), place)
            places.add(place)
    assert not waiting
    words.remove_rest({*sentence.stand_ins}, places)
    return words.result()


@dataclasses.dataclass
class _Word:
    """A word of a translation.

    Attributes:
      before: what is between it and the word before it.
      text: of the word.
      weights: what it attends to, `[source words]`.
      confidence: that it is right.
      is_placed: whether a mark is in it.
    """

    before: str
    text: str
    weights: np.ndarray
    confidence: float = 1.0
    is_placed: bool = False


class _Words:
    """The words of a translation, which become or get marks.

    Args:
      translated: the translation.
      num_source_words: of the source.
    """

    def __init__(self, translated: Marked, num_source_words: int):
        text, spans = translated.text, word_spans(translated.text)
        weights = matrix(translated.links, len(spans), num_source_words).toarray()
        ends = [0, *(end for _, end in spans)]
        self._words = [
            _Word(text[ends[number] : start], text[start:end], weights[number])
            for number, (start, end) in enumerate(spans)
        ]
        self._has_confidences = bool(translated.confidences)
        for word, confidence in zip(self._words, translated.confidences, strict=False):
            word.confidence = confidence
        self._after = text[ends[-1] :]
        self._num_source_words = num_source_words

    def put(self, mark: str, stand_in: str, source_place: int) -> None:
        """Puts a mark where its stand-in is; else where attention says that it belongs."""
        pattern = _pattern(stand_in)
        places = [word for word in self._words if pattern.search(word.text)]
        if places:
            best = max(places, key=lambda word: word.weights[source_place])
            self._place(best, pattern.sub(mark, best.text, count=1), source_place)
            return
        # A word that attends to the stand-in more than to anything else is its translation.
        translations = [
            word
            for word in self._words
            if not word.is_placed
            and word.text[0].isalnum()
            and word.weights[source_place] > 0
            and word.weights[source_place] >= word.weights.max()
        ]
        if translations:
            best = max(translations, key=lambda word: word.weights[source_place])
            self._place(best, mark, source_place)
            return
        number = self._number_after(source_place)
        word = _Word(" " if number else "", "", np.zeros(self._num_source_words))
        self._words.insert(number, word)
        self._place(word, mark, source_place)
        if number == 0 and len(self._words) > 1:
            self._words[1].before = self._words[1].before or " "

    def _place(self, word: _Word, text: str, source_place: int) -> None:
        word.text, word.is_placed, word.confidence = text, True, 1.0
        word.weights = np.eye(self._num_source_words)[source_place]

    def _number_after(self, source_place: int) -> int:
        """The number that a word gets which belongs after those before it in the source."""
        for place in range(source_place - 1, -1, -1):
            column = [word.weights[place] for word in self._words]
            if any(column):
                return int(np.argmax(column)) + 1
        return 0

    def remove_rest(self, stand_ins: set[str], places: set[int]) -> None:
        """Removes stand-ins that were written once more.

        A word that attends most to another place than those of marks translates something else.

        Args:
          stand_ins: of the sentence.
          places: of the source words that have marks.
        """
        folded = {one.casefold() for one in stand_ins}
        for word in [*self._words]:
            if word.is_placed or word.text.casefold() not in folded:
                continue
            if not word.weights.any() or int(word.weights.argmax()) in places:
                self._words.remove(word)

    def result(self) -> Marked:
        """The translation."""
        text = "".join(word.before + word.text for word in self._words) + self._after
        links = tuple(
            (int(place), number, float(weight))
            for number, word in enumerate(self._words)
            for place, weight in enumerate(word.weights)
            if weight
        )
        confidences = [word.confidence for word in self._words if self._has_confidences]
        return Marked(text.strip(), links, tuple(confidences))


def _has_stand_in(word: str, stand_in: str) -> bool:
    """Whether a word of a source has a stand-in in it.

    It is a part of a longer word where only tags are between them, as in `a<br>{name}`.
    """
    return stand_in.casefold() in word.casefold()


@functools.lru_cache(maxsize=256)
def _pattern(stand_in: str) -> re.Pattern[str]:
    """A stand-in as a word, or as a part of one with hyphens; an ending is dropped."""
    return re.compile(rf"(?<!\w){re.escape(stand_in)}[a-zé]{{0,2}}(?!\w)", re.IGNORECASE)
