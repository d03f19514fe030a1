"""What happens to long runs: they are told to stop, and steps go wrong."""

import io
import json
import math
import signal
import threading
from typing import Any

import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from transformer_jax import distributed, paths
from transformer_jax.config import Config
from transformer_jax.data.loader import Batch
from transformer_jax.errors import UserError
from transformer_jax.training.setup import TrainingData

MAX_SKIPPED_IN_A_ROW = 10


class StopRequest:
    """Whether the run was asked to stop, by SIGTERM or a preemption notice to any process.

    Among several processes JAX's preemption service listens, and finds a step for all to stop at.

    Args:
      after: a step behind which to stop in any case.
    """

    def __init__(self, after: int | None = None) -> None:
        self._asked, self._after = False, after
        self._before: Any = None

    def __enter__(self) -> "StopRequest":
        if (
            distributed.process_count() == 1
            and threading.current_thread() is threading.main_thread()
        ):
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, *_: Any) -> None:
        self._asked = True

    def reached(self, step: int) -> bool:
        """Whether to stop before step `step`; the same answer on all processes."""
        if self._after is not None and step > self._after:
            return True
        if distributed.process_count() == 1:
            return self._asked
        return multihost_utils.reached_preemption_sync_point(step)


def write_bad_batch(
    workdir: epath.Path, step: int, metrics: dict[str, Any], data: TrainingData, config: Config
) -> epath.Path:
    """Writes the whole batch of a skipped step to `bad_batches/step_N.npz`, for `--replay`.

    It holds the arrays of the batch, as `batch_NAME`; `pairs`, the numbers of its pairs in the
    corpus; `sources` and `targets`, their text; `about`, JSON with `step`, `loss`, `grad_norm` and
    `digest`.
    """
    source = data.batches(config)
    pairs = source.pairs(step - 1)
    about = {
        "step": step,
        "loss": float(metrics["loss_sum"] / metrics["tokens"]),
        "grad_norm": float(metrics["grad_norm"]),
        "digest": source.digest(step - 1),
    }
    corpus = data.epochs.at(step - 1)[0].corpus
    sides = ((data.tokenizers.source, corpus.source),
             (data.tokenizers.target, corpus.target))  # fmt: skip
    texts = [
        [
            tokenizer.decode(side.tokens[side.offsets[i] : side.offsets[i + 1]].tolist())
            for i in pairs
        ]
        for tokenizer, side in sides
    ]
    arrays: dict[str, Any] = {
        "about": json.dumps(about), "pairs": pairs, "sources": texts[0], "targets": texts[1],
        **{f"batch_{name}": array for name, array in source[step - 1].items()},
    }  # fmt: skip
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path = workdir / "bad_batches" / f"step_{step}.npz"
    with paths.store_errors():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(buffer.getvalue())
    return path


def read_bad_batch(path: epath.PathLike) -> tuple[dict[str, Any], Batch]:
    """What is said about a skipped batch, and its arrays.

    Raises:
      UserError: where the file is none of `write_bad_batch`.
    """
    try:
        with np.load(io.BytesIO(epath.Path(path).read_bytes())) as file:
            about = json.loads(str(file["about"]))
            names = [name for name in file.files if name.startswith("batch_")]
            return about, {name.removeprefix("batch_"): file[name] for name in names}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"--replay={path} is no file of a run's bad_batches/ folder ({error})."
        ) from error


def advice(config: Config, step: int, metrics: dict[str, Any]) -> str:
    """What may help a run whose steps are all skipped."""
    finite = math.isfinite(metrics["loss_sum"]) and math.isfinite(metrics["grad_norm"])
    if finite:
        return (
            "their gradients are finite but all above config.train.skip_spikes="
            f"{config.train.skip_spikes:g} times the usual norm: raise it, or lower "
            "config.optimizer.learning_rate"
        )
    hints = [f"lower config.optimizer.learning_rate={config.optimizer.learning_rate:g}"]
    if step <= 2 * config.optimizer.warmup_steps:
        hints.append(f"lengthen config.optimizer.warmup_steps={config.optimizer.warmup_steps}")
    if not config.optimizer.clip_norm:
        hints.append("set config.optimizer.clip_norm=1.0")
    if config.model.dtype == "bfloat16":
        hints.append("try config.model.dtype=float32")
    return ", ".join(hints[:-1]) + f"{', or ' if hints[1:] else ''}{hints[-1]}"
