"""The evaluation of a model while it is trained."""

import dataclasses

from transformer_jax.config import Config
from transformer_jax.decoding.engine import Engine
from transformer_jax.evaluation import model_metrics
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
      Metrics by name, which begins with `eval_`: numbers, and the signatures of BLEU and chrF.
      The first few translations, each with `source`, `reference` and `hypothesis`.
    """
    decode = dataclasses.replace(
        config.decode, method="beam", beam_size=config.train.eval_beam_size, beam_groups=1
    )
    scores, translations = model_metrics.evaluate(engine, params, pairs, decode)
    engine.release()
    metrics = {f"eval_{name}": value for name, value in dataclasses.asdict(scores).items()}
    samples = [
        {"source": source, "reference": reference, "hypothesis": translation.text}
        for (source, reference), translation in zip(pairs, translations, strict=True)
    ]
    return metrics, samples[:NUM_SAMPLES]
