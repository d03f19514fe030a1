"""What a work directory records of its run: metrics, samples, and the commands that made it.

`history/` has one JSON file for each training process and each evaluation: the command line, when
it started and ended, how it ended, and the machine. A file is written by one process only, so
training and evaluation can write at the same time, in object stores too.
"""

import contextlib
import datetime
import json
import shlex
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config, all_settings
from transformer_jax.errors import UserError
from transformer_jax.workdir import directory_kinds, machine
from transformer_jax.workdir import folder as workdir_lib

if TYPE_CHECKING:  # lists of runs are shown without it
    import jax

FOLDER = "history"
# Besides those of the search, settings that change the scores of the same parameters.
_SCORED_BY = ("data.source_lang", "data.target_lang", "data.bleu_tokenizer", "data.pretokenized")
Record = dict[str, Any]  # of one process; `started` and `ended` are ISO 8601, in UTC


@contextlib.contextmanager
def record_training(
    folder: epath.PathLike, devices: Sequence["jax.Device"], num_processes: int = 1
) -> Iterator[None]:
    """Records the training inside the context, in the `history/` of a run.

    `ended` and `outcome` ("ended", or "failed" with `error`) are written when the context ends. A
    killed process leaves them out; `read_history` and the next training complete them.

    Args:
      folder: of the run.
      devices: on which the program computes, of all processes.
      num_processes: of the run.
    """
    for path, earlier in _read_files(folder):
        if earlier["command"] == "train" and "ended" not in earlier:
            _write(path, _completed(folder, earlier))
    record = _new_record("train", devices, num_processes)
    path = _new_path(folder, record)
    _write(path, record)
    try:
        yield
    except Exception as error:
        _write(path, record | {"ended": _now(), "outcome": "failed", "error": str(error)})
        raise
    except BaseException:  # Ctrl-C
        _write(path, record | {"ended": _now(), "outcome": "interrupted"})
        raise
    _write(path, record | {"ended": _now(), "outcome": "ended"})


def add_evaluation(
    folder: epath.PathLike,
    scores: dict[str, Any],
    data: str,
    config: Config,
    devices: Sequence["jax.Device"],
    num_processes: int = 1,
    checkpoint: str = "best",
    ensemble: Sequence[str] = (),
) -> bool:
    """Records scores in the `history/` of a run; does nothing for a folder that is no run.

    The record has the `settings` that change scores and are not those of the run.

    Args:
      folder: of the run, or of a published model.
      scores: as `eval --json` writes them.
      data: what was translated: the value of the setting, or a file.
      config: of the evaluation, with the search settings and languages that it used.
      devices: on which the program computes, of all processes.
      num_processes: of the evaluation.
      checkpoint: as `--checkpoint` names it.
      ensemble: the other models, if the scores are of several.

    Returns:
      Whether they are recorded and are one of `own_evaluations`.
    """
    if not directory_kinds.is_run(folder):
        return False
    trained = workdir_lib.read_config(folder)
    record = _new_record("eval", devices, num_processes)
    record |= {
        "ended": record["started"],
        "outcome": "ended",
        "data": data,
        "checkpoint": checkpoint,
        "ensemble": list(ensemble),
        "settings": {
            setting.path: setting.value(config)
            for setting in all_settings(Config)
            if setting.path.startswith("decode.") or setting.path in _SCORED_BY
            if setting.value(config) != setting.value(trained)
        },
        "scores": scores,
    }
    _write(_new_path(folder, record), record)
    return bool(own_evaluations([record]))


def read_history(folder: epath.PathLike) -> list[Record]:
    """The records of a run, oldest first; runs of older versions have none.

    The last training process may run, or may have been killed: then it has no `ended`.
    """
    return [record for _, record in _read_files(folder)]


def own_evaluations(records: Iterable[Record]) -> list[Record]:
    """The evaluations of a run alone, not as part of an ensemble, with its own settings."""
    return [
        record
        for record in records
        if record["command"] == "eval" and not record.get("ensemble") and not record.get("settings")
    ]


