"""The output of `decode`: a file that an interrupted job continues."""

import collections
import contextlib
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from etils import epath

from transformer_jax import distributed, paths
from transformer_jax.commands.text_output import check_writable, writing
from transformer_jax.errors import UserError


class ResumableOutput:
    """Where results go. Beside a local file, a record says how far it has come.

    The record is there while the job is not finished; the same command then continues after it.

    Args:
      name: - is standard output.
      describe: all that decides what is written, as JSON; a job of another description is refused.
    """

    SAVE_EVERY_SECONDS = 1.0

    def __init__(self, name: str, describe: Callable[[], dict[str, Any]]):
        self._name = name
        path = epath.Path(name)
        self._record = path.parent / f"{path.name}.unfinished"
        # Standard output, a device or pipe, and remote files cannot be gone on with.
        self._resumable = (
            name != "-"
            and not paths.is_remote(name)
            and (not path.exists() or Path(name).is_file())
        )
        # Not of other output: it takes a pass over the parameters.
        self._description = _flat(json.loads(json.dumps(describe()))) if self._resumable else {}
        self._digest = hashlib.sha256()  # of the requests that are done
        self._pending: collections.deque[Any] = collections.deque()
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
            if paths.is_remote(self._name):  # where nothing is opened before the end
                check_writable(self._name)
            self._out = self._files.enter_context(writing(self._name))
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._resumable and exception[0] is not None and self.done > self.skip:
            self._save()
        self._files.__exit__(*exception)

    def remaining(self, requests: Iterator[Any]) -> Iterator[Any]:
        """Requests that are not done yet.

        Raises:
          UserError: where those that are done are not these.
        """
        for request in itertools.islice(requests, self.skip):
            self._digest.update(repr(request).encode())
            self.done += 1
        if self.done < self.skip or (self.skip and self._digest.hexdigest() != self.expected):
            raise UserError(
                f"{self._record} belongs to a job whose first {self.skip} lines of input were "
                f"others; delete it to begin {self._name} anew."
            )
        if self.skip and distributed.is_primary():
            print(f"continuing {self._name} after line {self.skip:,}", file=sys.stderr)
        return self._noting(requests)

    def _noting(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            self._pending.append(request)
            yield request

    def write(self, text: str) -> None:
        """Writes what belongs to the next request."""
        self._out.write(text)
        self._out.flush()
        self._written += len(text.encode("utf-8"))
        self._digest.update(repr(self._pending.popleft()).encode())
        self.done += 1
        if self._resumable and time.monotonic() - self._saved > self.SAVE_EVERY_SECONDS:
            self._save()

    def finish(self) -> None:
        """All is done."""
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
            record = json.loads(self._record.read_text())
            old = _flat(record["settings"])
            size = Path(self._name).stat().st_size
            differs = [
                name
                for name in {**old, **self._description}
                if old.get(name) != self._description.get(name)
            ]
            if size < record["bytes"]:
                raise ValueError("the output is shorter than it says")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(
                f"{self._record} cannot be used ({error}); delete it to begin {self._name} anew."
            ) from error
        if differs:
            raise UserError(
                f"{self._name} holds part of a job that differs in {', '.join(differs)}; "
                f"use the same to resume it, or delete {self._record} to begin anew."
            )
        return record


def _flat(tree: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by their path, such as `decode.beam_size`."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= (
            _flat(value, f"{before}{name}.")
            if isinstance(value, dict)
            else {f"{before}{name}": value}
        )
    return found
