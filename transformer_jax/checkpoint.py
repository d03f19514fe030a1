"""Checkpoints by Orbax: `<workdir>/checkpoints/<step>/`, written in the background.

A checkpoint has the items `params`, `ema` (only where an average is kept), `optimizer`, and
`meta` (JSON: evaluation metrics and the trainer's counters): reading a model reads no optimizer.
"""

import functools
import logging
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from transformer_jax.config import CheckpointConfig
from transformer_jax.errors import UserError

Tree = Any


def quality(metrics: dict[str, float], metric: str) -> float:
    """A number that is the higher, the better the checkpoint."""
    return -metrics[metric] if metric == "eval_loss" else metrics[metric]


class Checkpointer:
    """Saves and restores the checkpoints of one work directory.

    Keeps the `max_to_keep` newest and the `keep_best` best by `best_metric`.
    """

    def __init__(self, workdir: epath.PathLike, config: CheckpointConfig):
        self._config = config
        self._folder = _folder(workdir)
        rank = functools.partial(quality, metric=config.best_metric)
        policies = checkpoint_managers.preservation_policy
        keep = [policies.LatestN(config.max_to_keep)]
        if config.keep_best:
            keep.append(
                policies.BestN(
                    get_metric_fn=rank,
                    n=config.keep_best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                best_fn=rank,
                preservation_policy=policies.AnyPreservationPolicy(keep),
                create=True,
                cleanup_tmp_directories=True,
            ),
        )

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, items: dict[str, Tree], meta: dict[str, Any]) -> None:
        """Starts to save; returns as soon as the arrays are copied.

        Args:
          step: optimizer steps done.
          items: trees by item name; those that are None are left out.
          meta: JSON-able; `meta["metrics"]` ranks the checkpoint.
        """
        args: dict[str, Any] = {
            name: ocp.args.StandardSave(tree) for name, tree in items.items() if tree is not None
        }
        self._manager.save(
            step,
            args=ocp.args.Composite(meta=ocp.args.JsonSave(meta), **args),
            metrics=meta.get("metrics") or None,
        )

    def restore(self, step: int, targets: dict[str, Tree]) -> tuple[dict[str, Tree], dict]:
        """Items as `targets` describes them (`jax.ShapeDtypeStruct`, sharded), and the meta."""
        args: dict[str, Any] = {
            name: ocp.args.StandardRestore(tree)
            for name, tree in targets.items()
            if tree is not None
        }
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(meta=ocp.args.JsonRestore(), **args)
            )
        except (ValueError, OSError, KeyError) as error:
            raise UserError(
                f"Checkpoint {self._folder / str(step)} cannot be read: {error}"
            ) from error
        return {name: restored[name] if name in args else None for name in targets}, restored.meta

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def load_params(
    workdir: epath.PathLike, which: str, config: CheckpointConfig, target: Tree
) -> tuple[Tree, int]:
    """Parameters of a checkpoint, their exponential average where one was kept.

    Args:
      workdir: of a run.
      which: `best`, `latest`, a step, or `average:N` (mean of the N newest).
      config: says what `best` means, and how many of the newest were kept.
      target: tree of `jax.ShapeDtypeStruct`.

    Returns:
      The parameters on the default device, and the (newest) step they come from.

    Raises:
      UserError: no such checkpoint, or one of another model.
    """
    folder = _folder(workdir)
    steps = _steps(folder)
    if not steps:
        raise UserError(f"{workdir} has no checkpoint; train there first.")
    chosen = _choose(folder, steps, which, config)
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
    folder = _folder(workdir) / str(step)
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
        return reader.restore(folder / "meta").get("metrics") or {}


def _folder(workdir: epath.PathLike) -> epath.Path:
    """Where the checkpoints lie; Orbax takes absolute paths only."""
    path = epath.Path(workdir)
    return (path if "://" in str(path) else path.expanduser().absolute()) / "checkpoints"


def _steps(folder: epath.Path) -> list[int]:
    if not folder.exists():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def _choose(
    folder: epath.Path, steps: list[int], which: str, config: CheckpointConfig
) -> list[int]:
    if which == "latest":
        return steps[-1:]
    if which == "best":
        metric = config.best_metric
        found = {step: read_metrics(folder.parent, step) for step in steps}
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
        kept = min(len(steps), config.max_to_keep)
        if count > kept:
            raise UserError(
                f"--checkpoint={which}: {folder} holds the {kept} newest checkpoints; "
                "raise config.checkpoint.max_to_keep when training."
            )
        return steps[-count:]
    if which.isdigit():
        if int(which) not in steps:
            raise UserError(
                f"{folder} has no checkpoint of step {which}; it has {', '.join(map(str, steps))}."
            )
        return [int(which)]
    raise UserError(f"--checkpoint={which!r} must be best, latest, a step or average:N.")


def _read_params(folder: epath.Path, target: Tree) -> Tree:
    item = folder / ("ema" if (folder / "ema").exists() else "params")
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), target)
    logging.info("reading %s", item)
    try:
        with ocp.StandardCheckpointer() as reader:
            return reader.restore(item, target)
    except (ValueError, OSError, KeyError) as error:
        raise UserError(f"Checkpoint {folder} cannot be read as this model: {error}") from error
