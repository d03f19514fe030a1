"""Keys of menus and buttons, marked in their texts: `&Open` of Qt and Windows, `_Open` of GTK."""

import re
from collections.abc import Callable, Iterable

from transformer_jax.data.writing_systems import separates_words

# Where a word begins, or within one that begins with a capital letter, such as `E_xit`.
_MARKED = re.compile(r"(?<![\w&])([A-Z][a-z]*(?=.[a-z]))?([&_])(?=[^\W_])(?!\w+;)")
_LETTER = re.compile(r"[^\W_]")
_LONGEST = 200
_AT_END = " \t\r\n:.…?!：。"


def without(text: str, kept: Iterable[str]) -> tuple[str, Callable[[str], str]]:
    """A text without the mark of its key, and what puts the mark into its translation.

    It is as it was where it has none, or several, or is too long for a button.

    Args:
      text: of a menu or button.
      kept: what else is in it that may have such characters, such as placeholders.
    """
    if len(text) > _LONGEST:
        return text, str
    known = re.compile("|".join(map(re.escape, kept)) or r"(?!)")
    visible = _hidden(text, known)
    marked = _MARKED.search(visible)
    if marked is None or len(re.findall(rf"{marked[2]}(?!\s)", visible)) > 1:
        return text, str
    place = marked.start(2)
    key = text[place + 1]
    return text[:place] + text[place + 1 :], lambda translation: _with_mark(
        translation, marked[2], key, known
    )


def _hidden(text: str, known: re.Pattern[str]) -> str:
    return known.sub(lambda match: " " * len(match[0]), text)


def _with_mark(text: str, mark: str, key: str, known: re.Pattern[str]) -> str:
    """A translation with the mark before the same letter, or another one.

    Where its script has no alphabet, the key comes in brackets, as is usual there.
    """
    visible = _hidden(text, known)
    folded = visible.casefold() if len(visible.casefold()) == len(visible) else visible
    begins = re.search(rf"(?<!\w){re.escape(key.casefold())}", folded)
    place = begins.start() if begins else folded.find(key.casefold())
    if place < 0 and separates_words(visible):
        first = _LETTER.search(visible)
        place = first.start() if first else -1
    if place >= 0:
        return text[:place] + mark + text[place:]
    place = len(text.rstrip(_AT_END))
    return f"{text[:place]}({mark}{key.upper()}){text[place:]}"
