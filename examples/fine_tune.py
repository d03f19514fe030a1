"""Fine-tunes a published translation model on your own text files.

    python examples/fine_tune.py --model=Helsinki-NLP/opus-mt-en-de --train=corpus \
        --validation=dev --workdir=runs/tuned

`--model` is a Marian, M2M-100 or NLLB model: a directory, or a name on the Hugging Face Hub. The
files are those of `own_corpus.py`.
"""

import argparse
from pathlib import Path

from transformer_jax import Translator
from transformer_jax.config import Config, DataConfig, OptimizerConfig, TrainConfig
from transformer_jax.evaluation.corpus_metrics import corpus_scores
from transformer_jax.training.loop import train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", required=True, help="directory, or name on the Hugging Face Hub")
parser.add_argument("--train", required=True, help="path without the language suffix")
parser.add_argument("--validation", required=True, help="the same of the validation set")
parser.add_argument("--workdir", required=True, help="folder of the run")
parser.add_argument("--source_lang", default="en")
parser.add_argument("--target_lang", default="de")
parser.add_argument("--num_steps", type=int, default=1000)
args = parser.parse_args()


def report_scores(name: str, translator: Translator) -> None:
    sources, references = (
        Path(f"{args.validation}.{language}").read_text(encoding="utf-8").splitlines()
        for language in (args.source_lang, args.target_lang)
    )
    outputs = [translation.text for translation in translator.translate(sources)]
    scores = corpus_scores(outputs, references)
    print(f"{name}: BLEU {scores.bleu:.2f}, chrF {scores.chrf:.2f}")


published = Translator.load(args.model)
config = Config(
    data=DataConfig(
        source="files",
        train=args.train,
        validation=args.validation,
        source_lang=args.source_lang,
        target_lang=args.target_lang,
        max_len=min(128, published.config.model.max_len),
        batch_tokens=4096,
    ),
    train=TrainConfig(init_from=args.model, num_steps=args.num_steps),
    # A recipe's rate is for random parameters. A trained model needs a small one.
    optimizer=OptimizerConfig(
        schedule="linear", learning_rate=5e-5, warmup_steps=max(1, args.num_steps // 10)
    ),
)
train(config, args.workdir)
report_scores(args.model, published)
report_scores(args.workdir, Translator.load(args.workdir))
