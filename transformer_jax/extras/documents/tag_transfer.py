"""Tags of a source text, put around the words of its translation that belong to theirs.

Each element gets the run of words that attends most to what it encloses. Runs of the elements in
another are inside its run, and no two of them overlap, so the result is well-formed.
"""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import sparse

from transformer_jax.extras.documents.tagged_text import (
    Element,
    Item,
    Kept,
    Words,
    plain_of,
    raw_of,
)

_OCCUPIED = -1e9  # gain of a word that another element has


@dataclasses.dataclass(frozen=True)
class Gap:
    """What is between two sentences, before the first or after the last one.

    Attributes:
      source: (first character, end) in the source.
      start: its first character in the translation.
      text: what is there.
    """

    source: tuple[int, int]
    start: int
    text: str

    @property
    def end(self) -> int:
        """The character after it in the translation."""
        return self.start + len(self.text)

    def place_of(self, character: int, is_begin: bool) -> int:
        """The place in the translation of a character in this gap of the source.

        Args:
          character: of the source.
          is_begin: whether something begins there that continues after the gap.
        """
        first, last = self.source
        if character == last and (is_begin or first < last):
            return self.end
        return self.start + min(character - first, len(self.text))


@dataclasses.dataclass(frozen=True)
class Translated:
    """A translation of several sentences, by words.

    Attributes:
      text: of the translation.
      source: what was translated.
      words: (first character, end) of each word of the translation.
      source_words: the same of the source.
      weights: what each word attends to, `[words, source words]`.
      borders: words of the source before the end of each sentence -> those of the translation.
      gaps: between the sentences, the first one before them and the last one after them.
      writes: each writes a part of a gap or sentence into the document, in their order.
    """

    text: str
    source: str
    words: Sequence[tuple[int, int]]
    source_words: Sequence[tuple[int, int]]
    weights: sparse.csc_array
    borders: dict[int, int]
    gaps: Sequence[Gap]
    writes: Sequence[Callable[[int, int], str]]

    def write(self, start: int, end: int) -> str:
        """A part of the translation as it is in the document."""
        number = max(0, bisect.bisect_right(self._starts, start) - 1)
        parts = []
        while number < len(self.writes) and self._starts[number] < end:
            begin, stop = self._starts[number], self._starts[number + 1]
            if begin < stop:
                parts.append(self.writes[number](max(start, begin) - begin, min(end, stop) - begin))
            number += 1
        return "".join(parts)

    @functools.cached_property
    def _starts(self) -> list[int]:
        """Of each gap and sentence, and the end."""
        starts = [place for gap in self.gaps for place in (gap.start, gap.end)]
        return [*starts[: len(self.writes)], len(self.text)]

    def place_of(self, character: int, is_begin: bool = False) -> int | None:
        """The place of a character of a gap, as of `Gap.place_of`; None: it is in a sentence."""
        number = bisect.bisect_right(self.gaps, character, key=lambda gap: gap.source[0]) - 1
        gap = self.gaps[number]
        if character > gap.source[1]:
            return None
        return gap.place_of(character, is_begin)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a child of an element is in the translation.

    Attributes:
      item: the child.
      source: (first character, end) of it in the source.
      run: its words, or none, before a word.
      characters: (first, end) of it.
      order: among its siblings.
      is_in_gap: whether it has no words and is not in a sentence.
    """

    item: Element | Kept
    source: tuple[int, int]
    run: tuple[int, int]
    characters: tuple[int, int]
    order: int
    is_in_gap: bool = False


def write(items: Sequence[Item], translated: Translated) -> str:
    """The translation with the tags of the source.

    Args:
      items: of the source.
      translated: the translation of their text.
    """
    run, characters = (0, len(translated.words)), (0, len(translated.text))
    return _write(items, 0, run, characters, translated)


def _write(
    items: Iterable[Item],
    start: int,
    run: tuple[int, int],
    characters: tuple[int, int],
    translated: Translated,
) -> str:
    """A run of the translation's words, with the tags of these items.

    Args:
      items: of an element.
      start: of its text in that of the source.
      run: its words.
      characters: of them, and what else is written.
      translated: the whole.
    """
    children: list[tuple[Element | Kept, int, int]] = []
    end = start
    for item in items:
        if isinstance(item, Words):
            end += len(item.plain)
        else:
            size = len(plain_of(item.items)) if isinstance(item, Element) else 0
            if isinstance(item, Element) and not size:
                item = Kept(raw_of([item]))
            children.append((item, end, end + size))
            end += size
    out, position = [], characters[0]
    for place in _places(children, (start, end), run, characters, translated):
        first, last = (max(position, place_of) for place_of in place.characters)
        out.append(translated.write(position, first))
        space_before, space_after = _spaces(place, first, last, translated)
        out.append(space_before)
        if isinstance(place.item, Kept):
            out.append(place.item.raw)
        else:
            inner = _write(place.item.items, place.source[0], place.run, (first, last), translated)
            out += [place.item.opening, inner, place.item.closing]
        out.append(space_after)
        position = last
    return "".join([*out, translated.write(position, characters[1])])


def _spaces(place: _Place, first: int, last: int, translated: Translated) -> tuple[str, str]:
    """Spaces that are missing before and after what is between words, such as an image."""
    if first < last or place.is_in_gap:
        return "", ""
    source, text = translated.source, translated.text
    start, end = place.source
    before = source[start - 1 : start].isspace() and text[first - 1 : first].strip()
    after = source[end : end + 1].isspace() and text[last : last + 1].strip()
    return " " if before else "", " " if after else ""


def _places(
    children: Sequence[tuple[Element | Kept, int, int]],
    source: tuple[int, int],
    run: tuple[int, int],
    characters: tuple[int, int],
    translated: Translated,
) -> list[_Place]:
    """Where the children of an element are, in the order of the translation.

    Args:
      children: with their first characters and ends in the source.
      source: first character and end of the element's content.
      run: words of the element.
      characters: of the element in the translation.
      translated: the whole.
    """
    first, last = run
    if not children:
        return []
    lo, hi = _words_in(translated.source_words, *source)
    inside = translated.weights[:, lo:hi].sum(axis=1)[first:last]
    places: list[_Place] = []
    free = np.ones(last - first, bool)
    # The longest first: they have most to lose.
    by_size = sorted(enumerate(children), key=lambda one: one[1][1] - one[1][2])
    for order, (item, start, end) in by_size:
        begin, stop = _words_in(translated.source_words, start, end)
        # What encloses nothing has no words, also where it is within one.
        if start == end or begin == stop or not free.any():
            continue
        attended = translated.weights[:, begin:stop].sum(axis=1)[first:last]
        gain = np.where(free, attended - 0.5 * inside, _OCCUPIED)
        if gain.max() <= 0:
            gain = np.where(free, attended - attended[free].max() - 1e-3, _OCCUPIED)
            gain[int(gain.argmax())] = 1
        begin, stop = _best_run(gain)
        free[begin:stop] = False
        of_item = (first + begin, first + stop)
        around = _around((start, end), of_item, characters, translated)
        places.append(_Place(item, (start, end), of_item, around, order))
    placed = {place.order for place in places}
    runs = sorted(place.run for place in places)
    for order, (item, start, end) in enumerate(children):
        if order not in placed:
            at = _outside(_position(start, (lo, hi), run, translated), runs)
            place, is_in_gap = _in_gap((start, end), characters, translated), True
            if place is None:
                before = _before_word(at, start, characters, translated)
                place, is_in_gap = (before, before), False
            places.append(_Place(item, (start, end), (at, at), place, order, is_in_gap))
    return sorted(places, key=lambda place: (*place.characters, place.order))


def _in_gap(
    source: tuple[int, int], characters: tuple[int, int], translated: Translated
) -> tuple[int, int] | None:
    """First character and end of what is in a gap, if that is in the element around it."""
    start, end = (translated.place_of(one) for one in source)
    if start is None or end is None or not characters[0] <= start <= end <= characters[1]:
        return None
    return start, end


def _best_run(gain: np.ndarray) -> tuple[int, int]:
    """The run of the highest sum."""
    sums = np.concatenate([[0], np.cumsum(gain)])
    least = np.minimum.accumulate(sums[:-1])
    end = int((sums[1:] - least).argmax())
    start = int(sums[: end + 1].argmin())
    return start, end + 1


def _words_in(words: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Numbers (first, end) of the words that overlap characters `start` to `end`."""
    first = _words_before(words, start)
    last = bisect.bisect_left(words, end, lo=first, key=lambda word: word[0])
    return first, max(first, last)


