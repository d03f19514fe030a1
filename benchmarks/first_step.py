"""Times the start of a training until its first step is done, without and with cached programs.

    python benchmarks/first_step.py [--recipe=wmt14_en_de_big] [--json=FILE]

Trains one step of the recipe on made-up text, twice as processes of their own: first with an empty
cache of compiled programs, then with what the first has compiled. Training a small tokenizer takes
part of both times.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from timing import write_json

from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
ROOT = Path(__file__).parent.parent
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS, LINES, VOCAB_SIZE = 4000, 6000, 1000


def write_corpus(folder: Path) -> None:
    """Writes parallel text of made-up words."""
    rng = np.random.default_rng(0)
    for language in ("src", "trg"):
        words = ["".join(rng.choice(list(LETTERS), rng.integers(2, 9))) for _ in range(WORDS)]
        lines = [
            " ".join(words[number % WORDS] for number in rng.zipf(1.3, rng.integers(8, 40)))
            for _ in range(LINES)
        ]
        (folder / f"train.{language}").write_text("\n".join(lines) + "\n")
        (folder / f"validation.{language}").write_text("\n".join(lines[:20]) + "\n")


def train(folder: Path, name: str) -> dict[str, Any]:
    """Seconds from the start of a process until its first step is in the metrics."""
    workdir = folder / name
    command = [
        sys.executable,
        "train.py",
        f"--config={FLAGS.recipe}",
        f"--workdir={workdir}",
        "--config.data.source=files",
        f"--config.data.train={folder}/train",
        f"--config.data.validation={folder}/validation",
        "--config.data.source_lang=src",
        "--config.data.target_lang=trg",
        f"--config.data.vocab_size={VOCAB_SIZE}",
        f"--config.data.cache_dir={folder}/tokens",
        "--config.train.num_steps=1",
        "--config.train.log_every_steps=1",
        "--config.train.eval_every_steps=0",
    ]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
    log_path, metrics = folder / f"{name}.log", workdir / "metrics.jsonl"
    first = None
    with open(log_path, "w") as log:
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        while process.poll() is None:
            if first is None and metrics.exists() and '"step": 1' in metrics.read_text():
                first = time.monotonic() - started
            time.sleep(0.05)
    total = time.monotonic() - started
    if process.returncode:
        raise SystemExit(log_path.read_text()[-2000:])
    return {
        "start": name,
        "first_step_seconds": round(first or total, 1),
        "seconds": round(total, 1),
    }


def main(argv: list[str]) -> None:
    del argv
    rows = []
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name))
        for start in ("cold", "warm"):
            rows.append(train(Path(name), start))
            print(json.dumps(rows[-1]), flush=True)
    devices = {"recipe": FLAGS.recipe, "machine": machine.host(), "rows": rows}
    write_json(FLAGS.json, devices)


if __name__ == "__main__":
    flags.DEFINE_string("recipe", "wmt14_en_de_big", "Recipe to train.")
    flags.DEFINE_string("json", "", "Also write the result to this file.")
    app.run(main)
