"""Checkpoints by Orbax: `<workdir>/checkpoints/<step>/`, written in the background.

All processes of a run save and restore together, each its shards. A checkpoint has the items
`params`, `ema` (only where an average is kept), `optimizer`, and `meta` (JSON: evaluation metrics
and the trainer's counters). Reading a model reads no optimizer. `digests.json` shows whether the
files of a checkpoint are what was written.
"""

import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from etils import epath
from orbax.checkpoint import v1 as ocp

from transformer_jax import distributed, paths
from transformer_jax.config import CheckpointConfig
from transformer_jax.errors import UserError
from transformer_jax.workdir import digests
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir.retention import UNSCHEDULED, Retention

PyTree = Any  # of arrays, or of what describes arrays
SAVE_SECONDS = 600  # a save that takes longer has failed
READ_AT_ONCE = 2**26  # bytes that are read of a model at once; more than the largest array

# Orbax joins what the processes have written by `glob`, which takes the folder's name for a part of
# the pattern: in a folder `a[b]` it would find nothing, and save nothing that can be read.
_Path: Any = type(epath.Path())
_glob = _Path.glob


def _glob_in(folder: epath.Path, pattern: str) -> Iterator[epath.Path]:
    """What `folder`, whose name is no pattern, has for `pattern`."""
    is_plain = paths.is_remote(folder) or glob.escape(str(folder)) == str(folder)
    return _glob(folder if is_plain else epath.Path(glob.escape(str(folder))), pattern)


_Path.glob = _glob_in


class FailedSave(NamedTuple):
    """A checkpoint that could not be written."""

    step: int
    reason: str


class Checkpointer:
    """Saves and restores the checkpoints of one work directory.

    It keeps what `Retention` names, and removes others only once a newer checkpoint is complete.
    """

    def __init__(self, workdir: epath.PathLike, config: CheckpointConfig):
        self._config = config
        self._folder = checkpoint_folder(workdir)
        self._orbax: ocp.training.Checkpointer | None = None
        self._saving: int | None = None  # step that is being written
        # Orbax's, whose thread lasts until its result is read.
        self._response: ocp.AsyncResponse[bool] | None = None
        self.newest_saved: int | None = None

    def save(self, step: int, items: dict[str, PyTree], meta: dict[str, Any]) -> FailedSave | None:
        """Starts to save; returns as soon as the arrays are copied.

        Args:
          step: optimizer steps done.
          items: trees by item name; those that are None are left out.
          meta: JSON-able; `meta["metrics"]` ranks the checkpoint, and `meta["scheduled"]` is False
            where only a stop was the reason to save.

        Returns:
          This save, if it has failed at once. Else the one before, if it has failed and `wait` was
          not called after it.
        """
        checkpointables = {name: tree for name, tree in items.items() if tree is not None}
        checkpointables["meta"] = meta
        metrics = dict(meta.get("metrics") or {})
        if not meta.get("scheduled", True):
            metrics[UNSCHEDULED] = 1.0

        def start() -> None:
            self._saving = step
            self._response = self._opened().save_checkpointables_async(
                step, checkpointables, force=True, metrics=metrics or None
            )

        earlier = self.wait()
        self._remove_unfinished()
        # All processes must agree before any of them calls Orbax.
        reason = _first_problem(self._probe()) or self._attempt(start)
        return FailedSave(step, reason) if reason else earlier

    def wait(self) -> FailedSave | None:
        """Waits for the save that was started last, together with all processes.

        Returns:
          That save, if it has failed.
        """
        if self._response is None or self._saving is None:
            return None
        step = self._saving
        reason = self._attempt(self._response.result)
        self._saving = self._response = None
        if reason:
            return FailedSave(step, reason)
        self.newest_saved = step
        return None

    def is_saving(self) -> bool:
        """Whether a save is still being written."""
        return self._orbax is not None and self._orbax.is_saving_in_progress()

    def restore(self, step: int, targets: dict[str, PyTree]) -> tuple[dict[str, PyTree], dict]:
        """Items as `targets` describes them (`jax.ShapeDtypeStruct`, sharded), and the meta."""
        checkpointables = {name: tree for name, tree in targets.items() if tree is not None}
        checkpointables["meta"] = None
        with read_errors(f"Checkpoint {self._folder / str(step)} cannot be read"):
            restored = self._opened().load_checkpointables(step, checkpointables)
        self.newest_saved = step
        return {name: restored.get(name) for name in targets}, restored["meta"]

    def close(self) -> FailedSave | None:
        """Waits until everything is written; returns the last save, if it has failed."""
        failed = self.wait()
        if self._orbax is not None:
            self._orbax.close()
            self._orbax = None
        # Threads of a failed save may write on after its folder was removed.
        self._remove_unfinished()
        return failed

    def _attempt(self, action: Callable[[], object]) -> str | None:
        """Why `action` has failed on any process; all of them then open a new Orbax manager."""
        try:
            action()
            problem = None
        except Exception as error:  # Orbax and TensorStore raise all kinds for a full disk
            problem = _reason(error)
        problem = _first_problem(problem)
        if problem:
            # The old manager would count the failed save as a checkpoint.
            failed, self._orbax, self._saving, self._response = self._orbax, None, None, None
            if failed is not None:
                with contextlib.suppress(Exception):
                    failed.close()
            self._remove_unfinished()
        return problem

    def _probe(self) -> str | None:
        """Why nothing can be written, if so; Orbax's threads would wait for minutes."""
        if not distributed.is_primary():
            return None
        probe = self._folder.parent / ".probe"
        try:
            with paths.store_errors():
                probe.write_bytes(bytes(4096))
                probe.unlink()
        except OSError as error:
            return _reason(error)
        return None

    def _remove_unfinished(self) -> None:
        """Frees the space of failed saves; Orbax would do it at the next start of the program."""
        if distributed.is_primary():
            with contextlib.suppress(OSError), paths.store_errors():
                for path in workdir_lib.uncommitted_checkpoints(self._folder.parent):
                    path.rmtree(missing_ok=True)

    def _opened(self) -> ocp.training.Checkpointer:
        if self._orbax is None:
            self._orbax = _open(self._folder, self._config, self._write_digests)
        return self._orbax

    def _write_digests(self) -> None:
        """Called after all files of a checkpoint are written, before its folder gets its name."""
        if distributed.is_primary():
            temporary = paths.matching(self._folder, f"{self._saving}{workdir_lib.TMP_SUFFIX}*")
            digests.write(temporary[0] if temporary else self._folder / str(self._saving))