def _position(
    character: int, source: tuple[int, int], run: tuple[int, int], translated: Translated
) -> int:
    """The word before which a place of the source is in the translation.

    It follows the word that belongs to the one before it in the source, or to the one it is in.
    """
    number = _words_begun(translated.source_words, character)
    if number <= source[0]:
        return run[0]
    if number >= source[1]:
        return run[1]
    at = translated.borders.get(number)
    if at is None:
        column = translated.weights[:, [number - 1]].toarray()[run[0] : run[1], 0]
        at = run[0] + (int(column.argmax()) + 1 if column.any() else 0)
    return min(max(at, run[0]), run[1])


def _outside(at: int, runs: Sequence[tuple[int, int]]) -> int:
    """`at`, or the end of the run that it is in."""
    for first, last in runs:
        if first < at < last:
            return last
    return at


def _around(
    source: tuple[int, int],
    run: tuple[int, int],
    characters: tuple[int, int],
    translated: Translated,
) -> tuple[int, int]:
    """First character and end of a run of words, in the element that it is in.

    What an element encloses of the gaps around sentences it also encloses in the translation, and
    of a word that is copied the same part.
    """
    words, (first, last) = translated.words, run
    start, end = words[first][0], words[last - 1][1]
    begin, stop = _words_in(translated.source_words, *source)
    (word_start, word_end) = translated.source_words[begin]
    if stop - begin == last - first == 1 and (
        translated.source[word_start:word_end] == translated.text[start:end]
    ):
        return start + max(0, source[0] - word_start), end - max(0, word_end - source[1])
    before, after = translated.place_of(source[0], is_begin=True), translated.place_of(source[1])
    if before is not None and (words[first - 1][1] if first else 0) <= before <= start:
        start = before
    if after is not None and end <= after and (last == len(words) or after <= words[last][0]):
        end = after
    return _inside(start, characters), _inside(end, characters)


def _before_word(
    word: int, source_place: int, characters: tuple[int, int], translated: Translated
) -> int:
    """The place of what has no words, as in the source after a word, or before the next one."""
    words = translated.words
    before = _words_begun(translated.source_words, source_place)
    ends_word = before > 0 and translated.source_words[before - 1][1] >= source_place
    if word == len(words) or (ends_word and word > 0):
        place = words[word - 1][1] if word else characters[0]
    else:
        place = words[word][0]
    return _inside(place, characters)


def _inside(place: int, characters: tuple[int, int]) -> int:
    return min(max(place, characters[0]), characters[1])


def _words_begun(words: Sequence[tuple[int, int]], character: int) -> int:
    """Number of the words that begin before a character."""
    return bisect.bisect_left(words, character, key=lambda word: word[0])


def _words_before(words: Sequence[tuple[int, int]], character: int) -> int:
    """Number of the words that end before a character."""
    return bisect.bisect_right(words, character, key=lambda word: word[1])
