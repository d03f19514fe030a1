"""A training loop of your own around the model, with any optimizer of Optax.

    python examples/own_loop.py --train=corpus --output=mine.bundle

reads `corpus.en` and `corpus.de`, and writes a file that `decode --workdir=mine.bundle` reads.
"""

import argparse
import dataclasses
from pathlib import Path

import jax
import optax

from transformer_jax.configs import quickstart  # type: ignore[attr-defined, unused-ignore]
from transformer_jax.data import sources, tokenizer_training
from transformer_jax.data.epoch_data import prepare_epochs
from transformer_jax.data.loader import BatchSource, load_batches
from transformer_jax.data.tokenizer_pair import special_ids
from transformer_jax.extras.interop import bundle
from transformer_jax.model.transformer import Transformer, init_params
from transformer_jax.ops.losses import cross_entropy
from transformer_jax.training.setup import fill_in_tokenizers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--train", required=True, help="path without .en and .de")
parser.add_argument("--output", type=Path, required=True, help="file of the model, a new one")
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

config = quickstart.get_config()  # for the sizes of the model and of its vocabulary
data = dataclasses.replace(config.data, source="files", train=args.train)
corpora = sources.open_corpora(data, "train")
tokenizers = tokenizer_training.make_tokenizers(data, corpora)
config = fill_in_tokenizers(dataclasses.replace(config, data=data), tokenizers)
epochs, _ = prepare_epochs(corpora, tokenizers, config, row_multiple=1)
batch_source = BatchSource(epochs, special_ids(tokenizers, config.model), args.steps)
model = Transformer(config.model)
optimizer = optax.nadamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 100, 100 + args.steps))


@jax.jit
def step(params, state, batch, rng):
    def loss(params):
        logits = model.bind({"params": params}, rngs={"dropout": rng})(batch, deterministic=False)
        sums = cross_entropy(logits, batch["targets"], batch["loss_mask"], 0.1)
        return sums.loss / sums.tokens

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


params = init_params(config.model, jax.random.key(0))
state = optimizer.init(params)
for number, batch in enumerate(load_batches(batch_source, first_step=0), 1):
    params, state, value = step(params, state, batch, jax.random.key(number))
    if number % 20 == 1 or number == args.steps:
        print(f"step {number}: loss {value:.3f}", flush=True)
bundle.write(args.output, config, tokenizers, params, bundle.ModelFacts("mine", "", args.steps))
