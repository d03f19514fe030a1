"""Ends of sentences that the library `sentencex` misses, and those that are none.

`benchmarks/text_splitting.py` has the cases. A sentence that is not divided matters more: models
often translate one of two and forget the other.
"""

import re
from collections.abc import Iterator, Sequence

# Words that are no abbreviations at the end of a sentence, although the library knows them as such.
_ORDINARY = {
    "cs": ("co", "hod", "kol", "pod", "tu"),
    "de": ("Art", "Bart"),
    "en": ("art", "fed", "fig", "id", "ill", "may", "May", "me", "miss", "no", "ore"),
    "fr": ("art", "sec", "vol"),
}
_CAPITAL = r"(?=[\"'“„«‹(\[¿¡]*[^\W\d_])"  # whether it is one is checked
# A dot after three others, or in brackets, ends a sentence where a capital letter follows.
_MORE_ENDS = rf"(?:…|\.\.\.)\s+{_CAPITAL}|[.!?…]\)\s+{_CAPITAL}"
# Abbreviations before a number.
_BEFORE_NUMBER = re.compile(
    r"(?<!\w)(?:approx|art|ca|ch|fig|max|min|no|nos|nr|núms?|p|pp|sec|str|tel|vols?|č)\.\s*$",
    re.IGNORECASE,
)
_FRENCH_TITLE = re.compile(r"(?<!\w)(?:Dr|Me|MM?|Mlles?|Mmes?|Mgr)\.\s*$")
_GERMAN_ORDINAL = re.compile(
    r"\b(?:am|im|vom|zum|beim|seit|bis|de[rmns]|die|das|ein(?:e[mnrs]?)?)\s+\d{1,2}\.\s*$",
    re.IGNORECASE,
)
_OPENING = " \t\"'“”„«»‹›([–—-"


def corrected(parts: Sequence[str], language: str) -> Iterator[str]:
    """Sentences as they should be, with what is between them.

    Args:
      parts: as the library divides a text.
      language: code of it.
    """
    waiting = ""
    for part in parts:
        if waiting and not _continues(waiting, part, language):
            yield from _divided(waiting, language)
            waiting = ""
        waiting += part
    if waiting:
        yield from _divided(waiting, language)


def _continues(before: str, after: str, language: str) -> bool:
    """Whether a text that was divided here is one sentence."""
    begin = after.lstrip(_OPENING)[:1]
    # In a text that has no capital letters, a small one begins a sentence.
    if begin.islower() and any(map(str.isupper, before)):
        return True
    if begin.isdigit() and _BEFORE_NUMBER.search(before):
        return True
    not_an_end = {"de": _GERMAN_ORDINAL, "fr": _FRENCH_TITLE}.get(language)
    if not_an_end and not_an_end.search(before):
        return True
    return language == "ja" and before.endswith(("」", "』")) and after.startswith(("と", "って"))


def _divided(text: str, language: str) -> Iterator[str]:
    """A text divided where sentences end in it that were missed."""
    words = "|".join(_ORDINARY.get(language, ()))
    pattern = _MORE_ENDS + (rf"|(?<!\w)(?:{words})\.\s+{_CAPITAL}" if words else "")
    start = 0
    for match in re.finditer(pattern, text):
        if text[match.end() :].lstrip(_OPENING + "¿¡")[:1].isupper():
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]
