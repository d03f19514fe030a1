"""The page for people, from the files of this package; it loads nothing from elsewhere."""

from importlib import resources

import fastapi
from fastapi.responses import Response

router = fastapi.APIRouter(include_in_schema=False)
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = resources.files("transformer_jax.extras.serving") / "page"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_NAMES = (
    "index.html",
    "page.css",
    "page.js",
    "alternatives.js",
    "files.js",
    "languages.js",
    "notices.js",
    "panes.js",
    "server.js",
    "storage.js",
    "translation.js",
    "icon.svg",
)


def _add(name: str) -> None:
    """Adds a file's route. It is read once: no path of a request reaches the file system."""
    content, media_type = (_FOLDER / name).read_bytes(), _TYPES[name.rpartition(".")[2]]
    headers = {"Content-Security-Policy": _CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}

    @router.get("/" if name == "index.html" else f"/{name}")
    async def file() -> Response:
        return Response(content, media_type=media_type, headers=headers)


for _name in _NAMES:
    _add(_name)
