"""Trains on English number words and German ones, and shows what was learned.

    make quickstart

One process does what the commands `train`, `eval`, `plot report` and `decode` do one after the
other: Python starts once, and each program is compiled once. To do more with the model afterwards,
use these commands, with `--workdir=runs/quickstart`.
"""

import argparse
import dataclasses
import functools
import json
from pathlib import Path

import jax

from transformer_jax import Translator, waiting
from transformer_jax.configs import quickstart
from transformer_jax.data.sources import open_corpora
from transformer_jax.extras.plotting.report import write_report
from transformer_jax.training.loop import train
from transformer_jax.translator import model_metrics
from transformer_jax.workdir import history

NUMBERS = (
    "thirty-four",
    "three hundred and forty-seven",
    "nine hundred and eighty-seven thousand, six hundred and fifty-four",
)
say = functools.partial(print, flush=True)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--workdir", default="runs/quickstart", help="folder of the run")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

config = dataclasses.replace(quickstart.get_config(), seed=args.seed)
train(config, args.workdir)

translator = Translator.load(args.workdir, checkpoint="best")
(corpus,) = open_corpora(config.data, "test")
what = f"{corpus.count():,} numbers that the training did not contain"
with waiting.announced(what, say, ("translating", "translated")):
    scores, _ = model_metrics.evaluate(
        translator.engine, translator.device_params, list(corpus.read()), config.decode
    )
say(f"{scores.exact_match:.1f}% are exactly right")
result = dataclasses.asdict(scores) | {"checkpoint_step": translator.checkpoint_step}
result |= {"split": "test"}
history.add_evaluation(args.workdir, result, config.data.test, config, jax.devices(), 1, "best")
with waiting.announced("the report", say, ("drawing", "drew it")):
    say(f"wrote {write_report(args.workdir)}")
for number, translation in zip(NUMBERS, translator.translate(NUMBERS), strict=True):
    print(f"{number}\t{translation.text}")
Path(args.workdir, "eval.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
