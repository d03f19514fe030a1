"""Trains a translator on your own text files and translates with it.

    python examples/own_corpus.py --train=corpus --validation=dev --workdir=runs/mine

reads `corpus.en` and `corpus.de`, one sentence a line, and `dev.en` and `dev.de`. It writes the
recipe that `transformer-jax init` writes, with the settings that fit the text. To resume after an
interruption: `transformer-jax train --workdir=runs/mine`.
"""

import argparse
import dataclasses
from pathlib import Path

from transformer_jax import Translator
from transformer_jax.extras.recipes.recipe import write_recipe
from transformer_jax.training.loop import train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--train", required=True, help="path without the language suffix")
parser.add_argument("--validation", required=True, help="the same of the validation set")
parser.add_argument("--workdir", required=True, help="folder of the run")
parser.add_argument("--source_lang", default="en")
parser.add_argument("--target_lang", default="de")
parser.add_argument("--num_steps", type=int, help="default: by the size of the corpus")
args = parser.parse_args()

config = write_recipe(
    args.train,
    args.source_lang,
    args.target_lang,
    args.workdir,
    validation=args.validation,
    test=args.validation,
    measure=False,
    say=print,
)
if args.num_steps:
    config = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, num_steps=args.num_steps),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=1 + args.num_steps // 10),
    )
train(config, args.workdir)

translator = Translator.load(args.workdir, checkpoint="best")
file = Path(f"{args.validation}.{args.source_lang}")
sources = file.read_text(encoding="utf-8").splitlines()[:3]
for source, translation in zip(sources, translator.translate(sources), strict=True):
    print(f"{source}  ->  {translation.text}")
