"""This package's training step with single optimisations replaced by plain code.

    python benchmarks/train_step.py --peers= --undo=dense,optimizer,loss,all --sizes=small

Shows the effect of each optimisation: `dense` (a custom backward pass), `optimizer` (Adam written
out), `loss` (a gradient that is computed in chunks). `docs/training_speed.md` has the table.
"""

from collections.abc import Callable

from train_step_workers import Ours, Task


class Undone(Ours):
    """`Ours` after applying one of `CHANGES` in its process."""

    def __init__(self, task: Task, change: str):
        CHANGES[change]()
        super().__init__(task)


def _dense() -> None:
    """Products as JAX differentiates them."""
    import jax.numpy as jnp

    from transformer_jax.model import layers, primitives

    def plain(x, kernel, bias, num_inner=1):
        out = jnp.tensordot(x, kernel.astype(x.dtype), num_inner)
        return out if bias is None else out + bias.astype(x.dtype)

    for module in (layers, primitives):
        setattr(module, "dense", plain)  # noqa: B010  # another type than what it replaces


def _optimizer() -> None:
    """Optax's Adam; a bad update is discarded afterwards."""
    import jax
    import jax.numpy as jnp
    import optax

    from transformer_jax.training import optimizer

    def adam(config, schedule):
        tx = optax.adam(schedule, config.b1, config.b2, config.eps)

        def update(grads, state, params, *, accept, **_):
            updates, new_state = tx.update(grads, state, params)
            updates = jax.tree.map(lambda u: jnp.where(accept, u, 0.0), updates)
            return updates, jax.tree.map(lambda a, b: jnp.where(accept, a, b), new_state, state)

        return optax.GradientTransformationExtraArgs(tx.init, update)

    optimizer.OPTIMIZERS["adam"] = adam


def _loss() -> None:
    """The same chunks, differentiated by JAX, which recomputes the logits of each chunk."""
    import functools

    import jax
    import jax.numpy as jnp

    from transformer_jax.ops import losses
    from transformer_jax.ops.dense import projected_logits

    def projected(
        hidden,
        table,
        targets,
        weights,
        label_smoothing=0.0,
        chunk_size=512,
        bias=None,
        softcap=0.0,
        second=None,
        r_drop=0.0,
    ):
        del second, r_drop  # here a step has one pass
        size = min(chunk_size, len(targets))

        @jax.checkpoint
        def chunk(args):
            h, t, w = args
            logits = projected_logits(h, table.astype(h.dtype), bias, softcap)
            return losses.cross_entropy(logits, t, w, label_smoothing)

        def divide(x):
            x = jnp.pad(x, [(0, -len(x) % size)] + [(0, 0)] * (x.ndim - 1))
            return x.reshape(-1, size, *x.shape[1:])  # --> [N / size, size, ...]

        sums = jax.lax.map(chunk, jax.tree.map(divide, (hidden, targets, weights)))
        return jax.tree.map(functools.partial(jnp.sum, axis=0), sums)

    losses.projected_cross_entropy = projected


def _all() -> None:
    for name, change in CHANGES.items():
        if name != "all":
            change()


CHANGES: dict[str, Callable[[], None]] = {
    "dense": _dense,
    "optimizer": _optimizer,
    "loss": _loss,
    "all": _all,
}
