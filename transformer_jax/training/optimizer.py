"""Learning-rate schedules and the Optax optimizer."""

import jax.numpy as jnp
import optax

from transformer_jax.config import OptimizerConfig


def make_schedule(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    """Maps the number of updates done to the learning rate of the next one (step = count + 1).

    `rsqrt` (the paper, equation 3): `learning_rate · M^-0.5 · min(step^-0.5, step · warmup^-1.5)`.
    The others rise linearly to `learning_rate` over `warmup_steps`, then: `constant` stays;
    `linear` falls to 0 at `num_steps`; `cosine` follows half a cosine to 0 at `num_steps`.
    """
    warmup = config.warmup_steps

    if config.schedule == "rsqrt":

        def rsqrt(count):
            step = jnp.asarray(count + 1, jnp.float32)
            factor = config.learning_rate * d_model**-0.5
            return factor * jnp.minimum(step**-0.5, step * warmup**-1.5)

        return rsqrt
    rest = max(num_steps - warmup, 1)
    after = {
        "constant": optax.constant_schedule(config.learning_rate),
        "linear": optax.linear_schedule(config.learning_rate, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(config.learning_rate, rest),
    }[config.schedule]
    rise = optax.linear_schedule(0.0, config.learning_rate, warmup)
    joined = optax.join_schedules([rise, after], [warmup])
    return lambda count: joined(count + 1)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Adam, AdamW or Adafactor under `schedule`, after clipping by global norm where it is set.

    `b1`, `b2` and `eps` are those of Adam and AdamW; Adafactor keeps its own constants. Weight
    decay is decoupled: the learning rate times `weight_decay` of each parameter, each step.
    """
    if config.name == "adafactor":
        core = optax.chain(
            optax.adafactor(learning_rate=None),  # the negative of its scaled gradient
            optax.add_decayed_weights(-config.weight_decay),
            optax.scale_by_schedule(schedule),
        )
    elif config.name == "adamw":
        core = optax.adamw(
            schedule, config.b1, config.b2, config.eps, weight_decay=config.weight_decay
        )
    else:
        core = optax.adam(schedule, config.b1, config.b2, config.eps)
    if config.clip_norm:
        return optax.chain(optax.clip_by_global_norm(config.clip_norm), core)
    return core
