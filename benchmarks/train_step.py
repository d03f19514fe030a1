"""Times the training step, and those of Hugging Face's Marian in torch and Flax's `examples/wmt`.

    pip install 'torch==2.13.0' transformers
    pip download --no-deps --no-binary :all: flax==0.12.8 && tar xf flax-0.12.8.tar.gz
    python benchmarks/train_step.py --peers=transformers,flax \
        --flax_example=flax-0.12.8/examples/wmt --json=train_step.json
    python benchmarks/train_step.py --peers=transformers --sizes=base,big --vocab_size=32000 \
        --batch_tokens=25000,100000 --length=64 --dtype=bfloat16 \
        --json=docs/benchmarks/train_step_gpu.json                             # on a GPU
    python benchmarks/train_step.py --peers=flax --flax_example=… --corpus=multi30k/train
    python benchmarks/train_step.py --peers= --undo=dense,optimizer,loss,all --sizes=small

All engines have the same sizes, tokens, dropout and label smoothing. Each runs in a separate
process and has one turn per round, in random order. Times are medians over the rounds. All
sentences are equally long, so nothing is padding. With `--corpus` batches have real lengths: ours
come from the data pipeline, those of Flax's example are packed in advance as in its input pipeline.
Then only tokens that are not padding count.

A batch that does not fit in a GPU's memory is computed in 2, 4, 8 or 16 parts, by ours and torch.

With `--undo` ours also runs with single optimisations replaced by plain code.

Each engine allocates memory as it does for its users: ours as the commands do, peers with glibc's
defaults. With `--kept_memory` all engines allocate as ours does.
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import train_step_corpus
import train_step_peers
import train_step_undone
import train_step_workers as workers_lib
from absl import app, flags
from processes import Worker
from timing import write_json

from transformer_jax.config import Config, ModelConfig
from transformer_jax.data.plans.batch_shapes import BatchShape
from transformer_jax.extras.diagnostics.accelerators import ACCELERATORS
from transformer_jax.extras.diagnostics.dry_run import model_flops
from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
PEERS = ("transformers", "flax")


def model(size: str, vocab_size: int) -> ModelConfig:
    """Model sizes by name; `small` is the Multi30k recipes' with a wider feed-forward block."""
    fields: dict[str, dict[str, int]] = {
        "base": {},
        "big": {"d_model": 1024, "num_heads": 16, "d_ff": 4096},
        "algoperf": {"d_model": 1024, "num_heads": 16, "d_ff": 1024},  # of its WMT workload
        "small": {"num_encoder_layers": 4, "num_decoder_layers": 4, "d_model": 128, "d_ff": 512},
        "tiny": {
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "d_model": 16,
            "d_ff": 32,
            "num_heads": 2,
        },
    }
    return ModelConfig(
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        decoder_start_id=1,
        **fields[size],  # type: ignore[arg-type]
    )


def start(make: Callable[..., Any], *args: Any) -> Worker:
    """Starts an engine in a separate process, which allocates memory as for the engine's users."""
    ours = isinstance(make, type) and issubclass(make, workers_lib.Ours)
    return Worker(make, *args, keep_memory=ours or FLAGS.kept_memory)


def engines(task: workers_lib.Task) -> dict[str, tuple[Any, ...]]:
    """The arguments of `start` for each engine."""
    ours: dict[str, tuple[Any, ...]] = {"ours": (workers_lib.Ours, task)}
    if FLAGS.loading:
        loading = dataclasses.replace(task, loading=True)
        ours["ours, data loading included"] = (workers_lib.Ours, loading)
    for change in FLAGS.undo:
        ours[f"ours, without {change}"] = (train_step_undone.Undone, task, change)
    if "transformers" in FLAGS.peers:
        ours["torch"] = (train_step_peers.Torch, task)
        ours["torch.compile"] = (train_step_peers.Torch, task, True)
    if "flax" in FLAGS.peers:
        ours["flax example"] = (train_step_peers.FlaxExample, task, FLAGS.flax_example)
    return ours


