"""What clients want of a model, and how much of it they may ask for."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from transformer_jax.translator.requests import Request


@dataclasses.dataclass(frozen=True)
class Limits:
    """What clients may ask for.

    Attributes:
      max_queue: texts that wait for the device, of all clients.
      max_texts: of a request.
      max_chars: of all texts of a request.
      max_tokens: of a text that is translated at once; longer ones are translated in parts.
      batch_wait_ms: how long a text waits for others to share its batch.
      timeout_ms: longest time before a text's batch begins.
    """

    max_queue: int = 1024
    max_texts: int = 256
    max_chars: int = 50_000
    max_tokens: int = 128
    batch_wait_ms: float = 3.0
    timeout_ms: float = 30_000.0


@dataclasses.dataclass(frozen=True)
class Job:
    """Texts that a client wants to have translated.

    Attributes:
      texts: strings, or requests with phrases.
      client: whose they are; clients take turns.
      n_best: translations of each text.
      alignment: whether attention to the source comes with the best translation.
      source_lang: of a multilingual model that needs it; "": the model's own.
      target_lang: of a multilingual model; "": the model's own.
      search: fields of `DecodeConfig` that differ from the model's own.
      timeout_ms: as in `Limits`; None: that of the server.
    """

    texts: Sequence[str | Request]
    client: Hashable = None
    n_best: int = 1
    alignment: bool = False
    source_lang: str = ""
    target_lang: str = ""
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    timeout_ms: float | None = None


@dataclasses.dataclass(frozen=True)
class ScoreJob:
    """Pairs that a client wants to have scored; the other attributes are those of `Job`."""

    pairs: Sequence[tuple[str, str]]
    client: Hashable = None
    source_lang: str = ""
    target_lang: str = ""
    timeout_ms: float | None = None
