"""API keys: who a client is, and how much it may ask for. Only digests of keys are kept.

A file of keys has a line for each: its name, the SHA-256 of the key in hexadecimal, and perhaps
the characters a minute that it may have translated. Lines that begin with `#` are comments.
`transformer-jax serve --new_key=NAME` adds one. Keys are random numbers of 256 bits, so a digest
without salt cannot be reversed by guessing.
"""

import dataclasses
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.extras.serving.errors import ServiceError

MINUTE = 60.0  # seconds
_PREFIX = "tj_"  # lets people and tools recognise a key
_FORM = "a key is NAME SHA256 [CHARS_PER_MINUTE]"


@dataclasses.dataclass
class _Key:
    name: str
    digest: bytes
    chars_per_minute: int | None = None
    allowance: float = 0.0  # characters that may be used now
    updated: float = 0.0


class Keys:
    """The keys of a server.

    Args:
      lines: of the file.
      name: of the file, for messages.
      clock: seconds, rising.

    Raises:
      UserError: a line that is no key, a name that is there twice, or no key at all.
    """

    def __init__(
        self, lines: Sequence[str], name: str, clock: Callable[[], float] = time.monotonic
    ):
        self._clock = clock
        self._keys: dict[str, _Key] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                key = _parse(line)
            except ValueError as error:
                raise UserError(f"{name}:{number}: {_FORM}: {error}.") from error
            if key.name in self._keys:
                raise UserError(f"{name}:{number}: the name {key.name} is there twice.")
            key.allowance, key.updated = float(key.chars_per_minute or 0), clock()
            self._keys[key.name] = key
        if not self._keys:
            raise UserError(f"{name} has no key: add one.")

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """The keys of a file.

        Raises:
          UserError: it cannot be read, or as of `Keys`.
        """
        return cls(_read(path).splitlines(), str(path))

    def client(self, secret: str) -> str:
        """The name of a key. All keys are compared, so that times tell nothing.

        Raises:
          ServiceError: there is no such key.
        """
        if not secret:
            raise ServiceError(401, "An API key is needed.")
        digest, known = _digest(secret), None
        for key in self._keys.values():
            if hmac.compare_digest(key.digest, digest):
                known = key
        if known is None:
            raise ServiceError(403, "This API key is not known.")
        return known.name

    def charge(self, client: str, num_chars: int) -> None:
        """Counts characters that a client wants to have translated; fewer than 0 are given back.

        Raises:
          ServiceError: it has used up its characters of this minute.
        """
        key = self._keys.get(client)
        if key is None or key.chars_per_minute is None:
            return
        now, rate = self._clock(), key.chars_per_minute / MINUTE
        key.allowance = min(key.chars_per_minute, key.allowance + rate * (now - key.updated))
        key.updated = now
        limit = f"this key has {key.chars_per_minute:,} a minute."
        if num_chars > key.chars_per_minute:
            raise ServiceError(413, f"{num_chars:,} characters; {limit}")
        if num_chars > max(0.0, key.allowance):
            wait = int((num_chars - key.allowance) / rate) + 1
            text = f"{num_chars:,} characters are more than are left; {limit}"
            raise ServiceError(429, text, retry_after=wait, reason="key_limit")
        key.allowance = min(key.chars_per_minute, key.allowance - num_chars)

    def with_use_of(self, former: "Keys") -> "Keys":
        """These keys, which have used up what those of the same names had."""
        for name in self._keys.keys() & former._keys.keys():
            key, old = self._keys[name], former._keys[name]
            if key.chars_per_minute is not None and old.chars_per_minute is not None:
                key.allowance = min(key.chars_per_minute, old.allowance)
                key.updated = old.updated
        return self


def add_key(path: Path, name: str) -> str:
    """Adds a new key to a file, which only its owner may read; returns the key.

    Raises:
      UserError: a name that cannot be used, or a file that cannot be written.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.@-]{0,63}", name, re.ASCII):
        raise UserError(f"{name!r}: the name of a key has up to 64 letters, digits and . _ @ -")
    text = _read(path) if path.exists() else ""
    if text.strip():
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        if name in (line.split()[0] for line in lines if line.strip()):
            raise UserError(f"{path} has a key for {name} already; remove its line first.")
    secret = _PREFIX + secrets.token_urlsafe(32)
    separator = "" if text.endswith("\n") or not text else "\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(file, "a", encoding="utf-8") as lines_of_keys:
            lines_of_keys.write(f"{separator}{name} {_digest(secret).hex()}\n")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}.") from error
    return secret


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}.") from error


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _parse(line: str) -> _Key:
    name, *rest = line.split()
    if not 1 <= len(rest) <= 2:
        raise ValueError(f"this line has {1 + len(rest)} words")
    if not re.fullmatch("[0-9a-fA-F]{64}", rest[0]):
        raise ValueError("the digest has 64 hexadecimal digits")
    if rest[1:] and not (rest[1].isascii() and rest[1].isdigit() and int(rest[1])):
        raise ValueError(f"{rest[1]} is not a number of characters")
    return _Key(name, bytes.fromhex(rest[0]), int(rest[1]) if rest[1:] else None)
