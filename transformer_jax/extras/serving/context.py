"""What routes need of a request: the service, the client, its fields, and whether it listens."""

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import Any, TypeVar

import fastapi
import pydantic
from starlette.datastructures import ImmutableMultiDict

from transformer_jax.extras.serving.errors import CLIENT_CLOSED, ServiceError, invalid
from transformer_jax.extras.serving.keys import Keys
from transformer_jax.extras.serving.service import Service

T = TypeVar("T")
Body = TypeVar("Body", bound=pydantic.BaseModel)
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_FIELDS = 1000  # of a form
_MANY_CHARS = 4000  # work on as many takes the event loop too long


class ForeignBody(pydantic.BaseModel):
    """A body of an API whose clients write null for a field that they do not use."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


def service_of(request: fastapi.Request) -> Service:
    """The server's models."""
    service: Service = request.app.state.service
    return service


def client_of(request: fastapi.Request, secret: str = "") -> str:
    """Who asks: the name of its key; where no keys are needed, its address.

    Args:
      request: of the client.
      secret: its key, where the body has it; else it is in a header.

    Raises:
      ServiceError: the key is missing or unknown.
    """
    keys: Keys | None = request.app.state.keys
    if keys is None:
        return request.client.host if request.client else ""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if not secret and scheme.lower() in ("bearer", "deepl-auth-key"):
        secret = value.strip()
    return keys.client(secret or request.headers.get("X-API-Key", ""))


@contextlib.contextmanager
def charged(request: fastapi.Request, client: str, num_chars: int) -> Iterator[None]:
    """Counts the characters of a client, unless what follows refuses them.

    Raises:
      ServiceError: the client has used up its limit.
    """
    keys: Keys | None = request.app.state.keys
    if keys is not None:
        keys.charge(client, num_chars)
    try:
        yield
    except BaseException:
        if keys is not None:
            keys.charge(client, -num_chars)
        raise
    # Addresses are not kept: there is no end of them.
    service_of(request).count_chars("" if keys is None else client, num_chars)


async def off_loop(num_chars: int, function: Callable[..., T], *arguments: Any) -> T:
    """The result of `function`, in a thread where its work would keep other requests waiting.

    Args:
      num_chars: that it works on.
      function: to call.
      *arguments: of it.
    """
    if num_chars < _MANY_CHARS:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


async def collect(request: fastapi.Request, results: AsyncIterator[T]) -> list[T]:
    """All of `results`. They end where the client has gone, which frees its places.

    Raises:
      ServiceError: the client has gone.
    """

    async def read() -> list[T]:
        return [result async for result in results]

    async def wait_until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, gone = asyncio.create_task(read()), asyncio.create_task(wait_until_gone())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ServiceError(CLIENT_CLOSED, "The client has gone.")
    finally:
        gone.cancel()
        work.cancel()


async def read_body(
    request: fastapi.Request, model: type[Body], forms: bool = False, lists: Collection[str] = ()
) -> Body:
    """The fields of a request, as JSON or as a form.

    Args:
      request: of the client.
      model: of the fields.
      forms: whether the API takes forms too, and without a body those in the address.
      lists: fields that a form may have several times.

    Raises:
      ServiceError: they are not what `model` says.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json" or kind.endswith("+json"):
            return model.model_validate_json(await request.body())
        if forms and request.query_params and not await request.body():
            form: Any = request.query_params
        elif not (forms and kind in FORMS):
            wanted = "application/json" + (" or a form" if forms else "")
            raise ServiceError(415, f"The body must be {wanted}, as Content-Type says.")
        else:
            form = await (_urlencoded(request) if kind == FORMS[0] else _multipart(request))
        fields = {name: form.getlist(name) if name in lists else form[name] for name in form}
        return model.model_validate(fields)
    except pydantic.ValidationError as error:
        raise invalid(error.errors(include_url=False)) from error


async def _urlencoded(request: fastapi.Request) -> ImmutableMultiDict:
    """The fields of a form; in Starlette's, bytes beyond ASCII are Latin-1."""
    try:
        text = (await request.body()).decode()
        return ImmutableMultiDict(
            urllib.parse.parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS
            )
        )
    except ValueError as error:
        raise ServiceError(400, f"The form cannot be read: {error}.") from error


async def _multipart(request: fastapi.Request) -> ImmutableMultiDict:
    # Files are refused, and no field is larger than a body may be.
    return await request.form(max_files=0, max_part_size=1 << 30)
