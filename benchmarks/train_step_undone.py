"""This package's training step with one of its own parts replaced by the plain form.

    python benchmarks/train_step.py --peers= --undo=dense,optimizer,loss,all --sizes=small

Says what each part brings: `dense` (a backward pass of its own), `optimizer` (Adam written out),
`loss` (its gradient formed chunk by chunk). `docs/training.md` has the table.
"""

from collections.abc import Callable

from train_step_workers import Ours, Task


class Undone(Ours):
    """`Ours`, after one of `CHANGES` in its process."""

    def __init__(self, task: Task, change: str):
        CHANGES[change]()
        super().__init__(task)


def _dense() -> None:
    """Products as JAX differentiates them."""
    import jax.numpy as jnp

    from transformer_jax import layers
    from transformer_jax.ops import dense

    layers.dense = dense.dense = lambda x, kernel, num_axes=1: jnp.tensordot(x, kernel, num_axes)


def _optimizer() -> None:
    """Optax's Adam, its new state and parameters selected afterwards."""
    import optax

    from transformer_jax.training import optimizer

    optimizer._adam = lambda config, schedule: optimizer._unless_bad(
        optax.adam(schedule, config.b1, config.b2, config.eps)
    )


def _loss() -> None:
    """The same chunks, differentiated by JAX, which computes each chunk's logits again."""
    import functools

    import jax
    import jax.numpy as jnp

    from transformer_jax.ops import losses

    def projected(hidden, table, targets, weights, label_smoothing=0.0, chunk_size=512, bias=None):
        @jax.checkpoint
        def chunk(args):
            h, t, w = args
            return losses.cross_entropy(losses._logits(h, table, bias), t, w, label_smoothing)

        divide = lambda x: x.reshape(-1, min(chunk_size, len(x)), *x.shape[1:])  # noqa: E731
        sums = jax.lax.map(chunk, jax.tree.map(divide, (hidden, targets, weights)))
        return jax.tree.map(functools.partial(jnp.sum, axis=0), sums)

    losses.projected_cross_entropy = projected


def _all() -> None:
    for name, change in CHANGES.items():
        if name != "all":
            change()


CHANGES: dict[str, Callable[[], None]] = {
    "dense": _dense, "optimizer": _optimizer, "loss": _loss, "all": _all,
}  # fmt: skip
