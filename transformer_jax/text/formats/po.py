"""Message catalogues of gettext (PO) as documents: what is not translated yet is filled.

The format: https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

import dataclasses
import gettext
import re
from collections.abc import Iterator, Mapping, Sequence

from transformer_jax.errors import UserError
from transformer_jax.text import accelerators, html_tags
from transformer_jax.text.document import Document, Embedded, Reading
from transformer_jax.text.formats import html, plain_text
from transformer_jax.text.placeholders import BY_FLAG, MessageFormat, missing

_STRING = r'"(?:[^"\\\n]|\\.)*+"'
_STRINGS = rf"{_STRING}(?:[ \t]*+(?:\r?\n[ \t]*+)?{_STRING})*+"
_FIELD = re.compile(rf"[ \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)[ \t]*+({_STRINGS})")
_REST = re.compile(r"[ \t]*(#.*)?\r?(?:\n|$)")  # comments, obsolete entries, empty lines
_FLAG = re.compile(r"[\w+-]+")
_PLURAL = re.compile(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=([^;\n]+)")
_NUMBERS = range(1000)  # of things, for which the forms of a plural are known
_ESCAPE = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}))++)|\\(.)", re.DOTALL)
_BYTE = re.compile(r"x([0-9a-fA-F]{2})|([0-7]{1,3})")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_WRITTEN = {"\\": "\\\\", '"': '\\"'} | {char: f"\\{name}" for name, char in _ESCAPED.items()}


def read(text: str, reading: Reading) -> Document:
    """The document of a catalogue. Translations that are there stay, fuzzy ones too.

    Of messages with a plural, the form of 1 is translated from the singular, and the others from
    the plural, as the only form of a language without plural is. A form of 1 and other numbers is
    translated from the plural too if the singular lacks a placeholder. Where an entry has two forms
    or more, those that it lacks according to the header are added.

    Lines and columns of a message end sentences. The placeholders of an entry's flags, such as
    `c-format`, are protected; a translation that cannot be written with them stays empty.

    Args:
      text: of a PO or POT file.
      reading: how it is read.

    Raises:
      UserError: a line that PO files do not have, with its number.
    """
    return Document(_parts(text, reading), text, reading)


@dataclasses.dataclass
class _Entry:
    """An entry of the file.

    Attributes:
      flags: from its comments.
      strings: name of each field -> what it says, as it is in the file.
    """

    flags: list[str] = dataclasses.field(default_factory=list)
    strings: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def format(self) -> MessageFormat:
        """What its flags say of its placeholders."""
        names = (flag.removesuffix("-format") for flag in self.flags if flag.endswith("-format"))
        return MessageFormat(tuple(name for name in names if name in BY_FLAG))


def _parts(text: str, reading: Reading) -> Iterator[str | Embedded]:
    """Everything up to each empty translation, and the message that is translated there."""
    done = 0
    plurals = _Plurals()
    entries = list(_entries(text))
    for number, (entry, name, match) in enumerate(entries):
        if not name.startswith("msgstr"):
            continue
        following = entries[number + 1][1] if number + 1 < len(entries) else ""
        is_last = not following.startswith("msgstr")
        if _unquoted(match[2]):
            if name == "msgstr" and not _unquoted(entry.strings.get("msgid", '""')):
                plurals = _Plurals.of(_unquoted(match[2]))
        elif message := _message(entry, plurals.source(entry, name, is_last), reading):
            yield text[done : match.start(2)]
            yield message
            done = match.end(2)
        last_form = int(name[7:-1] or 0) if is_last else 0
        for form in range(last_form + 1, plurals.count if last_form else 0):
            message = _message(entry, entry.strings.get("msgid_plural", '""'), reading)
            if message:
                yield f"{text[done : match.end(2)]}\nmsgstr[{form}] "
                yield message
                done = match.end(2)
    yield text[done:]


def _message(entry: _Entry, raw: str, reading: Reading) -> Embedded | None:
    """A message to translate; None where there is no text.

    Args:
      entry: that it is of.
      raw: the strings.
      reading: of the file.
    """
    message = _unquoted(raw)
    if not message:
        return None
    format = entry.format
    reading = reading.with_protected(*format.patterns)
    numbered = format.numbered(message)
    kept, prose, done = [], "", 0
    for start, end, is_shown in reading.protection.find(numbered):
        kept.append(numbered[start:end])
        prose += numbered[done : start if is_shown else end]
        done = end
    # What the model sees as a word may look like a tag, such as `%<PRIu64>`.
    prose += numbered[done:]
    shown, with_mark = accelerators.without(numbered, kept)
    if html_tags.has_tags(prose):
        # Programs differ in whether a message is HTML with references.
        document = html.read(shown, reading, html_tags.has_references(shown))
    else:
        document = plain_text.read(shown, reading)

    def write(translation: str) -> str:
        written = format.written(message, with_mark(translation))
        return '""' if written is None else _quoted(written)

    return Embedded(raw, shown, document, write)


@dataclasses.dataclass(frozen=True)
class _Plurals:
    """The forms that a language has for numbers of things.

    Attributes:
      count: of them; 0: the header does not say it.
      numbers: form -> what it is for.
    """

    count: int = 0
    numbers: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, header: str) -> "_Plurals":
        """What a header says, the translation of the empty message."""
        said = _PLURAL.search(header)
        if said is None:
            return cls()
        try:
            form_of = gettext.c2py(said[2])
            forms = [form_of(number) for number in _NUMBERS]
        except (ValueError, ZeroDivisionError):
            return cls()
        numbers = {form: [n for n in _NUMBERS if forms[n] == form] for form in {*forms}}
        return cls(int(said[1]), numbers)

    def source(self, entry: _Entry, name: str, is_last: bool) -> str:
        """The strings from which a field is translated.

        Args:
          entry: that it is of.
          name: `msgstr`, or `msgstr[0]` and so on.
          is_last: whether no other form follows in its entry.
        """
        singular = entry.strings.get("msgid", '""')
        plural = entry.strings.get("msgid_plural")
        if plural is None or name == "msgstr":
            return singular
        form = int(name[7:-1])
        numbers = self.numbers.get(form, [1] if form == 0 else [])
        is_only = is_last and form == 0
        if is_only or 1 not in numbers:
            return plural
        texts = _unquoted(plural), _unquoted(singular)
        in_plural, in_singular = (sorted(entry.format.of(one)) for one in texts)
        is_complete = in_plural == in_singular and not missing(*texts)
        return singular if is_complete or len(numbers) == 1 else plural


def _entries(text: str) -> Iterator[tuple[_Entry, str, re.Match]]:
    """(its entry, name, match of `_FIELD`) of each field of the file."""
    position, entry, flags = 0, _Entry(), list[str]()
    while position < len(text):
        field = _FIELD.match(text, position)
        if field:
            name = field[1]
            is_ended = any(key.startswith("msgstr") for key in entry.strings)
            if is_ended and name in ("msgctxt", "msgid"):
                entry = _Entry()
            entry.flags += flags
            entry.strings[name] = field[2]
            flags = []
            yield entry, name, field
            position = field.end()
        rest = _REST.match(text, position)
        if rest is None:
            line = text.count("\n", 0, position) + 1
            raise UserError(
                f'line {line} is not of a PO file: expected a comment, or msgid, msgstr, … and "…".'
            )
        if rest[1] and rest[1].startswith("#,"):
            flags += _FLAG.findall(rest[1])
        position = rest.end()


def _unquoted(strings: str) -> str:
    inner = "".join(match[0][1:-1] for match in re.finditer(_STRING, strings))
    return _ESCAPE.sub(_characters, inner)


def _characters(escape: re.Match) -> str:
    """What an escape stands for; several that follow one another may be bytes of a character."""
    if escape[2]:
        return _ESCAPED.get(escape[2], escape[2])
    codes = [int(one[1], 16) if one[1] else int(one[2], 8) for one in _BYTE.finditer(escape[1])]
    data = bytes(code & 0xFF for code in codes)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _quoted(text: str) -> str:
    return f'"{"".join(_WRITTEN.get(char, char) for char in text)}"'
