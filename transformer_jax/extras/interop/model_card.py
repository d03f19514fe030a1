"""The README of an exported model: a program that uses it, scores, data, recipe and limits.

It is a model card as the Hugging Face Hub reads it: its first lines are YAML.
"""

import dataclasses
import json
import math
import os
import posixpath
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from transformer_jax import __version__
from transformer_jax.config import Config, DataConfig, split_paths
from transformer_jax.config.data_fields import parse_languages
from transformer_jax.data.foreign_tokenizers import JsonTokenizer
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import bundle, usage_examples
from transformer_jax.extras.interop.huggingface import hub
from transformer_jax.extras.interop.model_facts import ModelFacts, Score
from transformer_jax.extras.interop.sample_text import SampleText
from transformer_jax.translator.pretrained import Pretrained
from transformer_jax.workdir import directory_kinds, history, summary

UNKNOWN_LICENCE = "unknown"  # the Hub's name for it
README = "README.md"
PACKAGE = "'transformer-jax @ git+URL'  # URL: of its repository"  # it is in no index
_SHORT = 80  # characters of a good example
# What to install for the program of each format, besides the tokenizer's package.
PACKAGES = {
    "marian": "torch transformers",
    "ctranslate2": "ctranslate2",
    "stablehlo": "jax flatbuffers",
}
LIBRARIES = {"marian": "transformers", "ctranslate2": "ctranslate2", "stablehlo": "jax"}


def collect_facts(
    path: epath.PathLike, model: Pretrained, checkpoint: str = "best", licence: str = ""
) -> ModelFacts:
    """What is known of the model that was read from `path`.

    Args:
      path: of the model, as `pretrained.load` takes it.
      model: read from there.
      checkpoint: that was read. The mean of several has no scores of its own.
      licence: of the model; "": that of the bundle, if it is one.
    """
    # A name on the Hub ends with the model's name, its folder in the cache does not.
    name = os.path.basename(os.path.abspath(path)) or "model"
    path = hub.locate(path)
    if directory_kinds.is_bundle(path):
        stored = bundle.read_facts(path)
        return dataclasses.replace(stored, licence=licence or stored.licence)
    if not model.step:
        return ModelFacts(name, f"the Hugging Face model {name}", licence=licence)
    scores = tuple(_scores(path, model, checkpoint))
    return ModelFacts(name, "a work directory", model.step, scores, licence)


def _scores(workdir: epath.Path, model: Pretrained, checkpoint: str) -> Iterator[Score]:
    """Scores of the checkpoint that training and the command `eval` recorded."""
    is_average = checkpoint.startswith("average")
    metrics = workdir / "metrics.jsonl"
    lines = history.read_lines(metrics) if metrics.exists() and not is_average else []
    of_step = [line for line in summary.validation_scores(lines) if line["step"] == model.step]
    for line in of_step[-1:]:
        yield from _score("validation set", line)
    newest: dict[str, Score] = {}
    for record in history.own_evaluations(history.read_history(workdir)):
        scores, evaluated = record["scores"], record.get("checkpoint", "")
        # The mean of several has the step of the newest, but is another model.
        is_same = evaluated == checkpoint or not (is_average or evaluated.startswith("average"))
        if is_same and scores.get("checkpoint_step") == model.step:
            data = posixpath.basename(str(record.get("data", ""))) or scores.get("split", "")
            newest |= {score.data: score for score in _score(data, scores)}
    yield from newest.values()


def _score(data: str, values: Mapping[str, Any]) -> Iterator[Score]:
    names = [field.name for field in dataclasses.fields(Score) if field.name != "data"]
    known = {name: values[name] for name in names if name in values}
    if {"bleu", "chrf"} <= set(known):
        defaults: dict[str, Any] = {"num_sentences": 0, "bleu_signature": "", "chrf_signature": ""}
        yield Score(data, **(defaults | known))