def _first_problem(problem: str | None) -> str | None:
    """The first problem of any process, on all of them."""
    return next((p for p in distributed.all_gather(problem) if p), None)


def _open(
    folder: epath.Path, config: CheckpointConfig, before_commit: Callable[[], None]
) -> ocp.training.Checkpointer:
    context = _context()
    context.asynchronous.timeout_secs = SAVE_SECONDS
    # A function: Orbax copies its settings deeply, and a bound method with its object.
    context.asynchronous.post_finalization_callback = lambda: before_commit()
    return ocp.training.Checkpointer(
        folder,
        context=context,
        preservation_policy=Retention(config),
        cleanup_tmp_directories=True,
    )


def _context() -> ocp.Context:
    """Orbax's settings: `meta` is JSON, which Orbax would take for a tree of arrays."""
    registry = ocp.handlers.local_registry()
    registry.add(ocp.handlers.JsonHandler, checkpointable_name="meta")
    context = ocp.Context()
    context.checkpointables.registry = registry
    return context


def read_item(folder: epath.Path, item: str, target: PyTree = None) -> Any:
    """One item of a checkpoint, as `target` describes it; JSON needs none.

    Other processes need not call it: `target` is on the host or on this process's devices.
    """
    context, sizes = _context(), [x.size for x in jax.tree.leaves(target)]
    context.memory.read_concurrent_bytes = max([READ_AT_ONCE, *(4 * n + 1 for n in sizes)])
    if distributed.process_count() > 1:  # else Orbax waits for all of them
        this = jax.process_index()
        context.multiprocessing.primary_host = this
        context.multiprocessing.active_processes = {this}
        context.multiprocessing.barrier_sync_key_prefix = f"process_{this}"
    with context:
        return ocp.load_checkpointables(folder, {item: target})[item]


