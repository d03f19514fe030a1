"""Plain text as a document."""

from transformer_jax.extras.documents.document import Document, Reading
from transformer_jax.extras.documents.sentences import SENTENCES
from transformer_jax.extras.documents.tagged_text import Words


def read(text: str, reading: Reading) -> Document:
    """The document of a text without markup; lines end sentences."""
    parts = [([Words(text, text)], reading.splitting or SENTENCES)] if text else []
    return Document(parts, text, reading)
