"""Times `transformer-jax prepare` on a corpus made of real sentences, and its memory.

    python benchmarks/prepare.py --text=multi30k/train [--pairs=10000000] [--workers=1,2,4]
        [--nodes=3] [--baseline=DIR] [--json=FILE]

A pair of the corpus is one pair of `--text`, or two that follow each other, drawn at random.
`--baseline` is a checkout of an earlier version, whose time is taken in the same run: it tokenises
the corpus and plans its batches, as `train` did before its first step. All use the same tokenizer,
which is trained before. Memory is the proportional set size of all processes together.
`--nodes` makes the corpus once more, on a Ray cluster on this machine, whose nodes have one core
each. One is killed (SIGKILL) when half of the shards are there.
"""

import gzip
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from absl import app, flags

_TEXT = flags.DEFINE_string(
    "text", None, "PREFIX of real text, .en and .de, .gz too.", required=True
)
_PAIRS = flags.DEFINE_integer("pairs", 10_000_000, "Pairs of the corpus.")
_WORKERS = flags.DEFINE_list("workers", ["2"], "Numbers of processes, one run for each.")
_NODES = flags.DEFINE_integer("nodes", 0, "Nodes of a Ray cluster; 0: none.")
_BASELINE = flags.DEFINE_string("baseline", None, "Checkout of an earlier version.")
_FOLDER = flags.DEFINE_string("folder", None, "Folder to work in; empty: a temporary one.")
_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")

LANGUAGES = ("en", "de")
SHARD_PAIRS = 500_000  # of the command
CHUNK = 100_000  # pairs written at once
# What `train` of an earlier version does before its first step.
BASELINE = """
import sys
from transformer_jax.config import Config, DataConfig
from transformer_jax.data import sources
from transformer_jax.data.epoch_data import prepare_epochs
from transformer_jax.data.tokenizer_training import make_tokenizers
text, model, cache = sys.argv[1:]
data = DataConfig(source="files", train=text, tokenizer_model=model, cache_dir=cache, max_len=64)
corpora = sources.open_corpora(data, "train")
prepare_epochs(corpora, make_tokenizers(data, corpora), Config(data=data))
"""


def read_lines(prefix: str, language: str) -> list[str]:
    """Lines of `PREFIX.LANG` or `PREFIX.LANG.gz`."""
    path = Path(f"{prefix}.{language}")
    packed = Path(f"{path}.gz")
    content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    return content.decode().splitlines()


def write_corpus(prefix: str, folder: Path, num_pairs: int) -> None:
    """Writes `corpus.en` and `corpus.de`."""
    sides = [read_lines(prefix, language) for language in LANGUAGES]
    rng = np.random.default_rng(0)
    files = [(folder / f"corpus.{language}").open("w") for language in LANGUAGES]
    for first in range(0, num_pairs, CHUNK):
        count = min(CHUNK, num_pairs - first)
        one, two = rng.integers(0, len(sides[0]), (2, count)).tolist()
        is_single = (rng.random(count) < 0.5).tolist()
        for side, file in zip(sides, files, strict=True):
            file.writelines(
                f"{side[i]}\n" if single else f"{side[i]} {side[j]}\n"
                for i, j, single in zip(one, two, is_single, strict=True)
            )
    for file in files:
        file.close()


def run_measured(
    command: Sequence[str], root_pid: int = 0, **arguments: object
) -> tuple[float, float]:
    """Seconds that a command takes, and the most memory of all its processes, in GB.

    With `root_pid` it is the memory of all processes that this one has started.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **arguments)  # type: ignore[call-overload]
    most, ended = 0.0, threading.Event()

    def sample() -> None:
        nonlocal most
        while not ended.wait(0.5):
            total = 0
            try:
                root = psutil.Process(root_pid or process.pid)
                for one in (root, *root.children(recursive=True)):
                    total += one.memory_full_info().pss
            except psutil.Error:
                continue
            most = max(most, total / 1e9)

    thread = threading.Thread(target=sample)
    started = time.perf_counter()
    thread.start()
    status = process.wait()
    seconds = time.perf_counter() - started
    ended.set()
    thread.join()
    if status:
        raise SystemExit(f"{command} failed with status {status}")
    return seconds, most


def digest_of(folder: Path) -> str:
    """Digest of all files of a folder and their names."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def prepare_on_cluster(command: Sequence[str], output: Path) -> dict[str, object]:
    """Runs `prepare` on a Ray cluster, and kills a node when half of the shards are there."""
    from ray.cluster_utils import Cluster

    health = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {"num_cpus": 1, "_system_config": health}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(_NODES.value - 1)]
    cluster.wait_for_nodes()
    half = _PAIRS.value // SHARD_PAIRS // 2
    shards: list[Path] = []

    def kill() -> None:
        nonlocal shards
        while len(shards) < half:
            time.sleep(0.2)
            shards = list(output.glob("tokens/*/*/manifest.json"))
        cluster.remove_node(nodes[0], allow_graceful=False)

    thread = threading.Thread(target=kill)
    thread.start()
    seconds, memory = run_measured([*command, f"--ray={cluster.address}"], os.getpid())
    thread.join()
    cluster.shutdown()
    return {"seconds": seconds, "gigabytes": memory, "killed_after_shards": len(shards)}


def measure(folder: Path) -> dict[str, object]:
    results: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "pairs": _PAIRS.value,
    }
    write_corpus(_TEXT.value, folder, _PAIRS.value)
    corpus, model = str(folder / "corpus"), str(folder / "start" / "tokenizer" / "shared.model")
    settings = ["--config.data.source=files", "--config.data.max_len=64"]
    small = ["prepare", "--config=multi30k", *settings, f"--config.data.train={_TEXT.value}"]
    program = [sys.executable, "-m", "transformer_jax"]
    run_measured([*program, *small, f"--output={folder / 'start'}"])
    if _BASELINE.value:
        cache = str(folder / "baseline")
        command = [sys.executable, "-c", BASELINE, corpus, model, cache]
        environment = {**os.environ, "PYTHONPATH": _BASELINE.value}
        seconds, memory = run_measured(command, cwd=_BASELINE.value, env=environment)
        results["baseline"] = {"seconds": seconds, "gigabytes": memory}
    digests = set()
    command = [*program, "prepare", "--config=multi30k", *settings]
    command += [f"--config.data.train={corpus}", f"--config.data.tokenizer_model={model}"]
    for workers in _WORKERS.value:
        output = folder / f"prepared-{workers}"
        seconds, memory = run_measured([*command, f"--workers={workers}", f"--output={output}"])
        results[f"workers_{workers}"] = {"seconds": seconds, "gigabytes": memory}
        digests.add(digest_of(output))
        print(
            f"{workers} workers: {_PAIRS.value / seconds:,.0f} pairs/s, {memory:.2f} GB", flush=True
        )
    if _NODES.value:
        output = folder / "prepared-ray"
        results["ray"] = prepare_on_cluster([*command, f"--output={output}"], output)
        digests.add(digest_of(output))
    results["same_bytes"] = len(digests) == 1
    return results


def main(argv: list[str]) -> None:
    del argv
    if _FOLDER.value:
        results = measure(Path(_FOLDER.value))
    else:
        with tempfile.TemporaryDirectory() as folder:
            results = measure(Path(folder))
    print(json.dumps(results, indent=1))
    if _JSON.value:
        Path(_JSON.value).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
