"""`train.py --replay=FILE`: a skipped step once more, with the parameters it met."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.loader import Batch
from transformer_jax.runs import checkpoint
from transformer_jax.training import faults
from transformer_jax.training.loop import Trainer, open_run

NUM_NAMES = 8


def replay(
    config: Config,
    workdir: epath.PathLike,
    path: epath.PathLike,
    say: Callable[[str], None] = print,
) -> dict[str, float]:
    """Goes from the newest checkpoint before the step up to it, and runs the batch of the file.

    Nothing is written. Where older checkpoints are gone, the oldest that is left serves, and that
    is said: its parameters are later ones.

    Args:
      config: of the run.
      workdir: of the run.
      path: a file of its `bad_batches/`.
      say: gets what is found, line by line.

    Returns:
      `loss` and `grad_norm` of the batch, and `skipped`, 1.0 if it would be skipped again.

    Raises:
      UserError: where file or run cannot be read.
    """
    about, batch = faults.read_bad_batch(path)
    step = about["step"]
    with open_run(config, workdir, read_only=True) as trainer:
        kept = [s for s in checkpoint.steps(workdir) if checkpoint.is_intact(workdir, s)]
        before = [s for s in kept if s < step]
        start = before[-1] if before else (kept[0] if kept else 0)
        if kept and start != trainer.step:
            trainer.restore(start)
        if start >= step:
            say(f"no checkpoint is left from before step {step}; that of step {start} serves")
        source = trainer.batches()
        for t in range(start, step - 1):
            trainer.state, _ = trainer.runner.step(trainer.state, source[t])
        if trainer.data.batches(trainer.config).digest(step - 1) != about["digest"]:
            say(f"the run's own batch {step} is another now; the file's is used")
        return _look_at(trainer, about, batch, say)


def _look_at(trainer: Trainer, about: dict, batch: Batch, say: Callable[[str], None]) -> dict:
    state = trainer.runner.to_checkpoint_layout(trainer.state)
    params = trainer.runner.gather(state.params)
    broken = _not_finite(params)
    say(f"parameters: {'all finite' if not broken else 'not finite: ' + ', '.join(broken)}")
    rng = jax.random.fold_in(jax.random.key(trainer.config.seed), state.step)
    sums = jax.jit(trainer.runner.train_step.grad_sums)(params, _padded(batch, trainer), rng)
    broken = _not_finite(sums.grads)
    say(f"gradients: {'all finite' if not broken else 'not finite: ' + ', '.join(broken)}")
    _, metrics = trainer.runner.step(trainer.state, _padded(batch, trainer))
    metrics = jax.device_get(metrics)
    found = {
        "loss": float(metrics["loss_sum"] / metrics["tokens"]),
        "grad_norm": float(metrics["grad_norm"]),
        "skipped": float(metrics["skipped"]),
    }
    same = all(
        found[name] == about[name] or (math.isnan(found[name]) and math.isnan(about[name]))
        for name in ("loss", "grad_norm")
    )
    say(
        f"step {about['step']}: loss {found['loss']:.6g}, gradient norm {found['grad_norm']:.6g}; "
        + (
            "as recorded"
            if same
            else f"recorded were {about['loss']:.6g} and {about['grad_norm']:.6g}"
        )
    )
    return found


def _padded(batch: Batch, trainer: Trainer) -> Batch:
    """With empty rows, until the devices divide them."""
    missing = -len(batch["inputs"]) % trainer.row_multiple
    return {name: np.pad(x, [(0, missing), (0, 0)]) for name, x in batch.items()}


def _not_finite(tree) -> list[str]:
    """Names of arrays that hold something that is not finite."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, x in flat
        if not bool(jnp.all(jnp.isfinite(x)))
    ]
    if len(names) > NUM_NAMES:
        return [*names[:NUM_NAMES], f"and {len(names) - NUM_NAMES} more of {len(flat)}"]
    return names