def measure(
    arguments: dict[str, tuple[Any, ...]], tokens: float, flops: float, dtype: str
) -> list[dict]:
    """Times the engines; returns one row per engine.

    Args:
      arguments: of `start`, for each engine.
      tokens: target tokens per step that are not padding.
      flops: of the model, per step.
      dtype: of the matrix products whose rate is measured for comparison.
    """
    meters = [start(workers_lib.JaxProducts)]
    if "transformers" in FLAGS.peers:
        meters.append(start(workers_lib.TorchProducts))
    rates = [[meter.call("rate", dtype) for meter in meters]]
    times: dict[str, list[float]] = {}
    facts: dict[str, dict[str, Any]] = {}
    names = list(arguments)
    for group in [[name] for name in names] if FLAGS.one_at_a_time else [names]:
        workers = {name: start(*arguments[name]) for name in group}
        times |= take_turns(workers)
        for name, worker in workers.items():
            facts[name] = {"loss": worker.call("loss"), **worker.call("about")}
            worker.close()
    rates.append([meter.call("rate", dtype) for meter in meters])
    rate = max(max(some) for some in rates)
    accelerator = ACCELERATORS.get(meters[0].call("device"))
    peak = accelerator.flops if accelerator and dtype == "bfloat16" else None
    for meter in meters:
        meter.close()
    rows = []
    for name in names:
        seconds = statistics.median(times[name])
        rows.append(
            {
                "engine": name,
                "target_tokens_per_second": tokens / seconds,
                "step_seconds": times[name],
                "share_of_matmul_rate": flops / seconds / rate,
                "mfu": flops / seconds / peak if peak else None,
                "matmul_flops_per_second": rate,
                **facts[name],
            }
        )
    return rows


def take_turns(workers: dict[str, Worker]) -> dict[str, list[float]]:
    """Seconds per step in every round; each round has a random order."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    for worker in workers.values():
        worker.call("run", 2)
    order = random.Random(0)
    for _ in range(FLAGS.rounds):
        for name in order.sample(list(workers), len(workers)):
            times[name].append(workers[name].call("run", FLAGS.steps))
    return times


def print_rows(rows: list[dict]) -> None:
    ours = rows[0]["target_tokens_per_second"]
    for row in rows:
        speed = row["target_tokens_per_second"]
        print(
            f"  {row['engine']:<28} {speed:10,.0f} target tokens/s   ours is {ours / speed:4.2f} "
            f"times as fast   {100 * row['share_of_matmul_rate']:3.0f}% of "
            f"{row['matmul_flops_per_second'] / 1e9:,.0f} GFLOP/s   "
            + (f"MFU {100 * row['mfu']:3.0f}%   " if row["mfu"] else "")
            + f"{row['peak_bytes'] / 2**20:7,.0f} MiB   first step {row['compile_seconds']:.0f} s"
            + (f"   in {row['parts']} parts" if row["parts"] > 1 else ""),
            flush=True,
        )


def compare_equal_lengths(size: str, vocab_size: int, rows: int) -> dict[str, Any]:
    """Compares the engines on sentences of `--length` tokens on each side."""
    task = workers_lib.Task(
        model(size, vocab_size),
        rows,
        FLAGS.length,
        FLAGS.length,
        FLAGS.dtype,
    )
    print(
        f"{size}, {vocab_size:,} tokens, {rows} x ({FLAGS.length} + {FLAGS.length}), {FLAGS.dtype}",
        flush=True,
    )
    shape = BatchShape(rows, FLAGS.length, FLAGS.length)
    flops = model_flops(workers_lib.run_config(task), shape)
    rows_of_engines = measure(engines(task), task.target_tokens, flops, FLAGS.dtype)
    print_rows(rows_of_engines)
    return {
        "size": size,
        "vocab_size": vocab_size,
        "shape": dataclasses.astuple(shape),
        "dtype": FLAGS.dtype,
        "engines": rows_of_engines,
    }


def compare_on_corpus(size: str, vocab_size: int, prefix: str) -> dict[str, Any]:
    """Compares ours and Flax's example, each with batches as it packs them."""
    config = corpus_config(size, vocab_size, prefix)
    tokens = config.data.batch_tokens
    print(f"{size}, {vocab_size:,} tokens, {prefix}, {tokens} target positions a step", flush=True)
    workers = {"ours, data loading included": start(train_step_corpus.OursOnCorpus, config)}
    for length in (256, config.data.max_len) if "flax" in FLAGS.peers else ():
        workers[f"flax example, rows of {length}"] = start(
            train_step_corpus.FlaxOnCorpus, config, FLAGS.flax_example, length
        )
    useful = {name: worker.call("useful_tokens") for name, worker in workers.items()}
    times = take_turns(workers)
    results = []
    for name, worker in workers.items():
        speed = useful[name] / statistics.median(times[name])
        results.append(
            {
                "engine": name,
                "useful_tokens_a_step": useful[name],
                "useful_target_tokens_per_second": speed,
                "step_seconds": times[name],
                **worker.call("about"),
            }
        )
        ours = results[0]["useful_target_tokens_per_second"]
        print(
            f"  {name:<28} {speed:10,.0f} useful target tokens/s   ours is {ours / speed:.2f} "
            f"times as fast   {useful[name]:,.0f} a step",
            flush=True,
        )
        worker.close()
    return {"size": size, "vocab_size": vocab_size, "corpus": Path(prefix).name, "engines": results}


