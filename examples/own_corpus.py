"""Trains a translator on your own text files and translates with it.

    python examples/own_corpus.py --train=corpus --validation=dev --workdir=runs/mine

reads `corpus.en` and `corpus.de`, one sentence a line, and `dev.en` and `dev.de`. After an
interruption run it again: it resumes at the newest checkpoint.
"""

import argparse
from pathlib import Path

from transformer_jax import Translator
from transformer_jax.config import Config, DataConfig, ModelConfig, OptimizerConfig, TrainConfig
from transformer_jax.training.loop import train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--train", required=True, help="path without the language suffix")
parser.add_argument("--validation", required=True, help="the same of the validation set")
parser.add_argument("--workdir", required=True, help="folder of the run")
parser.add_argument("--source_lang", default="en")
parser.add_argument("--target_lang", default="de")
parser.add_argument("--num_layers", type=int, default=4)
parser.add_argument("--vocab_size", type=int, default=8000)
parser.add_argument("--num_steps", type=int, default=10_000)
args = parser.parse_args()

config = Config(
    model=ModelConfig(
        num_encoder_layers=args.num_layers,
        num_decoder_layers=args.num_layers,
        d_model=128,
        num_heads=4,
        d_ff=256,
        dropout_rate=0.3,
        max_len=128,
    ),
    data=DataConfig(
        source="files",
        train=args.train,
        validation=args.validation,
        source_lang=args.source_lang,
        target_lang=args.target_lang,
        tokenizer="bpe",
        vocab_size=args.vocab_size,
        max_len=64,
        batch_tokens=4096,
    ),
    train=TrainConfig(
        num_steps=args.num_steps,
        eval_every_steps=max(1, args.num_steps // 10),
        checkpoint_every_steps=max(1, args.num_steps // 10),
    ),
    optimizer=OptimizerConfig(schedule="rsqrt", learning_rate=2.5, warmup_steps=2000),
)
train(config, args.workdir)

translator = Translator.load(args.workdir, checkpoint="best")
sources = Path(f"{args.validation}.{args.source_lang}").read_text(encoding="utf-8").splitlines()
for source, translation in zip(sources[:3], translator.translate(sources[:3]), strict=True):
    print(f"{source}  ->  {translation.text}")