@contextlib.contextmanager
def read_errors(what: str) -> Iterator[None]:
    """Turns an error of Orbax while it reads into one sentence that begins with `what`.

    Orbax wraps whatever happens while it reads, an interrupt too, in an error that lists every
    array. Only the deepest cause is useful.
    """
    try:
        yield
    except (ValueError, OSError, KeyError) as error:
        cause = _deepest(error)
        if not isinstance(cause, ValueError | OSError | KeyError | TypeError):
            raise cause from error
        raise UserError(f"{what}: {_reason(error)}") from error


def _deepest(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    """What the operating system says, or the first sentence of the deepest cause."""
    error = _deepest(error)
    code = re.search(r"os_error_code='(\d+)'", str(error))  # by TensorStore
    number = int(code[1]) if code else getattr(error, "errno", None)
    if number:
        return os.strerror(number)
    lines = str(error).strip(" '\"\n").splitlines() or [type(error).__name__]
    # A line that ends in a colon only introduces the next one.
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text.split(". ")[0].rstrip(":")[:300]


def find_resume_step(
    workdir: epath.PathLike, say: Callable[[str], None], *, move_damaged: bool = True
) -> int | None:
    """Finds the newest checkpoint whose files are what was written.

    Newer ones, which are damaged, are reported and moved to `<workdir>/damaged_checkpoints/`. So
    are older ones whose scores cannot be read.

    Args:
      workdir: folder of the run.
      say: gets a line about each damaged checkpoint.
      move_damaged: False: only report them.

    Returns:
      Its step; None where there is no checkpoint.

    Raises:
      UserError: where there are checkpoints, and every one is damaged; nothing is moved then.
    """
    folder = checkpoint_folder(workdir)
    damaged: dict[int, str] = {}
    for step in reversed(steps(workdir)):
        problem = digests.find_damage(folder / str(step))
        if problem is None:
            for older in (s for s in steps(workdir) if s < step):
                why = digests.find_damage(folder / str(older), ["meta", "metrics"])
                if why is not None:
                    damaged[older] = why
            for bad, why in damaged.items():
                moved = f"; moved to {_move_aside(folder / str(bad))}" if move_damaged else ""
                say(f"checkpoint {bad} is damaged: {why}{moved}")
            return step
        damaged[step] = problem
    if damaged:
        reasons = "; ".join(f"{step}: {why}" for step, why in damaged.items())
        raise UserError(
            f"Every checkpoint in {folder} is damaged ({reasons}); restore one from a copy, or "
            "start again in another `workdir`."
        )
    return None


def is_intact(workdir: epath.PathLike, step: int) -> bool:
    """Whether the files of a checkpoint are what was written."""
    return digests.find_damage(checkpoint_folder(workdir) / str(step)) is None


def _move_aside(folder: epath.Path) -> epath.Path:
    parent = folder.parent.parent / "damaged_checkpoints"
    parent.mkdir(exist_ok=True)
    target, number = parent / folder.name, 1
    while target.exists():
        target, number = parent / f"{folder.name}.{number}", number + 1
    paths.move_folder(folder, target)
    return target


def read_metrics(workdir: epath.PathLike, step: int) -> dict[str, float]:
    """Evaluation metrics kept with a checkpoint; empty where it was not evaluated."""
    return read_meta(checkpoint_folder(workdir) / str(step)).get("metrics") or {}


def read_meta(folder: epath.Path) -> dict[str, Any]:
    """The item `meta` of a checkpoint; the arguments of `Checkpointer.save` describe it."""
    refuse_damage(folder, "meta")
    return read_item(folder, "meta")


def refuse_damage(folder: epath.Path, item: str) -> None:
    """Raises a `UserError` where an item of a checkpoint is damaged."""
    problem = digests.find_damage(folder, [item])
    if problem:
        raise UserError(f"Checkpoint {folder} is damaged: {problem}; choose another `checkpoint`.")


def checkpoint_folder(workdir: epath.PathLike) -> epath.Path:
    """The folder of all checkpoints; Orbax takes absolute paths only."""
    path = epath.Path(workdir)
    return (path if paths.is_remote(path) else path.absolute()) / "checkpoints"


def steps(workdir: epath.PathLike) -> list[int]:
    """Steps of the checkpoints in `workdir`, rising."""
    return workdir_lib.committed_steps(workdir)
