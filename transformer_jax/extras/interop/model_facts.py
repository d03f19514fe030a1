"""What is known of a model besides its config and parameters, for its model card."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Score:
    """Scores on one set of sentences."""

    data: str  # such as "validation set" or "test set"
    num_sentences: int
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """What a card says that config and parameters do not.

    Attributes:
      name: of the model.
      origin: what the model was read from.
      step: of the checkpoint; 0 if the model was not trained here.
      scores: of the model itself.
      licence: a name, or "".
    """

    name: str
    origin: str
    step: int = 0
    scores: tuple[Score, ...] = ()
    licence: str = ""

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> "ModelFacts":
        """Inverse of `dataclasses.asdict`; raises a KeyError or a TypeError for other trees."""
        return cls(**{**tree, "scores": tuple(Score(**score) for score in tree["scores"])})
