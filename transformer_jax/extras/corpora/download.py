"""Downloads files over HTTP: resumed, verified, and renamed only when they are complete."""

import hashlib
import http.client
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from transformer_jax import __version__, units
from transformer_jax.errors import UserError
from transformer_jax.extras.corpora.dataset import Download

Say = Callable[[str], None]

TIMEOUT_SECONDS = 30  # without any byte
RETRIES = 3  # of one address, each continues where the last one ended
_BLOCK = 1 << 20  # bytes
_NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


class DownloadError(Exception):
    """A file could not be downloaded from any of its addresses. The text says why."""


def fetch(download: Download, folder: Path, say: Say) -> Path:
    """A verified file in `folder`; downloads it if it is missing.

    A file that is being downloaded is `NAME.part`. An interrupted download continues from it.

    Args:
      download: what to fetch.
      folder: where it is kept; made if missing.
      say: gets a line about each address.

    Raises:
      DownloadError: no address has the file, or has it with the right digest.
      UserError: a file of that name is there and is another one, or cannot be written.
    """
    path = folder / download.name
    if path.exists():
        problem = _find_problem(path, download)
        if problem:
            raise UserError(f"{path} {problem}; remove it to download it again, or replace it.")
        return path
    problems = []
    part = path.with_name(f"{path.name}.part")
    for url in download.urls:
        say(f"downloading {url} ({units.size(download.num_bytes)})")
        problem = _download(url, part, download.num_bytes) or _find_problem(part, download)
        if not problem:
            os.replace(part, path)
            return path
        problems.append(f"{url}: {problem}")
    raise DownloadError("; ".join(problems))


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_problem(path: Path, download: Download) -> str:
    """Why a complete file is not the one that is wanted; empty if it is.

    A partial download that is another file is removed.
    """
    problem = ""
    size = path.stat().st_size
    if download.sha256:
        got = digest(path)
        if got != download.sha256:
            problem = f"has {size:,} bytes and SHA-256 {got}, expected {download.sha256}"
    elif size != download.num_bytes:
        problem = f"has {size:,} bytes, expected {download.num_bytes:,}"
    if problem and path.suffix == ".part":
        path.unlink()
    return problem


def _download(url: str, part: Path, num_bytes: int) -> str:
    """Downloads to `part`, and continues what is there; returns why it failed, else empty."""
    problem = ""
    for _ in range(RETRIES):
        before = _size(part)
        try:
            problem = _request(url, part, num_bytes)
        except urllib.error.HTTPError as error:
            problem = f"{error.code} {error.reason}"
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink()  # what is there is longer than the file
        except urllib.error.URLError as error:
            problem = str(error.reason)
        except _NETWORK_ERRORS as error:
            problem = str(error) or type(error).__name__
        except OSError as error:
            raise UserError(f"{part} cannot be written: {error.strerror}.") from error
        if not problem or _size(part) <= before:
            break
    return problem


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _request(url: str, part: Path, num_bytes: int) -> str:
    """One request; returns why its file is incomplete, else empty."""
    import tqdm

    start = _size(part)
    if start >= num_bytes:  # complete already, or another file
        start = 0
    headers = {"User-Agent": f"transformer-jax/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        continues = (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-")
        if not (start and response.status == http.HTTPStatus.PARTIAL_CONTENT and continues):
            start = 0  # the server sends all of it
        length = response.headers.get("Content-Length")
        expected = start + int(length) if length else None
        part.parent.mkdir(parents=True, exist_ok=True)
        bar = tqdm.tqdm(
            total=expected,
            initial=start,
            unit="B",
            unit_scale=True,
            leave=False,
            disable=not sys.stderr.isatty(),
        )
        with bar, part.open("ab" if start else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                bar.update(len(block))
    got = _size(part)
    return f"ended after {got:,} of {expected:,} bytes" if expected and got < expected else ""
