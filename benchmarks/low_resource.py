"""A language of few pairs, simulated: back-translation of text of the target language.

    transformer-jax data multi30k --output=multi30k
    python benchmarks/low_resource.py --data=multi30k --json=low_resource.json

Of the training corpus, the first `--pairs` pairs are kept; of the rest only the target side, as
monolingual text. A model of the other direction learns from the pairs, and translates that text;
these translations are the sources of more pairs. The models with and without them have the same
settings and steps, and nothing is chosen by the test set. The same command again continues.
"""

import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from etils import epath
from trainings import NUM_AVERAGED, ROOT, Training, train_all

from transformer_jax.data import text_lines

FLAGS = flags.FLAGS
LANGUAGES = ("en", "de")
TEST = "test_2016_flickr"
TAG = "<BT>"  # before the sources that a model wrote
# Differences from the recipe. Its batches and warm-up stay: with half of each, 7,500 steps gave 20
# BLEU with the pairs alone and 13 with back-translations: it had not learned to follow the source.
SETTINGS = {"data.vocab_size": 4000, "model.positional": "rotary"}
PAIRS, BACK, BOTH = "pairs only", "other direction", "back-translation"


def split(data: Path, folder: Path, num_pairs: int) -> None:
    """Writes the first pairs of `data/train`, its sets, and the rest's target side into `folder`.

    Raises:
      SystemExit: the corpus has no more pairs than that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, language in itertools.product(("train", "val", TEST), LANGUAGES):
        path = epath.Path(data / f"{name}.{language}")
        if not path.exists():
            path = epath.Path(f"{path}.gz")
        lines = list(text_lines.read_lines(path))
        if name == "train":
            lines, rest = lines[:num_pairs], lines[num_pairs:]
            if not rest:
                raise SystemExit(f"{path} has {len(lines):,} lines: --pairs must be fewer.")
            if language == LANGUAGES[1]:
                write_lines(folder / f"monolingual.{language}", rest)
        write_lines(folder / f"{name}.{language}", lines)


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def training(variant: str, seed: int, data: Path, synthetic: Path) -> Training:
    settings: dict[str, Any] = SETTINGS
    if variant == BACK:
        settings = settings | {"data.source_lang": LANGUAGES[1], "data.target_lang": LANGUAGES[0]}
    if variant == BOTH:
        settings = settings | {"data.train": f"{data}/train,{synthetic}/*.tsv"}
    steps = FLAGS.back_steps if variant == BACK else FLAGS.steps
    every = max(1, steps // 80)
    return Training(variant, seed, "multi30k", data, steps, every, settings, TEST)


def main(argv: list[str]) -> None:
    del argv
    folder = Path(FLAGS.folder).absolute()
    data = folder / f"data_{FLAGS.pairs}"
    split(Path(FLAGS.data), data, FLAGS.pairs)
    about = {"pairs": FLAGS.pairs, "steps": FLAGS.steps, "back_steps": FLAGS.back_steps}
    ends = time.monotonic() + 60 * FLAGS.minutes
    for seed in map(int, FLAGS.seeds):
        synthetic = data / f"synthetic_{FLAGS.back_steps}_{seed}"

        def run(*variants: str, seed: int = seed, synthetic: Path = synthetic) -> None:
            trainings = [training(variant, seed, data, synthetic) for variant in variants]
            left = ends - time.monotonic()
            train_all(trainings, folder, Path(FLAGS.json), about, FLAGS.jobs, left)

        run(BACK, PAIRS)
        if not (folder / training(BACK, seed, data, synthetic).name / "test.json").exists():
            print("--minutes are over: the same command continues")
            return
        command = [
            "-m",
            "transformer_jax",
            "translate-corpus",
            f"--model={folder / training(BACK, seed, data, synthetic).name}",
            f"--checkpoint=average:{NUM_AVERAGED}",
            f"--input={data}/monolingual.{LANGUAGES[1]}",
            f"--output={synthetic}",
            "--write=back_pairs",
            f"--tag={TAG}",
        ]
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
        run(BOTH)


if __name__ == "__main__":
    flags.DEFINE_string("data", "multi30k", "Folder of the corpus.")
    flags.DEFINE_string("folder", "runs/low_resource", "Folder of the runs.")
    flags.DEFINE_string("json", "runs/low_resource.json", "File of the results.")
    flags.DEFINE_integer("pairs", 5000, "Pairs that are kept.", lower_bound=1)
    flags.DEFINE_list("seeds", ["0"], "Seeds of each model.")
    flags.DEFINE_integer("steps", 3500, "Steps of each model.", lower_bound=NUM_AVERAGED)
    flags.DEFINE_integer("back_steps", 3500, "Of the other direction's.", lower_bound=NUM_AVERAGED)
    flags.DEFINE_integer("jobs", 1, "Trainings at the same time.")
    flags.DEFINE_float("minutes", float("inf"), "Minutes after which no training begins.")
    app.run(main)
