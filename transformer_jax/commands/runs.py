"""The command `runs DIR...`: a table of runs with their state, step and scores.

Each DIR is a run or a folder of runs; without one it is the folder `runs`.
"""

import dataclasses
import datetime
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax import paths, units
from transformer_jax.commands.command_help import CommandHelp, Words
from transformer_jax.config.metrics import METRICS
from transformer_jax.errors import UserError
from transformer_jax.workdir import scores

if TYPE_CHECKING:  # help is shown without it
    from etils import epath

    from transformer_jax.workdir.summary import RunSummary

FLAGS = flags.FLAGS
DEFAULT_FOLDER = "runs"
SHORTEST_NAME = 10  # columns that a run's name gets in any table
HELP = CommandHelp(
    usage="[DIR ...] [flags]",
    words=Words("folder"),
    about="Prints a table of runs with their state, step and scores. Each DIR is a run or a folder "
    "of runs; without one it is the folder `runs`.",
    less_memory="name fewer folders",
    uses_jax=False,
    examples=(
        ("All runs of the folder `runs`, newest first:", "transformer-jax runs"),
        (
            "The best by chrF first, of two folders:",
            "transformer-jax runs runs old/runs --sort=score --metric=chrf",
        ),
        ("For a script:", "transformer-jax runs runs/mine --json"),
    ),
    pages=(("docs/workdir.md", "what a work directory holds"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    flags.DEFINE_enum("sort", "time", ["time", "score", "name"], "Newest, best or in order first.")
    flags.DEFINE_enum(
        "metric",
        None,
        [*METRICS],
        "Score to show and sort by; default: the one by which the runs choose their best.",
    )
    flags.DEFINE_bool("json", False, "Print all that is known of each run as JSON instead.")
    return argv


def run(folders: Sequence[str]) -> None:
    """Prints the table of `folders`: runs, or folders of runs."""
    from transformer_jax.workdir import summary

    runs = [summary.summarize(path) for path in _find(folders or [DEFAULT_FOLDER])]
    metric = FLAGS.metric or _shared_metric(runs)
    runs = _sorted(runs, FLAGS.sort, metric)
    if FLAGS.json:
        print(json.dumps([_as_json(run) for run in runs], indent=1, ensure_ascii=False))
        return
    width = shutil.get_terminal_size((80, 24)).columns
    print("\n".join(table(runs, metric, width, datetime.datetime.now(datetime.UTC))))


def table(
    runs: Sequence["RunSummary"], metric: str, width: int, now: datetime.datetime
) -> list[str]:
    """The lines of a table of runs, and after it why runs failed or are damaged.

    Args:
      runs: in their order.
      metric: one of `scores.LABELS`, of which the table shows the newest and the best value.
      width: of the terminal; where the table would be wider, it leaves out a column, then parts of
        the names, then another column.
      now: for the age of the runs.
    """
    rows = [_row(run, metric, now) for run in runs]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [run.path for run in runs]
    for row, name in zip(rows, names, strict=True):
        row["run"] = name
    head = [name for name in rows[0] if name != "test" or any(row["test"] for row in rows)]
    longest = max(len(row["run"]) for row in rows)
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in head}
    for name, enough in (("at step", longest), ("size", SHORTEST_NAME)):
        if _room(widths, width) < enough:
            head.remove(name)
            del widths[name]
    widths["run"] = min(widths["run"], max(_room(widths, width), SHORTEST_NAME))
    lines = []
    for row in ({name: name for name in head}, *rows):
        cells = [shorten(row["run"], widths["run"]).ljust(widths["run"])]
        cells.append(row["state"].ljust(widths["state"]))
        cells += [row[name].rjust(widths[name]) for name in head[2:]]
        lines.append("  ".join(cells))
    notes = [
        f"{name}: {run.state}, {run.reason}"
        for name, run in zip(names, runs, strict=True)
        if run.state in ("failed", "damaged")
    ]
    return [*lines, *([""] if notes else []), *notes]


def _room(widths: Mapping[str, int], width: int) -> int:
    """Columns that a table of `width` columns has left for the names of runs."""
    others = [size for name, size in widths.items() if name != "run"]
    return width - sum(others) - 2 * len(others)


def shorten(name: str, width: int) -> str:
    """A name in at most `width` columns; its middle is left out, because runs differ at an end."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def _find(folders: Sequence[str]) -> list["epath.Path"]:
    """The runs in `folders`; reports what is no run.

    Raises:
      UserError: there is none.
    """
    from transformer_jax.workdir import summary

    runs: list[epath.Path] = []
    problems: list[str] = []
    for folder in folders:
        try:
            in_folder, others = summary.find_runs(paths.expand(folder, "DIR"))
        except UserError as error:
            problems.append(str(error))
            continue
        runs += in_folder
        if others:
            names = ", ".join(path.name for path in others)
            problems.append(f"{folder}: no run is in {names}.")
    if not runs:
        raise UserError(" ".join(problems))
    for problem in problems:
        print(problem, file=sys.stderr)
    return list(dict.fromkeys(runs))


def _shared_metric(runs: Sequence["RunSummary"]) -> str:
    """By what all runs choose their best checkpoint; if they differ, a score that all have.

    That is BLEU, or chrF where the sentences of a run are too short for BLEU, which is 0 then.
    """
    metrics = {run.best_metric for run in runs}
    if len(metrics) == 1:
        return metrics.pop()
    is_zero = [best["bleu"] == 0 for run in runs if (best := run.best("bleu"))]
    return "chrf" if any(is_zero) else "bleu"


def _sorted(runs: Sequence["RunSummary"], order: str, metric: str) -> list["RunSummary"]:
    if order == "name":
        return sorted(runs, key=lambda run: run.path)
    if order == "time":
        return sorted(runs, key=lambda run: run.updated, reverse=True)
    rated = [(scores.quality(best, metric), run) for run in runs if (best := run.best(metric))]
    ranked = [run for _, run in sorted(rated, key=lambda one: one[0], reverse=True)]
    return ranked + [run for run in runs if run.best(metric) is None]


def _row(run: "RunSummary", metric: str, now: datetime.datetime) -> dict[str, str]:
    """Column of the table -> its text for a run."""
    best, newest = run.best(metric), run.newest(metric)
    return {
        "run": run.name,
        "state": run.state,
        "step": f"{run.step}/{'?' if run.num_steps is None else run.num_steps}",
        METRICS[metric].label: "-" if newest is None else f"{newest:.2f}",
        "best": "-" if best is None else f"{best[metric]:.2f}",
        "at step": "-" if best is None else str(best["step"]),
        "test": f"{run.test[metric]:.2f}" if run.test and metric in run.test else "",
        "age": _age(run.updated, now),
        "size": units.size(run.size),
    }


def _age(written: str, now: datetime.datetime) -> str:
    """How long ago, in the largest unit that fits."""
    if not written:
        return "-"
    return units.duration((now - datetime.datetime.fromisoformat(written)).total_seconds(), 1)


def _as_json(run: "RunSummary") -> dict[str, Any]:
    fields = dataclasses.asdict(run)
    names = dict.fromkeys([*scores.LABELS, run.best_metric])
    newest = run.evaluations[-1] if run.evaluations else None
    return fields | {"newest": newest, "best": {name: run.best(name) for name in names}}
