"""Optimizers and schedules: one record for each, from which checks and messages are made.

What computes them is in `training.optimizer`, under the same names.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class OptimizerKind:
    """A value of `optimizer.name`.

    Attributes:
      decays_weights: whether `weight_decay` applies.
      has_first_moment: whether `mu_dtype` applies.
      averages: whether it trains an average of the parameters, in the place of a schedule that
        falls; gradients are then taken at another point, for which its state is needed.
    """

    decays_weights: bool = True
    has_first_moment: bool = False
    averages: bool = False


OPTIMIZERS = {
    "adam": OptimizerKind(decays_weights=False, has_first_moment=True),
    "adamw": OptimizerKind(has_first_moment=True),
    "adafactor": OptimizerKind(),
    "schedule_free_adamw": OptimizerKind(averages=True),
}


@dataclasses.dataclass(frozen=True)
class ScheduleKind:
    """A value of `optimizer.schedule`.

    Attributes:
      falls_to_zero: whether it falls to 0 at the end of the run, so that the warm-up has to end
        before.
    """

    falls_to_zero: bool = False


SCHEDULES = {
    "rsqrt": ScheduleKind(),
    "linear": ScheduleKind(falls_to_zero=True),
    "cosine": ScheduleKind(falls_to_zero=True),
    "constant": ScheduleKind(),
}
