"""LibreTranslate's API, for its clients: `/translate`, `/detect`, `/languages`, settings.

Its description: https://docs.libretranslate.com/api/operations/
"""

from typing import Annotated, Any, Literal

import fastapi
import pydantic

from transformer_jax.extras.documents import document_translation, languages
from transformer_jax.extras.serving import texts
from transformer_jax.extras.serving.context import ForeignBody, client_of, read_body, service_of
from transformer_jax.extras.serving.documents import Wanted
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.openapi import body_of, errors_as
from transformer_jax.extras.serving.texts import TextTranslation

router = fastapi.APIRouter(tags=["LibreTranslate"])
AUTO = "auto"


class TranslateBody(ForeignBody):
    """What is sent to `/translate`."""

    q: str | list[str] = pydantic.Field(description="A text, or several.")
    source: str = pydantic.Field(max_length=64, description="Language of the texts, or auto.")
    target: str = pydantic.Field(max_length=64, description="Language of the translations.")
    format: Annotated[
        Literal["text", "html"], pydantic.BeforeValidator(lambda given: given or "text")
    ] = pydantic.Field("text", description="Markup is kept in html.")
    alternatives: int = pydantic.Field(0, ge=0, description="Further translations, at most.")
    api_key: str = pydantic.Field("", description="Or in the header Authorization, as Bearer.")


class DetectBody(ForeignBody):
    """What is sent to `/detect`."""

    q: str = pydantic.Field(min_length=1, description="A text.")
    api_key: str = ""


class Detected(pydantic.BaseModel):
    """A language that a text may be in."""

    language: str
    confidence: float = pydantic.Field(description="Percent.")


class TranslateAnswer(pydantic.BaseModel):
    """Translations; lists where `q` is a list."""

    translatedText: str | list[str]  # noqa: N815  # as LibreTranslate calls it
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None  # noqa: N815


class LanguageAnswer(pydantic.BaseModel):
    """A language, and those that it is translated to: none, if it is only written."""

    code: str
    name: str
    targets: list[str]


class ErrorAnswer(pydantic.BaseModel):
    """Why there is no answer."""

    error: str


_ERRORS: Any = errors_as(ErrorAnswer)


@router.post(
    "/translate",
    response_model=TranslateAnswer,
    response_model_exclude_none=True,
    responses=_ERRORS,
    openapi_extra=body_of(TranslateBody, forms=True),
)
async def translate(request: fastapi.Request) -> dict[str, Any]:
    """Translates a text or several, of any number of sentences."""
    body = await read_body(request, TranslateBody, forms=True)
    client = client_of(request, body.api_key)
    is_one = isinstance(body.q, str)
    translated = await texts.translate(
        request,
        [body.q] if isinstance(body.q, str) else body.q,
        "" if body.source == AUTO else body.source,
        body.target,
        Wanted(
            client,
            "html" if body.format == "html" else "txt",
            options=document_translation.options(),
            n_best=1 + body.alternatives,
        ),
    )
    answers = [_answer(one, body) for one in translated]
    if is_one:
        return answers[0]
    names = answers[0] if answers else {"translatedText": []}
    return {name: [one[name] for one in answers] for name in names}


def _answer(translation: TextTranslation, body: TranslateBody) -> dict[str, Any]:
    """The JSON of one text."""
    answer: dict[str, Any] = {"translatedText": translation.texts[0]}
    if body.alternatives:
        answer["alternatives"] = translation.texts[1:]
    if body.source == AUTO:
        answer["detectedLanguage"] = translation.detected
    return answer


@router.post(
    "/detect",
    response_model=list[Detected],
    responses=_ERRORS,
    openapi_extra=body_of(DetectBody, forms=True),
)
async def detect(request: fastapi.Request) -> list[dict[str, Any]]:
    """The language of a text, of those that the models read."""
    body = await read_body(request, DetectBody, forms=True)
    client_of(request, body.api_key)
    return languages.detect(body.q, service_of(request).source_langs)


@router.get("/languages", response_model=list[LanguageAnswer], responses=_ERRORS)
async def list_languages(request: fastapi.Request) -> list[dict[str, Any]]:
    """Each language that is read or written, and those that it is translated to."""
    service = service_of(request)
    targets = service.targets_by_source
    return [
        {"code": code, "name": languages.name(code), "targets": targets.get(code, [])}
        for code in dict.fromkeys([*targets, *service.target_langs])
    ]


@router.get("/frontend/settings", responses=_ERRORS)
async def settings(request: fastapi.Request) -> dict[str, Any]:
    """What LibreTranslate's page asks for at first."""
    service = service_of(request)
    pairs = [(s, t) for s, targets in service.targets_by_source.items() for t in targets]
    first = next(iter(service.models.values()))
    source, target = pairs[0] if pairs else ("", "")
    needs_keys = request.app.state.keys is not None
    return {
        "apiKeys": needs_keys,
        "charLimit": first.limits.max_chars,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": needs_keys,
        "language": {
            "source": {"code": source, "name": languages.name(source)},
            "target": {"code": target, "name": languages.name(target)},
        },
        "suggestions": False,
        "supportedFilesFormat": [],
    }


def error_body(error: ServiceError) -> dict[str, Any]:
    """The JSON of an error."""
    return {"error": error.message}


def error_status(error: ServiceError) -> int:
    """Its status: a missing key is forbidden there, too."""
    return 403 if error.status == 401 else error.status
