"""What a run has reached, from the files of its work directory alone."""

import contextlib
import dataclasses
import datetime
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.workdir import digests, directory_kinds, history, scores
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir.scores import Scores

# States of a run. A stopped one can be resumed; a new one has no checkpoint.
RUNNING, FINISHED, STOPPED = "running", "finished", "stopped"
FAILED, DAMAGED, NEW = "failed", "damaged", "new"


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """State, step and scores of a run.

    Attributes:
      name: of its folder.
      path: of its folder.
      state: one of the six above.
      reason: why it failed or is damaged, who runs it; else empty.
      step: of a running one, steps that are logged; else of the newest checkpoint.
      num_steps: of the entire run; None if the config cannot be read.
      best_metric: its best checkpoint has the best value of it (`METRICS`).
      evaluations: scores on the validation set, oldest first, each with its `step`.
      evals: scores by `eval`, oldest first, each with `data`, `started` and `checkpoint`.
      test: of these, the newest on its own test set: of the best checkpoint, if there is one.
      started, updated: ISO 8601, in UTC; `started` is empty for runs of older versions.
      seconds: of all training; None for runs of older versions.
      size: bytes of all files.
    """

    name: str
    path: str
    state: str
    reason: str
    step: int
    num_steps: int | None
    best_metric: str
    evaluations: Sequence[Scores]
    evals: Sequence[Scores]
    test: Scores | None
    started: str
    updated: str
    seconds: float | None
    size: int

    def newest(self, metric: str) -> float | None:
        """A score of the newest evaluation; None without one."""
        return next((line[metric] for line in self.evaluations[::-1] if metric in line), None)

    def best(self, metric: str) -> Scores | None:
        """The evaluation with the best value of a score; of equal ones that of the lowest loss."""
        return scores.best(self.evaluations, metric)

    @property
    def shown_metric(self) -> str:
        """`best_metric`, or `loss` where no evaluation has it (yet)."""
        return "loss" if self.best(self.best_metric) is None else self.best_metric


def find_runs(folder: epath.PathLike) -> tuple[list[epath.Path], list[epath.Path]]:
    """The run in `folder`, or the runs and other folders directly in it, by name.

    Raises:
      UserError: there is no run.
    """
    path = epath.Path(folder)
    paths.require(folder, "DIR")
    if directory_kinds.is_run(path):
        return [path], []
    listed = sorted(path.iterdir(), key=str) if path.is_dir() else []
    children = [child for child in listed if child.is_dir()]
    runs = [child for child in children if directory_kinds.is_run(child)]
    if not runs:
        raise UserError(f"{folder} {directory_kinds.describe(path)}.")
    return runs, [child for child in children if child not in runs]


def summarize(folder: epath.PathLike) -> RunSummary:
    """Reads the files of a run; loads no arrays and no JAX."""
    path = epath.Path(folder)
    config, problem = _read(lambda: workdir_lib.read_config(path), None)
    lines, no_metrics = _read(lambda: history.read_lines(path / "metrics.jsonl"), [])
    records = history.read_history(path)
    steps = workdir_lib.committed_steps(path)
    state, reason = _state(path, config, steps, records, problem or no_metrics)
    logged = max((line.get("step", 0) for line in lines), default=0)
    saved = steps[-1] if steps else 0
    trainings = [record for record in records if record["command"] == "train"]
    metric = config.checkpoint.best_metric if config else "eval_bleu"
    evals = _evals(records)
    return RunSummary(
        name=path.name,
        path=str(path),
        state=state,
        reason=reason,
        step=max(logged, saved) if state == RUNNING else saved,
        num_steps=config.train.num_steps if config else None,
        best_metric=metric.removeprefix("eval_"),
        evaluations=validation_scores(lines),
        evals=evals,
        test=_test(evals, config.data.test) if config else None,
        started=trainings[0]["started"] if trainings else "",
        updated=_updated(path),
        seconds=history.training_seconds(path, records),
        size=_size(path),
    )


def validation_scores(lines: Iterable[Scores]) -> list[Scores]:
    """The evaluations in lines of `metrics.jsonl`, with names as in `scores.LABELS`."""
    return [
        {name.removeprefix("eval_"): value for name, value in line.items()}
        for line in lines
        if "eval_loss" in line
    ]


def _evals(records: Iterable[history.Record]) -> list[Scores]:
    """The scores of a run's own evaluations, each with fields of its record."""
    fields = ("data", "started", "checkpoint")
    return [
        {"split": "", **record["scores"], **{name: record.get(name, "") for name in fields}}
        for record in history.own_evaluations(records)
    ]


def _test(evals: Sequence[Scores], test_set: str) -> Scores | None:
    """The newest scores on `data.test`: those of the best checkpoint if there are any."""
    on_test = [one for one in evals if one["split"] == "test" and one["data"] == test_set]
    of_best = [one for one in on_test if one["checkpoint"] == "best"]
    return next(reversed(of_best or on_test), None)


def _state(
    path: epath.Path,
    config: Config | None,
    steps: Sequence[int],
    records: Sequence[history.Record],
    problem: str,
) -> tuple[str, str]:
    holder = workdir_lib.lock_holder(path)
    if holder is not None:
        return RUNNING, holder
    if config is None or problem:
        return DAMAGED, problem
    trainings = [record for record in records if record["command"] == "train"]
    failure = trainings[-1].get("error", "") if trainings else ""
    if not steps:
        return (FAILED, failure) if failure else (NEW, "")
    newest = path / "checkpoints" / str(steps[-1])
    missing = digests.find_missing(newest)
    if missing:
        return DAMAGED, f"checkpoint {steps[-1]}: {missing}"
    if steps[-1] >= config.train.num_steps:
        return FINISHED, ""
    if _has_stopped_early(newest, config):
        return FINISHED, f"stopped early: no better for {config.train.early_stopping_patience}"
    return (FAILED, failure) if failure else (STOPPED, "")


def _has_stopped_early(checkpoint: epath.Path, config: Config) -> bool:
    patience = config.train.early_stopping_patience
    path = checkpoint / "meta" / "data.json"  # Orbax's file of a JSON item
    if not patience or not path.exists():
        return False
    progress = json.loads(path.read_text(encoding="utf-8")).get("progress", {})
    return progress.get("evaluations_since_best", 0) >= patience


def _read(read: Any, otherwise: Any) -> tuple[Any, str]:
    """What `read` returns, or `otherwise` and why it cannot be read; a missing file is no error."""
    try:
        with paths.store_errors():
            return read(), ""
    except FileNotFoundError:
        return otherwise, ""
    except (UserError, OSError) as error:
        return otherwise, str(error)


def _updated(path: epath.Path) -> str:
    """When the run has last written scores, or was made."""
    for name in ("metrics.jsonl", "config.json"):
        if (path / name).exists():
            written = (path / name).stat().mtime
            when = datetime.datetime.fromtimestamp(written, datetime.UTC)
            return when.isoformat(timespec="seconds")
    return ""


def _size(path: epath.Path) -> int:
    """Bytes of all files; one that training removes just now counts as none."""
    if paths.is_remote(path):
        return sum(int(details["size"]) for details in paths.fetch_details(path).values())
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.path.getsize(os.path.join(folder, name))
    return size
