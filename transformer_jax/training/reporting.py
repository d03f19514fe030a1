"""Reports of a run: `metrics.jsonl`, TensorBoard, `samples.jsonl`, and the terminal."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from etils import epath

from transformer_jax import paths, units, waiting
from transformer_jax.config import Config
from transformer_jax.paths import write_atomically
from transformer_jax.training.loggers import Logger, Outcome
from transformer_jax.training.step import Metrics

Numbers = dict[str, float | str]  # metrics by name, and signatures

MAX_REMOTE_EVENTS = 1 << 20  # bytes of a remote event file, after which another is begun
FIRST_ESTIMATE = 10  # steps after the first one, until the first estimate of the time left
NUM_SHOWN = 2  # translations on the terminal after an evaluation; samples.jsonl has more


class AppendedFile:
    """A file to which bytes are added.

    Args:
      path: of the file; its content is kept.
    """

    def __init__(self, path: epath.Path):
        self.path = path
        self._content: bytes | None = None  # of a remote file; None: not read yet

    def append(self, data: bytes) -> None:
        """Adds `data` at the end.

        Raises:
          OSError: where it cannot be written; the file is then unchanged.
        """
        if paths.is_remote(self.path):
            self._replace(data)
            return
        old_length = self.path.stat().length if self.path.exists() else 0
        try:
            with self.path.open("ab") as out:
                out.write(data)
        except OSError:
            # A part of a line would spoil the next one.
            if self.path.exists():
                with contextlib.suppress(OSError):
                    os.truncate(self.path, old_length)
            raise

    def _replace(self, data: bytes) -> None:
        if self._content is None:
            with paths.store_errors():
                self._content = self.path.read_bytes() if self.path.exists() else b""
        paths.write(self.path, self._content + data)
        self._content += data


class Reporter:
    """Writes the same numbers to every file, and prints them.

    What cannot be written (to a full disk) is reported, kept, and written with the next lines.

    Args:
      workdir: of the run.
      first_step: steps already done; lines of later ones, from before a crash, are dropped.
      num_steps: of the entire run.
      is_primary: False on other processes, which print and write nothing.

    Attributes:
      outcome: how the training ends, unless by an error.
    """

    outcome: Outcome = "ended"

    def __init__(
        self, workdir: epath.Path, first_step: int, num_steps: int, is_primary: bool = True
    ):
        self._workdir, self._num_steps, self._is_primary = workdir, num_steps, is_primary
        self._files: list[_JsonLines | _EventFile] = []
        self._loggers: list[Logger] = []
        self._first: tuple[int, float] | None = None  # the first step here, and when it was done
        self._silence = waiting.Silence()
        if not is_primary:
            return
        self._metrics = _JsonLines(workdir / "metrics.jsonl", first_step)
        self._samples = _JsonLines(workdir / "samples.jsonl", first_step)
        self._board = _EventFile(workdir / "tensorboard", first_step)
        self._files = [self._metrics, self._samples, self._board]

    def open_loggers(self, config: Config) -> None:
        """Sends what follows to `train.loggers` too."""
        if self._is_primary:
            names = config.train.loggers
            self._loggers = [Logger(name, config, self._workdir, self.say) for name in names]

    def say(self, message: str) -> None:
        """A line on the terminal."""
        self._silence.end()
        if self._is_primary:
            print(message, flush=True)

    def advance(self, step: int) -> None:
        """Records that `step` is done, and says the time left after a long silence."""
        if self._first is None:  # compiling, before it, happens only once
            self._first = step, time.monotonic()
        elif step - self._first[0] == FIRST_ESTIMATE and step < self._num_steps:
            self.say(f"step {step}/{self._num_steps}: about {self._time_left(step)} left")
        elif step < self._num_steps and self._silence.is_long:
            self.say(f"step {step}/{self._num_steps}: {self._time_left(step)} left")

    def training(self, step: int, metrics: Numbers) -> None:
        """Metrics of the steps since the last call."""
        if not self._is_primary:
            return
        self._add(step, metrics)
        numbers = (
            f"loss {metrics['train_loss']:.3f}, lr {metrics['learning_rate']:.2e}, "
            f"{metrics['target_tokens_per_second']:,.0f} target tokens/s, "
            f"padding {100 * metrics['padding']:.1f}%"
        )
        if metrics.get("skipped_steps"):
            numbers += f", {metrics['skipped_steps']} skipped"
        self.say(f"step {step}/{self._num_steps}: {numbers}, {self._time_left(step)} left")

    def evaluation(self, step: int, metrics: Numbers, samples: list[dict[str, str]]) -> None:
        """Scores on the validation set, and some of its sentences with their translations.

        Args:
          step: optimizer steps done.
          metrics: by name.
          samples: each with `source`, `reference` and `hypothesis`.

        Metrics that are no floats, such as signatures, are only written to `metrics.jsonl`.
        """
        if not self._is_primary:
            return
        for sample in samples:
            self._samples.add({"step": step, **sample})
        self._add(step, metrics)
        self.say(
            f"step {step}: validation "
            + ", ".join(
                f"{name.removeprefix('eval_')} {value:.2f}"
                for name, value in metrics.items()
                if isinstance(value, float)
            )
        )
        for sample in samples[:NUM_SHOWN]:
            self.say(f"  {sample['source']}  ->  {sample['hypothesis']}")
            if sample["hypothesis"] != sample["reference"]:
                self.say(f"    reference: {sample['reference']}")

    def flush(self) -> None:
        """Writes what could not be written before, if that works now."""
        for file in self._files:
            try:
                file.flush()
            except OSError as error:
                why = paths.explain(error)
                self.say(f"{file.path} cannot be written ({why}); tried again later")
                if paths.is_remote(file.path):
                    break  # its client has retried; the other files are in the same store

    def close(self, error: type[BaseException] | None = None, *_: object) -> None:
        """Ends every file and logger; can be the exit of a context, which gets its error."""
        if error:
            self.outcome = "failed" if issubclass(error, Exception) else "interrupted"
        self.flush()
        for logger in self._loggers:
            logger.close(self.outcome)

    def _time_left(self, step: int) -> str:
        first, started = self._first or (step, 0.0)
        if step == first:
            return "?"  # nothing was timed yet
        seconds = (time.monotonic() - started) / (step - first) * (self._num_steps - step)
        return units.duration(seconds)

    def _add(self, step: int, metrics: Numbers) -> None:
        self._metrics.add({"step": step, **metrics})
        self._board.add(step, metrics)
        for logger in self._loggers:
            logger.add(step, metrics)
        self.flush()


class _JsonLines:
    """A file of JSON lines; those of steps after `first_step` are dropped from it first."""

    def __init__(self, path: epath.Path, first_step: int):
        self.path = path
        self._waiting = ""
        _drop_after(path, first_step)
        self._file = AppendedFile(path)

    def add(self, line: Numbers) -> None:
        self._waiting += json.dumps(line, ensure_ascii=False) + "\n"

    def flush(self) -> None:
        if self._waiting:
            self._file.append(self._waiting.encode())
            self._waiting = ""


class _EventFile:
    """TensorBoard's event file.

    It is written by the training thread: that of tensorboardX would block a run whose disk is full.
    """

    def __init__(self, path: epath.Path, first_step: int):
        self.path = path
        self._waiting: list[Any] = []  # protocol buffers of events
        self._file: Any = None  # tensorboardX's EventsWriter
        self._number = 0  # of files; after a failed write a new one is started
        self._size = 0  # bytes in the newest file
        with _without_torch():
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import register_writer_factory
        # tensorboardX's own writer for gs:// raises errors of its own kinds.
        register_writer_factory("gs", _RemoteEventFiles())
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        # TensorBoard then hides points of later steps, from before a crash.
        self._waiting.append(
            self._event(wall_time=time.time(), step=first_step + 1, session_log=session)
        )

    def add(self, step: int, metrics: Numbers) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if isinstance(value, int | float)
        ]
        summary = self._summary(value=values)
        self._waiting.append(self._event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        try:
            if self._file is None:
                self._file = self._new_file()
            for event in self._waiting:
                self._file.write_event(event)
                self._size += event.ByteSize()
            self._file.flush()
        except OSError:
            self._file = None
            raise
        self._waiting = []
        if self._size > MAX_REMOTE_EVENTS and paths.is_remote(self.path):
            self._file = None  # each flush writes all of a remote file

    def _new_file(self) -> Any:
        with _without_torch():
            from tensorboardX.event_file_writer import EventsWriter
        self._number += 1
        self._size = 0
        self.path.mkdir(parents=True, exist_ok=True)
        return EventsWriter(str(self.path / "events"), f".{os.getpid()}.{self._number}")


class _RemoteEventFiles:
    """Opens event files in an object store for tensorboardX."""

    def open(self, path: str) -> "_RemoteEventFile":
        return _RemoteEventFile(path)

    def directory_check(self, path: str) -> None:
        """There are no folders to make."""


class _RemoteEventFile:
    def __init__(self, path: str):
        self._file = AppendedFile(epath.Path(path))
        self._waiting = b""

    def write(self, data: bytes) -> None:
        self._waiting += data

    def flush(self) -> None:
        self._file.append(self._waiting)
        self._waiting = b""

    def close(self) -> None:
        self.flush()


@contextlib.contextmanager
def _without_torch():
    """Keeps tensorboardX from loading torch, which it does wherever torch is installed."""
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it then fails
    try:
        yield
    finally:
        if absent:
            del sys.modules["torch"]


class Window:
    """Loss and throughput since the last log line, without skipped steps.

    Its clock starts when it is made.
    """

    def __init__(self, padding: float):
        self._padding = padding
        self._sums = {"loss_sum": 0.0, "correct_sum": 0.0, "tokens": 0.0}
        self._last: Metrics = {}
        self.num_steps = 0
        self._seconds = 0.0
        self._started: float | None = time.monotonic()

    def resume(self) -> None:
        """Starts the clock."""
        self._started = time.monotonic()

    def pause(self) -> None:
        """Stops the clock."""
        self._seconds += time.monotonic() - (self._started or time.monotonic())
        self._started = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock while something other than training is done."""
        self.pause()
        yield
        self.resume()

    def add(self, metrics: Metrics) -> None:
        """Adds a step's metrics, as NumPy scalars."""
        for name in self._sums:
            self._sums[name] += float(metrics[name])
        self._last = metrics
        self.num_steps += 1

    def summary(self, skipped: int) -> dict[str, float]:
        """Means over the window; `skipped` counts skipped steps of the entire run."""
        self.pause()
        tokens = max(self._sums["tokens"], 1.0)
        return {
            "train_loss": self._sums["loss_sum"] / tokens,
            "train_token_accuracy": 100.0 * self._sums["correct_sum"] / tokens,
            "learning_rate": float(self._last["learning_rate"]),
            "grad_norm": float(self._last["grad_norm"]),
            "target_tokens_per_second": self._sums["tokens"] / max(self._seconds, 1e-9),
            "padding": self._padding,
            "skipped_steps": skipped,
        }


def _drop_after(path: epath.Path, step: int) -> None:
    """Removes lines of steps after `step`, and a last line that a crash cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):  # a crash may have cut a character
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line.decode() + "\n")
        except (ValueError, KeyError):
            continue
    write_atomically(path, "".join(kept))
