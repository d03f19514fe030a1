"""Removes what a start that fails has made in a work directory."""

import contextlib
import os
import shutil
from pathlib import Path

from transformer_jax import distributed, interrupts, paths

# What a run writes before its first step. Nothing else is removed: damaged checkpoints may have
# been moved aside, and users may have put files there.
WRITTEN = {
    distributed.ROLL_CALL,
    ".lock",
    "config.json",
    "data.json",
    "history",
    "metrics.jsonl",
    "samples.jsonl",
    "tensorboard",
    "tokenizer",
}


class NewFiles:
    """A context that removes a run's new files in a work directory after an error or Ctrl-C.

    What was there before stays as it is. Make it before anything is written, and enter it when the
    work directory is locked. Objects in a bucket are left alone.

    Args:
      workdir: of the run, new or not.

    Attributes:
      are_kept: whether `keep` was called.
    """

    def __init__(self, workdir: os.PathLike[str]):
        self._folder = None if paths.is_remote(workdir) else Path(workdir)
        self.are_kept = False
        if self._folder:
            folders = (self._folder, *self._folder.parents)
            self._new_folders = [folder for folder in folders if not folder.exists()]
            self._before = set(os.listdir(self._folder)) if self._folder.is_dir() else set()
            if self._before == {distributed.ROLL_CALL}:
                self._before = set()
                if distributed.is_primary():
                    self._new_folders = distributed.new_folders(self._folder)

    def keep(self) -> None:
        """Keeps everything, also after an error."""
        self.are_kept = True

    def __enter__(self) -> "NewFiles":
        self._is_primary = distributed.is_primary()  # a process that ends does not ask any more
        interrupts.at_end.append(self._remove)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        interrupts.at_end.remove(self._remove)
        if error is not None:
            self._remove()

    def _remove(self) -> None:
        if self.are_kept or not self._folder or not self._is_primary:
            return
        with contextlib.suppress(OSError):  # the first error matters more
            for name in WRITTEN & (set(os.listdir(self._folder)) - self._before):
                path = self._folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            for folder in self._new_folders:
                folder.rmdir()  # fails, and ends the loop, where something else is in it
