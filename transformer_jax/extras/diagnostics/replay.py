"""`train.py --replay=FILE`: repeats a skipped step with the parameters that it had."""

import copy
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.loader import Batch
from transformer_jax.training import faults
from transformer_jax.training.loop import Trainer, open_run
from transformer_jax.training.objective import Objective
from transformer_jax.training.step import PyTree
from transformer_jax.workdir import checkpoint

NUM_NAMES = 8


def replay(
    config: Config,
    workdir: epath.PathLike,
    path: epath.PathLike,
    say: Callable[[str], None] = print,
) -> dict[str, float]:
    """Trains from the newest checkpoint before the step up to it, and runs the batch of the file.

    Nothing is written. Without a checkpoint from before the step, the oldest one is used, and
    reported: its parameters are later ones.

    Args:
      config: of the run.
      workdir: of the run.
      path: a file of its `bad_batches/`.
      say: gets the results, line by line.

    Returns:
      `loss` and `grad_norm` of the batch, and `skipped`, 1.0 if it would be skipped again.

    Raises:
      UserError: where file or run cannot be read.
    """
    about, batch = faults.read_bad_batch(path)
    step = about["step"]
    with open_run(config, workdir, read_only=True) as trainer:
        intact = [s for s in checkpoint.steps(workdir) if checkpoint.is_intact(workdir, s)]
        earlier = [s for s in intact if s < step]
        start = earlier[-1] if earlier else (intact[0] if intact else 0)
        if intact and start != trainer.step:
            trainer.restore(start)
        if start >= step:
            say(f"no checkpoint is left from before step {step}; that of step {start} is used")
        source = trainer.batches()
        for t in range(start, step - 1):
            trainer.state, _ = trainer.runner.step(trainer.state, source[t])
        if trainer.data.batches(trainer.config).digest(step - 1) != about["digest"]:
            say(f"batch {step} of the run is another now; the file's is used")
        return _repeat_step(trainer, about, batch, say)


def _repeat_step(
    trainer: Trainer, about: dict[str, Any], batch: Batch, say: Callable[[str], None]
) -> dict[str, float]:
    """Runs the step and compares it with what `about` records of it."""
    state = trainer.runner.to_checkpoint_layout(trainer.state)
    params = trainer.runner.train_step.gradient_point(state)
    say(f"parameters: {_describe_finite(params)}")
    rng = jax.random.fold_in(jax.random.key(trainer.config.seed), state.step)
    step = copy.copy(trainer.runner.train_step)
    model = step.objective.model.clone(gather=None)  # the compiler communicates
    step.objective = Objective(step.config, model)
    with jax.set_mesh(trainer.runner.mesh):
        sums = jax.jit(step.grad_sums)(params, _padded(batch, trainer), rng)
    say(f"gradients: {_describe_finite(sums.grads)}")
    _, metrics = trainer.runner.step(trainer.state, _padded(batch, trainer))
    metrics = jax.device_get(metrics)
    result = {
        "loss": float(metrics["loss_sum"] / metrics["tokens"]),
        "grad_norm": float(metrics["grad_norm"]),
        "skipped": float(metrics["skipped"]),
    }
    same = all(
        result[name] == about[name] or (math.isnan(result[name]) and math.isnan(about[name]))
        for name in ("loss", "grad_norm")
    )
    recorded = f"recorded were {about['loss']:.6g} and {about['grad_norm']:.6g}"
    say(
        f"step {about['step']}: loss {result['loss']:.6g}, gradient norm "
        f"{result['grad_norm']:.6g}; {'as recorded' if same else recorded}"
    )
    return result


def _padded(batch: Batch, trainer: Trainer) -> Batch:
    """The batch with empty rows, so that the devices divide its number of rows."""
    missing = -len(batch["inputs"]) % trainer.row_multiple
    return {
        # No token is number -1 of a source.
        name: np.pad(
            x,
            [(0, missing)] + [(0, 0)] * (x.ndim - 1),
            constant_values=-1 if name == "alignment" else 0,
        )
        for name, x in batch.items()
    }


def _describe_finite(tree: PyTree) -> str:
    """Whether all arrays are finite, or the names of those that are not."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, x in flat
        if not bool(jnp.all(jnp.isfinite(x)))
    ]
    if not names:
        return "all finite"
    if len(names) > NUM_NAMES:
        names = [*names[:NUM_NAMES], f"and {len(names) - NUM_NAMES} more of {len(flat)}"]
    return "not finite: " + ", ".join(names)
