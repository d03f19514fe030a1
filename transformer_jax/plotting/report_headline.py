"""The head of a report: the most important score, when and on what it was made, the commands."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import jax
from etils import epath

from transformer_jax import plotting
from transformer_jax.api import Translator
from transformer_jax.plotting.report_page import pairs, text
from transformer_jax.runs import history, machine, summary
from transformer_jax.runs.summary import Scores


def headline(tests: Mapping[str, Scores], best: Scores | None) -> Iterator[str]:
    """The most important score, large: of the newest test set, else of the validation set."""
    on_test = [scores for scores in tests.values() if scores["split"] == "test"]
    scores = on_test[-1] if on_test else best
    if scores is None:
        yield '<p class="under">The run was never evaluated (config.train.eval_every_steps=0).</p>'
        return
    shown = {
        "BLEU": f"{scores['bleu']:.1f}",
        "chrF": f"{scores['chrf']:.1f}",
        "exact match": f"{scores['exact_match']:.1f}%",
        "loss": f"{scores['loss']:.3f}",
        "perplexity": f"{scores['perplexity']:.2f}",
    }
    name = "BLEU"
    if has_too_few_words(scores):
        del shown["BLEU"]
        name = "exact match"
    yield f'<p class="score"><strong>{shown.pop(name)}</strong> <span>{name}</span></p>'
    where = "test set" if on_test else "validation set, best evaluation"
    count = f"{scores['num_sentences']:,} sentences, " if "num_sentences" in scores else ""
    step = scores["checkpoint_step"] if on_test else scores["step"]
    yield f'<p class="under">{where}: {count}step {step:,}</p>'
    yield from pairs(shown, "scores")


def facts(
    workdir: epath.Path,
    translator: Translator,
    lines: Sequence[plotting.Metrics],
    records: Sequence[history.Record],
) -> Iterator[str]:
    """When, how long and on what the run was trained."""
    state, _ = summary.state_of(workdir)
    num_steps = translator.config.train.num_steps
    shown = {
        **_times(workdir, records),
        "steps": f"{max(line['step'] for line in lines):,} of {num_steps:,} ({state})",
        "parameters": f"{sum(x.size for x in jax.tree.leaves(translator.params)):,}",
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


def _times(workdir: epath.Path, records: Sequence[history.Record]) -> dict[str, str]:
    """Date, duration and machine of the training, as far as they are recorded."""
    trainings = [record for record in records if record["command"] == "train"]
    seconds = history.training_seconds(workdir, records)
    if not trainings or seconds is None:  # a run of an older version
        return {"last written": date(summary.updated(workdir))}
    parts = f", in {len(trainings)} parts" if len(trainings) > 1 else ""
    machines = dict.fromkeys(machine.sentence(record["machine"]) for record in trainings)
    software = dict.fromkeys(
        f"jax {record['machine']['jax']}, Python {record['machine']['python']}"
        for record in trainings
    )
    return {
        "started": date(trainings[0]["started"]),
        "training time": f"{duration(seconds)}{parts}",
        "machine": "; ".join(machines),
        "trained with": "; ".join(software),
    }


def date(written: str) -> str:
    """ISO 8601 in UTC -> "2026-05-04 10:00 UTC"."""
    return written[:16].replace("T", " ") + " UTC"


def duration(seconds: float) -> str:
    """Seconds in the two largest units, such as "2 h 11 min"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = {"d": days, "h": hours, "min": minutes, "s": rest}
    first = next((n for n, value in enumerate(parts.values()) if value), len(parts) - 1)
    shown = list(parts.items())[first : first + 2]
    return " ".join(f"{value} {unit}" for unit, value in shown)


def commands(records: Sequence[history.Record]) -> Iterator[str]:
    """The command lines that trained and scored the run, each once."""
    lines = dict.fromkeys(record["command_line"] for record in records)
    if not any(record["command"] == "train" for record in records):
        yield (
            '<p class="note">An older version trained this run, and recorded neither machine nor '
            "command.</p>"
        )
    if lines:
        # Lines are broken between arguments only, unless one is longer than a line.
        words = [[f"<span>{text(word)}</span>" for word in line.split(" ")] for line in lines]
        content = "".join(f"<code>{' '.join(line)}</code>" for line in words)
        yield f'<h2 class="label">commands</h2><pre class="commands">{content}</pre>'


def has_too_few_words(scores: Scores) -> bool:
    """Whether BLEU is 0 because no sentence has four words."""
    return not scores["bleu"] and bool(scores["exact_match"])
