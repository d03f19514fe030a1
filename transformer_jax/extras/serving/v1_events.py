"""Answers of `/v1` as server-sent events, and its errors."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from transformer_jax.extras.serving.errors import ServiceError, frames
from transformer_jax.extras.serving.v1_fields import TranslationAnswer

_log = logging.getLogger(__name__)


class Events(StreamingResponse):
    """Server-sent events of texts on their way, whose places are free when it ends."""

    def __init__(
        self,
        model: str,
        answers: AsyncIterator[Callable[[], TranslationAnswer]],
        cancel_all: Callable[[], None],
    ):
        super().__init__(_events(model, answers), media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"  # a proxy is to pass each on at once
        self._cancel_all = cancel_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._cancel_all()


async def _events(
    model: str, answers: AsyncIterator[Callable[[], TranslationAnswer]]
) -> AsyncIterator[str]:
    """Server-sent events: each translation, then `done`; or `error`."""
    index = 0
    try:
        async for make in answers:
            answer = make().model_dump(exclude_none=True)
            yield _event("translation", {"index": index, **answer})
            index += 1
        yield _event("done", {"model": model, "count": index})
    except ServiceError as error:
        yield _event("error", error_body(error))
    except Exception as error:
        _log.error("A stream failed: %s", frames(error))
        yield _event("error", error_body(ServiceError(500, "The server failed.", index)))


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def error_body(error: ServiceError) -> dict[str, Any]:
    """The JSON of an error."""
    fields = {"code": error.code, "message": error.message, "item": error.item}
    return {"error": {name: value for name, value in fields.items() if value is not None}}
