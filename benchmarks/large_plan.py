"""Plans batches of a simulated corpus of a billion pairs: time, memory, and whether it is right.

    python benchmarks/large_plan.py --folder=DIR [--pairs=1000000000] [--workers=2] [--json=FILE]

Lengths are drawn, shard by shard, from log-normal distributions like those of real text (median 25
tokens a source; the target follows it), and written as `prepare` writes them; token ids are made up
when they are read. The first call makes lengths and plans, which stay in DIR (13 GB for a billion
pairs); then another process does what a training process does: open the plan, and compute
batches anywhere. It checks that groups of shards have each pair once, that a process that
starts at step 1,000,000 has the batch of one that was there before, and that 64 processes read
disjoint rows.
"""

import dataclasses
import functools
import hashlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from absl import app, flags

from transformer_jax.config import Config, DataConfig
from transformer_jax.data import loader
from transformer_jax.data.epoch_data import EpochData, Epochs
from transformer_jax.data.plans import batch_plan, row_stream
from transformer_jax.data.plans.batch_shapes import ranges
from transformer_jax.data.plans.pair_selection import select_shard
from transformer_jax.data.plans.permutation import mix
from transformer_jax.data.plans.plan_files import PlanFiles
from transformer_jax.data.plans.stream_plan import StreamPlan
from transformer_jax.data.shards.shard_writer import SHARD_PAIRS
from transformer_jax.data.token_cache import TokenizedCorpus
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.data.workers import Workers

_FOLDER = flags.DEFINE_string("folder", None, "Where lengths and plans are kept.", required=True)
_PAIRS = flags.DEFINE_integer("pairs", 1_000_000_000, "Pairs of the corpus.")
_WORKERS = flags.DEFINE_integer("workers", 0, "Processes that make it; 0: all cores.")
_BATCHES = flags.DEFINE_integer("batches", 300, "Batches whose time is taken.")
_GROUPS = flags.DEFINE_integer("groups", 3, "Groups of shards that are checked; 0: an epoch.")
_SHARES = flags.DEFINE_list(
    "shares", [], "Instead, mix a corpus of 10 pairs with one of --pairs, by each of these shares."
)
_STEP = flags.DEFINE_integer("step", -1, "Only print the digest of this batch.")
_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")

VOCABULARY = 32_000
PROCESSES = 64
MIXED_BATCHES = 10_000
IDS = SpecialIds(0, 2, 0, 2, 1)
CONFIG = Config(data=DataConfig(batching="pack", batch_tokens=25_000))


@dataclasses.dataclass(frozen=True)
class SimulatedShard:
    """Lengths of half a million pairs, in files."""

    folder: Path
    number: int
    num_pairs: int

    @property
    def fingerprint(self) -> str:
        return f"{self.number} {self.num_pairs}"

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        file = np.load(self.folder / f"{self.number:05}.npy", mmap_mode="r").view(np.ndarray)
        return file[0], file[1]

    def make(self) -> None:
        """Draws the lengths, unless they are there."""
        path = self.folder / f"{self.number:05}.npy"
        if not path.exists():
            rng = np.random.default_rng(self.number)
            source = np.clip(rng.lognormal(3.2, 0.6, self.num_pairs), 1, 400)
            target = np.clip(source * rng.lognormal(0.0, 0.2, self.num_pairs), 1, 400)
            temporary = path.with_suffix(".tmp.npy")
            np.save(temporary, np.stack([source, target]).astype(np.uint16))
            temporary.rename(path)


def make(shard: SimulatedShard) -> None:
    shard.make()


