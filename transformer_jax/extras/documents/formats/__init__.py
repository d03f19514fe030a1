"""Formats of documents: one record and one reader for each.

The records load nothing, so that the command line can show them.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from transformer_jax.errors import missing_package


@dataclasses.dataclass(frozen=True)
class DocumentFormat:
    """A format of documents.

    Attributes:
      endings: of the names of its files.
      module: in this package, which is imported when a document is read.
      function: of the module, which returns the `Document` of a text and a `Reading`.
    """

    endings: tuple[str, ...]
    module: str
    function: str = "read"

    def reader(self) -> Callable[..., Any]:
        """The function that reads a document.

        Raises:
          UserError: a package that it needs is missing.
        """
        try:
            module = importlib.import_module(f"{__name__}.{self.module}")
        except ModuleNotFoundError as error:
            raise missing_package(error, "documents") from error
        reader: Callable[..., Any] = getattr(module, self.function)
        return reader


FORMATS = {
    "txt": DocumentFormat((".txt", ".text"), "plain_text"),
    "md": DocumentFormat((".md", ".markdown"), "markdown"),
    "html": DocumentFormat((".html", ".htm", ".xhtml"), "html"),
    "po": DocumentFormat((".po", ".pot"), "po"),
    "xliff": DocumentFormat((".xliff", ".xlf", ".sdlxliff"), "xliff"),
    "tmx": DocumentFormat((".tmx",), "tmx"),
    "srt": DocumentFormat((".srt",), "subtitles", "read_srt"),
    "vtt": DocumentFormat((".vtt",), "subtitles", "read_vtt"),
}
ENDINGS = {ending: name for name, one in FORMATS.items() for ending in one.endings}
