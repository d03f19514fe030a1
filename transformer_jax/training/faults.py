"""Skipped steps: their batches are written to files, and ten in a row end the run."""

import io
import json
import math
from typing import Any

import numpy as np
from etils import epath

from transformer_jax import distributed, paths
from transformer_jax.config import Config
from transformer_jax.data.loader import Batch
from transformer_jax.data.token_cache import Sentences
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError
from transformer_jax.model.choices import compute_dtype
from transformer_jax.ops import platforms
from transformer_jax.training.progress import Progress
from transformer_jax.training.setup import TrainingData
from transformer_jax.training.step import Metrics

MAX_SKIPPED_IN_A_ROW = 10


def record_skipped_step(
    workdir: epath.Path, step: int, metrics: Metrics, data: TrainingData, config: Config
) -> str:
    """Writes the batch of a skipped step to a file, and returns a line about the step."""
    loss = metrics["loss_sum"] / metrics["tokens"]
    line = f"step {step}: skipped, loss {loss:.4g}, gradient norm {metrics['grad_norm']:.4g}"
    if not distributed.is_primary():
        return line
    try:
        path = write_bad_batch(workdir, step, metrics, data, config)
    except OSError as error:
        return f"{line}; its batch could not be written ({error.strerror})"
    return f"{line}; its batch is in {path}"


def check_skipped_in_a_row(progress: Progress, step: int, metrics: Metrics, config: Config) -> None:
    """Raises a `UserError` with advice once `MAX_SKIPPED_IN_A_ROW` steps were all skipped."""
    if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise distributed.SharedError(
            f"The last {MAX_SKIPPED_IN_A_ROW} steps were all skipped, up to step {step}: "
            f"{advice(config, step, metrics)}; `replay=FILE` repeats one of these steps."
        )


def write_bad_batch(
    workdir: epath.Path, step: int, metrics: Metrics, data: TrainingData, config: Config
) -> epath.Path:
    """Writes the batch of a skipped step to `bad_batches/step_N.npz`, for `--replay`.

    The file contains the arrays of the batch, as `batch_NAME`; `pairs`, the numbers of its pairs in
    the corpus; `sources` and `targets`, their text; `about`, JSON with `step`, `loss`, `grad_norm`
    and `digest`.
    """
    batches = data.batches(config)
    pairs = batches.pairs(step - 1)
    about = {
        "step": step,
        "loss": float(metrics["loss_sum"] / metrics["tokens"]),
        "grad_norm": float(metrics["grad_norm"]),
        "digest": batches.digest(step - 1),
    }
    corpus = data.epochs.at(step - 1)[0].corpus
    arrays: dict[str, Any] = {  # whatever NumPy makes an array of
        "about": json.dumps(about),
        "pairs": pairs,
        "sources": _texts(data.tokenizers.source, corpus.source, pairs),
        "targets": _texts(data.tokenizers.target, corpus.target, pairs),
        **{f"batch_{name}": array for name, array in batches[step - 1].items()},
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path = workdir / "bad_batches" / f"step_{step}.npz"
    with paths.store_errors():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(buffer.getvalue())
    return path


def _texts(tokenizer: Tokenizer, side: Sentences, pairs: np.ndarray) -> list[str]:
    """One side of pairs of the corpus."""
    return [tokenizer.decode(side[i].tolist()) for i in pairs]


def read_bad_batch(path: epath.PathLike) -> tuple[dict[str, Any], Batch]:
    """`about` and the arrays of a skipped batch.

    Raises:
      UserError: where the file is not one of `write_bad_batch`.
    """
    try:
        with np.load(io.BytesIO(epath.Path(path).read_bytes())) as file:
            about = json.loads(str(file["about"]))
            names = [name for name in file.files if name.startswith("batch_")]
            return about, {name.removeprefix("batch_"): file[name] for name in names}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"`replay={path}` is no file of a run's bad_batches/ folder ({error})."
        ) from error


def advice(config: Config, step: int, metrics: Metrics) -> str:
    """What may help a run whose steps are all skipped."""
    if math.isfinite(metrics["loss_sum"]) and math.isfinite(metrics["grad_norm"]):
        return (
            "their gradients are finite but all above config.train.skip_spikes="
            f"{config.train.skip_spikes:g} times the usual norm: raise it, or lower "
            "config.optimizer.learning_rate"
        )
    hints = []
    may_use_cudnn = platforms.current() == "gpu" and config.model.attention in ("auto", "cudnn")
    if math.isfinite(metrics["loss_sum"]) and may_use_cudnn:
        # The parameters are fine. A kernel of the backward pass may not be.
        hints.append("their losses are finite, so try a new run with config.model.attention=xla")
    hints.append(f"lower config.optimizer.learning_rate={config.optimizer.learning_rate:g}")
    if step <= 2 * config.optimizer.warmup_steps:
        hints.append(f"lengthen config.optimizer.warmup_steps={config.optimizer.warmup_steps}")
    if not config.optimizer.clip_norm:
        hints.append("set config.optimizer.clip_norm=1.0")
    if compute_dtype(config.model) != np.float32:
        hints.append("try config.model.dtype=float32")
    return ", ".join(hints[:-1]) + f"{', or ' if hints[1:] else ''}{hints[-1]}"
