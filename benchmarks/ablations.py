"""Trains the recipe `multi30k` with each switch of the model alone, and scores it on validation.

    transformer-jax data multi30k --output=multi30k
    python benchmarks/ablations.py --data=multi30k --folder=runs/ablations --json=ablations.json
    python benchmarks/ablations.py --times --json=ablations.json        # times instead of scores

Every variant has the parameters of the paper's model within 1%: the width of the feed-forward block
makes up for what a switch adds or saves. The steps, the batches and all other settings are the
same. The same command again trains what is not in the JSON file yet. `--jobs` trainings run at the
same time, so `--times` measures speed by itself: a training step, and the decoding of one batch by
beam search, in turns with the paper's model.
"""

import concurrent.futures
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import decode_workers
import jax
import numpy as np
import train_step_workers
from absl import app, flags
from decode_workers import Task
from processes import Worker
from timing import write_json

from decode import random_tokenizers
from transformer_jax import Translator
from transformer_jax.config import Config, ModelConfig
from transformer_jax.model.transformer import init_params
from transformer_jax.runs import machine

FLAGS = flags.FLAGS
ROOT = Path(__file__).parent.parent
# Settings of the model that differ from the recipe's, which is the paper's model.
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "RMSNorm": {"norm": "rms"},
    "no biases": {"use_bias": False},
    "GEGLU": {"feed_forward": "gated", "activation": "gelu", "d_ff": 171},
    "SwiGLU": {"feed_forward": "gated", "activation": "silu", "d_ff": 171},
    "2 heads of keys": {"num_kv_heads": 2, "d_ff": 320, "decoder_d_ff": 384},
    "normalized queries and keys": {"qk_norm": True},
    "capped scores": {"attention_softcap": 50.0},
    "capped logits": {"logit_softcap": 30.0},
    "rotary": {"positional": "rotary"},
    "relative": {"positional": "relative"},
    "ALiBi": {"positional": "alibi"},
    "modern": {
        "norm_position": "pre",
        "norm": "rms",
        "use_bias": False,
        "feed_forward": "gated",
        "activation": "silu",
        "num_kv_heads": 2,
        "d_ff": 213,
        "decoder_d_ff": 256,
        "qk_norm": True,
        "positional": "rotary",
    },
}


def settings(name: str) -> list[str]:
    """The flags of a variant."""
    return [f"--config.model.{field}={value}" for field, value in VARIANTS[name].items()]


def model_config(name: str) -> ModelConfig:
    """The model of a variant, with the vocabulary of the recipe."""
    from transformer_jax.configs import multi30k

    return dataclasses.replace(
        multi30k.get_config().model,
        source_vocab_size=8000,
        target_vocab_size=8000,
        decoder_start_id=1,
        **VARIANTS[name],
    )


