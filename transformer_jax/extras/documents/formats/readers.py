"""Reads a document of any format."""

from pathlib import PurePath
from typing import cast

from transformer_jax.errors import UserError, did_you_mean
from transformer_jax.extras.documents.document import Document, Reading
from transformer_jax.extras.documents.formats import ENDINGS, FORMATS
from transformer_jax.translator.requests import check_text

_BOM = "\ufeff"


def read(text: str, format: str, reading: Reading) -> Document:
    """The document of a text. A byte order mark stays before it.

    Args:
      text: of the document.
      format: a name in `FORMATS`.
      reading: how it is read.

    Raises:
      UserError: an unknown format, a text that is not of this format, or invalid Unicode.
    """
    if format not in FORMATS:
        raise UserError(
            f"There is no format {format}{did_you_mean(format, FORMATS)} There are "
            f"{', '.join(FORMATS)}."
        )
    check_text(text)
    document = cast(Document, FORMATS[format].reader()(text.removeprefix(_BOM), reading))
    return document.preceded_by(_BOM) if text.startswith(_BOM) else document


def format_of(path: str) -> str | None:
    """The format of a file by the ending of its name; None where that is not in `ENDINGS`."""
    return ENDINGS.get(PurePath(path).suffix.lower())