def write_readme(
    folder: epath.Path,
    facts: ModelFacts,
    model: Pretrained,
    format_name: str,
    text: SampleText,
    notes: list[str],
    results: list[str],
) -> None:
    """Writes README.md into the folder of an export, after running its program there.

    Args:
      folder: of the export.
      facts: about the model.
      model: that was exported.
      format_name: of the export.
      text: that the export was checked on; the program translates one sentence of it.
      notes: what differs from the original model.
      results: of the comparisons with the original model.

    Raises:
      UserError: the program fails.
    """
    program = usage_examples.PROGRAMS[format_name](model.config, model.tokenizers, example(text))
    output = _run(program, folder)
    comparison = "When it was written, it was compared with the original model:\n\n" + "\n".join(
        ["```", *results, "```"]
    )
    card = compose(facts, model, format_name, program, output, notes, comparison)
    (folder / README).write_text(card, encoding="utf-8")


def example(text: SampleText) -> str:
    """A sentence to show: the first short one."""
    short = (sentence for sentence in text.sentences if len(sentence) <= _SHORT)
    return next(short, text.sentences[0])


def _run(program: str, folder: epath.Path) -> str:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        # This process may hold the accelerator's memory.
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"The program in {README} of the export fails ({reason}).")
    return done.stdout.rstrip("\n")


def compose(
    facts: ModelFacts,
    model: Pretrained,
    format_name: str,
    program: str,
    output: str = "",
    notes: Sequence[str] = (),
    comparison: str = "",
) -> str:
    """The text of a model card.

    Args:
      facts: about the model.
      model: that was exported.
      format_name: of the export, or "bundle".
      program: Python that translates, in the folder of the export or bundle.
      output: what the program prints; "": not known.
      notes: what differs from the original model, a line each.
      comparison: what was measured when the model was exported.
    """
    data = model.config.data
    languages = _languages(data)
    sections = [
        "\n".join(_front_matter(facts, languages, format_name)),
        f"# {facts.name}: {data.source_lang} to {data.target_lang}",
        f"A translation model, an encoder-decoder Transformer. It was written as "
        f"{_FORMS[format_name]} by transformer_jax {__version__} from {facts.origin}.",
        "## Use",
        f"```sh\npip install {_packages(model, format_name)}\n```",
        "In the folder of the file:" if format_name == "bundle" else "In this folder:",
        f"```python\n{program}```",
    ]
    if output:
        sections += ["It prints:", f"```\n{output}\n```"]
    sections += [
        "## Scores",
        *_score_table(facts),
        *([comparison] if comparison else []),
        "## Data",
        _list(_data(data, languages, facts)),
        "## Recipe",
        _list(_recipe(model, facts)),
        "## Licence",
        facts.licence
        or "**Fill in before you publish the model**: name its licence here and in "
        "the first lines of this file. The licences of the training data limit the choice.",
        "## Limits",
        _list(_limits(model.config, facts)),
    ]
    if notes:
        sections += ["## Differences from the original model", _list(notes)]
    return "\n\n".join(sections) + "\n"


def _packages(model: Pretrained, format_name: str) -> str:
    """What to install for the program."""
    if format_name == "bundle":
        return PACKAGE
    is_json = isinstance(model.tokenizers.source, JsonTokenizer)
    return f"{PACKAGES[format_name]} {'tokenizers' if is_json else 'sentencepiece'}"


_FORMS = {
    "marian": "a Hugging Face directory",
    "ctranslate2": "a CTranslate2 directory",
    "stablehlo": "StableHLO programs",
    "bundle": "one file",
}


def _front_matter(facts: ModelFacts, languages: list[str], format_name: str) -> Iterator[str]:
    yield "---"
    if languages:
        yield "language:"
        # Quoted: YAML reads no as False.
        yield from (f"- {json.dumps(language)}" for language in languages)
    fill_in = "" if facts.licence else "  # fill in"
    yield f"license: {json.dumps(facts.licence) if facts.licence else UNKNOWN_LICENCE}{fill_in}"
    if format_name in LIBRARIES:
        yield f"library_name: {LIBRARIES[format_name]}"
    yield "pipeline_tag: translation"
    yield from ("tags:", "- translation", "- transformer-jax", "---")


