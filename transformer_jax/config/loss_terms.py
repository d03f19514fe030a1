"""What may be added to the cross-entropy of a training step: one record for each setting.

`training.objective` computes the terms, under the same names.
"""

import dataclasses

from transformer_jax.config.fields import TrainConfig


@dataclasses.dataclass(frozen=True)
class LossTerm:
    """A term of the loss, whose weight is a setting of `train`; 0: it is not computed.

    Attributes:
      passes: through the model, which the term needs in a step.
      compares_dropout: whether it compares passes with different dropout masks, and so means
        nothing without dropout.
    """

    passes: int = 1
    compares_dropout: bool = False


LOSS_TERMS = {
    "r_drop": LossTerm(passes=2, compares_dropout=True),
    "alignment_weight": LossTerm(),
}


def num_passes(train: TrainConfig) -> int:
    """Passes of a training step through the model."""
    return max([1, *(term.passes for name, term in LOSS_TERMS.items() if getattr(train, name))])
