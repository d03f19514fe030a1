"""Learning-rate schedules and the Optax optimizer."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer_jax.config import OptimizerConfig


def make_schedule(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    """Maps the number of updates done to the learning rate of the next one (step = count + 1).

    `rsqrt` (the paper, equation 3): `learning_rate · M^-0.5 · min(step^-0.5, step · warmup^-1.5)`.
    The others rise linearly to `learning_rate` over `warmup_steps`, then: `constant` stays;
    `linear` falls along a line and `cosine` along half a cosine, to 0 at the step after the last,
    so that the last update still counts.
    """
    warmup = config.warmup_steps

    if config.schedule == "rsqrt":

        def rsqrt(count):
            step = jnp.asarray(count + 1, jnp.float32)
            factor = config.learning_rate * d_model**-0.5
            return factor * jnp.minimum(step**-0.5, step * warmup**-1.5)

        return rsqrt
    rest = max(num_steps + 1 - warmup, 1)
    after = {
        "constant": optax.constant_schedule(config.learning_rate),
        "linear": optax.linear_schedule(config.learning_rate, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(config.learning_rate, rest),
    }[config.schedule]
    rise = optax.linear_schedule(0.0, config.learning_rate, warmup)
    joined = optax.join_schedules([rise, after], [warmup])
    # Compiled, the last step of a fall to 0 can round to just below it.
    return lambda count: jnp.maximum(joined(count + 1), 0.0)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Adam, AdamW or Adafactor under `schedule`, after clipping by global norm where it is set.

    `update` needs the parameters, and takes one argument more than Optax's: `good`, a boolean
    scalar, False where the step is to change nothing; updates are then 0 and the state stays.

    `b1`, `b2` and `eps` are those of Adam and AdamW; Adafactor keeps its own constants. Weight
    decay is decoupled (Loshchilov and Hutter, 2019): each step takes the learning rate times
    `weight_decay` of each parameter that `decays` names.
    """
    if config.name == "adafactor":
        core = _unless_bad(
            optax.chain(
                optax.adafactor(learning_rate=None),  # the negative of its scaled gradient
                optax.stateless(
                    lambda updates, params: jax.tree.map(
                        lambda u, p, decay: u - config.weight_decay * p if decay else u,
                        updates,
                        params,
                        decays(config, params),
                    )
                ),
                optax.scale_by_schedule(schedule),
            )
        )
    else:
        core = _adam(config, schedule)
    if config.clip_norm:
        return optax.chain(optax.clip_by_global_norm(config.clip_norm), core)
    return core


def num_updates(opt_state: Any) -> jax.Array:
    """Updates done, which is the count of the schedule: batches seen, except skipped ones."""

    def is_of_schedule(path: Sequence[Any], _: Any) -> bool:
        return path[-1].tuple_name == optax.ScaleByScheduleState.__name__

    return optax.tree_utils.tree_get(opt_state, "count", filtering=is_of_schedule)


def decays(config: OptimizerConfig, params: Any) -> Any:
    """For each parameter whether weight decay applies to it, as `weight_decay_on` says.

    `matrices` are the kernels of dense layers; biases, norms, embeddings and learned positions
    are left alone, as is customary.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: (
            config.weight_decay_on == "all"
            or jax.tree_util.keystr(path[-1:], simple=True) == "kernel"
        ),
        params,
    )


def _adam(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Optax's `adam` or `adamw`, with its state, so that XLA writes moments where they lie.

    Optax's, whose new moments and parameters all come from the old moments, makes XLA copy those.
    """
    b1, b2 = config.b1, config.b2
    if config.name == "adamw":
        like = optax.adamw(schedule, b1, b2, config.eps, weight_decay=config.weight_decay)
    else:
        like = optax.adam(schedule, b1, b2, config.eps)

    def update(grads, state, params, *, good=True, **_):
        adam, *middle, scheduled = state
        count = adam.count + 1

        def advance(m, g, decay):
            return jnp.where(good, decay * m + (1.0 - decay) * g, m)

        mu = jax.tree.map(lambda m, g: advance(m, g, b1), adam.mu, grads)
        nu = jax.tree.map(lambda v, g: advance(v, g * g, b2), adam.nu, grads)
        rate = jnp.where(good, schedule(scheduled.count), 0.0)
        to_mean, to_variance = (1.0 / (1.0 - d ** count.astype(jnp.float32)) for d in (b1, b2))

        def change(m, v, p, decay):
            m, v = jax.lax.optimization_barrier((m, v))
            step = to_mean * m / (jnp.sqrt(to_variance * v) + config.eps)
            if decay and config.weight_decay:
                step += config.weight_decay * p
            return -rate * step

        def counted(old):
            return jnp.where(good, optax.safe_increment(old), old)

        state = (
            adam._replace(count=counted(adam.count), mu=mu, nu=nu), *middle,
            scheduled._replace(count=counted(scheduled.count)),
        )  # fmt: skip
        return jax.tree.map(change, mu, nu, params, decays(config, params)), state

    return optax.GradientTransformationExtraArgs(like.init, update)


def _unless_bad(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    def update(grads, state, params, *, good=True, **_):
        updates, new = tx.update(grads, state, params)
        updates = jax.tree.map(lambda u: jnp.where(good, u, 0.0), updates)
        return updates, jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state)

    return optax.GradientTransformationExtraArgs(tx.init, update)
