"""Message catalogues of gettext (PO) as documents: what is not translated yet is filled.

The format: https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

import re
from collections.abc import Iterator

from transformer_jax.errors import UserError
from transformer_jax.text import html_tags
from transformer_jax.text.document import Document, Embedded, Reading
from transformer_jax.text.formats import html, plain_text

_STRING = r'"(?:[^"\\\n]|\\.)*+"'
_LINES = rf"{_STRING}(?:[ \t]*+\r?\n[ \t]*+{_STRING})*+"
_FIELD = re.compile(rf"[ \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)[ \t]*+({_LINES})")
_REST = re.compile(r"[ \t]*(?:#.*)?\r?(?:\n|$)")  # comments, obsolete entries, empty lines
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_WRITTEN = {"\\": "\\\\", '"': '\\"'} | {char: f"\\{name}" for name, char in _ESCAPED.items()}


def read(text: str, reading: Reading) -> Document:
    """The document of a catalogue. Translations that are there stay, fuzzy ones too.

    Of messages with a plural, the first form is translated from the singular, and the others from
    the plural; the only form of a language without plural is translated from the plural. Lines of a
    message end sentences.

    Args:
      text: of a PO or POT file.
      reading: how it is read.

    Raises:
      UserError: a line that PO files do not have, with its number.
    """
    return Document(_parts(text, reading), text, reading)


def _parts(text: str, reading: Reading) -> Iterator[str | Embedded]:
    """Everything up to each empty translation, and the message that is translated there."""
    messages: dict[str, str] = {}  # the strings of an entry, as they are in the file
    done = 0
    fields = list(_fields(text))
    for number, (name, match) in enumerate(fields):
        if name in ("msgctxt", "msgid") and any(key.startswith("msgstr") for key in messages):
            messages = {}
        messages[name] = match[2]
        if not name.startswith("msgstr") or _unquoted(match[2]):
            continue
        is_only = not any(other == "msgstr[1]" for other, _ in fields[number + 1 : number + 2])
        is_plural = "msgid_plural" in messages and (name != "msgstr[0]" or is_only)
        raw = messages.get("msgid_plural" if is_plural else "msgid", '""')
        message = _unquoted(raw)
        if not message:
            continue
        yield text[done : match.start(2)]
        if html_tags.has_tags(message):
            # Programs differ in whether a message is HTML with references.
            document = html.read(message, reading, html_tags.has_references(message))
        else:
            document = plain_text.read(message, reading)
        yield Embedded(raw, message, document, _quoted)
        done = match.end(2)
    yield text[done:]


def _fields(text: str) -> Iterator[tuple[str, re.Match]]:
    """Keywords of the file, each with its match of `_FIELD`."""
    position = 0
    while position < len(text):
        field = _FIELD.match(text, position)
        if field:
            yield field[1], field
            position = field.end()
        rest = _REST.match(text, position)
        if rest is None:
            line = text.count("\n", 0, position) + 1
            raise UserError(
                f'line {line} is not of a PO file: expected a comment, or msgid, msgstr, … and "…".'
            )
        position = rest.end()


def _unquoted(lines: str) -> str:
    inner = "".join(match[0][1:-1] for match in re.finditer(_STRING, lines))
    return _ESCAPE.sub(_character, inner)


def _character(escape: re.Match) -> str:
    octal, hexadecimal, char = escape.groups()
    if char:
        return _ESCAPED.get(char, char)
    return chr(int(octal, 8) if octal else int(hexadecimal, 16))


def _quoted(text: str) -> str:
    return f'"{"".join(_WRITTEN.get(char, char) for char in text)}"'
