"""The training step as two pure functions that know no devices: methods of `TrainStep`.

    gradient of a step = sum of gradients over its target tokens / number of its target tokens

`grad_sums` returns the sums over any part of a batch. Sums over the parts of a batch add up to the
sums over the batch. `apply_sums` divides them once and updates the parameters. Between the two
calls a runner adds up the sums of its devices.

A *step* reads one batch. An *update* changes the parameters. A *skipped* step makes no update.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from transformer_jax.config import Config
from transformer_jax.model import lora
from transformer_jax.model.transformer import Transformer, init_params
from transformer_jax.ops import losses
from transformer_jax.training import frozen
from transformer_jax.training.objective import Objective
from transformer_jax.training.optimizer import (
    PyTree,
    adapted,
    gradient_point,
    make_optimizer,
    make_schedule,
    num_updates,
)

Metrics = dict[str, jax.Array]  # float32 scalars of one step, by name

# With train.skip_spikes, a gradient norm is compared with a mean over about the last
# 1 / (1 - SPIKE_DECAY) = 100 updates, once there were as many.
SPIKE_DECAY = 0.99
SPIKE_WARMUP = 100


@flax.struct.dataclass
class TrainState:
    """What one step passes to the next."""

    step: jax.Array  # steps done, skipped ones included
    params: PyTree
    opt_state: PyTree
    ema: PyTree  # exponential average of params, or None
    usual_norm: jax.Array | None = None  # mean gradient norm of updates, with train.skip_spikes

    def to_items(self) -> dict[str, PyTree]:
        """The items of a checkpoint, by name.

        There are three, so that decoding reads `params` or `ema` without the optimizer.
        """
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

    grads: PyTree  # of the parameters that are trained
    losses: losses.LossSums


class TrainStep:
    """The step of one run, with its model, schedule and optimizer.

    With `train.lora_rank` the state's parameters are those of `lora.add_adapters`.

    Args:
      config: of the run.
      optimizer: any of Optax; None: that of `config.optimizer`.
    """

    def __init__(self, config: Config, optimizer: optax.GradientTransformation | None = None):
        self.config = config
        self._is_own = optimizer is not None
        model = Transformer(
            config.model, remat=config.train.remat, scan_layers=config.train.scan_layers
        )
        self.objective = Objective(config, model)
        self.schedule = make_schedule(
            config.optimizer, config.model.d_model, config.train.num_steps
        )
        callers = adapted(optimizer) if optimizer else None
        self.tx = callers or make_optimizer(config.optimizer, self.schedule)
        self._frozen = config.train.frozen
        if config.train.lora_rank:
            self._frozen = (lora.BASE, *[f"{lora.ADAPTERS}/{name}" for name in self._frozen])

    def init_state(self, rng: jax.Array, params: PyTree = None) -> TrainState:
        """Fresh optimizer state, and fresh parameters of the model unless `params` are given."""
        train = self.config.train
        if params is None:
            params = init_params(self.config.model, rng)
        if train.lora_rank:
            params = lora.add_adapters(params, train.lora_rank, rng)
            adapters = params[lora.ADAPTERS]
            frozen.check_names(adapters, train.frozen, "what has adapters (train.lora_rank)")
        else:
            frozen.check_names(params, train.frozen)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=self.tx.init(self.trained(params)),
            # A copy: the step donates its state, and no buffer may be donated twice.
            ema=jax.tree.map(jnp.copy, params) if train.ema_decay else None,
            usual_norm=jnp.zeros((), jnp.float32) if train.skip_spikes else None,
        )

    def trained(self, params: PyTree) -> PyTree:
        """The parameters of a state that are trained; see `frozen.trained`."""
        return frozen.trained(params, self._frozen)

    def gradient_point(self, state: TrainState) -> PyTree:
        """The parameters at which `grad_sums` computes gradients; see `optimizer`."""
        if self._is_own:
            return state.params
        trained = self.trained(state.params)
        point = gradient_point(self.config.optimizer, state.opt_state, trained)
        return frozen.with_frozen(point, state.params)

    def model_params(self, params: PyTree) -> PyTree:
        """The parameters of the model, from those of a state."""
        return lora.merge(params, self.config.train) if self.config.train.lora_rank else params

    def _loss(
        self, trained: PyTree, params: PyTree, batch: dict[str, jax.Array], rng: jax.Array
    ) -> tuple[jax.Array, losses.LossSums]:
        """The sum to differentiate by `trained`, and all sums of a batch."""
        params = self.model_params(frozen.with_frozen(trained, params))
        sums = self.objective.loss_sums(params, batch, rng)
        return sums.loss, sums

    def grad_sums(self, params: PyTree, batch: dict[str, jax.Array], rng: jax.Array) -> Sums:
        """Sums over `batch`, computed one after the other for `accumulate_steps` equal parts.

        Args:
          params: `gradient_point` of a state.
          batch: arrays `[B, S]` and `[B, T]`, as `data.loader.make_batch` returns them.
          rng: key of the dropout. The runner passes another one at each step, and on each device.
        """
        grad_fn = jax.grad(self._loss, has_aux=True)
        trained = self.trained(params)

        def part_sums(part: dict[str, jax.Array], part_rng: jax.Array) -> Sums:
            grads, loss_sums = grad_fn(trained, params, part, part_rng)
            return Sums(grads, loss_sums)

        num_parts = self.config.train.accumulate_steps
        if num_parts == 1:
            return part_sums(batch, rng)

        def add_part(total, numbered_part):
            i, part = numbered_part
            sums = part_sums(part, jax.random.fold_in(rng, i))
            return jax.tree.map(jnp.add, total, sums), None

        # [B, L] --> [num_parts, B / num_parts, L]
        parts = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), batch)
        zero = jnp.zeros((), jnp.float32)
        zeros = Sums(
            grads=jax.tree.map(jnp.zeros_like, trained),
            losses=losses.LossSums(loss=zero, nll=zero, correct=zero, tokens=zero),
        )
        return jax.lax.scan(add_part, zeros, (jnp.arange(num_parts), parts))[0]

    def apply_sums(self, state: TrainState, sums: Sums) -> tuple[TrainState, Metrics]:
        """The state after the update by sums over the entire batch, and the step's metrics.

        A step is skipped where its loss or gradient is not finite, and with `train.skip_spikes`
        also where its gradient norm is a spike. Then only the number of steps changes, and the
        metric `skipped` is 1. The host never has to undo an update.

        A norm that rises permanently would be a spike at every step, because the usual norm is that
        of updates. `faults.check_skipped_in_a_row` then ends the run with advice.
        """
        tokens = jnp.maximum(sums.losses.tokens, 1.0)  # a batch of padding alone has 0
        grads = jax.tree.map(lambda g: g / tokens, sums.grads)
        grad_norm = optax.global_norm(grads)
        # Updates so far. Skipped steps do not count, so the learning rate waits during them.
        count = num_updates(state.opt_state)
        accept = jnp.isfinite(sums.losses.loss) & jnp.isfinite(grad_norm)
        if state.usual_norm is not None:
            spike_factor = self.config.train.skip_spikes
            is_usual = grad_norm <= spike_factor * state.usual_norm
            accept &= (count < SPIKE_WARMUP) | is_usual

        # Unless `accept`, updates are 0 and the optimizer's state stays as it was.
        trained = self.trained(state.params)
        updates, opt_state = self.tx.update(grads, state.opt_state, trained, accept=accept)
        params = frozen.with_frozen(optax.apply_updates(trained, updates), state.params)
        new_state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            ema=_updated_ema(state.ema, params, self.config.train.ema_decay, count, accept),
            usual_norm=_updated_usual_norm(state.usual_norm, grad_norm, count, accept),
        )
        metrics = {
            "loss_sum": sums.losses.loss,
            "correct_sum": sums.losses.correct,
            "tokens": sums.losses.tokens,
            "learning_rate": self._learning_rate(state.opt_state, count),
            "grad_norm": grad_norm,
            "skipped": 1.0 - accept.astype(jnp.float32),
        }
        return new_state, metrics

    def _learning_rate(self, opt_state: PyTree, count: jax.Array) -> jax.Array:
        """That of an update; of a caller's optimizer, if `optax.inject_hyperparams` has it."""
        rate: Any = self.schedule(count)
        if self._is_own:
            rate = optax.tree_utils.tree_get(opt_state, "learning_rate", jnp.nan)
        return jnp.asarray(rate, jnp.float32)


def _updated_ema(
    ema: PyTree, params: PyTree, max_decay: float, count: jax.Array, accept: jax.Array
) -> PyTree:
    """The exponential average with the new parameters; None if the run keeps none.

    At first it forgets faster, so that it does not remember the initialisation, by the rule of
    TensorFlow's `ExponentialMovingAverage(num_updates=count)`.
    """
    if ema is None:
        return None
    n = count.astype(jnp.float32)
    decay = jnp.minimum(max_decay, (1.0 + n) / (10.0 + n))
    # Selected, not weighted by 0: 0 * NaN is NaN.
    return jax.tree.map(lambda e, p: jnp.where(accept, e + (1.0 - decay) * (p - e), e), ema, params)


def _updated_usual_norm(
    usual_norm: jax.Array | None, grad_norm: jax.Array, count: jax.Array, accept: jax.Array
) -> jax.Array | None:
    """The running mean of the gradient norms of updates; None if the run keeps none."""
    if usual_norm is None:
        return None
    n = count.astype(jnp.float32)
    decay = jnp.minimum(SPIKE_DECAY, n / (1.0 + n))  # at first the plain mean
    mean = decay * usual_norm + (1.0 - decay) * grad_norm
    return jnp.where(accept, mean, usual_norm)
