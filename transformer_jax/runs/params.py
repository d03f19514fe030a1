"""Parameters of a checkpoint: the best, the newest, or the mean of several."""

import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.config import CheckpointConfig, Config, TrainConfig
from transformer_jax.errors import UserError
from transformer_jax.model import lora
from transformer_jax.ops import platforms
from transformer_jax.runs import checkpoint, digests
from transformer_jax.runs.checkpoint import PyTree
from transformer_jax.runs.retention import quality


def load_params(
    workdir: epath.PathLike, which: str, config: Config, target: PyTree
) -> tuple[PyTree, int]:
    """The model's parameters of a checkpoint, their exponential average where one was kept.

    The adapters of `train.lora_rank` are added to the kernels.

    Args:
      workdir: of a run.
      which: `best`, `latest`, a step, or `average:N` (mean of the N newest scheduled ones).
      config: of the run; defines what `best` means, and how many of the newest were kept.
      target: parameters of the model, a tree of `jax.ShapeDtypeStruct`.

    Returns:
      The parameters on the default device, and the (newest) step they are of.

    Raises:
      UserError: no such checkpoint, or one of another model.
    """
    folder = checkpoint.checkpoint_folder(workdir)
    all_steps = checkpoint.steps(workdir)
    if not all_steps:
        raise UserError(f"{workdir} has no checkpoint; train there first.")
    steps = _choose_steps(folder, all_steps, which, config.checkpoint)
    if len(steps) == 1:
        params = _read_params(folder / str(steps[0]), target, config.train)
    else:
        params = None
        for step in steps:  # one at a time: all of them may not fit
            part = jax.tree.map(
                lambda x: np.asarray(x, np.float64) / len(steps),
                _read_params(folder / str(step), target, config.train),
            )
            params = part if params is None else jax.tree.map(np.add, params, part)
    return jax.tree.map(lambda x, t: jnp.asarray(x, t.dtype), params, target), max(steps)


def _choose_steps(
    folder: epath.Path, steps: list[int], which: str, config: CheckpointConfig
) -> list[int]:
    """Those of `steps` that `which` names, rising."""
    kind, _, number = which.partition(":")
    if which == "latest":
        return steps[-1:]
    if which == "best":
        return [_best_step(folder, steps, config.best_metric)]
    if kind == "average" and number.isdigit() and int(number):
        return _newest_steps(folder, steps, int(number), config.max_to_keep)
    if which.isdigit():
        if int(which) not in steps:
            raise UserError(
                f"{folder} has no checkpoint of step {which}; it has {', '.join(map(str, steps))}."
            )
        return [int(which)]
    raise UserError(f"`checkpoint={which}` must be best, latest, a step or average:N.")


def _best_step(folder: epath.Path, steps: list[int], metric: str) -> int:
    qualities = {}
    for step in steps:
        try:
            metrics = checkpoint.read_metrics(folder.parent, step)
        except UserError as error:
            logging.warning("%s", error)
            continue
        if metric in metrics:
            qualities[step] = quality(metrics, metric)
    if not qualities:
        raise UserError(
            f"No checkpoint in {folder} was evaluated, so none is best; use `checkpoint=latest`."
        )
    return max(qualities, key=lambda step: qualities[step])


def _newest_steps(folder: epath.Path, steps: list[int], count: int, max_to_keep: int) -> list[int]:
    # An older one may have been kept because it is best; it is not among the newest.
    scheduled = (
        step
        for step in reversed(steps)
        if checkpoint.read_meta(folder / str(step)).get("scheduled", True)
    )
    newest = list(itertools.islice(scheduled, min(count, max_to_keep)))
    if count > len(newest):
        raise UserError(
            f"`checkpoint=average:{count}`: {folder} holds the {len(newest)} newest checkpoints; "
            "raise config.checkpoint.max_to_keep when training."
        )
    return newest[::-1]


def _read_params(folder: epath.Path, target: PyTree, config: TrainConfig) -> PyTree:
    item = "ema" if digests.has(folder, "ema") else "params"
    checkpoint.refuse_damage(folder, item)
    if config.lora_rank:
        target = jax.eval_shape(
            lambda params: lora.add_adapters(params, config.lora_rank, jax.random.key(0)), target
        )
    device = jax.sharding.SingleDeviceSharding(platforms.local_devices()[0])
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), target)
    logging.info("reading %s", folder / item)
    with checkpoint.read_errors(f"Checkpoint {folder} cannot be read as this model"):
        params = checkpoint.read_item(folder, item, target)
    return lora.merge(params, config) if config.lora_rank else params
