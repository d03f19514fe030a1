"""The page that describes the API, whose files are those of a package: nothing is loaded elsewhere.

The description itself is `/openapi.json`.
"""

import functools
from importlib import resources

import fastapi
from fastapi.responses import Response

router = fastapi.APIRouter(prefix="/docs", include_in_schema=False)
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API of transformer_jax</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="icon.svg">
<div id="api"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</html>
"""
_START = """SwaggerUIBundle({
  url: "openapi.json", dom_id: "#api", deepLinking: true, validatorUrl: null,
});
"""
# Swagger UI sets styles of its elements, and has pictures inside its style sheet.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@router.get("")
async def index() -> Response:
    """The page."""
    return _response(_PAGE.encode(), "text/html")


@router.get("/start.js")
async def start() -> Response:
    """What shows the description."""
    return _response(_START.encode(), "text/javascript")


@router.get("/swagger-ui.css")
async def style() -> Response:
    """How Swagger UI looks."""
    return _response(_file("swagger-ui.css"), "text/css")


@router.get("/swagger-ui-bundle.js")
async def script() -> Response:
    """Swagger UI."""
    return _response(_file("swagger-ui-bundle.js"), "text/javascript")


@functools.cache
def _file(name: str) -> bytes:
    """A file of the package; `name` is none of a request."""
    return (resources.files("fastapi_offline") / "static" / name).read_bytes()


def _response(content: bytes, kind: str) -> Response:
    headers = {"Content-Security-Policy": _CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}
    return Response(content, media_type=kind, headers=headers)
