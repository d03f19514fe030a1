"""The training step as two pure functions that know no devices.

`grad_sums` returns sums of gradients, loss and tokens over any part of a batch. Sums of parts are
the sums of the whole. `apply_sums` divides once and updates. A runner adds up in between.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from transformer_jax.config import Config
from transformer_jax.model.transformer import Transformer, init_params
from transformer_jax.ops import losses
from transformer_jax.training.optimizer import PyTree, make_optimizer, make_schedule, num_updates

Metrics = dict[str, jax.Array]  # float32 scalars of one step, by name

# With train.skip_spikes, gradient norms are compared with their running mean from this update on.
SPIKE_WARMUP = 100
SPIKE_DECAY = 0.99


@flax.struct.dataclass
class TrainState:
    """What one step passes to the next."""

    step: jax.Array  # batches seen, skipped ones included
    params: PyTree
    opt_state: PyTree
    ema: PyTree  # exponential average of params, or None
    usual_norm: jax.Array | None = None  # running mean of gradient norms, with train.skip_spikes

    def to_items(self) -> dict[str, PyTree]:
        """The items of a checkpoint, by name."""
        optimizer = {"step": self.step, "opt_state": self.opt_state}
        if self.usual_norm is not None:
            optimizer["usual_norm"] = self.usual_norm
        return {"params": self.params, "ema": self.ema, "optimizer": optimizer}

    @classmethod
    def from_items(cls, items: dict[str, PyTree]) -> "TrainState":
        """Inverse of `to_items`."""
        optimizer = items["optimizer"]
        return cls(
            step=optimizer["step"],
            params=items["params"],
            opt_state=optimizer["opt_state"],
            ema=items["ema"],
            usual_norm=optimizer.get("usual_norm"),
        )


class Sums(NamedTuple):
    """Sums over target tokens, not yet divided."""

    grads: PyTree
    losses: losses.LossSums


class TrainStep:
    """The pure functions of one run, closed over its model, schedule and optimizer."""

    def __init__(self, config: Config):
        self.config = config
        self.model = Transformer(config.model, remat=config.train.remat)
        self.schedule = make_schedule(
            config.optimizer, config.model.d_model, config.train.num_steps
        )
        self.tx = make_optimizer(config.optimizer, self.schedule)

    def init_state(self, rng: jax.Array, params: PyTree = None) -> TrainState:
        """Fresh optimizer state, and fresh parameters unless `params` are given."""
        if params is None:
            params = init_params(self.config.model, rng)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=self.tx.init(params),
            ema=jax.tree.map(jnp.copy, params) if self.config.train.ema_decay else None,
            usual_norm=jnp.zeros(()) if self.config.train.skip_spikes else None,
        )

    def loss_sums(
        self, params: PyTree, batch: dict[str, jax.Array], rng: jax.Array
    ) -> losses.LossSums:
        """Loss of a batch with dropout, without an array of all logits `[B, T, V]`."""
        apply: Callable[..., Any] = self.model.apply  # Flax types it as if states came with it
        variables, rngs = {"params": params}, {"dropout": rng}
        hidden = apply(
            variables, batch, deterministic=False, rngs=rngs, method="hidden"
        )  # [B, T, M]
        table, bias = apply(variables, method="output_projection")
        return losses.projected_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]),  # --> [B * T, M]
            table,
            batch["targets"].reshape(-1),  # --> [B * T]
            batch["loss_mask"].reshape(-1),
            self.config.train.label_smoothing,
            bias=bias,
        )

    def grad_sums(self, params: PyTree, batch: dict[str, jax.Array], rng: jax.Array) -> Sums:
        """Sums over `batch`, computed one after the other for `accumulate_steps` equal parts.

        Args:
          params: of the model.
          batch: arrays `[B, S]` and `[B, T]`, as `data.loader.make_batch` returns them.
          rng: key of this step's dropout.
        """

        def loss(params, part, rng):
            sums = self.loss_sums(params, part, rng)
            return sums.loss, sums

        def part_sums(part, rng):
            return Sums(*jax.grad(loss, has_aux=True)(params, part, rng))

        num_parts = self.config.train.accumulate_steps
        if num_parts == 1:
            return part_sums(batch, rng)

        def add_part(total, numbered_part):
            i, part = numbered_part
            sums = part_sums(part, jax.random.fold_in(rng, i))
            return jax.tree.map(jnp.add, total, sums), None

        # [B, L] --> [num_parts, B / num_parts, L]
        parts = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), batch)
        zero = jnp.zeros(())
        zeros = Sums(
            grads=jax.tree.map(jnp.zeros_like, params),
            losses=losses.LossSums(loss=zero, nll=zero, correct=zero, tokens=zero),
        )
        return jax.lax.scan(add_part, zeros, (jnp.arange(num_parts), parts))[0]

    def apply_sums(self, state: TrainState, sums: Sums) -> tuple[TrainState, Metrics]:
        """The update for sums over the whole batch, and the step's metrics.

        Where loss or gradients are not finite, or the gradient is a spike (`train.skip_spikes`),
        only the number of steps changes, and the metric `skipped` is 1. The host never has to
        undo an update.
        """
        tokens = jnp.maximum(sums.losses.tokens, 1.0)
        grads = jax.tree.map(lambda g: g / tokens, sums.grads)
        grad_norm = optax.global_norm(grads)
        count = num_updates(state.opt_state)
        good = jnp.isfinite(sums.losses.loss) & jnp.isfinite(grad_norm)
        if state.usual_norm is not None:
            limit = self.config.train.skip_spikes * state.usual_norm
            good &= (count < SPIKE_WARMUP) | (grad_norm <= limit)

        updates, opt_state = self.tx.update(grads, state.opt_state, state.params, good=good)
        params = optax.apply_updates(state.params, updates)
        new_state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            ema=self._average(state.ema, params, count, good),
            usual_norm=_usual_norm(state.usual_norm, grad_norm, count, good),
        )
        metrics = {
            "loss_sum": sums.losses.loss,
            "correct_sum": sums.losses.correct,
            "tokens": sums.losses.tokens,
            "learning_rate": jnp.asarray(self.schedule(count), jnp.float32),
            "grad_norm": grad_norm,
            "skipped": 1.0 - good.astype(jnp.float32),
        }
        return new_state, metrics

    def _average(self, ema: PyTree, params: PyTree, count: jax.Array, good: jax.Array) -> PyTree:
        """The exponential average with the new parameters; None where none is kept."""
        if ema is None:
            return None
        # Early on the average forgets faster, so that it does not remember the initialisation.
        count = count.astype(jnp.float32)
        decay = jnp.minimum(self.config.train.ema_decay, (1.0 + count) / (10.0 + count))
        weight = jnp.where(good, 1.0 - decay, 0.0)
        return jax.tree.map(lambda e, p: e + weight * (p - e), ema, params)


def _usual_norm(
    usual_norm: jax.Array | None, grad_norm: jax.Array, count: jax.Array, good: jax.Array
) -> jax.Array | None:
    """The running mean of gradient norms with this one; None where none is kept."""
    if usual_norm is None:
        return None
    count = count.astype(jnp.float32)
    decay = jnp.minimum(SPIKE_DECAY, count / (1.0 + count))  # at first the plain mean
    mean = decay * usual_norm + (1.0 - decay) * grad_norm
    return jnp.where(good, mean, usual_norm)