def corpus_config(size: str, vocab_size: int, prefix: str) -> Config:
    config = Config()
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            model(size, 0), dtype=FLAGS.dtype, max_len=128, decoder_start_id=-1
        ),
        data=dataclasses.replace(
            config.data,
            source="files",
            train=prefix,
            vocab_size=vocab_size,
            tokenizer="bpe",
            max_len=64,
            batch_tokens=4096,
        ),
        train=dataclasses.replace(config.train, eval_every_steps=0),
    )


def main(argv: list[str]) -> None:
    del argv
    if unknown := set(FLAGS.peers) - set(PEERS):
        raise app.UsageError(f"--peers={','.join(unknown)}: there are {', '.join(PEERS)}.")
    if unknown := set(FLAGS.undo) - set(train_step_undone.CHANGES):
        raise app.UsageError(
            f"--undo={','.join(unknown)}: there are {', '.join(train_step_undone.CHANGES)}."
        )
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # engines share the GPU
    if FLAGS.corpus and FLAGS.undo:
        raise app.UsageError("--corpus compares whole steps: leave out --undo.")
    if FLAGS.corpus and "transformers" in FLAGS.peers:
        raise app.UsageError("--corpus compares with flax alone: --peers=flax or --peers=")
    if "transformers" in FLAGS.peers and not importlib.util.find_spec("transformers"):
        raise app.UsageError("transformers is not installed (--peers).")
    if "flax" in FLAGS.peers and not (Path(FLAGS.flax_example) / "models.py").exists():
        raise app.UsageError("--peers=flax needs --flax_example: a copy of Flax's examples/wmt.")
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "machine": machine.host(),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("jax", "flax", "torch", "transformers")
            if importlib.util.find_spec(name)
        },
        "kept_memory": FLAGS.kept_memory,
        "rounds": FLAGS.rounds,
        "steps": FLAGS.steps,
        "tables": [],
    }
    for size in FLAGS.sizes:
        vocab_size = FLAGS.vocab_size or {"small": 8_000}.get(size, 16_000)
        if FLAGS.corpus:
            result["tables"].append(compare_on_corpus(size, vocab_size, FLAGS.corpus))
            write_json(FLAGS.json, result)
            continue
        for tokens in map(int, FLAGS.batch_tokens):
            rows = tokens // FLAGS.length
            result["tables"].append(compare_equal_lengths(size, vocab_size, rows))
            write_json(FLAGS.json, result)  # so that a run that is cut off is not lost


if __name__ == "__main__":
    flags.DEFINE_list("peers", ["transformers"], f"Engines to compare with: {', '.join(PEERS)}.")
    flags.DEFINE_list("undo", [], "Optimisations of ours to replace by plain code, one at a time.")
    flags.DEFINE_string("flax_example", "", "A copy of Flax's examples/wmt.")
    flags.DEFINE_list("sizes", ["base", "small"], "base, big, algoperf, small, tiny.")
    flags.DEFINE_integer(
        "vocab_size", 0, "Vocabulary size; 0: 8,000 for small, 16,000 for other sizes."
    )
    flags.DEFINE_list("batch_tokens", ["2048"], "Target tokens per step.")
    flags.DEFINE_integer("length", 32, "Tokens of every source and target sentence.")
    flags.DEFINE_string("dtype", "float32", "Type of the computation: float32 or bfloat16.")
    flags.DEFINE_string("corpus", "", "Prefix of parallel text, for batches of real lengths.")
    flags.DEFINE_bool("loading", True, "Ours also with data loading.")
    flags.DEFINE_bool(
        "one_at_a_time", False, "Time one engine after the other, where memory is short."
    )
    flags.DEFINE_bool("kept_memory", False, "Peers allocate memory as ours does.")
    flags.DEFINE_integer("rounds", 7, "Turns of each engine.")
    flags.DEFINE_integer("steps", 4, "Steps per turn.")
    flags.DEFINE_string("json", "", "Also write the result to this file.")
    app.run(main)
