"""Tags of a source text, put around the words of its translation that belong to theirs.

Each element gets the run of words that attends most to what it encloses. Runs of the elements in
another are inside its run, and no two of them overlap, so the result is well-formed.
"""

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import sparse

from transformer_jax.text.tagged_text import Element, Item, Kept, Words, plain_of

_OCCUPIED = -1e9  # gain of a word that another element has


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
      escape: writes text into the document.
    """

    text: str
    source: str
    words: Sequence[tuple[int, int]]
    source_words: Sequence[tuple[int, int]]
    weights: sparse.csc_array
    borders: dict[int, int]
    escape: Callable[[str], str]


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a child of an element is in the translation: a run of words, or before a word."""

    item: Element | Kept
    source: tuple[int, int]  # characters
    run: tuple[int, int]  # words
    order: int  # among its siblings


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
            children.append((item, end, end + size))
            end += size
    out, position = [], characters[0]
    for place in _places(children, (start, end), run, translated):
        first, last = _characters(place, characters, translated)
        first, last = max(first, position), max(last, position)
        out.append(translated.escape(translated.text[position:first]))
        space_before, space_after = _spaces(place, first, last, translated)
        out.append(space_before)
        if isinstance(place.item, Kept):
            out.append(place.item.raw)
        else:
            inner = _write(place.item.items, place.source[0], place.run, (first, last), translated)
            out += [place.item.opening, inner, place.item.closing]
        out.append(space_after)
        position = last
    return "".join([*out, translated.escape(translated.text[position : characters[1]])])


def _spaces(place: _Place, first: int, last: int, translated: Translated) -> tuple[str, str]:
    """Spaces that are missing before and after what is between words, such as an image."""
    if first < last:
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
    translated: Translated,
) -> list[_Place]:
    """Where the children of an element are, in the order of the translation."""
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
        places.append(_Place(item, (start, end), (first + begin, first + stop), order))
    placed = {place.order for place in places}
    runs = sorted(place.run for place in places)
    for order, (item, start, end) in enumerate(children):
        if order not in placed:
            at = _outside(_position(start, (lo, hi), run, translated), runs)
            places.append(_Place(item, (start, end), (at, at), order))
    return sorted(places, key=lambda place: (place.run[0], place.run[1], place.order))


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


def _characters(
    place: _Place, characters: tuple[int, int], translated: Translated
) -> tuple[int, int]:
    """First character and end of a place."""
    first, last = place.run
    words = translated.words
    if first < last:
        return words[first][0], words[last - 1][1]
    # As in the source: after the word before it, or before the next one.
    before = _words_begun(translated.source_words, place.source[0])
    ends_word = before > 0 and translated.source_words[before - 1][1] >= place.source[0]
    if first == len(words) or (ends_word and first > 0):
        at = words[first - 1][1] if first else characters[0]
    else:
        at = words[first][0]
    at = min(max(at, characters[0]), characters[1])
    return at, at


def _words_begun(words: Sequence[tuple[int, int]], character: int) -> int:
    """Number of the words that begin before a character."""
    return bisect.bisect_left(words, character, key=lambda word: word[0])


def _words_before(words: Sequence[tuple[int, int]], character: int) -> int:
    """Number of the words that end before a character."""
    return bisect.bisect_right(words, character, key=lambda word: word[1])