def train(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Trains and scores a variant; one row.

    Args:
      name: of the variant.
      seed: of the parameters, the dropout and the order of the data.
      folder: of the run, and of its log.
    """
    commands = [
        [
            "train.py",
            "--config=multi30k",
            f"--config.data.train={FLAGS.data}/train",
            f"--config.data.validation={FLAGS.data}/val",
            "--config.data.test=",
            f"--config.data.cache_dir={FLAGS.folder}/tokens",
            f"--config.train.num_steps={FLAGS.steps}",
            "--config.train.eval_every_steps=0",
            f"--config.seed={seed}",
            f"--workdir={folder}",
            *settings(name),
        ],
        [
            "eval.py",
            f"--workdir={folder}",
            "--split=validation",
            "--checkpoint=average:10",
            f"--json={folder}/validation.json",
        ],
    ]
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    for command in commands:
        with open(folder / "output.log", "a") as log:
            done = subprocess.run(
                [sys.executable, *command], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        if done.returncode:
            return {"variant": name, "seed": seed, "error": (folder / "output.log").read_text()}
    scores = json.loads((folder / "validation.json").read_text())
    return {
        "variant": name,
        "seed": seed,
        "parameters": num_params(name),
        **{key: scores[key] for key in ("loss", "bleu", "chrf")},
        "seconds": round(time.monotonic() - started, 1),
    }


def num_params(name: str) -> int:
    """Number of parameters of a variant."""
    shapes = jax.eval_shape(lambda key: init_params(model_config(name), key), jax.random.key(0))
    return sum(x.size for x in jax.tree.leaves(shapes))


def train_all(results: dict[str, Any]) -> None:
    """Trains what is not in the results, and writes them after each run."""
    done = {(row["variant"], row["seed"]) for row in results["rows"] if "error" not in row}
    ends = time.monotonic() + 60 * FLAGS.minutes
    todo = [
        (name, int(seed))
        for seed, name in itertools.product(FLAGS.seeds, FLAGS.variants)
        if (name, int(seed)) not in done
    ]

    def run(name: str, seed: int) -> dict[str, Any] | None:
        if time.monotonic() > ends:
            return None
        folder = Path(FLAGS.folder).absolute() / f"{name.replace(' ', '_')}_{seed}"
        return train(name, seed, folder)

    with concurrent.futures.ThreadPoolExecutor(FLAGS.jobs) as pool:
        futures = [pool.submit(run, *key) for key in todo]
        for future in concurrent.futures.as_completed(futures):
            row = future.result()
            if row is None:
                continue
            print(json.dumps(row), flush=True)
            if "error" not in row:
                results["rows"].append(row)
                write_json(FLAGS.json, results)


class Decoder(decode_workers.Ours):
    """This package's decoder of a model with random parameters.

    Args:
      model: with as many tokens of source as of target.
    """

    def __init__(self, model: ModelConfig):
        tokenizers = random_tokenizers(model.target_vocab_size)
        model.decoder_start_id = tokenizers.target.bos_id
        params = init_params(model, jax.random.key(0))
        self._translator = Translator(Config(model=model), tokenizers, params)

    def sentences(self, count: int, length: int) -> tuple[tuple[str, ...], ...]:
        """Tokens of random sentences of `length` tokens."""
        rng, tokenizer = np.random.default_rng(0), self._translator.tokenizers.source
        ids = rng.integers(4, tokenizer.vocab_size, (count, length))
        return tuple(tuple(tokenizer.tokens(row)) for row in ids)


def measure_times(results: dict[str, Any]) -> None:
    """Adds how long a step and decoding take, relative to the paper's model, for each variant."""
    results["times"] = []
    for name in FLAGS.variants:
        row: dict[str, Any] = {"variant": name}
        for what, start, turn in (
            ("step", start_step, time_step),
            ("decoding", Decoder, time_decoding),
        ):
            models = [model_config("paper"), model_config(name)]
            workers = [Worker(start, model, keep_memory=True) for model in models]
            for worker in workers:
                turn(worker)  # compiles
            turns = [[turn(worker) for worker in workers] for _ in range(FLAGS.turns)]
            row[f"{what}_seconds"] = [
                statistics.median(times) for times in zip(*turns, strict=True)
            ]
            row[f"{what}_ratio"] = row[f"{what}_seconds"][1] / row[f"{what}_seconds"][0]
            for worker in workers:
                worker.close()
        results["times"].append(row)
        print(json.dumps(row), flush=True)
        write_json(FLAGS.json, results)


def start_step(model: ModelConfig) -> train_step_workers.Ours:
    """The training step of a model, 64 x (32 + 32) tokens."""
    return train_step_workers.Ours(train_step_workers.Task(model, 64, 32, 32))


def time_step(worker: Worker) -> float:
    return worker.call("run", 4)


def time_decoding(worker: Worker) -> float:
    sentences = worker.call("sentences", 32, 24)
    return worker.call("time", Task(sentences, beam_size=5, num_tokens=32))


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_platforms", "cpu")  # accelerators are reserved for the trainings
    if unknown := set(FLAGS.variants) - set(VARIANTS):
        raise app.UsageError(f"--variants: no {sorted(unknown)}; there are {list(VARIANTS)}.")
    path = Path(FLAGS.json)
    results = {"steps": FLAGS.steps, "machine": machine.host(), "rows": []}
    if path.exists():
        results = json.loads(path.read_text())
    if results["steps"] != FLAGS.steps:
        raise app.UsageError(f"{path} has runs of {results['steps']} steps: name another file.")
    if FLAGS.times:
        measure_times(results)
    else:
        train_all(results)


if __name__ == "__main__":
    flags.DEFINE_string("data", "multi30k", "Folder of the corpus.")
    flags.DEFINE_string("folder", "runs/ablations", "Folder of the runs.")
    flags.DEFINE_string("json", "runs/ablations.json", "File of the results.")
    flags.DEFINE_list("variants", list(VARIANTS), "Variants to train.")
    flags.DEFINE_list("seeds", ["0", "1"], "Seeds of each.")
    flags.DEFINE_integer("steps", 5000, "Steps of each run.")
    flags.DEFINE_integer("jobs", 1, "Trainings at the same time.")
    flags.DEFINE_float("minutes", float("inf"), "Minutes after which no training begins.")
    flags.DEFINE_bool("times", False, "Measure times; trains nothing.")
    flags.DEFINE_integer("turns", 5, "Turns of each time.")
    app.run(main)