class SimulatedSide:
    """Sentences whose token ids are a function of pair and position."""

    def __init__(self, shards: list[SimulatedShard], side: int):
        self._shards, self._side = shards, side

    def take(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.zeros(len(sentences), np.int64)
        numbers = sentences // SHARD_PAIRS
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            of_shard = self._shards[number].lengths()[self._side]
            lengths[chosen] = of_shard[sentences[chosen] - number * SHARD_PAIRS]
        places = np.repeat(sentences * 512, lengths) + ranges(lengths)
        return (mix(places.astype(np.uint64)) % VOCABULARY).astype(np.uint16), lengths


def open_corpus(folder: Path, num_pairs: int, workers: Workers) -> tuple[list, StreamPlan]:
    """The shards and the plan, which are made if they are not there."""
    (folder / "lengths").mkdir(parents=True, exist_ok=True)
    shards = [
        SimulatedShard(folder / "lengths", number, min(SHARD_PAIRS, num_pairs - first))
        for number, first in enumerate(range(0, num_pairs, SHARD_PAIRS))
    ]
    if not all((folder / "lengths" / f"{shard.number:05}.npy").exists() for shard in shards):
        list(workers(make, shards))
    first_pairs = [[shard.number * SHARD_PAIRS for shard in shards]]
    files = PlanFiles(folder / "plans", workers)
    plan = batch_plan.make_stream_plan([shards], first_pairs, [(0, [1.0])], CONFIG, files)
    return shards, plan


def batches_of(shards: list[SimulatedShard], plan: StreamPlan) -> Epochs:
    sides = [SimulatedSide(shards, side) for side in range(2)]
    corpus = TokenizedCorpus(sides[0], sides[1], (_PAIRS.value,), "")  # type: ignore[arg-type]
    return Epochs(EpochData(corpus, plan))


def digest(plan: StreamPlan, t: int) -> str:
    layout = plan.layout(t)
    arrays = (layout.pairs, layout.rows, layout.source_starts, layout.target_starts)
    return hashlib.blake2b(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def pairs_of(shard: SimulatedShard) -> np.ndarray:
    """The pairs of a shard that are trained on."""
    source, target = shard.lengths()
    selection = select_shard(source, target, CONFIG.data.max_len, CONFIG.data.max_ratio)
    return selection.pairs + shard.number * SHARD_PAIRS


def check_groups(shards: list[SimulatedShard], plan: StreamPlan, num_groups: int) -> int:
    """Checks that groups of an epoch have each selected pair of their shards once.

    Returns:
      The number of pairs.
    """
    ((stream,),) = plan._streams
    order, starts = stream._order_of_epoch(0)
    total = -(-len(order) // row_stream.GROUP_SHARDS)
    chosen = np.arange(total)
    if num_groups:
        chosen = np.random.default_rng(0).choice(total, num_groups, replace=False)
    count = 0
    for group in chosen.tolist():
        members = slice(group * row_stream.GROUP_SHARDS, (group + 1) * row_stream.GROUP_SHARDS)
        first, end = starts[members.start], starts[min(members.stop, len(order))]
        seen = [
            stream.pairs(np.arange(row, min(row + 20_000, end))).pairs
            for row in range(int(first), int(end), 20_000)
        ]
        expected = [pairs_of(shards[number]) for number in sorted(order[members].tolist())]
        np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.concatenate(expected))
        count += sum(map(len, expected))
    return count


def select(rows: np.ndarray, num_rows: int) -> np.ndarray:
    """The rows of a process, which does not depend on their number here."""
    assert rows.max() < num_rows
    return rows


def check_rows_of_processes(shards: list[SimulatedShard], plan: StreamPlan) -> None:
    """Checks that 64 processes together load each row of a batch once."""
    epochs = batches_of(shards, plan)
    t = 10**6
    batch = loader.BatchSource(epochs, IDS, t + 1, PROCESSES)[t]
    rows = len(batch["inputs"])
    parts = []
    for process in range(PROCESSES):
        chosen = np.array_split(np.arange(rows), PROCESSES)[process]
        source = loader.BatchSource(
            epochs, IDS, t + 1, PROCESSES, functools.partial(select, chosen)
        )
        parts.append(source[t])
    assert sum(len(part["inputs"]) for part in parts) == rows
    for name, array in batch.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def measure_process(folder: Path) -> dict[str, object]:
    """What one training process does, in this process."""
    started = time.perf_counter()
    shards, plan = open_corpus(folder, _PAIRS.value, Workers())
    first = digest(plan, 0)
    start_seconds = time.perf_counter() - started
    rng = np.random.default_rng(1)
    times: dict[str, list[float]] = {"anywhere": [], "in order": []}
    steps = {
        "anywhere": rng.integers(0, int(3 * plan.batches_per_epoch), _BATCHES.value).tolist(),
        "in order": range(1000, 1000 + _BATCHES.value),
    }
    for name, of_kind in steps.items():
        for t in of_kind:
            began = time.perf_counter()
            plan.layout(t)
            times[name].append(1e3 * (time.perf_counter() - began))
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results: dict[str, object] = {
        "start_seconds": start_seconds,
        "first_batch": first,
        "peak_resident_megabytes": megabytes,
        "padding": batch_plan.padding_share(plan),
        "batches_per_epoch": plan.batches_per_epoch,
        "digest_of_step_1000000": digest(plan, 10**6),
    }
    for name, values in times.items():
        results[f"milliseconds_{name.replace(' ', '_')}"] = {
            "median": statistics.median(values),
            "99%": float(np.quantile(values, 0.99)),
            "most": max(values),
        }
    check_rows_of_processes(shards, plan)
    results["pairs_checked"] = check_groups(shards, plan, _GROUPS.value)
    return results


def measure_mixture(folder: Path, shares: list[float]) -> dict[str, object]:
    """Pairs of a corpus of 10 pairs in 10,000 batches, mixed with a large corpus."""
    workers = Workers.of(_WORKERS.value)
    shards, _ = open_corpus(folder, _PAIRS.value, workers)
    small = SimulatedShard(folder / "lengths", 99_999, 10)
    small.make()
    first_pairs = [[_PAIRS.value], [shard.number * SHARD_PAIRS for shard in shards]]
    files = PlanFiles(folder / "plans", workers)
    results: dict[str, object] = {}
    for share in shares:
        stages = [(0, [share, 1 - share])]
        plan = batch_plan.make_stream_plan([[small], shards], first_pairs, stages, CONFIG, files)
        of_small = total = 0
        for t in range(MIXED_BATCHES):
            pairs = plan.layout(t).pairs
            of_small += int((pairs >= _PAIRS.value).sum())
            total += len(pairs)
        results[f"share {share:g}"] = of_small / total
        print(f"share {share:g}: {of_small / total:.6f} of {total:,} pairs", flush=True)
    return {"pairs": _PAIRS.value, "batches": MIXED_BATCHES, **results}


def main(argv: list[str]) -> None:
    folder = Path(_FOLDER.value)
    if _SHARES.value:
        results = measure_mixture(folder, [float(share) for share in _SHARES.value])
        if _JSON.value:
            Path(_JSON.value).write_text(json.dumps(results, indent=1) + "\n")
        return
    if _STEP.value >= 0:
        started = time.perf_counter()
        _, plan = open_corpus(folder, _PAIRS.value, Workers())
        print(digest(plan, _STEP.value), time.perf_counter() - started)
        return
    if "--measured" in argv:
        print(json.dumps(measure_process(folder)))
        return
    started = time.perf_counter()
    open_corpus(folder, _PAIRS.value, Workers.of(_WORKERS.value))
    made_seconds = time.perf_counter() - started
    command = [sys.executable, __file__, *sys.argv[1:]]
    measured = subprocess.run([*command, "--", "--measured"], capture_output=True, check=True)
    results = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, NumPy {np.__version__}",
        "pairs": _PAIRS.value,
        "seconds_to_make_lengths_and_plans": made_seconds,
        **json.loads(measured.stdout.splitlines()[-1]),
    }
    resumed = subprocess.run([*command, "--step=1000000"], capture_output=True, check=True)
    value, seconds = resumed.stdout.split()
    results["resumed_exactly"] = value.decode() == results["digest_of_step_1000000"]
    results["resume_seconds"] = float(seconds)
    print(json.dumps(results, indent=1))
    if _JSON.value:
        Path(_JSON.value).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
