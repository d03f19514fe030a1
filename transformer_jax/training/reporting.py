"""What a run tells: `metrics.jsonl`, TensorBoard, `samples.jsonl`, and the terminal."""

import json
import sys
import time
from types import ModuleType
from typing import Any

import tqdm
from etils import epath

from transformer_jax.workdir import write_atomically


class Reporter:
    """Writes the same numbers to every place.

    Args:
      workdir: of the run.
      first_step: steps already done; lines of later ones, from before a crash, are dropped.
      num_steps: of the whole run.
    """

    def __init__(self, workdir: epath.Path, first_step: int, num_steps: int):
        self._num_steps = num_steps
        self._metrics = workdir / "metrics.jsonl"
        self._samples = workdir / "samples.jsonl"
        for path in (self._metrics, self._samples):
            _drop_after(path, first_step)
        self._board = _tensorboardx().SummaryWriter(
            str(workdir / "tensorboard"), purge_step=first_step + 1
        )
        self._bar = (
            tqdm.tqdm(total=num_steps, initial=first_step, unit="step", dynamic_ncols=True)
            if sys.stderr.isatty()
            else None
        )
        self._started, self._first_step = time.monotonic(), first_step

    def say(self, message: str) -> None:
        """A line on the terminal."""
        if self._bar:
            self._bar.write(message)
        else:
            print(message, flush=True)

    def advance(self, step: int) -> None:
        """Moves the bar, where there is one."""
        if self._bar:
            self._bar.update(step - self._bar.n)

    def training(self, step: int, metrics: dict[str, float]) -> None:
        """Metrics of the steps since the last call."""
        self._write(step, metrics)
        numbers = (
            f"loss {metrics['train_loss']:.3f}, lr {metrics['learning_rate']:.2e}, "
            f"{metrics['target_tokens_per_second']:,.0f} target tokens/s, "
            f"padding {100 * metrics['padding']:.1f}%"
        )
        if self._bar:
            self._bar.set_postfix_str(numbers)
        else:
            print(f"step {step}/{self._num_steps}: {numbers}, {self._time_left(step)} left",
                  flush=True)  # fmt: skip

    def evaluation(self, step: int, metrics: dict[str, float], samples: list[dict]) -> None:
        """Scores on the validation set, and some of its sentences with their translations."""
        self._write(step, metrics)
        with self._samples.open("a") as out:
            for sample in samples:
                out.write(json.dumps({"step": step, **sample}, ensure_ascii=False) + "\n")
        self.say(
            f"step {step}: validation "
            + ", ".join(f"{k.removeprefix('eval_')} {v:.2f}" for k, v in metrics.items())
        )

    def close(self) -> None:
        if self._bar:
            self._bar.close()
        self._board.close()

    def _time_left(self, step: int) -> str:
        done = max(step - self._first_step, 1)
        seconds = (time.monotonic() - self._started) / done * (self._num_steps - step)
        hours, minutes = divmod(int(seconds) // 60, 60)
        return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        with self._metrics.open("a") as out:
            out.write(json.dumps({"step": step, **metrics}) + "\n")
        for name, value in metrics.items():
            self._board.add_scalar(name, value, step)
        self._board.flush()


def _tensorboardx() -> ModuleType:
    """tensorboardX, kept from loading torch, which it does wherever torch is installed."""
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it then fails
    try:
        import tensorboardX
    finally:
        if absent:
            del sys.modules["torch"]
    return tensorboardX


def _drop_after(path: epath.Path, step: int) -> None:
    """Removes lines of steps after `step`, and a last line that a crash cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError):
            continue
    write_atomically(path, "".join(kept))
