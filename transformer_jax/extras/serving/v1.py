"""This project's own API: `/v1/translate`, `/v1/score`, `/v1/sentences`, `/v1/models`."""

import dataclasses
import functools
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import fastapi
import pydantic
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from transformer_jax.errors import UserError
from transformer_jax.extras.documents import document_translation as text_documents
from transformer_jax.extras.documents import sentences as sentence_splitting
from transformer_jax.extras.documents.document_translation import AUTO
from transformer_jax.extras.serving import documents
from transformer_jax.extras.serving.context import (
    charged,
    client_of,
    collect,
    off_loop,
    read_body,
    service_of,
)
from transformer_jax.extras.serving.documents import Finished, Wanted
from transformer_jax.extras.serving.errors import ServiceError, frames
from transformer_jax.extras.serving.jobs import Job, ScoreJob
from transformer_jax.extras.serving.openapi import body_of, errors_as
from transformer_jax.extras.serving.served_model import ServedModel
from transformer_jax.extras.serving.submitted import cancel, in_order, translations_in_order
from transformer_jax.extras.serving.v1_fields import (
    SEARCH,
    Alternative,
    ErrorAnswer,
    ModelsAnswer,
    PairScore,
    ScoreAnswer,
    ScoreRequest,
    SentenceAnswer,
    SentencesAnswer,
    SentencesRequest,
    SentenceTranslationAnswer,
    TranslateAnswer,
    TranslateRequest,
    TranslationAnswer,
)
from transformer_jax.translator import alignment
from transformer_jax.translator.translation import Translation

router = fastapi.APIRouter(prefix="/v1", tags=["v1"])
_ERRORS: Any = errors_as(ErrorAnswer)
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "description": "data is JSON: index and fields of a translation, or those of an error.",
}
_ALIGNMENT_COST = 10  # of a character, compared with one that is only translated
_log = logging.getLogger(__name__)


@router.post(
    "/translate",
    response_model=TranslateAnswer,
    responses={
        **_ERRORS,
        200: {
            "description": "Translations; with `stream`, the same as events.",
            "content": {"text/event-stream": {"schema": _EVENT}},
        },
    },
    openapi_extra=body_of(TranslateRequest),
)
async def translate(request: fastapi.Request) -> Response:
    """Translates texts, sentence by sentence; with `format=sentence`, each is a sentence.

    The search is that of the model, or one that was compiled at the start (`searches` of
    `/v1/models`). Settings that are numbers, such as `length_penalty`, may differ in each request.
    """
    client = client_of(request)
    body = await read_body(request, TranslateRequest)
    model = await _model_of(request, body)
    model.check_size(body.texts)
    num_chars = sum(map(len, body.texts))
    is_sentences = body.format == "sentence"
    submit = _submit_sentences if is_sentences else _submit_documents
    with charged(request, client, num_chars):
        answers, cancel_all = await off_loop(num_chars, submit, model, body, client)
    if body.stream:
        return Events(model.name, answers, cancel_all)
    # Links between words take longer than all else of an answer.
    cost = num_chars * (_ALIGNMENT_COST if body.alignment else 1)
    results = await collect(request, answers)

    def answer() -> Response:
        translations = [make() for make in results]
        return _json(TranslateAnswer(model=model.name, translations=translations))

    return await off_loop(cost, answer)


# What makes the answer of each text, in order; and what frees the places of all texts.
_Answers = tuple[AsyncIterator[Callable[[], TranslationAnswer]], Callable[[], None]]


def _submit_sentences(model: ServedModel, body: Any, client: str) -> _Answers:
    """Texts of one sentence each."""
    for name in ("glossary", "confidence"):
        if getattr(body, name):
            raise ServiceError(400, f"{name} needs another format than sentence, such as txt.")
    submitted = model.submit(
        Job(
            body.texts,
            client,
            body.n_best,
            body.alignment,
            body.source_lang,
            body.target_lang,
            _search(body),
            body.timeout_ms,
        )
    )

    async def answers() -> AsyncIterator[Callable[[], TranslationAnswer]]:
        async for best in translations_in_order(submitted):
            yield functools.partial(_answer, best)

    return answers(), functools.partial(cancel, submitted)


def _submit_documents(model: ServedModel, body: Any, client: str) -> _Answers:
    """Texts of any number of sentences."""
    try:
        options = text_documents.options(body.glossary or None, (), body.protect, body.guards)
    except UserError as error:
        raise ServiceError(400, str(error)) from error
    wanted = Wanted(
        client,
        body.format,
        "",
        options,
        body.n_best,
        body.alignment,
        body.confidence,
        _search(body),
        body.timeout_ms,
    )
    languages = (body.source_lang, body.target_lang)
    texts = documents.read(body.texts, model, languages, wanted)
    documents.submit(texts)

    async def answers() -> AsyncIterator[Callable[[], TranslationAnswer]]:
        async for finished in documents.finished(texts):
            yield functools.partial(_document_answer, finished)

    return answers(), functools.partial(documents.cancel_all, texts)


def _search(body: Any) -> dict[str, Any]:
    """The settings of the search that a client gives."""
    chosen = {name: getattr(body, name) for name in SEARCH}
    return {name: value for name, value in chosen.items() if value is not None}


