"""Files that grow at their end, on a disk or in an object store.

An object store cannot append: opening an object for appending replaces it. There the file is kept
in memory, and each `append` writes all of it. That is atomic: a reader, and a process that starts
after a kill, gets what the last completed `append` has written.
"""

import contextlib
import os

from etils import epath

from transformer_jax import paths


class AppendedFile:
    """A file to which bytes are added.

    Args:
      path: of the file; its content is kept.
    """

    def __init__(self, path: epath.Path):
        self.path = path
        self._content: bytes | None = None  # of a remote file; None: not read yet

    def append(self, data: bytes) -> None:
        """Adds `data` at the end.

        Raises:
          OSError: where it cannot be written; the file is then unchanged.
        """
        if paths.is_remote(self.path):
            self._replace(data)
            return
        old_length = self.path.stat().length if self.path.exists() else 0
        try:
            with self.path.open("ab") as out:
                out.write(data)
        except OSError:
            # A part of a line would spoil the next one.
            if self.path.exists():
                with contextlib.suppress(OSError):
                    os.truncate(self.path, old_length)
            raise

    def _replace(self, data: bytes) -> None:
        if self._content is None:
            with paths.store_errors():
                self._content = self.path.read_bytes() if self.path.exists() else b""
        paths.write(self.path, self._content + data)
        self._content += data
