"""Runs the command `eval`: scores of a model on a data set, and comparisons."""

import dataclasses
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags
from etils import epath

from transformer_jax import distributed, waiting
from transformer_jax.commands import (
    eval_calibration,
    eval_comparison,
    eval_requested,
    model_flags,
    process_flags,
    report_file,
    search_flags,
)
from transformer_jax.commands.text_output import (
    as_line,
    check_not_overwritten,
    check_writable,
    writing,
)
from transformer_jax.config import Config, DataConfig, DecodeConfig
from transformer_jax.data import sources, text_corpora
from transformer_jax.errors import UserError, but_there_is
from transformer_jax.evaluation import bleu_tokenizers, chosen_metrics, comet, corpus_metrics
from transformer_jax.training.data_description import describe_blank_pairs
from transformer_jax.translator import call_settings, model_metrics
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.translator import Translator
from transformer_jax.workdir import history
from transformer_jax.workdir.folder import REPORT

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class EvalSet:
    """What a model is scored on.

    Attributes:
      name: the split, or the file of sources.
      part: the slice of a TFDS split, such as `test[:100]`; empty: the entire split.
      pairs: (source, reference) of each line.
      inputs: flag or setting -> file that is read; no output may have its name.
    """

    name: str
    part: str
    pairs: list[tuple[str, str]]
    inputs: dict[str, str]


def run() -> None:
    """Scores the model. Several processes share the work, and the first one writes."""
    _check_flags()
    metrics = chosen_metrics.parse(FLAGS.metrics)
    if FLAGS.calibrate:
        eval_calibration.check()
    process_flags.connect(saves=False)
    translator = model_flags.load_translator()
    translator.engine.language_tags(FLAGS.target_lang, FLAGS.source_lang)  # refuses unknown ones
    decode = call_settings.decode_config(translator.config, search_flags.given())
    data = translator.config.data
    data = dataclasses.replace(
        data,
        source_lang=FLAGS.source_lang or data.source_lang,
        target_lang=FLAGS.target_lang or data.target_lang,
    )
    tokenizer = bleu_tokenizers.for_data(data)  # fails here if a package is missing
    eval_set = _read_files() if FLAGS.input else _read_split(data)
    name = f"--input={FLAGS.input}" if FLAGS.input else f"config.data.{FLAGS.split}"
    for line in describe_blank_pairs(eval_set.pairs, name):
        if distributed.is_primary():
            print(line)
    command = FLAGS.comet_command or translator.config.checkpoint.comet_command
    distributed.run_on_primary(lambda: chosen_metrics.require(metrics, command), "metrics")
    other = None
    if FLAGS.compare:
        other = eval_comparison.other_system(eval_set.name, len(eval_set.pairs))
    distributed.run_on_primary(functools.partial(_check_outputs, eval_set), "outputs")
    what = f"{len(eval_set.pairs):,} sentences of {eval_set.name}"
    with waiting.announced(what, _notify, ("translating", "translated and scored")):
        scores, outputs = _evaluate(translator, eval_set.pairs, decode)
    hypotheses = [output.text for output in outputs]
    result: dict[str, Any] = {}
    if distributed.is_primary():
        result = _result(scores, translator.checkpoint_step, eval_set)
        _print_scores(result, data, eval_set)
        if FLAGS.conventions:
            result["conventions"] = _conventions(hypotheses, eval_set, data, tokenizer)
    recorded = dict(result)
    run = eval_requested.EvaluatedRun(
        translator, decode, data, eval_set.name, eval_set.pairs, tokenizer, hypotheses, scores
    )
    try:
        if FLAGS.calibrate:
            result["calibration"] = eval_calibration.run(
                translator, eval_set.pairs, outputs, search_flags.given()
            )
        for name, value in eval_requested.scores(run, metrics, other):
            result[name] = value
    finally:  # errors of these lose no scores
        if distributed.is_primary():
            _write(result, hypotheses)
            recorded |= _by_name(result.get("metrics", []))
            _record(recorded, dataclasses.replace(translator.config, decode=decode, data=data))


def _evaluate(
    translator: Translator, pairs: Sequence[tuple[str, str]], decode: DecodeConfig
) -> tuple[model_metrics.Evaluation, list[Translation]]:
    """Scores and translations of pairs."""
    return model_metrics.evaluate(
        translator.engine,
        translator.device_params,
        pairs,
        decode,
        FLAGS.target_lang,
        FLAGS.source_lang,
        translator.alignment if FLAGS.calibrate else None,
    )


def _notify(line: str) -> None:
    """Writes a line for people who wait, apart from the scores."""
    if distributed.is_primary():
        print(line, file=sys.stderr, flush=True)


def _check_flags() -> None:
    """Refuses flags that conflict, before a model is read."""
    if (FLAGS.input is None) != (FLAGS.reference is None):
        raise UserError("--input and --reference go together: the sources and their translations.")
    if FLAGS.input and FLAGS["split"].present:
        raise UserError("--split and --input both name what to score; remove one.")
    if FLAGS.comet_command and not {*chosen_metrics.parse(FLAGS.metrics)} & {*comet.MODELS}:
        raise UserError("--comet_command is for --metrics=comet or comet_qe; add one of them.")
    if FLAGS.calibrate and not FLAGS["split"].present:
        FLAGS.split = "validation"


def _read_files() -> EvalSet:
    """The pairs of `--input` and `--reference`.

    Raises:
      UserError: a file is missing or damaged, or one has fewer lines.
    """
    inputs = {"--input": FLAGS.input, "--reference": FLAGS.reference}
    for flag, path in inputs.items():
        if not epath.Path(path).exists():
            similar = but_there_is(path)
            raise UserError(f"{flag}={path}: there is no such file{similar}.")
    source, reference = map(epath.Path, inputs.values())
    return EvalSet(FLAGS.input, "", list(text_corpora.read_parallel(source, reference)), inputs)


