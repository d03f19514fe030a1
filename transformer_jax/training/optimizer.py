"""Learning-rate schedules and the Optax optimizer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from transformer_jax.config import OptimizerConfig, optimizer_kinds

PyTree = Any  # of arrays, or of what describes arrays


def make_schedule(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    """Maps the number of updates done to the learning rate of the next one (step = count + 1).

    `rsqrt` (the paper, equation 3): `learning_rate · M^-0.5 · min(step^-0.5, step · warmup^-1.5)`.
    The others rise linearly to `learning_rate` over `warmup_steps`. Then `constant` stays, `linear`
    falls along a line and `cosine` along half a cosine, to 0 at the step after the last one. So the
    last update still has a learning rate above 0.
    """
    return SCHEDULES[config.schedule](config, d_model, num_steps)


def _rsqrt(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    del num_steps
    warmup, factor = config.warmup_steps, config.learning_rate * d_model**-0.5

    def rsqrt(count):
        step = jnp.asarray(count + 1, jnp.float32)
        return factor * jnp.minimum(step**-0.5, step * warmup**-1.5)

    return rsqrt


def _with_warmup(after: Callable[[float, int], optax.Schedule]) -> "ScheduleMaker":
    """The schedule that rises linearly to its peak and continues as `after(peak, num_steps)`."""

    def make(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
        del d_model  # of `rsqrt` alone
        peak, warmup = config.learning_rate, config.warmup_steps
        rise = optax.linear_schedule(0.0, peak, warmup)
        rest = after(peak, max(num_steps + 1 - warmup, 1))
        joined = optax.join_schedules([rise, rest], [warmup])
        # When compiled, the last step of a fall to 0 can round to just below it.
        return lambda count: jnp.maximum(joined(jnp.asarray(count + 1, jnp.float32)), 0.0)

    return make


ScheduleMaker = Callable[[OptimizerConfig, int, int], optax.Schedule]
SCHEDULES: dict[str, ScheduleMaker] = {
    "rsqrt": _rsqrt,
    "linear": _with_warmup(lambda peak, steps: optax.linear_schedule(peak, 0.0, steps)),
    "cosine": _with_warmup(optax.cosine_decay_schedule),
    "constant": _with_warmup(lambda peak, _: optax.constant_schedule(peak)),
}


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """The optimizer `config.name` under `schedule`, after clipping by global norm if it is set.

    `update` needs the parameters, and takes one argument more than Optax's: `accept`, a boolean
    scalar. Where it is False, updates are 0 and the state stays as it was.

    Adafactor has its own constants in place of `b1`, `b2` and `eps`. Weight decay is decoupled
    (Loshchilov and Hutter, 2019): each step subtracts the learning rate times `weight_decay` of
    each parameter that `decays` selects.
    """
    optimizer = OPTIMIZERS[config.name](config, schedule)
    if config.clip_norm:
        return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
    return optimizer


def num_updates(opt_state: PyTree) -> jax.Array:
    """Updates done, which is the count of the schedule: batches seen, except skipped ones."""
    if isinstance(opt_state, OwnOptimizerState):
        return opt_state.num_updates

    def is_of_schedule(node: Any) -> bool:
        return isinstance(node, optax.ScaleByScheduleState)

    nodes = jax.tree.leaves(opt_state, is_leaf=is_of_schedule)
    states = [node for node in nodes if is_of_schedule(node)]
    if len(states) != 1:
        raise ValueError(
            f"the optimizer has {len(states)} states of a schedule; its updates are counted by the "
            "one of `optax.scale_by_schedule` or `optax.scale_by_learning_rate`"
        )
    return states[0].count


class OwnOptimizerState(NamedTuple):
    """State of a caller's optimizer, and how many updates it has made."""

    num_updates: jax.Array
    base: optax.OptState


