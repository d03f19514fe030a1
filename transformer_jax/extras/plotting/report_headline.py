"""The head of a report: the most important score, when and on what it was made, the commands."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import jax

from transformer_jax import units
from transformer_jax.extras import plotting
from transformer_jax.extras.plotting.report_page import details, pairs, text
from transformer_jax.model.transformer import param_shapes
from transformer_jax.translator.translator import Translator
from transformer_jax.workdir import history, machine, scores
from transformer_jax.workdir.scores import Scores
from transformer_jax.workdir.summary import RunSummary

MAX_COMMANDS = 3  # above the curves: the first ones, and the last
# Score -> how the headline writes it.
_FORMATS = {
    "bleu": "{:.1f}",
    "chrf": "{:.1f}",
    "exact_match": "{:.1f}%",
    "loss": "{:.3f}",
    "perplexity": "{:.2f}",
}


def headline(run: RunSummary, files: Mapping[str, Scores]) -> Iterator[str]:
    """The most important score, large: on the test set, else on the validation set.

    Args:
      run: whose score it is.
      files: scores from files, which count where the run records none on its test set.
    """
    in_files = [one for one in files.values() if one.get("split") == "test"]
    test = run.test or (in_files[-1] if in_files else None)
    shown = test or run.best(run.shown_metric)
    if shown is None:
        yield '<p class="under">The run was never evaluated (config.train.eval_every_steps=0).</p>'
        return
    values = {name: form.format(shown[name]) for name, form in _FORMATS.items()}
    name = "bleu"
    if scores.has_too_few_words(shown):
        del values["bleu"]
        name = "exact_match"
    label = scores.LABELS[name]
    yield f'<p class="score"><strong>{values.pop(name)}</strong> <span>{label}</span></p>'
    where = "test set" if test else "validation set, best evaluation"
    count = f"{shown['num_sentences']:,} sentences, " if "num_sentences" in shown else ""
    step = checkpoint(test) if test else f"step {shown['step']:,}"
    yield f'<p class="under">{where}: {count}{step}</p>'
    yield from pairs({scores.LABELS[name]: value for name, value in values.items()}, "scores")


def checkpoint(one: Scores) -> str:
    """Which parameters were evaluated: those of a checkpoint, or a mean of several."""
    of = one.get("checkpoint", "")
    average = f"{of} of " if of.startswith("average") else ""
    return f"{average}step {one['checkpoint_step']:,}"


def facts(
    run: RunSummary,
    translator: Translator,
    lines: Sequence[plotting.Metrics],
    records: Sequence[history.Record],
) -> Iterator[str]:
    """When, how long and on what the run was trained."""
    num_steps, shapes = translator.config.train.num_steps, param_shapes(translator.config.model)
    shown = {
        **_times(run, records),
        "steps": f"{max(line['step'] for line in lines):,} of {num_steps:,} ({run.state})",
        "parameters": f"{sum(x.size for x in jax.tree.leaves(shapes)):,}",
        "checkpoint of this report": f"step {translator.checkpoint_step:,}",
    }
    trained = [line for line in lines if "train_loss" in line]
    if trained:
        rate = statistics.median(line["target_tokens_per_second"] for line in trained)
        padding = f"{100 * trained[-1]['padding']:.1f}% padding"
        shown["target tokens a second"] = f"{rate:,.0f} (median), {padding}"
        if trained[-1].get("skipped_steps"):
            shown["skipped steps"] = f"{trained[-1]['skipped_steps']:,}"
    yield from pairs(shown, "facts")


def _times(run: RunSummary, records: Sequence[history.Record]) -> dict[str, str]:
    """Date, duration and machine of the training, as far as they are recorded."""
    trainings = [record for record in records if record["command"] == "train"]
    if run.seconds is None:  # a run of an older version
        return {"last written": date(run.updated)}
    parts = f", in {len(trainings)} parts" if len(trainings) > 1 else ""
    machines = dict.fromkeys(machine.sentence(record["machine"]) for record in trainings)
    software = dict.fromkeys(
        f"jax {record['machine']['jax']}, Python {record['machine']['python']}"
        for record in trainings
    )
    return {
        "started": date(run.started),
        "training time": f"{units.duration(run.seconds)}{parts}",
        "machine": "; ".join(machines),
        "trained with": "; ".join(software),
    }


def date(written: str) -> str:
    """ISO 8601 in UTC -> "2026-05-04 10:00 UTC"."""
    return written[:16].replace("T", " ") + " UTC"


def commands(records: Sequence[history.Record]) -> Iterator[str]:
    """The command lines that trained and scored the run, each once; of many, some are folded."""
    lines = list(dict.fromkeys(record["command_line"] for record in records))
    if not any(record["command"] == "train" for record in records):
        yield (
            '<p class="note">An older version trained this run, and recorded neither machine nor '
            "command.</p>"
        )
    if lines:
        yield '<h2 class="label">commands</h2>'
        is_short = len(lines) <= MAX_COMMANDS
        yield _command_lines(lines if is_short else [*lines[: MAX_COMMANDS - 1], lines[-1]])
        if not is_short:
            yield from details(f"all {len(lines)} commands", [_command_lines(lines)])


def _command_lines(lines: Sequence[str]) -> str:
    """Lines that are broken between arguments only, unless one is longer than a line."""
    words = [[f"<span>{text(word)}</span>" for word in line.split(" ")] for line in lines]
    content = "".join(f"<code>{' '.join(line)}</code>" for line in words)
    return f'<pre class="commands">{content}</pre>'
