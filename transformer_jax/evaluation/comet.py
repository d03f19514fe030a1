"""COMET, which Unbabel's command `comet-score` computes in a separate process.

COMET needs torch and NumPy 1, so it belongs in another environment than JAX: `pipx install
unbabel-comet`. Its models are downloaded by that command.
"""

import itertools
import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.config import Config
from transformer_jax.errors import UserError

COMMAND = "comet-score --gpus 0"
# Metric -> the model that it is computed with.
MODELS = {"comet": "Unbabel/wmt22-comet-da", "comet_qe": "Unbabel/wmt22-cometkiwi-da"}
WITHOUT_REFERENCE = ("comet_qe",)
FACTOR = 100.0  # of scores, which papers report in percent


def check(command: str) -> None:
    """Raises a `UserError` if the command is not installed."""
    program = (_split(command) or ["comet-score"])[0]
    if shutil.which(program) is None:
        raise UserError(
            f"COMET is computed by the command {program!r}, which is not here: `pipx install "
            "unbabel-comet` installs it in a separate environment, because it needs another "
            "NumPy than JAX; or name it with its path in `comet_command` (for training, "
            "config.checkpoint.comet_command)."
        )


def require_best_metric(config: Config) -> None:
    """Raises a `UserError` if COMET chooses the best checkpoint and cannot be computed here.

    It scores a sentence, because the model may need a licence or more memory than there is.
    """
    name = config.checkpoint.best_metric.removeprefix("eval_")
    if name in MODELS and config.train.eval_every_steps:
        sentence_scores(name, ["a"], ["a"], ["a"], config.checkpoint.comet_command)


def model_of(metric: str, command: str = COMMAND) -> str:
    """The model of a metric: the one that the command names, or the usual one."""
    words = _split(command)
    for word, after in itertools.pairwise([*words, ""]):
        if word.startswith("--model="):
            return word.partition("=")[2]
        if word == "--model":
            return after
    return MODELS[metric]


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UserError(f"`comet_command={command}` is no command line: {error}.") from error


def sentence_scores(
    metric: str,
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    command: str = COMMAND,
) -> tuple[list[float], str]:
    """Score of each translation, times `FACTOR`.

    Args:
      metric: one of `MODELS`.
      sources, hypotheses, references: in the same order.
      command: `comet-score` with arguments of yours, such as `--model` with another model.

    Returns:
      The scores, and the model.

    Raises:
      UserError: the command is missing or fails.
    """
    check(command)
    model = model_of(metric, command)
    words = [*_split(command), "--model", model]  # the last one of a flag counts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"-s": ("sources", sources), "-t": ("hypotheses", hypotheses)}
        if metric not in WITHOUT_REFERENCE:
            files["-r"] = ("references", references)
        for flag, (file, texts) in files.items():
            # One line each: its `readlines` ends lines where Python's text files do.
            lines = [" ".join(text.splitlines()) + "\n" for text in texts]
            (folder / file).write_text("".join(lines), encoding="utf-8")
            words += [flag, str(folder / file)]
        words += ["--quiet", "--only_system", "--to_json", str(folder / "scores.json")]
        # In a separate session: a signal that stops a training must not end it.
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"{words[0]} cannot be started: {error.strerror}.") from error
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise UserError(
                f"{words[0]} with the model {model} ended with status {done.returncode}: {last}"
            )
        scores = _read_scores(folder / "scores.json", words[0])
    if len(scores) != len(sources):
        raise UserError(f"{words[0]} gave {len(scores)} scores for {len(sources)} sentences.")
    return [FACTOR * score for score in scores], model


def _read_scores(path: Path, program: str) -> list[float]:
    """Score of each sentence, of what `comet-score --to_json` has written."""
    try:
        (rows,) = json.loads(path.read_text(encoding="utf-8")).values()
        return [float(row["COMET"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{program} ended well, but wrote no scores that can be read.") from error