def adapted(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """A caller's optimizer with the argument `accept` and the count of updates."""

    def init(params):
        return OwnOptimizerState(jnp.zeros((), jnp.int32), tx.init(params))

    def update(grads, state, params):
        updates, base = tx.update(grads, state.base, params)
        return updates, OwnOptimizerState(optax.safe_increment(state.num_updates), base)

    return with_accept(optax.GradientTransformation(init, update))


def decays(config: OptimizerConfig, params: PyTree) -> PyTree:
    """For each parameter, whether weight decay applies to it by `weight_decay_on`.

    `matrices` are the kernels of dense layers and their adapters. Biases, norms, embeddings and
    learned positions do not decay, as is customary.
    """

    def decays_at(path: tuple[Any, ...], _: jax.Array) -> bool:
        names = [jax.tree_util.keystr((key,), simple=True) for key in path[-2:]]
        return "kernel" in names or config.weight_decay_on == "all"

    return jax.tree_util.tree_map_with_path(decays_at, params)


def _adam(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Optax's `adam` or `adamw`, with its state and arithmetic, and `accept`.

    Why not Optax's own: it computes moments and updates both from the old moments. If the result
    is then selected by `accept`, XLA copies the old moments, which takes 30% more temporary memory
    for the base model on CPU. With `lax.cond` in place of the selection no memory is added, but
    XLA for GPU stops the host in every step until the condition is known, and the host can no
    longer run ahead. Here the updates are computed from the new moments, which a barrier enforces.

    The second moment is always kept in float32: with `b2` near 1 a step changes it by less than
    bfloat16 can tell.
    """
    b1, b2, mu_dtype = config.b1, config.b2, jnp.dtype(config.mu_dtype)
    options: dict[str, Any] = {"b1": b1, "b2": b2, "eps": config.eps, "mu_dtype": mu_dtype}
    if config.name == "adamw":
        init = optax.adamw(schedule, weight_decay=config.weight_decay, **options).init
    else:
        init = optax.adam(schedule, **options).init

    def update(grads, state, params, *, accept=True, **_):
        adam_state, *other_states, schedule_state = state

        def new_moment(old, value, decay):
            new = decay * old.astype(value.dtype) + (1.0 - decay) * value
            return jnp.where(accept, new.astype(old.dtype), old)

        mu = jax.tree.map(lambda m, g: new_moment(m, g, b1), adam_state.mu, grads)
        nu = jax.tree.map(lambda v, g: new_moment(v, g * g, b2), adam_state.nu, grads)

        count = (adam_state.count + 1).astype(jnp.float32)
        mean_correction, variance_correction = 1.0 / (1.0 - b1**count), 1.0 / (1.0 - b2**count)
        learning_rate = jnp.where(accept, schedule(schedule_state.count), 0.0)

        def param_update(m, v, param, decay):
            m, v = jax.lax.optimization_barrier((m, v))
            direction = (
                mean_correction
                * m.astype(v.dtype)
                / (jnp.sqrt(variance_correction * v) + config.eps)
            )
            if decay and config.weight_decay:
                direction += config.weight_decay * param
            return -learning_rate * direction

        def new_count(old):
            return jnp.where(accept, optax.safe_increment(old), old)

        updates = jax.tree.map(param_update, mu, nu, params, decays(config, params))
        new_state = (
            adam_state._replace(count=new_count(adam_state.count), mu=mu, nu=nu),
            *other_states,
            schedule_state._replace(count=new_count(schedule_state.count)),
        )
        return updates, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def _adafactor(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Optax's Adafactor with decoupled weight decay, and `accept`."""

    def decay_weights(updates, params):
        return jax.tree.map(
            lambda update, param, decay: update - config.weight_decay * param if decay else update,
            updates,
            params,
            decays(config, params),
        )

    tx = optax.chain(
        optax.adafactor(learning_rate=None),  # returns the negative of its scaled gradient
        optax.stateless(decay_weights),
        optax.scale_by_schedule(schedule),
    )
    return with_accept(tx)


class ScheduleFreeState(NamedTuple):
    """State of Schedule-Free AdamW.

    Attributes:
      z: the parameters of plain AdamW without a first moment, which `params` average.
      weight_sum: sum of the squared learning rates so far, the weights of that average.
      base: state of the optimizer of `z`.
    """

    z: PyTree
    weight_sum: jax.Array
    base: optax.OptState


def _schedule_free_adamw(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Schedule-Free AdamW (Defazio et al., 2024, algorithm 1), and `accept`.

    Optax's own keeps the points at which gradients are taken as its parameters, and every reader
    has to convert them. Here the parameters are the averages `x`, which are what is evaluated;
    `gradient_point` computes the points.
    """
    base = optax.chain(
        optax.scale_by_rms(config.b2, config.eps, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(config.weight_decay, lambda params: decays(config, params)),
        optax.scale_by_learning_rate(schedule),
    )

    def init(params):
        # A copy: the step donates its state, and no buffer may be donated twice.
        return ScheduleFreeState(
            jax.tree.map(jnp.copy, params), jnp.zeros((), jnp.float32), base.init(params)
        )

    def update(grads, state, params):
        weight = schedule(num_updates(state.base)) ** 2
        point = gradient_point(config, state, params)
        with jax.numpy_dtype_promotion("standard"):  # which Optax needs
            changes, base_state = base.update(grads, state.base, point)
        z = optax.apply_updates(state.z, changes)
        weight_sum = state.weight_sum + weight
        share = weight / jnp.maximum(weight_sum, jnp.finfo(jnp.float32).tiny)
        updates = jax.tree.map(lambda x, z: share * (z - x), params, z)
        return updates, ScheduleFreeState(z, weight_sum, base_state)

    return with_accept(optax.GradientTransformation(init, update))


def gradient_point(config: OptimizerConfig, opt_state: PyTree, params: PyTree) -> PyTree:
    """The parameters at which the gradient of the next step is taken.

    They are `params`; where those are averages, they are `(1 - b1) z + b1 params`.

    Args:
      config: of the optimizer.
      opt_state: state of the optimizer that `make_optimizer` returns.
      params: the trained parameters.
    """
    if not optimizer_kinds.OPTIMIZERS[config.name].averages:
        return params
    z = optax.tree_utils.tree_get(opt_state, "z")
    return jax.tree.map(lambda x, z: z + config.b1 * (x - z), params, z)


def with_accept(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`tx` with the argument `accept` of `make_optimizer`."""

    def update(grads, state, params, *, accept=True, **_):
        updates, new_state = tx.update(grads, state, params)
        updates = jax.tree.map(lambda update: jnp.where(accept, update, 0.0), updates)
        return updates, jax.tree.map(lambda new, old: jnp.where(accept, new, old), new_state, state)

    return optax.GradientTransformationExtraArgs(tx.init, update)


OptimizerMaker = Callable[[OptimizerConfig, optax.Schedule], optax.GradientTransformationExtraArgs]
OPTIMIZERS: dict[str, OptimizerMaker] = {
    "adam": _adam,
    "adamw": _adam,
    "adafactor": _adafactor,
    "schedule_free_adamw": _schedule_free_adamw,
}
