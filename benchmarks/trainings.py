"""Trains variants of a recipe, several at the same time, and scores them on the validation set."""

import concurrent.futures
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from timing import write_json

from transformer_jax.workdir import machine

ROOT = Path(__file__).parent.parent
# Checkpoints that are averaged.
NUM_AVERAGED = 10


@dataclasses.dataclass(frozen=True)
class Training:
    """A variant of a recipe.

    Attributes:
      variant: its name.
      seed: of the parameters, the dropout and the order of the data.
      recipe: name in `configs/`.
      data: folder of the corpus, with `train.LANG` and so on.
      steps: of the training.
      checkpoint_every_steps: distance of the checkpoints that are averaged.
      settings: of the configuration, by their full names, that differ from the recipe's.
      test: name in `data` of a set that is scored as well; empty for none.
      robustness: whether the sets are also scored with noise in their sources.
    """

    variant: str
    seed: int
    recipe: str
    data: Path
    steps: int
    checkpoint_every_steps: int
    settings: dict[str, Any]
    test: str = ""
    robustness: bool = False

    @property
    def name(self) -> str:
        variant = self.variant.replace(" ", "_").replace(",", "")
        return f"{self.recipe}_{self.steps}_{variant}_{self.seed}"

    def commands(self, folder: Path, cache: Path) -> list[list[str]]:
        """Training and scoring, in their order.

        Args:
          folder: of the run.
          cache: of tokenizers and tokens.
        """
        train = [
            "train.py",
            f"--config={self.recipe}",
            f"--config.data.train={self.data}/train",
            f"--config.data.validation={self.data}/val",
            f"--config.data.test={self.data / self.test if self.test else ''}",
            f"--config.data.cache_dir={cache}",
            "--config.train.eval_every_steps=0",
            f"--config.checkpoint.max_to_keep={NUM_AVERAGED}",
            f"--config.seed={self.seed}",
            f"--workdir={folder}",
            *[f"--config.{field}={value}" for field, value in self.settings.items()],
        ]
        # Only the last checkpoints are averaged, so the first steps go without any.
        every = self.checkpoint_every_steps
        first = self.steps - NUM_AVERAGED * every
        return [
            [
                *train,
                f"--config.train.num_steps={steps}",
                f"--config.train.checkpoint_every_steps={distance}",
            ]
            for steps, distance in ((first, first), (self.steps, every))
            if steps > 0
        ] + [
            [
                "eval.py",
                f"--workdir={folder}",
                f"--split={split}",
                f"--checkpoint=average:{NUM_AVERAGED}",
                f"--json={folder}/{split}.json",
                *["--robustness"] * self.robustness,
            ]
            for split in ("validation", *(["test"] if self.test else []))
        ]

    def run(self, folder: Path) -> dict[str, Any]:
        """Trains and scores, in separate processes; one row, which has `error` if one failed.

        Args:
          folder: of all runs.
        """
        run = folder / self.name
        run.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
        row: dict[str, Any] = {"variant": self.variant, "seed": self.seed}
        for command in self.commands(run, folder / "tokens"):
            with open(run / "output.log", "a") as log:
                done = subprocess.run(
                    [sys.executable, *command], cwd=ROOT, env=environment, stdout=log, stderr=log
                )
            if done.returncode:
                return row | {"error": (run / "output.log").read_text()[-2000:]}
        row["seconds"] = round(time.monotonic() - started, 1)
        scores = json.loads((run / "validation.json").read_text())
        row |= {key: scores[key] for key in ("loss", "bleu", "chrf")}
        row |= _noisy("", scores)
        if self.test:
            scores = json.loads((run / "test.json").read_text())
            row |= {f"test_{key}": scores[key] for key in ("bleu", "chrf")}
            row |= _noisy("test_", scores)
        return row


def _noisy(prefix: str, scores: dict[str, Any]) -> dict[str, float]:
    """chrF by the noise of the sources, of what `eval --json` has written."""
    return {f"{prefix}chrf_{one['noise']}": one["chrf"] for one in scores.get("robustness", [])}


def train_all(
    trainings: Sequence[Training],
    folder: Path,
    path: Path,
    about: dict[str, Any],
    jobs: int,
    seconds: float,
    add: Callable[[Training], dict[str, Any]] = lambda training: {},
) -> None:
    """Trains what is not in the results yet, and writes them after each run.

    Args:
      trainings: in their order.
      folder: of the runs.
      path: of the results, a JSON file.
      about: facts that are the same for all results of the file.
      jobs: trainings at the same time.
      seconds: after which no training begins.
      add: what else to write about a training.

    Raises:
      SystemExit: a training is too short for its checkpoints; the file has results of other facts;
        a training failed.
    """
    for t in trainings:
        if t.steps < NUM_AVERAGED * t.checkpoint_every_steps:
            raise SystemExit(
                f"{t.steps} steps have no {NUM_AVERAGED} checkpoints, every "
                f"{t.checkpoint_every_steps} steps, to average: train for more."
            )
    results: dict[str, Any] = {**about, "machine": machine.host(), "rows": []}
    if path.exists():
        results = json.loads(path.read_text())
        if wrong := [key for key, value in about.items() if results.get(key) != value]:
            raise SystemExit(f"{path} has runs of another {wrong[0]}: name another file.")
    done = {(row["variant"], row["seed"]) for row in results["rows"]}
    todo = [t for t in trainings if (t.variant, t.seed) not in done]
    ends = time.monotonic() + seconds
    failed = []

    def run(training: Training) -> dict[str, Any] | None:
        return training.run(folder) | add(training) if time.monotonic() < ends else None

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, training) for training in todo]
        for future in concurrent.futures.as_completed(futures):
            row = future.result()
            if row is None:
                continue
            print(json.dumps(row), flush=True)
            if "error" in row:
                failed.append(row["variant"])
                continue
            results["rows"].append(row)
            write_json(str(path), results)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
