"""Scores of `eval` that flags ask for: other metrics, noise, a comparison, and the error page."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from transformer_jax import distributed
from transformer_jax.commands import eval_comparison, eval_errors
from transformer_jax.config import DataConfig, DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.evaluation import chosen_metrics, robustness
from transformer_jax.evaluation.significance import Statistics
from transformer_jax.translator import model_metrics
from transformer_jax.translator.translation_settings import TranslationSettings
from transformer_jax.translator.translator import Translator

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class EvaluatedRun:
    """What was evaluated, for scores that are asked for.

    Attributes:
      translator: the model.
      decode: search settings.
      data: of the run, with the languages of the evaluation.
      name: of the data set.
      pairs: its (source, reference).
      tokenizer: of BLEU.
      hypotheses: the best translation of each source.
      scores: of the run.
    """

    translator: Translator
    decode: DecodeConfig
    data: DataConfig
    name: str
    pairs: list[tuple[str, str]]
    tokenizer: str
    hypotheses: list[str]
    scores: model_metrics.Evaluation


def scores(
    run: EvaluatedRun, metrics: Sequence[str], other: list[str] | Translator | None
) -> Iterator[tuple[str, Any]]:
    """What `--json` writes of metrics, noise and a comparison, one after the other; prints them.

    Args:
      run: what was evaluated.
      metrics: of `--metrics`, besides those that are always computed.
      other: from `other_system`.

    Raises:
      UserError: a metric could not be computed; after all others.
    """
    pairs, statistics = run.pairs, list[Statistics]()
    failed: list[UserError] = []

    def compute_metrics(hypotheses: Sequence[str]) -> list[Statistics]:
        command = FLAGS.comet_command or run.translator.config.checkpoint.comet_command
        return chosen_metrics.statistics(metrics, hypotheses, pairs, command, run.data.target_lang)

    if metrics:
        try:
            distributed.run_on_primary(
                lambda: statistics.extend(compute_metrics(run.hypotheses)), "metrics"
            )
            yield "metrics", _chosen_scores(metrics, statistics)
        except UserError as error:  # what else was asked for needs none of them
            failed.append(error)
    if FLAGS.robustness:
        yield "robustness", _robustness(run)
    systems, p_values = [(FLAGS.workdir, run.hypotheses)], dict[str, float]()
    if other is not None:
        others = eval_comparison.hypotheses_of(other, pairs)
        systems.append((FLAGS.compare, others))
        comparison = functools.partial(
            eval_comparison.compare, run.hypotheses, others, pairs, run.tokenizer
        )

        def compare() -> dict[str, Any]:
            try:
                other_statistics = compute_metrics(others) if statistics else []
            except UserError as error:
                failed.append(error)
                return comparison([])
            return comparison(list(zip(statistics, other_statistics, strict=True)))

        comparison_scores = distributed.run_on_primary(compare, "comparison")
        p_values = {row["metric"]: row["p_value"] for row in comparison_scores["metrics"]}
        yield "compare", comparison_scores
    if FLAGS.errors:
        distributed.run_on_primary(
            lambda: eval_errors.write(run.name, run.data, pairs, systems, run.tokenizer, p_values),
            "errors",
        )
    if failed:
        raise failed[0]


def _chosen_scores(names: Sequence[str], statistics: Sequence[Statistics]) -> list[dict[str, Any]]:
    """What `--json` writes of the metrics of `--metrics`; prints their scores, on process 0."""
    rows = [
        {"name": name, "metric": one.metric, "score": one.total, "signature": one.signature}
        for name, one in zip(names, statistics, strict=False)  # the other processes have none
    ]
    for row in rows:
        print(f"{row['metric']:<15} {row['score']:.2f}  {row['signature']}")
    return rows


def _robustness(run: EvaluatedRun) -> list[dict[str, Any]]:
    """What `--json` writes of the scores with noise in the sources; prints them, on process 0."""
    settings = TranslationSettings(run.decode, 1, FLAGS.target_lang, FLAGS.source_lang)
    translate = functools.partial(
        model_metrics.translate,
        run.translator.engine,
        run.translator.device_params,
        settings=settings,
    )
    rows = robustness.scores(
        translate, run.pairs, run.tokenizer, (run.scores.bleu, run.scores.chrf)
    )
    if distributed.is_primary():
        print("the same sentences with noise in the sources")
        for row in rows:
            print(
                f"  {row.noise.replace('_', ' '):<14}  BLEU {row.bleu:6.2f}, "
                f"{row.bleu_change:+.2f}  chrF {row.chrf:6.2f}, {row.chrf_change:+.2f}  "
                f"({row.changed:.1f}% of the sources differ)"
            )
    return [dataclasses.asdict(row) for row in rows]
