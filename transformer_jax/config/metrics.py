"""The scores of an evaluation: one record for each, from which all else that lists them is made."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Metric:
    """A score of translations, or of a model.

    Attributes:
      label: what tables call it.
      lower_is_better: whether a better model has a lower value.
      on_request: whether it is computed only where it is asked for; its statistics are then in
        `evaluation.chosen_metrics`.
      chooses_best: whether it may choose the best checkpoint, as `checkpoint.best_metric`.
    """

    label: str
    lower_is_better: bool = False
    on_request: bool = False
    chooses_best: bool = True


METRICS = {
    "bleu": Metric("BLEU"),
    "chrf": Metric("chrF"),
    "exact_match": Metric("exact match"),
    "loss": Metric("loss", lower_is_better=True),
    "perplexity": Metric("perplexity", lower_is_better=True, chooses_best=False),
    "token_accuracy": Metric("token accuracy"),
    "chrf++": Metric("chrF++", on_request=True),
    "ter": Metric("TER", lower_is_better=True, on_request=True),
    "comet": Metric("COMET", on_request=True),
    "comet_qe": Metric("COMET-QE", on_request=True),
}
