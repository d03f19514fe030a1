"""The formats of documents, by name and by the ending of a file's name."""

from collections.abc import Callable
from pathlib import PurePath

from transformer_jax.errors import UserError, did_you_mean
from transformer_jax.extras.documents.document import Document, Reading
from transformer_jax.extras.documents.formats import (
    html,
    markdown,
    plain_text,
    po,
    subtitles,
    tmx,
    xliff,
)
from transformer_jax.translator.requests import check_text

READERS: dict[str, Callable[..., Document]] = {
    "txt": plain_text.read,
    "md": markdown.read,
    "html": html.read,
    "po": po.read,
    "xliff": xliff.read,
    "tmx": tmx.read,
    "srt": subtitles.read_srt,
    "vtt": subtitles.read_vtt,
}
ENDINGS = {
    ".txt": "txt",
    ".text": "txt",
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".po": "po",
    ".pot": "po",
    ".xliff": "xliff",
    ".xlf": "xliff",
    ".sdlxliff": "xliff",
    ".tmx": "tmx",
    ".srt": "srt",
    ".vtt": "vtt",
}
_BOM = "\ufeff"


def read(text: str, format: str, reading: Reading) -> Document:
    """The document of a text. A byte order mark stays before it.

    Args:
      text: of the document.
      format: a name of `READERS`.
      reading: how it is read.

    Raises:
      UserError: an unknown format, a text that is not of this format, or invalid Unicode.
    """
    if format not in READERS:
        raise UserError(
            f"There is no format {format}{did_you_mean(format, READERS)} There are "
            f"{', '.join(READERS)}."
        )
    check_text(text)
    document = READERS[format](text.removeprefix(_BOM), reading)
    return document.preceded_by(_BOM) if text.startswith(_BOM) else document


def format_of(path: str) -> str | None:
    """The format of a file by the ending of its name; None where that is not in `ENDINGS`."""
    return ENDINGS.get(PurePath(path).suffix.lower())