def _read_split(data: DataConfig) -> EvalSet:
    """The pairs of `--split`.

    Raises:
      UserError: they are a part of it, and `--conventions` is given.
    """
    corpora = sources.open_corpora(data, FLAGS.split)
    inputs: dict[str, str] = {}
    for corpus in corpora:
        languages = (f".{corpus.source_lang}", f".{corpus.target_lang}", "")
        names = [corpus.name + end + gz for end in languages for gz in ("", ".gz")]
        inputs |= {f"config.data.{FLAGS.split} ({name})": name for name in names}
    part = getattr(data, FLAGS.split) if is_part(data, FLAGS.split) else ""
    if FLAGS.conventions and part:
        raise UserError(
            f"config.data.{FLAGS.split}={part} is a part of its split: --conventions is "
            "for comparisons with published scores, which count every sentence; name the entire "
            "split."
        )
    return EvalSet(FLAGS.split, part, [pair for c in corpora for pair in c.read()], inputs)


def is_part(data: DataConfig, split: str) -> bool:
    """Whether only a slice of a TFDS split is named."""
    return data.source == "tfds" and "[" in getattr(data, split)


def _check_outputs(eval_set: EvalSet) -> None:
    """Checks before the evaluation that its outputs can be written.

    Raises:
      UserError: one cannot be written, or is a file that is read.
    """
    names = [name for name in ("json", "output", "errors") if FLAGS[name].value]
    for one, other in itertools.combinations(names, 2):
        if FLAGS[one].value == FLAGS[other].value:
            raise UserError(f"--{one} and --{other} are the same file, {FLAGS[one].value}.")
    for name in ("json", "output", "errors"):
        check_not_overwritten(FLAGS[name].value or "-", eval_set.inputs, f"--{name}")
        if FLAGS[name].value:
            check_writable(FLAGS[name].value)


def _result(scores: model_metrics.Evaluation, step: int, eval_set: EvalSet) -> dict[str, Any]:
    """What `--json` writes, without comparisons."""
    result = {**dataclasses.asdict(scores), "checkpoint_step": step, "split": eval_set.name}
    if eval_set.part:
        result["part"] = eval_set.part
    if FLAGS.input:
        result["reference"] = FLAGS.reference
    if FLAGS.ensemble:
        result["ensemble"] = [FLAGS.workdir, *FLAGS.ensemble]
    if given := search_flags.given():
        result["search"] = given
    return result


def _write(result: dict[str, Any], hypotheses: Sequence[str]) -> None:
    """Writes the files of `--json` and `--output`."""
    if FLAGS.json:
        with writing(FLAGS.json) as out:
            out.write(json.dumps(result, indent=2) + "\n")
    if FLAGS.output:
        with writing(FLAGS.output) as out:
            out.writelines(as_line(text) for text in hypotheses)


def _by_name(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Scores and signatures of `--metrics`, as the history has those of BLEU."""
    scores = {row["name"]: row["score"] for row in rows}
    return scores | {f"{row['name']}_signature": row["signature"] for row in rows}


def _record(result: dict[str, Any], config: Config) -> None:
    """Records the scores in the run's history, and in the report that it has."""
    is_shown = history.add_evaluation(
        FLAGS.workdir,
        result,
        FLAGS.input or getattr(config.data, FLAGS.split),
        config,
        jax.devices(),
        distributed.process_count(),
        FLAGS.checkpoint,
        FLAGS.ensemble,
    )
    if is_shown and (epath.Path(FLAGS.workdir) / REPORT).exists():
        report_file.write(FLAGS.workdir)


def _print_scores(result: dict[str, Any], data: DataConfig, eval_set: EvalSet) -> None:
    part = f" (a part of it: {eval_set.part})" if eval_set.part else ""
    print(
        f"{eval_set.name}{part}, {data.source_lang} -> {data.target_lang}, "
        f"{result['num_sentences']} sentences, checkpoint of step {result['checkpoint_step']}"
    )
    if "search" in result:
        given = ", ".join(f"{name}={value}" for name, value in result["search"].items())
        print(f"search          {given}")
    print(f"BLEU            {result['bleu']:.2f}  {result['bleu_signature']}")
    if not result["bleu"] and (result["exact_match"] or _references_are_short(eval_set)):
        print(f"                ({bleu_tokenizers.NO_FOUR_WORDS})")
    print(f"chrF            {result['chrf']:.2f}  {result['chrf_signature']}")
    print(f"exact match     {result['exact_match']:.2f}%")
    print(
        f"loss            {result['loss']:.4f} nats a token, perplexity {result['perplexity']:.3f}"
    )
    print(f"token accuracy  {result['token_accuracy']:.2f}%")


def _references_are_short(eval_set: EvalSet) -> bool:
    """Whether the median reference has fewer than the four words in a row that BLEU counts."""
    return statistics.median(len(reference.split()) for _, reference in eval_set.pairs) < 4


def _conventions(
    hypotheses: Sequence[str], eval_set: EvalSet, data: DataConfig, tokenizer: str
) -> list[dict[str, Any]]:
    """What `--json` writes of BLEU by convention; prints it."""
    references = [reference for _, reference in eval_set.pairs]
    rows = corpus_metrics.conventions(
        hypotheses, references, data.target_lang, data.pretokenized, tokenizer
    )
    print("BLEU of the same translations by convention")
    for row in rows:
        score = "-" if row.bleu is None else f"{row.bleu:.2f}"
        print(f"  {row.name:<26}{score:>6}  {row.signature}")
    return [dataclasses.asdict(row) for row in rows]
