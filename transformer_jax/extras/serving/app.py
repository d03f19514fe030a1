"""The web application: routes of all APIs, and what holds for each of them."""

from collections.abc import Sequence
from typing import Any

import fastapi
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from transformer_jax import __version__
from transformer_jax.extras.serving import deepl, docs_page, libretranslate, page_routes, v1
from transformer_jax.extras.serving.context import service_of
from transformer_jax.extras.serving.errors import JsonError, ServiceError, invalid
from transformer_jax.extras.serving.keys import Keys
from transformer_jax.extras.serving.limits import RequestLimits
from transformer_jax.extras.serving.metrics import Metrics
from transformer_jax.extras.serving.openapi import errors_as
from transformer_jax.extras.serving.service import Service

MAX_BYTES = 1 << 20  # of a request's body
_ROUTERS = (v1.router, libretranslate.router, deepl.router, page_routes.router, docs_page.router)


def create_app(
    service: Service,
    keys: Keys | None = None,
    max_bytes: int = MAX_BYTES,
    cors_origins: Sequence[str] = (),
) -> fastapi.FastAPI:
    """The application of a server.

    Args:
      service: its models.
      keys: of clients; None: no key is needed.
      max_bytes: of a request's body.
      cors_origins: of pages of other servers that may send requests, such as
        `https://example.org`; `*` is any.
    """
    app = fastapi.FastAPI(
        title="transformer_jax", version=__version__, docs_url=None, redoc_url=None
    )
    app.state.service, app.state.keys = service, keys
    for router in (*_ROUTERS, _health):
        app.include_router(router)
    app.state.metrics = metrics = Metrics(service)

    def answer(path: str, error: ServiceError) -> JsonError:
        metrics.on_refusal(error.code)
        api = _api_of(path)
        return JsonError(api.error_body(error), api.error_status(error), headers=error.headers)

    app.add_middleware(
        RequestLimits, max_bytes=max_bytes, on_request=metrics.on_request, answer=answer
    )
    if cors_origins:  # around the limits, so that pages can read what these refuse
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
            expose_headers=["Retry-After"],
        )

    async def on_service_error(request: fastapi.Request, error: Any) -> JsonError:
        return answer(request.url.path, error)

    async def on_invalid_request(request: fastapi.Request, error: Any) -> JsonError:
        return answer(request.url.path, invalid(error.errors()))

    async def on_http_error(request: fastapi.Request, error: Any) -> JsonError:
        response = answer(request.url.path, ServiceError(error.status_code, f"{error.detail}."))
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_error)
    return app


_health = fastapi.APIRouter(tags=["health"])
_ERRORS: Any = errors_as(libretranslate.ErrorAnswer)


@_health.get("/health", responses=_ERRORS)  # LibreTranslate's
@_health.get("/healthz", responses=_ERRORS)
async def healthz() -> dict[str, str]:
    """Whether the process is alive."""
    return {"status": "ok"}


@_health.get("/readyz", responses=_ERRORS)
async def readyz(request: fastapi.Request) -> dict[str, str]:
    """Whether all is compiled, and texts are accepted."""
    service_of(request).check_ready()
    return {"status": "ready"}


@_health.get("/metrics", response_class=PlainTextResponse, responses=_ERRORS)
async def metrics(request: fastapi.Request) -> fastapi.Response:
    """Counters, for Prometheus. No key is needed: they have neither texts nor clients."""
    return PlainTextResponse(request.app.state.metrics.page(), media_type=CONTENT_TYPE_LATEST)


def _api_of(path: str) -> Any:
    """The module of the API that a path is of."""
    return v1 if path.startswith("/v1/") else deepl if path.startswith("/v2/") else libretranslate
