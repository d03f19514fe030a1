"""Checkpoints by Orbax: `<workdir>/checkpoints/<step>/`, written in the background.

All processes of a run save and restore together, each its part. A checkpoint has the items
`params`, `ema` (only where an average is kept), `optimizer`, and `meta` (JSON: evaluation metrics
and the trainer's counters): reading a model reads no optimizer. `digests.json` tells whether its
files are what was written.
"""

import contextlib
import dataclasses
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from orbax.checkpoint import v1 as ocp

from transformer_jax import distributed, paths
from transformer_jax.config import CheckpointConfig
from transformer_jax.errors import UserError
from transformer_jax.ops import platforms
from transformer_jax.runs import digests
from transformer_jax.runs import workdir as workdir_lib

Tree = Any
SAVE_SECONDS = 600  # a save that takes longer has failed
UNSCHEDULED = "unscheduled"  # among Orbax's metrics of a checkpoint that only a stop has caused


def quality(metrics: dict[str, float], metric: str) -> list[float]:
    """Score and minus loss: higher is better. NaN counts as the worst; a list, as JSON has it."""
    loss = metrics.get("eval_loss", np.inf)
    score = -loss if metric == "eval_loss" else metrics[metric]
    return [-np.inf if np.isnan(x) else x for x in (score, -loss)]


@dataclasses.dataclass
class Retention:
    """Which checkpoints stay, as a preservation policy of Orbax.

    The newest, from which the run resumes; the `max_to_keep` newest that were scheduled, so that
    `average:N` does not depend on when a run was stopped; and the `keep_best` best.
    """

    config: CheckpointConfig

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether each checkpoint stays; they have `step` and `metrics`, oldest first."""
        del context
        metrics = {info.step: info.metrics or {} for info in checkpoints}
        scheduled = [step for step in metrics if UNSCHEDULED not in metrics[step]]
        name = self.config.best_metric
        ranked = sorted(
            (step for step in metrics if name in metrics[step]),
            key=lambda step: quality(metrics[step], name), reverse=True,
        )  # fmt: skip
        kept = {
            *list(metrics)[-1:], *scheduled[-self.config.max_to_keep :],
            *ranked[: self.config.keep_best],
        }  # fmt: skip
        return [step in kept for step in metrics]


class Checkpointer:
    """Saves and restores the checkpoints of one work directory.

    Keeps those that `Retention` names. A save that fails costs no older checkpoint: those are
    removed only after a newer one is whole.
    """

    def __init__(self, workdir: epath.PathLike, config: CheckpointConfig):
        self._config = config
        self._folder = _folder(workdir)
        self._orbax: ocp.training.Checkpointer | None = None
        self._saving: int | None = None  # step that is being written
        self._response: Any = None  # Orbax's, whose thread lasts until its result is taken
        self.newest_saved: int | None = None

    def save(self, step: int, items: dict[str, Tree], meta: dict[str, Any]) -> str | None:
        """Starts to save; returns as soon as the arrays are copied.

        Args:
          step: optimizer steps done.
          items: trees by item name; those that are None are left out.
          meta: JSON-able; `meta["metrics"]` ranks the checkpoint, and `meta["scheduled"]` is False
            where only a stop was the reason to save.

        Returns:
          None, or why this save, or the one before it, has failed.
        """
        saved = {name: tree for name, tree in items.items() if tree is not None}

        metrics = dict(meta.get("metrics") or {})
        if not meta.get("scheduled", True):
            metrics[UNSCHEDULED] = 1.0

        def start():
            self._saving = step
            self._response = self._opened().save_checkpointables_async(
                step, {**saved, "meta": meta}, force=True, metrics=metrics or None
            )

        problem = self.wait()
        self._remove_unfinished()
        # Agreed on before any of several processes goes into Orbax.
        refusal = next((p for p in distributed.all_gather(self._probe()) if p), None)
        return refusal or self._attempt(start) or problem

    def wait(self) -> str | None:
        """Waits for the save that was started last; None, or why it has failed."""
        if self._saving is None:
            return None
        problem = self._attempt(self._response.result)
        if problem is None:
            self.newest_saved = self._saving
        self._saving = self._response = None
        return problem

    def is_saving(self) -> bool:
        """Whether a save is still being written."""
        return self._orbax is not None and self._orbax.is_saving_in_progress()

    def restore(self, step: int, targets: dict[str, Tree]) -> tuple[dict[str, Tree], dict]:
        """Items as `targets` describes them (`jax.ShapeDtypeStruct`, sharded), and the meta."""
        wanted = {name: tree for name, tree in targets.items() if tree is not None}
        with _unreadable(f"Checkpoint {self._folder / str(step)} cannot be read"):
            restored = self._opened().load_checkpointables(step, {**wanted, "meta": None})
        self.newest_saved = step
        return {name: restored.get(name) for name in targets}, restored["meta"]

    def close(self) -> str | None:
        """Waits until everything is written; None, or why it could not be."""
        problem = self.wait()
        if self._orbax is not None:
            self._orbax.close()
            self._orbax = None
        return problem

    def _attempt(self, action: Callable[[], None]) -> str | None:
        """Why `action` has failed on any process, in which case all begin anew."""
        try:
            action()
            problem = None
        except Exception as error:  # Orbax and TensorStore raise all kinds for a full disk
            problem = _reason(error)
        problem = next((p for p in distributed.all_gather(problem) if p), None)
        if problem:
            # What it knows of the failed save would count as a checkpoint.
            failed, self._orbax, self._saving, self._response = self._orbax, None, None, None
            if failed is not None:
                with contextlib.suppress(Exception):
                    failed.close()
            self._remove_unfinished()
        return problem

    def _probe(self) -> str | None:
        """Why nothing can be written; Orbax's threads would wait for minutes, at the end too."""
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
        """Makes room; Orbax would do it at the next start of the program."""
        if distributed.is_primary():
            with contextlib.suppress(OSError), paths.store_errors():
                for path in workdir_lib.uncommitted_checkpoints(self._folder.parent):
                    path.rmtree(missing_ok=True)

    def _opened(self) -> ocp.training.Checkpointer:
        if self._orbax is None:
            self._orbax = _open(self._folder, self._config, self._write_digests)
        return self._orbax

    def _write_digests(self) -> None:
        """Called when all files of a checkpoint are there and before its folder gets its name."""
        if distributed.is_primary():
            aside = list(self._folder.glob(f"{self._saving}{workdir_lib.TMP_SUFFIX}*"))
            digests.write(aside[0] if aside else self._folder / str(self._saving))


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


