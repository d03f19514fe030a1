"""What `eval --compare` does: another system on the same sentences."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import flags
from etils import epath

from transformer_jax import distributed
from transformer_jax.commands import model_flags, search_flags
from transformer_jax.data import text_lines
from transformer_jax.errors import UserError
from transformer_jax.evaluation import corpus_metrics
from transformer_jax.evaluation.significance import Statistics
from transformer_jax.translator import call_settings, model_metrics
from transformer_jax.translator.translation_settings import TranslationSettings
from transformer_jax.translator.translator import Translator
from transformer_jax.workdir import directory_kinds

FLAGS = flags.FLAGS


def other_system(name: str, num_sentences: int) -> list[str] | Translator:
    """What `--compare` names: translations from a file, or another model.

    Args:
      name: of the data set, for messages.
      num_sentences: in it.

    Raises:
      UserError: there is no such model, or not one translation for each source, or too few.
    """
    corpus_metrics.check_comparable(num_sentences)
    path = epath.Path(FLAGS.compare)
    if path.is_file() and not directory_kinds.is_bundle(path):
        lines = list(text_lines.read_lines(path))
        if len(lines) != num_sentences:
            raise UserError(
                f"{path} has {len(lines)} translations, {name} has {num_sentences} "
                "sentences. The file needs one line for each sentence."
            )
        return lines
    ((folder, checkpoint),) = model_flags.models([FLAGS.compare])
    other = Translator.load(folder, checkpoint, allow_pickle=FLAGS.allow_pickle)
    try:
        other.engine.language_tags(FLAGS.target_lang, FLAGS.source_lang)
    except UserError as error:
        raise UserError(f"`compare={FLAGS.compare}`: {error}") from error
    return other


def compare(
    hypotheses: Sequence[str],
    other_hypotheses: Sequence[str],
    pairs: list[tuple[str, str]],
    tokenizer: str,
    more: Sequence[tuple[Statistics, Statistics]],
) -> dict[str, Any]:
    """What `--json` writes of the comparison with another system; prints it.

    Args:
      hypotheses: of this system.
      other_hypotheses: of the other one.
      pairs: (source, reference).
      tokenizer: of BLEU.
      more: statistics of both by other metrics.
    """
    references = [reference for _, reference in pairs]
    metrics = corpus_metrics.compare(hypotheses, other_hypotheses, references, tokenizer, more)
    _print_comparison(metrics)
    return {"with": FLAGS.compare, "metrics": [dataclasses.asdict(metric) for metric in metrics]}


def hypotheses_of(system: list[str] | Translator, pairs: list[tuple[str, str]]) -> list[str]:
    """The translation of each source by what `other_system` returns."""
    if isinstance(system, list):
        return system
    if distributed.is_primary():
        print(
            f"translating with {FLAGS.compare}, checkpoint of step {system.checkpoint_step}, "
            "with the search settings of that run and the search flags of this command",
            flush=True,
        )
    return model_metrics.translate(
        system.engine,
        system.device_params,
        [source for source, _ in pairs],
        TranslationSettings(
            call_settings.decode_config(system.config, search_flags.given()),
            1,
            FLAGS.target_lang,
            FLAGS.source_lang,
        ),
    )


def _print_comparison(metrics: Sequence[corpus_metrics.Comparison]) -> None:
    note = ": identical translations" if metrics[0].identical else ""
    print(f"compared with {FLAGS.compare}, by paired bootstrap{note}")
    if note:
        print("  --compare=DIR@STEP names another checkpoint of a run")
    for metric in metrics:
        print(
            f"  {metric.metric.replace('chrF2', 'chrF'):<5} {metric.score:.2f} "
            f"± {metric.interval:.2f} here, "
            f"{metric.other_score:.2f} ± {metric.other_interval:.2f} there, "
            f"p = {metric.p_value:.4f}  {metric.signature}"
        )
