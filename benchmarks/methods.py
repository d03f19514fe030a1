"""Trains a recipe with each method that may improve translations, and scores the validation set.

    transformer-jax data multi30k_tok --output=multi30k_tok
    python benchmarks/methods.py --recipe=multi30k_tok --data=multi30k_tok --json=methods.json

Steps, batches and all other settings are the recipe's. What to use is chosen on the validation set,
with one seed; `--test=test_2016_flickr --seeds=0,1,2` then also scores a test set, for the choice
(`--variant`). The same command again trains what is not in the JSON file yet. `--jobs` trainings
run at the same time, so their seconds say nothing about speed.
"""

import importlib
import itertools
from pathlib import Path
from typing import Any

from absl import app, flags
from trainings import Training, train_all

FLAGS = flags.FLAGS
ROTARY = {"model.positional": "rotary"}
SINUSOIDS = {"model.positional": "interleaved"}
ALIGNED = {"train.alignment_weight": 0.05}
LARGE = {"data.batch_tokens": 8192}
NOISE = {"data.augment": ("upper_case:0.05", "typos:0.1")}
R_DROP = {"train.r_drop": 5.0}
SAMPLED = {"data.subword_sampling": 0.1}
SIZES = (500, 1000, 2000, 4000, 8000)  # of the vocabulary
WIDE = {"model.d_model": 256, "model.d_ff": 512}
# Settings that differ from the recipe's. Each names its positions, whatever the recipe has.
VARIANTS: dict[str, dict[str, Any]] = {
    "sinusoids": SINUSOIDS,
    "sinusoids, R-Drop": SINUSOIDS | R_DROP,
    "rotary": ROTARY,
    **{f"rotary, {n} tokens": ROTARY | {"data.vocab_size": n} for n in SIZES},
    "pre-norm, rotary": ROTARY | {"model.norm_position": "pre"},
    "rotary, dropout 0.4": ROTARY | {"model.dropout_rate": 0.4},
    "rotary, width 256": ROTARY | WIDE,
    "rotary, R-Drop": ROTARY | R_DROP,
    "rotary, 4000 tokens, R-Drop": ROTARY | R_DROP | {"data.vocab_size": 4000},
    "rotary, sampled tokens": ROTARY | SAMPLED,
    "rotary, sampled tokens, width 256": ROTARY | SAMPLED | WIDE,
    "rotary, sampled tokens, R-Drop": ROTARY | SAMPLED | R_DROP,
    "rotary, guided alignment": ROTARY | ALIGNED,
    "rotary, 8192 positions": ROTARY | LARGE,
    "rotary, 8192 positions, guided alignment": ROTARY | LARGE | ALIGNED,
    "rotary, noise": ROTARY | NOISE,
}


def main(argv: list[str]) -> None:
    del argv
    if unknown := set(FLAGS.variant) - set(VARIANTS):
        raise app.UsageError(f"--variant: no {sorted(unknown)}; there are {list(VARIANTS)}.")
    train = importlib.import_module(f"transformer_jax.configs.{FLAGS.recipe}").get_config().train
    steps = FLAGS.steps or train.num_steps
    trainings = [
        Training(
            variant=name,
            seed=int(seed),
            recipe=FLAGS.recipe,
            data=Path(FLAGS.data).absolute(),
            steps=steps,
            checkpoint_every_steps=train.checkpoint_every_steps,
            settings=VARIANTS[name],
            test=FLAGS.test,
            robustness=FLAGS.robustness,
        )
        for seed, name in itertools.product(FLAGS.seeds, FLAGS.variant)
    ]
    about = {"recipe": FLAGS.recipe, "steps": steps, "test": FLAGS.test}
    about |= {"robustness": FLAGS.robustness}
    folder = Path(FLAGS.folder).absolute()
    train_all(trainings, folder, Path(FLAGS.json), about, FLAGS.jobs, 60 * FLAGS.minutes)


if __name__ == "__main__":
    flags.DEFINE_string("recipe", "multi30k_tok", "Recipe to train.")
    flags.DEFINE_string("data", "multi30k_tok", "Folder of its corpus.")
    flags.DEFINE_string("test", "", "Set to score too, a name in --data; none by default.")
    flags.DEFINE_bool("robustness", False, "Score with noise in the sources, too.")
    flags.DEFINE_string("folder", "runs/methods", "Folder of the runs.")
    flags.DEFINE_string("json", "runs/methods.json", "File of the results.")
    flags.DEFINE_multi_string("variant", list(VARIANTS), "Variant; may be given several times.")
    flags.DEFINE_list("seeds", ["0"], "Seeds of each.")
    flags.DEFINE_integer("steps", 0, "Steps of each run; 0: the recipe's.")
    flags.DEFINE_integer("jobs", 1, "Trainings at the same time.")
    flags.DEFINE_float("minutes", float("inf"), "Minutes after which no training begins.")
    app.run(main)