def training_seconds(folder: epath.PathLike, records: Sequence[Record]) -> float | None:
    """Time from start to end of all training processes together; None without a record."""
    trainings = [record for record in records if record["command"] == "train"]
    if not trainings:
        return None
    return sum(
        max(0.0, (_time(record["ended"]) - _time(record["started"])).total_seconds())
        for record in (_completed(folder, record) for record in trainings)
    )


def read_lines(path: epath.Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, except a last line that is cut short.

    Raises:
      UserError: another line is damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").split(
            "\n"
        )  # `splitlines` would also split inside strings
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged ({error}).") from error
    objects = []
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                objects.append(_as_object(json.loads(line)))
        except ValueError as error:
            if number < len(lines):
                raise UserError(f"{path}: line {number} is damaged ({error}).") from error
    return objects


def _as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def read_metrics(folder: epath.PathLike) -> list[dict[str, Any]]:
    """Lines of `metrics.jsonl`.

    Raises:
      UserError: there are none, or the folder is no run.
    """
    path = epath.Path(folder) / "metrics.jsonl"
    lines = read_lines(path) if path.exists() else []
    if not lines:
        workdir_lib.read_config(folder)  # says what a folder or file is that is no run
        raise UserError(f"{folder} has no metrics yet: its metrics.jsonl is missing or empty.")
    return lines


def command_line() -> str:
    """The command line of this process, as one types it: without the folders of programs."""
    first, *rest = sys.orig_argv
    name = Path(first).name
    if name.startswith("python"):
        name = "python"
        if rest and Path(rest[0]).name == "transformer-jax":  # the installed command is a script
            name, rest = "transformer-jax", rest[1:]
    return shlex.join([name, *rest])


def _new_record(command: str, devices: Sequence["jax.Device"], num_processes: int) -> Record:
    from transformer_jax import __version__

    return {
        "command": command,
        "command_line": command_line(),
        "transformer_jax": __version__,
        "machine": machine.describe(devices, num_processes),
        "started": _now(),
    }


def _new_path(folder: epath.PathLike, record: Record) -> epath.Path:
    """A new name, which sorts by time."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f")
    name = f"{now}-{record['command']}-{uuid.uuid4().hex[:6]}.json"
    return epath.Path(folder) / FOLDER / name


def _write(path: epath.Path, record: Record) -> None:
    """Writes a record; says so if that fails, because what it records matters more."""
    try:
        with paths.store_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            paths.write_atomically(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        print(f"{path.parent} cannot be written ({paths.explain(error)}).", file=sys.stderr)


def _read_files(folder: epath.PathLike) -> list[tuple[epath.Path, Record]]:
    """The files of `history/` that can be read, and their records, oldest first."""
    path = epath.Path(folder) / FOLDER
    if not path.exists():
        return []
    records = []
    for file in sorted(path.iterdir(), key=lambda file: file.name):
        with contextlib.suppress(ValueError):  # a file that somebody else has changed
            record = json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else {}
            if _is_record(record):
                records.append((file, record))
    return records


def _is_record(record: Any) -> bool:
    """Whether a JSON value is what this module writes.

    Raises:
      ValueError: a time in it is none.
    """
    if not isinstance(record, dict) or not {"command", "started"} <= set(record):
        return False
    for name in ("started", "ended"):
        _time(str(record.get(name, record["started"])))
    return record["command"] != "eval" or isinstance(record.get("scores"), dict)


def _completed(folder: epath.PathLike, record: Record) -> Record:
    """The record of a process that was killed ends with the newest checkpoint it wrote."""
    if "ended" in record:
        return record
    steps = workdir_lib.committed_steps(folder)
    ended = _time(record["started"])
    if steps:
        newest = epath.Path(folder) / "checkpoints" / str(steps[-1]) / "digests.json"
        if newest.exists():
            written = datetime.datetime.fromtimestamp(newest.stat().mtime, datetime.UTC)
            ended = max(ended, written)
    return record | {"ended": ended.isoformat(timespec="seconds"), "outcome": "killed"}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
