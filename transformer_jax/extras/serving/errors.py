"""What a server answers instead of a translation: a status, a sentence, perhaps when to try again.

Each API writes it in its own form (`v1`, `libretranslate`, `deepl`).
"""

import http
import json
import traceback
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

CLIENT_CLOSED = 499  # what proxies log where the client has gone, after which no one reads it
_LONGEST = 500  # characters of a message, which may quote the request


class ServiceError(Exception):
    """A request that is not answered.

    Args:
      status: of HTTP.
      message: one sentence for the client.
      item: number of the text that it is about, if it is about one.
      retry_after: seconds after which the request may succeed, if it may.
      reason: why in a word, where the status has several reasons.
    """

    def __init__(
        self,
        status: int,
        message: str,
        item: int | None = None,
        retry_after: int | None = None,
        reason: str = "",
    ):
        shown = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
        super().__init__(shown)
        self.status, self.message, self.item, self.retry_after = status, shown, item, retry_after
        self.reason = reason

    @property
    def headers(self) -> dict[str, str]:
        """Of the answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    @property
    def code(self) -> str:
        """The reason, else the status in words, such as `not_found`."""
        if self.reason or self.status == CLIENT_CLOSED:
            return self.reason or "client_closed"
        return http.HTTPStatus(self.status).phrase.lower().replace(" ", "_").replace("-", "_")


class JsonError(Response):
    """An error as JSON in ASCII, because what it quotes need not be valid Unicode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return json.dumps(content).encode("ascii")


def describe(errors: Sequence[Any]) -> str:
    """What pydantic finds first, as a sentence."""
    where = ".".join(str(part)[:64] for part in errors[0]["loc"] if part not in ("body", "query"))
    return f"{where or 'the request'}: {errors[0]['msg']}."


def invalid(errors: Sequence[Any]) -> ServiceError:
    """The error of a request that pydantic refuses."""
    item = next((part for part in errors[0]["loc"] if isinstance(part, int)), None)
    return ServiceError(400, describe(errors), item)


def frames(error: BaseException) -> str:
    """The type of an error and where it happened, without its message, which may quote a text."""
    places = traceback.extract_tb(error.__traceback__)
    return type(error).__name__ + "".join(
        f" < {p.name} ({p.filename}:{p.lineno})" for p in places[::-1]
    )