def _read(folder: epath.Path, item: str, target: Tree = None) -> Any:
    """One item of a checkpoint, as `target` describes it; JSON needs none."""
    with _context():
        return ocp.load_checkpointables(folder, {item: target})[item]


@contextlib.contextmanager
def _unreadable(what: str) -> Iterator[None]:
    """Turns what is wrong with a checkpoint into one sentence that begins with `what`.

    Orbax wraps whatever happens while it reads, an interrupt too, in an error that lists every
    array; only the deepest cause tells.
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
    told = re.search(r"os_error_code='(\d+)'", str(error))  # by TensorStore
    number = int(told[1]) if told else getattr(error, "errno", None)
    if number:
        return os.strerror(number)
    lines = str(error).strip(" '\"\n").splitlines() or [type(error).__name__]
    # A line that ends in a colon says no more than that the next one does.
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return text.split(". ")[0].rstrip(":")[:300]


def newest_intact(
    workdir: epath.PathLike, say: Callable[[str], None], writes: bool = True
) -> int | None:
    """The newest checkpoint whose files are what was written; None where there is none at all.

    Damaged ones that are newer are moved to `<workdir>/damaged_checkpoints/`, and named; so are
    older ones whose scores cannot be read. With `writes=False` they are only named.

    Raises:
      UserError: where there are checkpoints, and every one is damaged; nothing is moved then.
    """
    folder = _folder(workdir)
    damaged: dict[int, str] = {}
    for step in reversed(steps(workdir)):
        problem = digests.find_damage(folder / str(step))
        if problem is None:
            for older in (s for s in steps(workdir) if s < step):
                why = digests.find_damage(folder / str(older), ["meta", "metrics"])
                if why is not None:
                    damaged[older] = why
            for bad, why in damaged.items():
                aside = f"; moved to {_set_aside(folder / str(bad))}" if writes else ""
                say(f"checkpoint {bad} is damaged: {why}{aside}")
            return step
        damaged[step] = problem
    if damaged:
        told = "; ".join(f"{step}: {why}" for step, why in damaged.items())
        raise UserError(
            f"Every checkpoint in {folder} is damaged ({told}); restore one from a copy, or start "
            "anew in another --workdir."
        )
    return None


def is_intact(workdir: epath.PathLike, step: int) -> bool:
    """Whether the files of a checkpoint are what was written."""
    return digests.find_damage(_folder(workdir) / str(step)) is None


def _set_aside(folder: epath.Path) -> epath.Path:
    parent = folder.parent.parent / "damaged_checkpoints"
    parent.mkdir(exist_ok=True)
    target, number = parent / folder.name, 1
    while target.exists():
        target, number = parent / f"{folder.name}.{number}", number + 1
    paths.move_folder(folder, target)
    return target


def load_params(
    workdir: epath.PathLike, which: str, config: CheckpointConfig, target: Tree
) -> tuple[Tree, int]:
    """Parameters of a checkpoint, their exponential average where one was kept.

    Args:
      workdir: of a run.
      which: `best`, `latest`, a step, or `average:N` (mean of the N newest scheduled ones).
      config: says what `best` means, and how many of the newest were kept.
      target: tree of `jax.ShapeDtypeStruct`.

    Returns:
      The parameters on the default device, and the (newest) step they come from.

    Raises:
      UserError: no such checkpoint, or one of another model.
    """
    folder = _folder(workdir)
    there = steps(workdir)
    if not there:
        raise UserError(f"{workdir} has no checkpoint; train there first.")
    chosen = _choose(folder, there, which, config)
    mean: Tree = None
    for step in chosen:
        params = _read_params(folder / str(step), target)
        if len(chosen) == 1:
            mean = params
        else:
            parts = jax.tree.map(lambda x: np.asarray(x, np.float64) / len(chosen), params)
            mean = parts if mean is None else jax.tree.map(np.add, mean, parts)
    return jax.tree.map(lambda x, t: jax.numpy.asarray(x, t.dtype), mean, target), max(chosen)


def read_metrics(workdir: epath.PathLike, step: int) -> dict[str, float]:
    """Evaluation metrics kept with a checkpoint; empty where it was not evaluated."""
    return _read_meta(_folder(workdir) / str(step)).get("metrics") or {}


def _read_meta(folder: epath.Path) -> dict[str, Any]:
    _refuse_damage(folder, "meta")
    return _read(folder, "meta")


def _refuse_damage(folder: epath.Path, part: str) -> None:
    problem = digests.find_damage(folder, [part])
    if problem:
        raise UserError(
            f"Checkpoint {folder} is damaged: {problem}; choose another with --checkpoint."
        )


def _folder(workdir: epath.PathLike) -> epath.Path:
    """Where the checkpoints lie; Orbax takes absolute paths only."""
    path = epath.Path(workdir)
    return (path if paths.is_remote(path) else path.absolute()) / "checkpoints"


def steps(workdir: epath.PathLike) -> list[int]:
    """Steps of the checkpoints that are there, rising."""
    return workdir_lib.committed_steps(workdir)


def _choose(
    folder: epath.Path, steps: list[int], which: str, config: CheckpointConfig
) -> list[int]:
    if which == "latest":
        return steps[-1:]
    if which == "best":
        metric = config.best_metric
        found = {}
        for step in steps:
            try:
                found[step] = read_metrics(folder.parent, step)
            except UserError as error:
                logging.warning("%s", error)
        ranked = {s: quality(m, metric) for s, m in found.items() if metric in m}
        if not ranked:
            raise UserError(
                f"No checkpoint in {folder} was evaluated, so none is best; "
                "use --checkpoint=latest."
            )
        return [max(ranked, key=lambda step: ranked[step])]
    if which.startswith("average:") and which[8:].isdigit() and int(which[8:]):
        count = int(which[8:])
        # An older one may have stayed because it is best; it is not among the newest.
        scheduled = (
            s for s in reversed(steps) if _read_meta(folder / str(s)).get("scheduled", True)
        )
        newest = [*itertools.islice(scheduled, min(count, config.max_to_keep))]
        if count > len(newest):
            raise UserError(
                f"--checkpoint={which}: {folder} holds the {len(newest)} newest checkpoints; "
                "raise config.checkpoint.max_to_keep when training."
            )
        return newest[::-1]
    if which.isdigit():
        if int(which) not in steps:
            raise UserError(
                f"{folder} has no checkpoint of step {which}; it has {', '.join(map(str, steps))}."
            )
        return [int(which)]
    raise UserError(f"--checkpoint={which!r} must be best, latest, a step or average:N.")


def _read_params(folder: epath.Path, target: Tree) -> Tree:
    item = "ema" if digests.has(folder, "ema") else "params"
    _refuse_damage(folder, item)
    device = jax.sharding.SingleDeviceSharding(platforms.local_devices()[0])
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), target)
    logging.info("reading %s", folder / item)
    with _unreadable(f"Checkpoint {folder} cannot be read as this model"):
        return _read(folder, item, target)