def _languages(data: DataConfig) -> list[str]:
    """The languages, each once; an imported model may not name them."""
    pairs = list(map(parse_languages, data.train_languages))
    names = [data.source_lang, data.target_lang, *(name for pair in pairs for name in pair)]
    return [name for name in dict.fromkeys(names) if name not in ("", "source", "target")]


def _score_table(facts: ModelFacts) -> Iterator[str]:
    if not facts.scores:
        yield (
            "None are known for these parameters. The command `transformer-jax eval` computes them."
        )
        return
    rows = ["| data | sentences | BLEU | chrF |", "|---|---|---|---|"]
    for score in facts.scores:
        count = f"{score.num_sentences:,}" if score.num_sentences else ""
        rows.append(f"| {score.data} | {count} | {score.bleu:.2f} | {score.chrf:.2f} |")
    yield "\n".join(rows)
    signatures = dict.fromkeys(
        signature
        for score in facts.scores
        for signature in (score.bleu_signature, score.chrf_signature)
        if signature
    )
    if signatures:
        yield "sacreBLEU's signatures: " + ", ".join(f"`{s}`" for s in signatures)


def _data(data: DataConfig, languages: list[str], facts: ModelFacts) -> Iterator[str]:
    yield f"languages: {', '.join(languages) or 'not named by the model'}"
    if not facts.step:
        yield f"training data: see the card of {facts.origin}"
        return
    for split in ("train", "validation", "test"):
        value = getattr(data, split)
        if data.source == "files":  # not the folders, which are this machine's
            value = ", ".join(map(posixpath.basename, split_paths(value)))
        name = {"train": "training"}.get(split, split)
        yield f"{name} data: {value or 'none'}"
    if data.source == "tfds":
        yield f"data set: {data.tfds_name} of TensorFlow Datasets"


def _recipe(model: Pretrained, facts: ModelFacts) -> Iterator[str]:
    config = model.config
    shape, train, optimizer = config.model, config.train, config.optimizer
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model.params))
    yield (
        f"model: {count:,} parameters, {shape.num_encoder_layers} encoder and "
        f"{shape.num_decoder_layers} decoder layers, d_model {shape.d_model}, "
        f"{shape.num_heads} heads, d_ff {shape.d_ff}, {shape.norm_position}-norm, "
        f"{shape.activation}, positions {shape.positional}, tied embeddings: {shape.tie_embeddings}"
    )
    yield (
        f"vocabulary: {shape.source_vocab_size:,} source and {shape.target_vocab_size:,} target "
        f"tokens, {'shared' if config.data.shared_vocab else 'separate'}"
    )
    if not facts.step:
        return
    yield (
        f"training: checkpoint of step {facts.step:,} of {train.num_steps:,}, "
        f"{config.data.batch_tokens:,} target tokens a step, dropout {shape.dropout_rate:g}, label "
        f"smoothing {train.label_smoothing:g}, seed {config.seed}"
    )
    yield (
        f"optimizer: {optimizer.name}, schedule {optimizer.schedule}, learning rate "
        f"{optimizer.learning_rate:g}, {optimizer.warmup_steps:,} warm-up steps"
    )
    if train.init_from:
        yield f"fine-tuned from {posixpath.basename(train.init_from.rstrip('/'))}"


def _limits(config: Config, facts: ModelFacts) -> Iterator[str]:
    yield (
        f"A text of more than {config.model.max_len - 1} tokens does not fit the model; split it "
        "into sentences."
    )
    if facts.step:
        yield f"It was trained on sentences of up to {config.data.max_len} tokens."
    yield (
        "Other languages than those above are not translated. Texts unlike the training data are "
        "translated worse."
    )
    if config.data.pretokenized:
        yield "Its input has to be tokenised as the training data: spaces separate words."
    if config.data.lowercase:
        yield "It writes lower-case text only."
    yield (
        "As all such models, it may leave out or invent content. Have translations checked where "
        "mistakes matter."
    )


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
