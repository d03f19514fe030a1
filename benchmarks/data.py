"""Times the data pipeline: loading of batches, and the batch plan of a large corpus.

    python benchmarks/data.py [--json=FILE] [--pairs=5000000]

Batches are loaded from a synthetic tokenised corpus of 100,000 pairs, with lengths like real text.
"""

import json
import os
import platform
import resource
import statistics
import time

import numpy as np
from absl import app, flags

from transformer_jax.config import Config, DataConfig
from transformer_jax.config.data_fields import Batching
from transformer_jax.data import loader
from transformer_jax.data.epoch_data import EpochData, Epochs
from transformer_jax.data.plans import batch_plan
from transformer_jax.data.plans.pair_selection import select_pairs
from transformer_jax.data.token_cache import TokenizedCorpus, TokenizedSide
from transformer_jax.data.tokenizer_pair import SpecialIds

_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")
_PAIRS = flags.DEFINE_integer("pairs", 5_000_000, "Number of pairs of the large plan.")
REPEATS = 5


def synthetic_lengths(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-normal source lengths (median 25 tokens) and targets that follow them."""
    rng = np.random.default_rng(0)
    source = np.clip(rng.lognormal(3.2, 0.6, count), 1, 400).astype(np.int64)
    target = np.clip(source * rng.lognormal(0.0, 0.2, count), 1, 400).astype(np.int64)
    return source, target


def synthetic_corpus(count: int) -> TokenizedCorpus:
    rng = np.random.default_rng(1)
    sides = []
    for lengths in synthetic_lengths(count):
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = rng.integers(4, 32_000, offsets[-1]).astype(np.uint16)
        sides.append(TokenizedSide(tokens, offsets))
    return TokenizedCorpus(sides[0], sides[1], (count,), "synthetic")


def loading_rate(batching: Batching) -> float:
    """Target tokens per second of plan, arrays and Grain; median of `REPEATS` runs."""
    corpus = synthetic_corpus(100_000)
    config = Config(data=DataConfig(batching=batching, batch_tokens=4096))
    selection = select_pairs(corpus.source.lengths, corpus.target.lengths, 256)
    plan = batch_plan.make_plan(selection, config)
    source = loader.BatchSource(Epochs(EpochData(corpus, plan)), SpecialIds(0, 2, 0, 2, 1), 300)
    rates = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        tokens = sum(int(batch["loss_mask"].sum()) for batch in loader.load_batches(source, 0))
        rates.append(tokens / (time.perf_counter() - started))
    return statistics.median(rates)


def main(argv: list[str]) -> None:
    del argv
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lengths = synthetic_lengths(_PAIRS.value)
    started = time.perf_counter()
    selection = select_pairs(*lengths, 256)
    plan = batch_plan.make_plan(selection, Config())
    seconds = time.perf_counter() - started
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    results = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, NumPy {np.__version__}",
        "plan_pairs": _PAIRS.value,
        "plan_seconds": seconds,
        "plan_peak_megabytes": megabytes,
        "plan_padding": batch_plan.padding_share(plan, selection),
        "pack_target_tokens_per_second": loading_rate("pack"),
        "bucket_target_tokens_per_second": loading_rate("bucket"),
    }
    for name, value in results.items():
        print(f"{name:32} {value:,.3f}" if isinstance(value, float) else f"{name:32} {value}")
    if _JSON.value:
        with open(_JSON.value, "w") as out:
            json.dump(results, out, indent=2)


if __name__ == "__main__":
    app.run(main)
