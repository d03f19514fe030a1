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
from transformer_jax.workdir import checkpoint, digests
from transformer_jax.workdir.checkpoint import PyTree
from transformer_jax.workdir.retention import quality


def load_params(
    workdir: epath.PathLike, which: str, config: Config, target: PyTree, on_host: bool = False
) -> tuple[PyTree, int]:
    """The model's parameters of a checkpoint, their exponential average where one was kept.

    The adapters of `train.lora_rank` are added to the kernels.

    Args:
      workdir: of a run.
      which: `best`, `latest`, a step, or `average:N` (mean of the N newest scheduled ones).
      config: of the run; defines what `best` means, and how many of the newest were kept.
      target: parameters of the model, a tree of `jax.ShapeDtypeStruct`. They are rounded to these
        types after averages and adapters were computed.
      on_host: give NumPy arrays, of a model that may be larger than a device's memory.

    Returns:
      The parameters on the default device, and the (newest) step they are of.

    Raises:
      UserError: no such checkpoint, or one of another model.
    """
    folder = checkpoint.checkpoint_folder(workdir)
    steps = choose_steps(workdir, which, config.checkpoint)
    stored = target
    if len(steps) > 1 or config.train.lora_rank:
        stored = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), target)
    if len(steps) == 1:
        params = _read_params(folder / str(steps[0]), stored, config.train, on_host)
    else:
        params = None
        for step in steps:  # one at a time: all of them may not fit
            part = jax.tree.map(
                lambda x: np.asarray(x, np.float64) / len(steps),
                _read_params(folder / str(step), stored, config.train, on_host),
            )
            params = part if params is None else jax.tree.map(np.add, params, part)
        params = jax.tree.map(lambda x: x.astype(np.float32), params)
    as_array = np.asarray if on_host else jnp.asarray
    return jax.tree.map(lambda x, t: as_array(x, t.dtype), params, target), max(steps)


def choose_steps(workdir: epath.PathLike, which: str, config: CheckpointConfig) -> list[int]:
    """The steps of the checkpoints that `which` names, rising; arguments as of `load_params`.

    Raises:
      UserError: there is no such checkpoint.
    """
    folder, steps = checkpoint.checkpoint_folder(workdir), checkpoint.steps(workdir)
    if not steps:
        raise UserError(f"{workdir} has no checkpoint; train there first.")
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
            f"No checkpoint in {folder} was evaluated by {metric}, so none is best; use "
            f"`checkpoint=latest`, or for a further model {folder.parent}@latest."
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


def _read_params(folder: epath.Path, target: PyTree, config: TrainConfig, on_host: bool) -> PyTree:
    item = "ema" if digests.has(folder, "ema") else "params"
    checkpoint.refuse_damage(folder, item)
    if config.lora_rank:
        target = jax.eval_shape(
            lambda params: lora.add_adapters(params, config.lora_rank, jax.random.key(0)), target
        )
    device = jax.sharding.SingleDeviceSharding(platforms.local_devices()[0])

    def place(x: jax.ShapeDtypeStruct) -> np.ndarray | jax.ShapeDtypeStruct:
        if on_host:  # where Orbax reads what is described by an array of NumPy; this one is small
            return np.broadcast_to(np.zeros((), x.dtype), x.shape)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device)

    target = jax.tree.map(place, target)
    logging.info("reading %s", folder / item)
    with checkpoint.read_errors(f"Checkpoint {folder} cannot be read as this model"):
        params = checkpoint.read_item(folder, item, target)
    return lora.merge(params, config) if config.lora_rank else params
