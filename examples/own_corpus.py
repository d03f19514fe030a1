"""Trains a translator on your own text files and translates with it.

    python examples/own_corpus.py --train=corpus --validation=dev --workdir=runs/mine

reads `corpus.en` and `corpus.de`, one sentence a line, and `dev.en` and `dev.de`. It chooses the
settings that `transformer-jax init` would write. After an interruption run it again: it resumes at
the newest checkpoint.
"""

import argparse
import dataclasses
from pathlib import Path

import jax

from transformer_jax import Translator
from transformer_jax.config import DataConfig
from transformer_jax.config.sizing import Machine
from transformer_jax.data.corpus_settings import choose_settings
from transformer_jax.data.corpus_survey import describe_survey, survey_corpus
from transformer_jax.data.sources import open_text
from transformer_jax.training.loop import train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--train", required=True, help="path without the language suffix")
parser.add_argument("--validation", required=True, help="the same of the validation set")
parser.add_argument("--workdir", required=True, help="folder of the run")
parser.add_argument("--source_lang", default="en")
parser.add_argument("--target_lang", default="de")
parser.add_argument("--num_steps", type=int, help="default: by the size of the corpus")
args = parser.parse_args()

survey = survey_corpus(open_text(args.train, args.source_lang, args.target_lang, "train"))
print(*describe_survey(survey), sep="\n")
sources = Path(f"{args.validation}.{args.source_lang}").read_text(encoding="utf-8").splitlines()
data = DataConfig(
    train=args.train,
    validation=args.validation,
    source_lang=args.source_lang,
    target_lang=args.target_lang,
)
machine: Machine = "cpu" if jax.default_backend() == "cpu" else "accelerator"
config = choose_settings(survey, data, survey.num_usable, len(sources), machine).config
if args.num_steps:
    config = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, num_steps=args.num_steps),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=1 + args.num_steps // 10),
    )
train(config, args.workdir)

translator = Translator.load(args.workdir, checkpoint="best")
for source, translation in zip(sources[:3], translator.translate(sources[:3]), strict=True):
    print(f"{source}  ->  {translation.text}")
