"""A training loop of your own around the model, with any optimizer of Optax.

    python examples/own_loop.py --train=corpus --output=mine.bundle

reads `corpus.en` and `corpus.de`, one sentence a line, and writes a file that
`transformer-jax decode --workdir=mine.bundle` and `Translator.load` read.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from transformer_jax.config import Config, DataConfig, ModelConfig
from transformer_jax.data import sources, tokenizer_training
from transformer_jax.interop import bundle
from transformer_jax.interop.model_facts import ModelFacts
from transformer_jax.model.transformer import Transformer, init_params
from transformer_jax.ops.losses import cross_entropy

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--train", required=True, help="path without .en and .de")
parser.add_argument("--output", type=Path, required=True, help="file of the model, a new one")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--vocab_size", type=int, default=500)
args = parser.parse_args()

# Text to arrays: a row is a sentence and its end symbol, padded. The decoder reads the target
# one position later, after a start symbol.
data = DataConfig(source="files", train=args.train, vocab_size=args.vocab_size)
corpora = sources.open_corpora(data, "train")
tokenizers = tokenizer_training.make_tokenizers(data, corpora)
corpus: dict[str, np.ndarray] = {}
sources_and_targets = zip(*corpora[0].read(), strict=True)
for name, tokenizer in {"inputs": tokenizers.source, "targets": tokenizers.target}.items():
    texts = next(sources_and_targets)
    rows = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode_batch(texts)]
    width = max(map(len, rows))
    corpus[name] = np.array([row + [tokenizer.pad_id] * (width - len(row)) for row in rows])
    corpus[f"{name}_segment_ids"] = (corpus[name] != tokenizer.pad_id).astype(np.int32)
    corpus[f"{name}_positions"] = np.broadcast_to(np.arange(width), corpus[name].shape)
corpus["decoder_inputs"] = np.roll(corpus["targets"], 1, axis=1)
corpus["decoder_inputs"][:, 0] = start = tokenizers.target.bos_id

model = ModelConfig(
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_model=128,
    d_ff=256,
    source_vocab_size=tokenizers.source.vocab_size,
    target_vocab_size=tokenizers.target.vocab_size,
    decoder_start_id=start,
)
apply: Callable[..., Any] = Transformer(model).apply
optimizer = optax.nadamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 100, 100 + args.steps))


@jax.jit
def step(params, state, batch, rng):
    def loss(params):
        logits = apply({"params": params}, batch, deterministic=False, rngs={"dropout": rng})
        sums = cross_entropy(logits, batch["targets"], batch["targets_segment_ids"], 0.1)
        return sums.loss / sums.tokens

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


params = init_params(model, jax.random.key(0))
state, draw = optimizer.init(params), np.random.default_rng(0)
for number in range(1, args.steps + 1):
    chosen = draw.integers(len(corpus["inputs"]), size=64)
    batch = {name: array[chosen] for name, array in corpus.items()}
    params, state, value = step(params, state, batch, jax.random.key(number))
    if number % 100 == 0 or number == args.steps:
        print(f"step {number}: loss {value:.3f}")
facts = ModelFacts("own loop", "a loop of one's own", args.steps)
bundle.write(args.output, Config(model=model, data=data), tokenizers, params, facts)
