"""What a program replaces in its messages, such as `%s`, by the kind of message.

The kinds are those that gettext has flags for, such as `c-format`:
https://www.gnu.org/software/gettext/manual/html_node/Translators-for-other-Languages.html
"""

import collections
import dataclasses
import functools
import itertools
import re

# The parts of `%1$-5.*ld`. `*` takes an argument of its own, before that of the value.
_NUMBER, _STAR = r"(?:\d++\$)?", r"(?:\*(?:\d++\$)?|\d*+)"
_SIZE = r"(?:hh?|ll?|[LqjzZt]|wf?\d++)?"
_VALUE = r"(?:[diouxXeEfFgGaAcCsSpnm@]|<\w++>)"
_PRINTF = rf"%%|%{_NUMBER}[-+0#']*+{_STAR}(?:\.{_STAR})?{_SIZE}{_VALUE}"
_C = _PRINTF.replace("[-+0#']", "[-+0#' I]")
_BRACES = r"\{\{[^{}\n]*\}\}|[$#]?\{[^{}\s][^{}\n]*\}|\{\}"
_FIELDS = r"\{\{|\}\}|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
_SHELL = r"\$\{[^{}\n]*\}|\$[a-zA-Z_]\w*+"
_NUMBERED = r"%L?\d{1,2}"
# Regular expressions of messages of which nothing is known.
USUAL = {
    "braces": _BRACES,
    "format": rf"%[a-zA-Z_]\w++%|%\(\w++\)[-+0# ]*+\d*+(?:\.\d++)?[a-zA-Z]|{_PRINTF}|%L?\d++|%Ln",
    "variable": _SHELL,
}
_USUAL = re.compile("|".join(USUAL.values()))
# Flag of gettext without `-format` -> regular expression.
BY_FLAG = {
    **dict.fromkeys(("c", "objc", "php", "perl", "tcl", "awk", "librep", "elisp"), _C),
    **dict.fromkeys(("lua", "javascript", "gfc-internal"), _C.replace("[diou", "[jdiou")),
    "c++": f"{_C}|{_FIELDS}",
    "gcc-internal": rf"%%|%{_NUMBER}[-+#qlwvtzEHI0-9.*]*[a-zA-Z<>']",
    "python": rf"%\(\w++\)[-+0# ]*+\d*+(?:\.\d++)?[a-zA-Z]|{_C}",
    **dict.fromkeys(("python-brace", "csharp", "rust", "java", "perl-brace"), _FIELDS),
    "java-printf": rf"%%|%{_NUMBER}[-#+ 0,(<]*+\d*+(?:\.\d++)?(?:[tT][a-zA-Z]|[a-zA-Z])",
    "ruby": rf"%<\w++>[-+0# ]*+\d*+(?:\.\d++)?[a-zA-Z]|%\{{\w++\}}|{_C}",
    "object-pascal": r"%%|%(?:\d++:)?-?(?:\*|\d*+)(?:\.(?:\*|\d++))?[dDuUeEfFgGnNmMpPsSxX]",
    "boost": rf"%\d++%|%\|[^|\n]++\||{_C}",
    "qt": _NUMBERED,
    "qt-plural": rf"{_NUMBERED}|%L?n",
    **dict.fromkeys(("kde", "kde-kuit", "ycp"), r"%\d++"),
    "smalltalk": r"%(?:<[^<>\n]*>)?\d",
    "sh": _SHELL,
    **dict.fromkeys(("lisp", "scheme"), r"~[-+\d,'v#:@]*[^\s\d]"),
}
# Formats whose arguments can be numbered where a translation has them in another order; those that
# have to stay in order, of which the first ones are numbered while they are translated.
_CAN_NUMBER = {"c", "objc", "c++", "php", "perl", "tcl", "awk", "elisp", "librep", "java-printf"}
_CAN_NUMBER |= {"ruby", "boost", "gcc-internal", "python-brace", "rust"}
_IN_ORDER = {"python", "lua", "javascript", "gfc-internal"}
_FIXED = {"lisp", "scheme", "object-pascal"}
_WITHOUT_NUMBER = re.compile(r"%(?![%m(|{]|<\w+>[^>]|\d+%|\d+\$).|\{(?=[:}])")
_NUMBER_OF_ARGUMENT = re.compile(r"(?<=[%*])\d+\$|(?<=\{)\d+(?=[:}])")


@dataclasses.dataclass(frozen=True)
class MessageFormat:
    """The placeholders of a message.

    Attributes:
      flags: of gettext, without `-format`, each in `BY_FLAG`; () where nothing is known.
    """

    flags: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Regular expressions of what a program replaces."""
        return tuple(BY_FLAG[flag] for flag in self.flags)

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(self.patterns) or r"(?!)")

    def of(self, text: str) -> list[str]:
        """The placeholders of a text, in order."""
        return [match[0] for match in self._pattern.finditer(text)]

    def numbered(self, message: str) -> str:
        """A message whose placeholders have the numbers of their arguments.

        It stays as it is if it has fewer than two, or if they have numbers already.
        """
        placeholders = self.of(message)
        unnumbered = [one for one in placeholders if _WITHOUT_NUMBER.match(one)]
        has_numbers = any(map(_NUMBER_OF_ARGUMENT.search, placeholders))
        if not {*self.flags} & (_CAN_NUMBER | _IN_ORDER) or len(unnumbered) < 2 or has_numbers:
            return message
        numbers = itertools.count(1)

        def with_number(match: re.Match[str]) -> str:
            if not _WITHOUT_NUMBER.match(match[0]):
                return match[0]
            if match[0][0] == "{":
                return f"{{{next(numbers) - 1}{match[0][1:]}"
            stars = re.sub(r"\*", lambda _: f"*{next(numbers)}$", match[0][1:])
            return f"%{next(numbers)}${stars}"

        return self._pattern.sub(with_number, message)

    def written(self, message: str, translation: str) -> str | None:
        """A translation as the program reads it.

        None: it has other placeholders, or an order that this format cannot express.

        Args:
          message: the source.
          translation: of `numbered(message)`.
        """
        source = self.numbered(message)
        expected, translated = self.of(source), self.of(translation)
        if collections.Counter(expected) != collections.Counter(translated):
            return None
        if source == message:
            return translation if expected == translated or not {*self.flags} & _FIXED else None
        numbered, translated = (
            [one for one in placeholders if _NUMBER_OF_ARGUMENT.search(one)]
            for placeholders in (expected, translated)
        )
        if numbered == translated:
            return self._pattern.sub(
                lambda match: _NUMBER_OF_ARGUMENT.sub("", match[0]), translation
            )
        return translation if {*self.flags} & _CAN_NUMBER else None


def missing(source: str, translation: str) -> list[str]:
    """The usual placeholders of a source that its translation does not have."""
    counts = [
        collections.Counter(match[0] for match in _USUAL.finditer(text))
        for text in (source, translation)
    ]
    return [*(counts[0] - counts[1]).elements()]
