"""The evaluation of a model while it is trained."""

import dataclasses
import logging

from transformer_jax import distributed
from transformer_jax.config import Config
from transformer_jax.decoding.engine import Engine
from transformer_jax.errors import UserError
from transformer_jax.evaluation import chosen_metrics, comet, model_metrics
from transformer_jax.training.step import PyTree

NUM_SAMPLES = 5


def evaluate(
    config: Config, engine: Engine, params: PyTree, pairs: list[tuple[str, str]]
) -> tuple[dict[str, float | str], list[dict[str, str]]]:
    """Scores and translates pairs of source and reference, greedily or by beam search.

    Args:
      config: of the run; `train.eval_beam_size` replaces the beam size of `decode`.
      engine: of the model; its compiled programs are released afterwards.
      params: of the model, entire, on one device.
      pairs: the validation set.

    Returns:
      Metrics by name, which begins with `eval_`: numbers, and the signatures of BLEU, of
      chrF and of the metric that chooses the best checkpoint.
      The first few translations, each with `source`, `reference` and `hypothesis`.
    """
    decode = dataclasses.replace(
        config.decode,
        method="beam",
        beam_size=config.train.eval_beam_size,
        beam_groups=1,
        shortlist=False,  # it is made when the model is trained
    )
    scores, translations = model_metrics.evaluate(engine, params, pairs, decode)
    engine.release()
    metrics = {f"eval_{name}": value for name, value in dataclasses.asdict(scores).items()}
    texts = [translation.text for translation in translations]
    metrics |= distributed.run_on_primary(lambda: _chosen_score(config, texts, pairs), "metric")
    samples = [
        {"source": source, "reference": reference, "hypothesis": text}
        for (source, reference), text in zip(pairs, texts, strict=True)
    ]
    return metrics, samples[:NUM_SAMPLES]


def require_best_metric(config: Config) -> None:
    """Raises a `UserError` if the metric of the best checkpoint cannot be computed here.

    COMET scores a sentence, because its model may need a licence or more memory than there is.
    """
    name = config.checkpoint.best_metric.removeprefix("eval_")
    if name in comet.MODELS and config.train.eval_every_steps:
        comet.sentence_scores(name, ["a"], ["a"], ["a"], config.checkpoint.comet_command)


def _chosen_score(
    config: Config, texts: list[str], pairs: list[tuple[str, str]]
) -> dict[str, float | str]:
    """The score that chooses the best checkpoint and its signature, if it is not there anyway."""
    name = config.checkpoint.best_metric.removeprefix("eval_")
    if name not in chosen_metrics.NAMES:
        return {}
    command = config.checkpoint.comet_command
    try:
        (statistics,) = chosen_metrics.statistics(
            [name], texts, pairs, command, config.data.target_lang
        )
    except UserError as error:
        logging.warning("%s This evaluation has no %s, so it is not the best.", error, name)
        return {}
    return {f"eval_{name}": statistics.total, f"eval_{name}_signature": statistics.signature}
