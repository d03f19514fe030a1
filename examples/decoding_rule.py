"""Adds a decoding rule: no output has the same token twice in a row.

    echo thirty-four | python examples/decoding_rule.py --workdir=runs/quickstart

A rule is a function of log-probabilities `[V, R, k]` (V tokens, R rows of k hypotheses) and the
prefixes decoded so far. It is compiled into the search, with the rules of the settings.
"""

import argparse
import sys

import jax
import jax.numpy as jnp

from transformer_jax import Translator
from transformer_jax.ops.top_k import NEVER
from transformer_jax.search.processors import Prefixes


def no_doubled_tokens(log_probs: jax.Array, prefixes: Prefixes) -> jax.Array:
    """Forbids the last token of each prefix.

    Args:
      log_probs: `[V, R, k]` of the next token.
      prefixes: their tokens are `[R, k, T]`, of which the first `index` count.
    """
    last = jnp.take(prefixes.tokens, jnp.maximum(prefixes.index - 1, 0), axis=2)  # --> [R, k]
    row, beam = jnp.indices(last.shape, sparse=True)
    forbidden = log_probs.at[last, row, beam].set(NEVER)
    return jnp.where(prefixes.index == 0, log_probs, forbidden)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", required=True, help="of a run, or a Hugging Face model")
    args = parser.parse_args()

    translator = Translator.load(args.workdir, processors=[no_doubled_tokens])
    for translation in translator.translate(sys.stdin.read().splitlines()):
        print(translation.text)