def _document_answer(finished: Finished) -> TranslationAnswer:
    """The JSON of a text of several sentences."""
    answer = _answer(finished.translations)
    answer.source_lang = finished.source_lang
    if finished.alignment:
        answer.source_words, answer.words, answer.alignment = finished.alignment
    answer.sentences = [
        SentenceTranslationAnswer(
            source=one.source,
            text=one.text,
            flags=list(one.flags),
            unmet=list(one.unmet),
            confidence=one.confidence,
            words=list(one.words) or None,
        )
        for one in finished.sentences
    ]
    return answer


def _answer(hypotheses: Sequence[Translation]) -> TranslationAnswer:
    """The JSON of a text's translations; a score of -inf, of no output, is null."""
    best, *others = hypotheses
    answer = TranslationAnswer(
        text=best.text,
        score=_finite(best.score),
        log_prob=_finite(best.log_prob),
        tokens=list(best.tokens),
        alternatives=[Alternative(text=t.text, score=_finite(t.score)) for t in others],
    )
    if best.attention is not None:
        weights = alignment.word_attention(best.attention, best.source_tokens, best.tokens)
        answer.source_words = alignment.join_words(best.source_tokens)
        answer.words = alignment.join_words(best.tokens)
        answer.alignment = alignment.links(weights)
    return answer


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None


async def _model_of(
    request: fastapi.Request, body: TranslateRequest | SentencesRequest
) -> ServedModel:
    """The model for a request; where it says `auto`, for the language of its texts together."""
    service, source_lang = service_of(request), body.source_lang
    if source_lang == AUTO:
        source_lang = ""
        if not body.model and len(service.models) > 1:
            text = "\n".join(body.texts)
            source_lang = await off_loop(len(text), service.detected, text, body.target_lang)
    return service.model(body.model, source_lang, body.target_lang)


def _json(answer: pydantic.BaseModel) -> Response:
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")


@router.post(
    "/sentences",
    response_model=SentencesAnswer,
    responses=_ERRORS,
    openapi_extra=body_of(SentencesRequest),
)
async def sentences(request: fastapi.Request) -> Response:
    """The sentences of texts, with their places, for clients that translate them one by one."""
    client_of(request)
    body = await read_body(request, SentencesRequest)
    model = await _model_of(request, body)
    model.check_size(body.texts)

    def split() -> SentencesAnswer:
        languages = [
            text_documents.language_of(model.translator, text, "txt", body.source_lang)
            for text in body.texts
        ]
        usual = model.languages[0][0]
        return SentencesAnswer(
            texts=[
                _sentences(text, language or usual)
                for text, language in zip(body.texts, languages, strict=True)
            ]
        )

    return _json(await off_loop(sum(map(len, body.texts)), split))


def _sentences(text: str, language: str) -> list[SentenceAnswer]:
    """The sentences of a text, with places in UTF-16 units, of which an emoji has two or more."""
    answers, index, units = [], 0, 0
    for sentence in sentence_splitting.split(text, language):
        start = units + _utf16_length(text[index : sentence.start])
        index, units = sentence.end, start + _utf16_length(sentence.text)
        answers.append(SentenceAnswer(text=sentence.text, start=start, end=units))
    return answers


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@router.post(
    "/score",
    response_model=ScoreAnswer,
    responses=_ERRORS,
    openapi_extra=body_of(ScoreRequest),
)
async def score(request: fastapi.Request) -> Response:
    """Natural log-probabilities of given translations, without length penalty."""
    client = client_of(request)
    body = await read_body(request, ScoreRequest)
    model = service_of(request).model(body.model, body.source_lang, body.target_lang)
    texts = [text for pair in body.pairs for text in pair]
    model.check_size(texts, per_item=2)
    num_chars = sum(map(len, texts))
    job = ScoreJob(body.pairs, client, body.source_lang, body.target_lang, body.timeout_ms)
    with charged(request, client, num_chars):
        submitted = await off_loop(num_chars, model.submit_pairs, job)
    scores = [
        PairScore(
            log_prob=_finite(one.log_prob),
            tokens=list(one.tokens),
            log_probs=list(map(_finite, one.log_probs)),
        )
        for one in await collect(request, in_order(submitted))
    ]
    return _json(ScoreAnswer(model=model.name, scores=scores))


@router.get("/models", response_model=ModelsAnswer, responses=_ERRORS)
async def models(request: fastapi.Request) -> dict[str, Any]:
    """The models, their languages, searches and limits. No key is needed."""
    return {
        "models": [
            {
                "name": model.name,
                "source_langs": model.languages[0],
                "target_langs": model.languages[1],
                "searches": [dict(search) for search in model.searches],
                "most_alternatives": model.most_alternatives,
                "alignment": model.can_align,
                "glossary": model.can_place_terms,
                "confidence": model.translator.calibration is not None,
                "engine": model.translator.engine.runner.kind,
                "limits": dataclasses.asdict(model.limits),
            }
            for model in service_of(request).models.values()
        ]
    }


def error_status(error: ServiceError) -> int:
    """Its status."""
    return error.status


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
