"""The command `eval`: its flags, and what it prints."""

import contextlib
import dataclasses
import json
from typing import Any

from absl import flags
from etils import epath

from transformer_jax import corpus_metrics, evaluation, process_flags, processes
from transformer_jax.api import Translator
from transformer_jax.config import DataConfig
from transformer_jax.data import sources
from transformer_jax.decode_command import as_line, writing
from transformer_jax.errors import UserError

FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_enum("split", "test", ["train", "validation", "test"], "Which data to score.")
    flags.DEFINE_string("json", None, "Also write the scores to this file.")
    flags.DEFINE_string("output", None, "Also write the translations to this file, one a line.")
    flags.DEFINE_bool("conventions", False, "Show BLEU in every convention, with signatures.")
    flags.DEFINE_string(
        "compare",
        None,
        "A work directory, DIR or DIR@CHECKPOINT, or a file of translations: is it better or worse "
        "by more than chance?",
    )
    process_flags.define()


def evaluate(translator: Translator) -> None:
    """Scores the split that is asked for; of several processes each does its share."""
    data = translator.config.data
    corpora = sources.open_corpora(data, FLAGS.split)
    pairs = [pair for corpus in corpora for pair in corpus.read()]
    if FLAGS.conventions and is_part(data, FLAGS.split):
        raise UserError(
            f"config.data.{FLAGS.split}={getattr(data, FLAGS.split)} is a part of its split: "
            "--conventions gives scores to be compared with others', for which every sentence "
            "counts; name the split as a whole."
        )
    with contextlib.ExitStack() as files:
        # Opened first: a path that cannot be written should not cost an evaluation.
        outs = {name: files.enter_context(writing(FLAGS[name].value))
                for name in ("json", "output")
                if FLAGS[name].value and processes.is_primary()}  # fmt: skip
        other = _other_translations(pairs) if FLAGS.compare else None
        scores, outputs = evaluation.evaluate(
            translator.engine, translator.params, pairs, translator.config.decode
        )
        result = {
            **dataclasses.asdict(scores),
            "checkpoint_step": translator.checkpoint_step,
            "split": FLAGS.split,
        }
        texts = [output.text for output in outputs]
        if processes.is_primary():
            _print_scores(result, data)
            result |= _further(texts, other, [reference for _, reference in pairs], data)
        if "json" in outs:
            outs["json"].write(json.dumps(result, indent=2) + "\n")
        if "output" in outs:
            outs["output"].writelines(as_line(text) for text in texts)


def is_part(data: DataConfig, split: str) -> bool:
    """Whether only a slice of a TFDS split is named."""
    return data.source == "tfds" and "[" in getattr(data, split)


def _further(
    texts: list[str], other: list[str] | None, references: list[str], data: DataConfig
) -> dict[str, Any]:
    """Prints what `--conventions` and `--compare` ask for; the same for `--json`."""
    found: dict[str, Any] = {}
    if FLAGS.conventions:
        rows = corpus_metrics.conventions(texts, references, data.target_lang, data.pretokenized)
        print("BLEU of the same translations by convention")
        for row in rows:
            score = "-" if row.bleu is None else f"{row.bleu:.2f}"
            print(f"  {row.name:<26}{score:>6}  {row.signature}")
        found["conventions"] = [dataclasses.asdict(row) for row in rows]
    if other is not None:
        comparisons = corpus_metrics.compare(
            texts, other, references, data.target_lang, data.pretokenized
        )
        print(f"beside {FLAGS.compare}, by paired bootstrap")
        for c in comparisons:
            print(
                f"  {c.metric:<5} {c.score:.2f} ± {c.interval:.2f} here, {c.other_score:.2f} ± "
                f"{c.other_interval:.2f} there, p = {c.p_value:.4f}  {c.signature}"
            )
        found["compare"] = {
            "with": FLAGS.compare,
            "metrics": [dataclasses.asdict(c) for c in comparisons],
        }
    return found


def _other_translations(pairs: list[tuple[str, str]]) -> list[str]:
    """Of the same sources, by the system that `--compare` names.

    Raises:
      UserError: where there is none, or not one translation for each source.
    """
    path = epath.Path(FLAGS.compare)
    if path.is_file():
        lines = list(sources.read_lines(path))
        if len(lines) != len(pairs):
            raise UserError(
                f"{path} has {len(lines)} translations, the {FLAGS.split} set {len(pairs)} "
                "sentences: with any of them left out there is nothing to compare."
            )
        return lines
    folder, _, checkpoint = FLAGS.compare.rpartition("@")
    if not folder:
        folder, checkpoint = FLAGS.compare, "best"
    other = Translator.load(folder, checkpoint)
    found = other.engine.translate(
        other.params, processes.share([source for source, _ in pairs]), other.config.decode
    )
    return [best.text for best in processes.unite([hypotheses[0] for hypotheses in found])]


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
    print(f"loss            {result['loss']:.4f} nats a token, "
          f"perplexity {result['perplexity']:.3f}")  # fmt: skip
    print(f"token accuracy  {result['token_accuracy']:.2f}%")
