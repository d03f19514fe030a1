"""The training step as two pure functions that know no devices.

`grad_sums` gives sums of gradients, loss and tokens over any part of a batch; sums of parts are the
sums of the whole. `apply_sums` divides once and updates. A runner adds up in between.
"""

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from transformer_jax.config import Config
from transformer_jax.model.transformer import Transformer, init_params
from transformer_jax.ops import losses
from transformer_jax.training.optimizer import make_optimizer, make_schedule

Tree = Any

# Gradient norms are compared with their running mean, after as many updates as make one.
SPIKE_WARMUP = 100
SPIKE_DECAY = 0.99


@flax.struct.dataclass
class TrainState:
    """What one step hands to the next."""

    step: jax.Array  # batches seen, skipped ones included
    params: Tree
    opt_state: Tree
    ema: Tree  # exponential average of params, or None
    usual_norm: jax.Array | None = None  # running mean of gradient norms, with train.skip_spikes


class Sums(NamedTuple):
    """Sums over target tokens, not yet divided."""

    grads: Tree
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

    def init_state(self, rng: jax.Array, params: Tree = None) -> TrainState:
        """Fresh optimizer state, and fresh parameters where none are given."""
        if params is None:
            params = init_params(self.config.model, rng)
        ema = jax.tree.map(jnp.copy, params) if self.config.train.ema_decay else None
        usual_norm = jnp.zeros(()) if self.config.train.skip_spikes else None
        return TrainState(jnp.zeros((), jnp.int32), params, self.tx.init(params), ema, usual_norm)

    def loss_sums(self, params: Tree, batch: dict[str, jax.Array], rng) -> losses.LossSums:
        """Loss of a batch with dropout, its `[B, T, V]` logits never held at once."""
        apply: Any = functools.partial(self.model.apply, {"params": params})
        hidden = apply(batch, deterministic=False, rngs={"dropout": rng}, method="hidden")
        table, bias = apply(method="output_projection")
        return losses.projected_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]),  # --> [B * T, M]
            table,
            batch["targets"].reshape(-1),
            batch["loss_mask"].reshape(-1),
            self.config.train.label_smoothing,
            bias=bias,
        )

    def grad_sums(self, params: Tree, batch: dict[str, jax.Array], rng: jax.Array) -> Sums:
        """Sums over `batch`, whose rows are worked off in `accumulate_steps` equal parts."""

        def part_sums(part, part_rng):
            def loss(p):
                sums = self.loss_sums(p, part, part_rng)
                return sums.loss, sums

            grads, sums = jax.grad(loss, has_aux=True)(params)
            return Sums(grads, sums)

        num_parts = self.config.train.accumulate_steps
        if num_parts == 1:
            return part_sums(batch, rng)
        parts = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), batch)

        def add(total, numbered_part):
            i, part = numbered_part
            new = part_sums(part, jax.random.fold_in(rng, i))
            return jax.tree.map(jnp.add, total, new), None

        zeros = jax.tree.map(jnp.zeros_like, Sums(params, losses.LossSums(*[jnp.zeros(())] * 4)))
        return jax.lax.scan(add, zeros, (jnp.arange(num_parts), parts))[0]

    def apply_sums(self, state: TrainState, sums: Sums) -> tuple[TrainState, dict[str, jax.Array]]:
        """The update for sums over the whole batch, and the step's metrics (float32 scalars).

        Where loss or gradients are not finite, or the gradient is a spike (`train.skip_spikes`),
        only the number of steps changes, and `skipped` is 1.
        """
        tokens = jnp.maximum(sums.losses.tokens, 1.0)
        grads = jax.tree.map(lambda g: g / tokens, sums.grads)
        grad_norm = optax.global_norm(grads)
        num_updates = _num_updates(state.opt_state)
        good = jnp.isfinite(sums.losses.loss) & jnp.isfinite(grad_norm)
        if state.usual_norm is not None:
            limit = self.config.train.skip_spikes * state.usual_norm
            good &= (num_updates < SPIKE_WARMUP) | (grad_norm <= limit)
        new: Any = self._update(state, grads, grad_norm, num_updates, good)
        metrics = {
            "loss_sum": sums.losses.loss,
            "correct_sum": sums.losses.correct,
            "tokens": sums.losses.tokens,
            "learning_rate": jnp.asarray(self.schedule(num_updates), jnp.float32),
            "grad_norm": grad_norm,
            "skipped": 1.0 - good.astype(jnp.float32),
        }
        return new.replace(step=state.step + 1), metrics

    def _update(self, state, grads, grad_norm, num_updates, good) -> TrainState:
        updates, opt_state = self.tx.update(grads, state.opt_state, state.params, good=good)
        params = optax.apply_updates(state.params, updates)
        count = num_updates.astype(jnp.float32)
        ema, usual_norm = state.ema, state.usual_norm
        if ema is not None:
            # Early on the average forgets faster, so that it does not remember the initialisation.
            decay = jnp.minimum(self.config.train.ema_decay, (1.0 + count) / (10.0 + count))
            forgotten = jnp.where(good, 1.0 - decay, 0.0)
            ema = jax.tree.map(lambda e, p: e + forgotten * (p - e), ema, params)
        if usual_norm is not None:
            decay = jnp.minimum(SPIKE_DECAY, count / (1.0 + count))  # at first the plain mean
            new_norm = decay * usual_norm + (1.0 - decay) * grad_norm
            usual_norm = jnp.where(good, new_norm, usual_norm)
        return TrainState(state.step, params, opt_state, ema, usual_norm)


def _num_updates(opt_state: Tree) -> jax.Array:
    """Updates done: batches seen but for the skipped ones."""
    return optax.tree_utils.tree_get_all_with_path(opt_state, "count")[-1][1]
