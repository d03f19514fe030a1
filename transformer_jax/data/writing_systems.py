"""Recognises writing systems, and those that do not put spaces between words.

Python's `unicodedata` has no script property, so the scripts without spaces are given by their
Unicode blocks, and names of scripts are taken from the names of characters. Hangul is not among the
former: Korean puts spaces between words.
"""

import bisect
import collections
import functools
import unicodedata
from collections.abc import Mapping

# (first, last) code points, ascending. East Asian: no space after punctuation either.
_EAST_ASIAN = (
    (0x2E80, 0x2FDF),  # CJK and Kangxi radicals
    (0x2FF0, 0x312F),  # CJK symbols and punctuation, Hiragana, Katakana, Bopomofo
    (0x3190, 0x4DBF),  # Kanbun to CJK extension A
    (0x4E00, 0xA4CF),  # CJK unified ideographs, Yi
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0xFE30, 0xFE4F),  # CJK compatibility forms
    (0xFF00, 0xFF9F),  # full-width forms, half-width Katakana
    (0x16FE0, 0x18D8F),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # Kana supplement and extensions, Nushu
    (0x20000, 0x323AF),  # CJK extensions B to H
)
# South-East Asian and Tibetan: spaces separate sentences or phrases, not words.
_OTHER = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0xA980, 0xA9FF),  # Javanese, Myanmar extended B
    (0xAA60, 0xAADF),  # Myanmar extended A, Tai Viet
)
_SHARED_MARKS = "“”‘’…—–·"  # as common in East Asian text as in any other
_TSHEG = "་༌"  # between the syllables of a Tibetan word


def separates_words(text: str) -> bool:
    """Whether spaces separate the words of `text`: it has no letter of a script without spaces."""
    return not any(_within(c, _EAST_ASIAN) or _within(c, _OTHER) for c in text)


def joiner(left: str, right: str) -> str:
    """Returns the string that joins two parts of a text: a space, or nothing.

    Nothing if a part is empty, if an East Asian letter or mark is at the joint, or if `left` ends
    with a letter of another script without spaces. After a mark of such a script it is a space.
    """
    if not left or not right:
        return ""
    if _within(left[-1], _EAST_ASIAN) or _within(right[0], _EAST_ASIAN):
        return ""
    if _within(left[-1], _OTHER):
        is_mark = unicodedata.category(left[-1]).startswith("P") and left[-1] not in _TSHEG
        return " " if is_mark else ""
    # Quotation marks and the like occur in both kinds of text: the letters around them decide.
    before, after = left.rstrip(_SHARED_MARKS)[-1:], right.lstrip(_SHARED_MARKS)[:1]
    if before and after and _within(before, _EAST_ASIAN) and _within(after, _EAST_ASIAN):
        return ""
    return " "


def script_shares(character_counts: Mapping[str, int], least: float = 0.005) -> dict[str, float]:
    """Writing systems of a text, as shares of its letters, the largest first.

    Args:
      character_counts: character -> how often it occurs.
      least: smaller shares are left out.
    """
    shares: collections.Counter[str] = collections.Counter()
    for char, count in character_counts.items():
        if unicodedata.category(char).startswith("L"):
            shares[script_of(char)] += count
    total = shares.total()
    return {name: n / total for name, n in shares.most_common() if n >= least * total}


@functools.lru_cache(maxsize=4096)
def script_of(letter: str) -> str:
    """Name of a letter's writing system, such as Latin or Han: the first word of its own name."""
    first = unicodedata.name(letter, "UNKNOWN").split()[0].split("-")[0]
    return {"CJK": "Han", "FULLWIDTH": "Latin", "HALFWIDTH": "Katakana"}.get(first, first.title())


def _within(char: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    code = ord(char)
    i = bisect.bisect_right(ranges, (code, 0x110000)) - 1
    return i >= 0 and code <= ranges[i][1]
