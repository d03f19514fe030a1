"""Plain text as a document."""

from transformer_jax.text.document import Document
from transformer_jax.text.sentences import SENTENCES
from transformer_jax.text.tagged_text import Words


def read(text: str, language: str, splitting: str = "") -> Document:
    """The document of a text without markup.

    Args:
      text: any.
      language: its code.
      splitting: as of `sentences.split`; "": lines end sentences.
    """
    return Document([([Words(text, text)], splitting or SENTENCES)] if text else [], language)
