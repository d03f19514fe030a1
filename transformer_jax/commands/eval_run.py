"""Runs the command `eval`: scores of a model on a data set, and comparisons."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags
from etils import epath

from transformer_jax import distributed
from transformer_jax.api import Translator
from transformer_jax.commands import model_flags, process_flags
from transformer_jax.commands.text_output import (
    as_line,
    check_not_overwritten,
    check_writable,
    writing,
)
from transformer_jax.config import DataConfig
from transformer_jax.data import sources
from transformer_jax.decoding.batch_translator import TranslationSettings
from transformer_jax.errors import UserError
from transformer_jax.evaluation import corpus_metrics, model_metrics
from transformer_jax.runs import directory_kinds, history

FLAGS = flags.FLAGS


def run() -> None:
    """Scores the split. Several processes share the work, and the first one writes."""
    process_flags.connect(saves=False)
    translator = model_flags.load_translator()
    data = translator.config.data
    tokenizer = model_metrics.bleu_tokenizer(data)  # fails here if a package is missing
    corpora = sources.open_corpora(data, FLAGS.split)
    pairs = [pair for corpus in corpora for pair in corpus.read()]
    references = [reference for _, reference in pairs]
    if FLAGS.conventions and is_part(data, FLAGS.split):
        raise UserError(
            f"config.data.{FLAGS.split}={getattr(data, FLAGS.split)} is a part of its split: "
            "--conventions is for comparisons with published scores, which count every sentence; "
            "name the entire split."
        )
    other = _other_system(len(pairs)) if FLAGS.compare else None
    distributed.run_on_primary(functools.partial(_check_outputs, corpora), "outputs")
    scores, outputs = model_metrics.evaluate(
        translator.engine, translator.params, pairs, translator.config.decode
    )
    hypotheses = [output.text for output in outputs]
    other_hypotheses = None if other is None else _hypotheses(other, pairs)
    if not distributed.is_primary():
        return
    result: dict[str, Any] = {
        **dataclasses.asdict(scores),
        "checkpoint_step": translator.checkpoint_step,
        "split": FLAGS.split,
    }
    if is_part(data, FLAGS.split):
        result["part"] = getattr(data, FLAGS.split)
    _print_scores(result, data)
    if FLAGS.conventions:
        rows = corpus_metrics.conventions(
            hypotheses, references, data.target_lang, data.pretokenized, tokenizer
        )
        _print_conventions(rows)
        result["conventions"] = [dataclasses.asdict(row) for row in rows]
    if other_hypotheses is not None:
        metrics = corpus_metrics.compare(hypotheses, other_hypotheses, references, tokenizer)
        _print_comparison(metrics)
        result["compare"] = {
            "with": FLAGS.compare,
            "metrics": [dataclasses.asdict(metric) for metric in metrics],
        }
    if FLAGS.json:
        with writing(FLAGS.json) as out:
            out.write(json.dumps(result, indent=2) + "\n")
    if FLAGS.output:
        with writing(FLAGS.output) as out:
            out.writelines(as_line(text) for text in hypotheses)
    history.add_evaluation(
        FLAGS.workdir,
        result,
        getattr(data, FLAGS.split),
        jax.devices(),
        distributed.process_count(),
    )


def _check_outputs(corpora: Sequence[sources.Corpus]) -> None:
    """Checks before the evaluation that its outputs can be written.

    Raises:
      UserError: one cannot be written, or is a file that is read.
    """
    inputs: dict[str, str] = {}
    for corpus in corpora:
        languages = (f".{corpus.source_lang}", f".{corpus.target_lang}", "")
        names = [corpus.name + end + gz for end in languages for gz in ("", ".gz")]
        inputs |= {f"config.data.{FLAGS.split} ({name})": name for name in names}
    if FLAGS.json and FLAGS.json == FLAGS.output:
        raise UserError(f"--json and --output are the same file, {FLAGS.json}.")
    for name in ("json", "output"):
        check_not_overwritten(FLAGS[name].value or "-", inputs, f"--{name}")
        if FLAGS[name].value:
            check_writable(FLAGS[name].value)


def is_part(data: DataConfig, split: str) -> bool:
    """Whether only a slice of a TFDS split is named."""
    return data.source == "tfds" and "[" in getattr(data, split)


def _other_system(num_sentences: int) -> list[str] | Translator:
    """What `--compare` names: translations from a file, or another model.

    Raises:
      UserError: there is no such model, or not one translation for each source, or too few.
    """
    corpus_metrics.check_comparable(num_sentences)
    path = epath.Path(FLAGS.compare)
    if path.is_file() and not directory_kinds.is_bundle(path):
        lines = list(sources.read_lines(path))
        if len(lines) != num_sentences:
            raise UserError(
                f"{path} has {len(lines)} translations, the {FLAGS.split} set {num_sentences} "
                "sentences. The file needs one line for each sentence."
            )
        return lines
    folder, _, checkpoint = FLAGS.compare.rpartition("@")
    if not folder or path.exists():
        folder, checkpoint = FLAGS.compare, "best"
    return Translator.load(folder, checkpoint)


def _hypotheses(system: list[str] | Translator, pairs: list[tuple[str, str]]) -> list[str]:
    """The other system's translation of each source."""
    if isinstance(system, list):
        return system
    if distributed.is_primary():
        print(
            f"translating with {FLAGS.compare}, checkpoint of step {system.checkpoint_step}, "
            "by the search settings of that run",
            flush=True,
        )
    sources_share = distributed.local_share([source for source, _ in pairs])
    n_best = system.engine.translate(
        system.params, sources_share, TranslationSettings(system.config.decode)
    )
    return distributed.gather_shares([hypotheses[0].text for hypotheses in n_best])


def _print_scores(result: dict[str, Any], data: DataConfig) -> None:
    part = f" (a part of it: {getattr(data, FLAGS.split)})" if is_part(data, FLAGS.split) else ""
    print(
        f"{FLAGS.split}{part}, {data.source_lang} -> {data.target_lang}, "
        f"{result['num_sentences']} sentences, checkpoint of step {result['checkpoint_step']}"
    )
    print(f"BLEU            {result['bleu']:.2f}  {result['bleu_signature']}")
    if not result["bleu"] and result["exact_match"]:
        print(f"                ({corpus_metrics.NO_FOUR_WORDS})")
    print(f"chrF            {result['chrf']:.2f}  {result['chrf_signature']}")
    print(f"exact match     {result['exact_match']:.2f}%")
    print(
        f"loss            {result['loss']:.4f} nats a token, perplexity {result['perplexity']:.3f}"
    )
    print(f"token accuracy  {result['token_accuracy']:.2f}%")


def _print_conventions(rows: Sequence[corpus_metrics.ConventionScore]) -> None:
    print("BLEU of the same translations by convention")
    for row in rows:
        score = "-" if row.bleu is None else f"{row.bleu:.2f}"
        print(f"  {row.name:<26}{score:>6}  {row.signature}")


def _print_comparison(metrics: Sequence[corpus_metrics.Comparison]) -> None:
    note = ": identical translations" if metrics[0].identical else ""
    print(f"compared with {FLAGS.compare}, by paired bootstrap{note}")
    for metric in metrics:
        print(
            f"  {metric.metric:<5} {metric.score:.2f} ± {metric.interval:.2f} here, "
            f"{metric.other_score:.2f} ± {metric.other_interval:.2f} there, "
            f"p = {metric.p_value:.4f}  {metric.signature}"
        )
