"""DeepL's API, for its clients: `/v2/translate`, `/v2/languages`, `/v2/usage`.

Its description: https://developers.deepl.com/docs. Languages are upper case there.
"""

import dataclasses
from typing import Annotated, Any, Literal

import fastapi
import pydantic

from transformer_jax.extras.documents import document_translation, languages
from transformer_jax.extras.serving import texts
from transformer_jax.extras.serving.context import (
    FORMS,
    ForeignBody,
    client_of,
    read_body,
    service_of,
)
from transformer_jax.extras.serving.documents import Wanted
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.openapi import body_of, errors_as

router = fastapi.APIRouter(prefix="/v2", tags=["DeepL"])
# What DeepL says of accounts without a limit.
_NO_LIMIT = 10**12
# Options that would change the translation, and that are not here: refused, never ignored.
_NOT_HERE = (
    "glossary_id",
    "style_id",
    "custom_instructions",
    "context",
    "splitting_tags",
    "non_splitting_tags",
)


class TranslateBody(ForeignBody):
    """What is sent to `/v2/translate`."""

    model_config = pydantic.ConfigDict(extra="allow", coerce_numbers_to_str=True)

    text: list[str] = pydantic.Field(min_length=1, description="Texts.")
    target_lang: str = pydantic.Field(max_length=64, description="Such as DE.")
    source_lang: str | None = pydantic.Field(
        None, max_length=64, description="Without it, the language of each text is detected."
    )
    split_sentences: Annotated[
        Literal["0", "1", "nonewlines"] | None,
        pydantic.BeforeValidator(lambda given: str(given) if isinstance(given, int) else given),
    ] = pydantic.Field(
        None, description="0: each text is a sentence; nonewlines: lines do not end sentences."
    )
    preserve_formatting: bool = pydantic.Field(False, description="White space is always kept.")
    formality: Literal["default", "prefer_more", "prefer_less", "more", "less"] = "default"
    tag_handling: Literal["", "html", "xml"] = pydantic.Field("", description="Tags are kept.")
    ignore_tags: Annotated[
        list[str],
        pydantic.BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    ] = pydantic.Field([], description="Elements that are not translated, with tag_handling.")
    show_billed_characters: bool = False
    auth_key: str = pydantic.Field("", description="Or in the header Authorization.")


class TextAnswer(pydantic.BaseModel):
    """The translation of a text."""

    detected_source_language: str
    text: str
    billed_characters: int | None = None


class TranslateAnswer(pydantic.BaseModel):
    """Translations of all texts, in their order."""

    translations: list[TextAnswer]


class LanguageAnswer(pydantic.BaseModel):
    """A language."""

    language: str
    name: str
    supports_formality: bool | None = None


class UsageAnswer(pydantic.BaseModel):
    """What a client has used; the limit is only a large number."""

    character_count: int
    character_limit: int


class ErrorAnswer(pydantic.BaseModel):
    """Why there is no answer."""

    message: str


class _LanguagesBody(pydantic.BaseModel):
    type: Literal["source", "target"] = "source"


_ERRORS: Any = errors_as(ErrorAnswer)


@router.get("/translate", include_in_schema=False)  # deep-translator
@router.post(
    "/translate",
    response_model=TranslateAnswer,
    response_model_exclude_none=True,
    responses=_ERRORS,
    openapi_extra=body_of(TranslateBody, forms=True),
)
async def translate(request: fastapi.Request) -> dict[str, Any]:
    """Translates texts. Options of DeepL that would change the result are refused by name.

    Languages without formality ignore `prefer_more` and `prefer_less`, as DeepL's do.
    """
    body = await read_body(request, TranslateBody, forms=True, lists=("text", "ignore_tags"))
    client = client_of(request, body.auth_key)
    _check_options(body)
    ignored = {name.strip().lower() for names in body.ignore_tags for name in names.split(",")}
    wanted = Wanted(
        client,
        "html" if body.tag_handling else "txt",
        body.split_sentences or "",
        dataclasses.replace(document_translation.options(), ignored_tags=frozenset(ignored - {""})),
    )
    translated = await texts.translate(
        request, body.text, body.source_lang or "", body.target_lang, wanted
    )
    return {
        "translations": [
            {
                "detected_source_language": languages.two_letters(one.source_lang).upper(),
                "text": one.texts[0],
            }
            | ({"billed_characters": len(text)} if body.show_billed_characters else {})
            for text, one in zip(body.text, translated, strict=True)
        ]
    }


def _check_options(body: TranslateBody) -> None:
    """Refuses what would be another translation."""
    given = body.model_extra or {}
    names = [name for name in _NOT_HERE if given.get(name)]
    if body.formality in ("more", "less"):
        names.append(f"formality={body.formality}")
    if given.get("model_type") == "quality_optimized":
        names.append("model_type=quality_optimized")
    if names:
        raise ServiceError(400, f"This server does not support {', '.join(names)}.")


@router.get(
    "/languages",
    response_model=list[LanguageAnswer],
    response_model_exclude_none=True,
    responses=_ERRORS,
)
async def list_languages(
    request: fastapi.Request, type: Literal["source", "target"] = "source"
) -> list[dict[str, Any]]:
    """The languages of texts, or of translations."""
    client_of(request)
    if request.headers.get("content-type", "").startswith(FORMS):  # as the official client asks
        type = (await read_body(request, _LanguagesBody, forms=True)).type
    service = service_of(request)
    codes = service.source_langs if type == "source" else service.target_langs
    return [
        {"language": code.upper(), "name": languages.name(code)}
        | ({"supports_formality": False} if type == "target" else {})
        for code in codes
    ]


@router.get("/glossary-language-pairs", responses=_ERRORS)
async def glossary_pairs(request: fastapi.Request) -> dict[str, list[Any]]:
    """The languages that have glossaries: none, as clients ask before they use one."""
    client_of(request)
    return {"supported_languages": []}


@router.get("/glossaries", responses=_ERRORS)
async def glossaries(request: fastapi.Request) -> dict[str, list[Any]]:
    """The glossaries that are stored: none. Terms are of single requests, in `/v1/translate`."""
    client_of(request)
    return {"glossaries": []}


@router.get("/usage", response_model=UsageAnswer, responses=_ERRORS)
async def usage(request: fastapi.Request) -> dict[str, int]:
    """Characters that this key has had translated since the server started.

    Where no keys are needed, they are those of all clients.
    """
    client = client_of(request)
    name = "" if request.app.state.keys is None else client
    return {"character_count": service_of(request).chars_of[name], "character_limit": _NO_LIMIT}


def error_body(error: ServiceError) -> dict[str, Any]:
    """The JSON of an error."""
    return {"message": error.message}


def error_status(error: ServiceError) -> int:
    """Its status: the official clients know 403, not 401."""
    return 403 if error.status == 401 else error.status
