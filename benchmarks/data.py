"""Times the loading of batches: plan, arrays and Grain's threads.

    python benchmarks/data.py [--json=FILE]

Batches are loaded from a synthetic tokenised corpus of 100,000 pairs in memory, with lengths like
real text. `large_plan.py` plans a corpus of any size, `prepare.py` tokenises one.
"""

import dataclasses
import json
import os
import platform
import statistics
import time

import numpy as np
from absl import app, flags
from memory_corpus import TokenizedSide

from transformer_jax.config import Config, DataConfig
from transformer_jax.config.data_fields import Batching
from transformer_jax.data import loader
from transformer_jax.data.epoch_data import EpochData, Epochs
from transformer_jax.data.plans import batch_plan
from transformer_jax.data.plans.plan_files import PlanFiles
from transformer_jax.data.token_cache import TokenizedCorpus
from transformer_jax.data.tokenizer_pair import SpecialIds

_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")
REPEATS = 5
PAIRS = 100_000


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


@dataclasses.dataclass(frozen=True)
class SyntheticShard:
    """The lengths of a synthetic corpus."""

    num_pairs: int
    fingerprint: str = "synthetic"

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        return synthetic_lengths(self.num_pairs)


def loading_rate(batching: Batching) -> float:
    """Target tokens per second of plan, arrays and Grain; median of `REPEATS` runs."""
    corpus = synthetic_corpus(PAIRS)
    config = Config(data=DataConfig(batching=batching, batch_tokens=4096))
    plan = batch_plan.make_stream_plan(
        [[SyntheticShard(PAIRS)]], [[0]], [(0, [1.0])], config, PlanFiles(None)
    )
    source = loader.BatchSource(Epochs(EpochData(corpus, plan)), SpecialIds(0, 2, 0, 2, 1), 300)
    rates = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        tokens = sum(int(batch["loss_mask"].sum()) for batch in loader.load_batches(source, 0))
        rates.append(tokens / (time.perf_counter() - started))
    return statistics.median(rates)


def main(argv: list[str]) -> None:
    del argv
    results = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, NumPy {np.__version__}",
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
