"""Message catalogues of gettext (PO) as documents: what is not translated yet is filled.

The format: https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

import dataclasses
import re
from collections.abc import Iterator

from transformer_jax.errors import UserError
from transformer_jax.extras.documents import accelerators, html_tags
from transformer_jax.extras.documents.document import Document, Embedded, Reading
from transformer_jax.extras.documents.formats import html, plain_text, po_plurals
from transformer_jax.extras.documents.formats.po_plurals import Plurals
from transformer_jax.extras.documents.placeholders import BY_FLAG, MessageFormat, missing

_STRING = r'"(?:[^"\\\n]|\\.)*+"'
_STRINGS = rf"{_STRING}(?:[ \t]*+(?:\r?\n[ \t]*+)?{_STRING})*+"
_FIELD = re.compile(rf"[ \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)[ \t]*+({_STRINGS})")
_REST = re.compile(r"[ \t]*(#.*)?\r?(?:\n|$)")  # comments, obsolete entries, empty lines
_FLAG = re.compile(r"[\w+-]+")
_PLURAL_FORMS = re.compile(r"Plural-Forms:[^\"\\]*")
_ESCAPE = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}))++)|\\(.)", re.DOTALL)
_BYTE = re.compile(r"x([0-9a-fA-F]{2})|([0-7]{1,3})")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_WRITTEN = {"\\": "\\\\", '"': '\\"'} | {char: f"\\{name}" for name, char in _ESCAPED.items()}


def read(text: str, reading: Reading) -> Document:
    """The document of a catalogue. Translations that are there stay, fuzzy ones too.

    Of messages with a plural, the form of 1 is translated from the singular, and the others from
    the plural, as the only form of a language without plural is. A form of 1 and other numbers is
    translated from the plural too if the singular lacks a placeholder. An entry with two forms or
    more gets the further forms that the header counts, and loses empty forms that the header does
    not count. A header without the forms of plurals, such as that of a template, gets those that
    are usual in the target language.

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
      fields: by name, each with its match of `_FIELD`.
    """

    flags: list[str] = dataclasses.field(default_factory=list)
    fields: dict[str, re.Match[str]] = dataclasses.field(default_factory=dict)

    @property
    def format(self) -> MessageFormat:
        """What its flags say of its placeholders."""
        names = (flag.removesuffix("-format") for flag in self.flags if flag.endswith("-format"))
        return MessageFormat(tuple(name for name in names if name in BY_FLAG))

    @property
    def translations(self) -> list[re.Match[str]]:
        """Its translation, or the forms of it, in the order of the file."""
        return [field for name, field in self.fields.items() if name.startswith("msgstr")]

    @property
    def is_empty(self) -> bool:
        """Whether there is a message, and a translation of it is missing."""
        return self.text("msgid") != "" and not all(_unquoted(one[2]) for one in self.translations)

    def text(self, name: str) -> str:
        """What a field says; "": it is not there."""
        return _unquoted(self.fields[name][2]) if name in self.fields else ""

    def source(self, form: int, plurals: Plurals) -> str:
        """Name of the field from which a form of the translation comes."""
        is_only = len(self.translations) == 1 or plurals.count == 1
        if "msgid_plural" not in self.fields:
            return "msgid"
        if is_only or not plurals.is_for_one(form):
            return "msgid_plural"
        texts = [self.text(name) for name in ("msgid_plural", "msgid")]
        in_plural, in_singular = (sorted(self.format.of(text)) for text in texts)
        lacks = in_plural != in_singular or bool(missing(*texts))
        return "msgid_plural" if lacks and plurals.is_for_others(form) else "msgid"


def _parts(text: str, reading: Reading) -> Iterator[str | Embedded]:
    """Everything up to each empty translation, and the message that is translated there."""
    entries = list(_entries(text))
    done = 0
    header = entries[0]
    has_header = next(iter(header.fields), "") == "msgid" and not header.text("msgid")
    plurals = po_plurals.of_header(header.text("msgstr") if has_header else "")
    if has_header and header.text("msgstr") and any(entry.is_empty for entry in entries):
        if not plurals.count and any("msgid_plural" in entry.fields for entry in entries):
            plurals = po_plurals.of_language(reading.target_language)
        field = header.fields["msgstr"]
        yield text[: field.start(2)] + _header(field[2], plurals)
        done = field.end(2)
    for entry in entries:
        fields = entry.translations
        end = done
        for form, field in enumerate(fields):
            is_empty = entry.text("msgid") != "" and not _unquoted(field[2])
            if is_empty and 0 < plurals.count <= form:
                yield text[done:end]
                done = field.end(2)
            elif is_empty and (message := _message(entry, entry.source(form, plurals), reading)):
                yield text[done : field.start(2)]
                yield message
                done = field.end(2)
            end = field.end(2)
        for missing_form in range(len(fields), plurals.count if len(fields) > 1 else 0):
            message = _message(entry, "msgid_plural", reading)
            if message:
                yield f"{text[done:end]}\nmsgstr[{missing_form}] "
                yield message
                done = end
    yield text[done:]


def _header(strings: str, plurals: Plurals) -> str:
    """The strings of a header, with what a template leaves open."""
    strings = strings.replace("charset=CHARSET", "charset=UTF-8")
    if not plurals.count or po_plurals.of_header(_unquoted(strings)).count:
        return strings
    strings, count = _PLURAL_FORMS.subn(f"Plural-Forms: {plurals.field};", strings)
    return strings if count else f'{strings}\n"Plural-Forms: {plurals.field};\\n"'


def _message(entry: _Entry, name: str, reading: Reading) -> Embedded | None:
    """A message to translate; None where there is no text.

    Args:
      entry: that it is of.
      name: of the field that has its text.
      reading: of the file.
    """
    message = entry.text(name)
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

    return Embedded(entry.fields[name][2], shown, document, write)


def _entries(text: str) -> Iterator[_Entry]:
    """The entries of the file."""
    position, entry, flags = 0, _Entry(), list[str]()
    while position < len(text):
        field = _FIELD.match(text, position)
        if field:
            if field[1] in ("msgctxt", "msgid") and entry.translations:
                yield entry
                entry = _Entry()
            entry.flags += flags
            entry.fields[field[1]] = field
            flags = []
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
    yield entry


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
