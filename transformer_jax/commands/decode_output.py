"""The output of `decode`: a file that an interrupted job resumes."""

import collections
import contextlib
import hashlib
import itertools
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

from transformer_jax import distributed, paths
from transformer_jax.commands.text_output import check_writable, writing
from transformer_jax.errors import UserError

T = TypeVar("T")
_RECORD = ".unfinished"


def is_unknown(name: str) -> bool:
    """Whether there is a local file of this name that no interrupted job has left."""
    return os.path.isfile(name) and not os.path.exists(f"{name}{_RECORD}")


class ResumableOutput:
    """Writes results. A job that is interrupted resumes where its local file ends.

    While a job is unfinished, a record next to its output (`OUTPUT.unfinished`) holds the number of
    lines that are done, a digest of their input, and the job's description.

    Args:
      name: path of the output; - is standard output.
      describe: returns all that determines the output, as JSON. A record with another description
        is refused.

    Attributes:
      skip: lines that an earlier run of the job has written.
      expected: digest of their input.
      done: lines that are written.
    """

    SAVE_EVERY_SECONDS = 1.0

    def __init__(self, name: str, describe: Callable[[], dict[str, Any]]):
        self._name = name
        path = epath.Path(name)
        self._record = path.parent / f"{path.name}{_RECORD}"
        # Standard output, devices, pipes and remote files cannot be resumed.
        self._resumable = (
            name != "-"
            and not paths.is_remote(name)
            and (not path.exists() or Path(name).is_file())
        )
        # Only if it is needed: it takes a pass over the parameters.
        self._description = _flat(json.loads(json.dumps(describe()))) if self._resumable else {}
        self._digest = hashlib.sha256()  # of the input that is done
        self._pending: collections.deque[object] = collections.deque()
        self._saved = time.monotonic()
        self._written = 0  # bytes
        self.done = 0

    def __enter__(self) -> "ResumableOutput":
        record = self._read_record() if self._resumable else None
        self.skip = record["lines"] if record else 0
        self.expected = record["input"] if record else ""
        self._files = contextlib.ExitStack()
        if record:
            self._out = self._files.enter_context(open(self._name, "r+", encoding="utf-8"))
            self._written = record["bytes"]
            self._out.seek(self._written)
            self._out.truncate()
        else:
            if paths.is_remote(self._name):  # which is opened at the end only
                check_writable(self._name)
            self._out = self._files.enter_context(writing(self._name, at_once=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if self._resumable and error is not None and self.done > self.skip:
            self._save()
        self._files.__exit__(kind, error, traceback)

    def remaining(self, requests: Iterator[T]) -> Iterator[T]:
        """Skips the requests that are done and returns the others.

        Raises:
          UserError: the skipped requests differ from those of the earlier run.
        """
        for request in itertools.islice(requests, self.skip):
            self._digest.update(repr(request).encode())
            self.done += 1
        if self.done < self.skip or (self.skip and self._digest.hexdigest() != self.expected):
            raise UserError(
                f"{self._record} belongs to a job with other input in its first {self.skip} lines; "
                f"delete it to start {self._name} again."
            )
        if self.skip and distributed.is_primary():
            print(f"continuing {self._name} after line {self.skip:,}", file=sys.stderr)
        return self._pending_requests(requests)

    def _pending_requests(self, requests: Iterator[T]) -> Iterator[T]:
        for request in requests:
            self._pending.append(request)
            yield request

    def write(self, text: str) -> None:
        """Writes the result of the next request."""
        self._out.write(text)
        self._out.flush()
        self._written += len(text.encode("utf-8"))
        self._digest.update(repr(self._pending.popleft()).encode())
        self.done += 1
        if self._resumable and time.monotonic() - self._saved > self.SAVE_EVERY_SECONDS:
            self._save()

    def finish(self) -> None:
        """Removes the record: the job is complete."""
        if self._resumable:
            self._record.unlink(missing_ok=True)

    def _save(self) -> None:
        record = {
            "lines": self.done,
            "bytes": self._written,
            "input": self._digest.hexdigest(),
            "settings": self._description,
        }
        paths.write_atomically(self._record, json.dumps(record) + "\n")
        self._saved = time.monotonic()

    def _read_record(self) -> dict[str, Any] | None:
        if not self._record.exists():
            return None
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
            old = _flat(record["settings"])
            size = Path(self._name).stat().st_size
            differs = [
                name
                for name in {**old, **self._description}
                if old.get(name) != self._description.get(name)
            ]
            if size < record["bytes"]:
                raise ValueError("the output is shorter than recorded")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(
                f"{self._record} cannot be used ({error}); delete it to start {self._name} again."
            ) from error
        if differs:
            raise UserError(
                f"{self._name} holds part of a job that differs in {', '.join(differs)}; "
                f"use the same to resume it, or delete {self._record} to start again."
            )
        return record


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their path, such as `decode.beam_size`."""
    settings: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            settings |= _flat(value, f"{prefix}{name}.")
        else:
            settings[prefix + name] = value
    return settings
