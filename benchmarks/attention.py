"""Times the implementations of attention and torch's, and writes the table that `auto` uses.

    python benchmarks/attention.py [--json=FILE] [--plot=FILE.png] [--write_table]

Each engine runs in a separate process. Engines take turns, and a time is the median over the turns.
A turn runs a loop of calls, each of which needs the result of the previous one. `full` attention
and its variants (biases, grouped heads) are timed in the same turns. Every implementation is
compared with the reference first. `--memory_lengths=16384` also measures the memory of one forward
and backward pass in a fresh process.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import statistics
import time
from collections.abc import Iterator

import attention_report
import attention_workers
import numpy as np
from absl import app, flags
from attention_workers import ENGINES, Problem
from processes import Worker
from timing import write_json

from transformer_jax.ops.attention import IMPLEMENTATIONS
from transformer_jax.workdir import machine

_JSON = flags.DEFINE_string("json", None, "Also write the results to this file.")
_PLOT = flags.DEFINE_string("plot", None, "Draw the times to this picture.")
_TABLE = flags.DEFINE_bool("write_table", False, "Write the table that `auto` chooses from.")
_TABLE_FILE = flags.DEFINE_string(
    "table", None, "Write that table, with this device's rows, to a file instead of the package's."
)
_SECONDS = flags.DEFINE_float(
    "seconds", float("inf"), "After so long no further shape is begun, and results are written."
)
_CASES = flags.DEFINE_list("cases", list(attention_workers.CASES), "Kinds of attention to time.")
_LENGTHS = flags.DEFINE_list("lengths", ["64", "256", "1024", "4096"], "Numbers of keys.")
_BATCH = flags.DEFINE_integer("batch", 2, "Batch size, reduced where --tokens requires it.")
_TOKENS = flags.DEFINE_integer(
    "tokens", 4096, "Largest batch size x length for batch sizes above 1."
)
_HEADS = flags.DEFINE_integer("heads", 8, "Number of heads.")
_HEAD_DIM = flags.DEFINE_integer("head_dim", 64, "Width of a head.")
_DTYPE = flags.DEFINE_string(
    "dtype", None, "float32 or bfloat16; by default bfloat16, on CPUs float32."
)
_NAMES = flags.DEFINE_list(
    "implementations",
    [n for n in IMPLEMENTATIONS if n != "reference"],
    "Implementations of this package.",
)
_PEERS = flags.DEFINE_list("peers", ["torch"], "Peers; those that are not installed are skipped.")
_TURNS = flags.DEFINE_integer("turns", 7, "Turns of each engine.")
_TURN_SECONDS = flags.DEFINE_float(
    "turn_seconds", 0.15, "Of a turn: long for the clock, short for changes of a shared machine."
)
_COMPILE_FIRST = flags.DEFINE_bool(
    "compile_first", False, "Compile the programs of all shapes at once, on all cores."
)
_MEMORY = flags.DEFINE_list(
    "memory_lengths", [], "Lengths for which memory is measured, case `full`, batch size 1."
)

PASSES = ("forward", "forward+backward")
# Largest difference from the reference, relative to the largest value.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def problems(dtype: str) -> Iterator[Problem]:
    for case, length in itertools.product(_CASES.value, map(int, _LENGTHS.value)):
        batch = max(1, min(_BATCH.value, _TOKENS.value // length))
        for which in PASSES:
            if case == "step" and which != "forward":
                continue
            yield Problem(case, batch, length, _HEADS.value, _HEAD_DIM.value, dtype, which)


def groups(shapes: list[Problem]) -> list[list[Problem]]:
    """Problems that are timed in the same turns: `full` and its variants, of the same shape."""
    by_shape: dict[Problem, list[Problem]] = {}
    for problem in shapes:
        varies = problem.case in attention_workers.VARIANTS
        key = dataclasses.replace(problem, case="full") if varies else problem
        by_shape.setdefault(key, []).append(problem)
    return list(by_shape.values())


def prepare(problem: Problem, workers: dict[str, Worker]) -> list[dict]:
    """One row for each implementation that can compute the problem, without its time."""
    rows, expected = [], None
    served = {engine: worker.call("names", problem) for engine, worker in workers.items()}
    for engine, name in [(engine, name) for engine, names in served.items() for name in names]:
        prepared = workers[engine].call("prepare", problem, name)
        if "error" in prepared:
            print(f"  {problem.case} {problem.length} {problem.which}: {name}: {prepared['error']}")
            continue
        if expected is None:
            expected = workers["jax"].call("reference", problem)
        error = difference(prepared.pop("outputs"), expected)
        if not error <= TOLERANCE[problem.dtype]:
            raise SystemExit(f"{name} differs from the reference by {error:.1e} at {problem}")
        rows.append(
            {
                **dataclasses.asdict(problem),
                "implementation": name,
                "engine": engine,
                "error": error,
                **prepared,
            }
        )
    return rows


def measure(
    group: list[Problem], workers: dict[str, Worker], rates: dict[str, float]
) -> list[dict]:
    """One row for each problem and implementation that can compute it, timed in turns."""
    timed = [(problem, row) for problem in group for row in prepare(problem, workers)]

    def run(problem: Problem, row: dict, calls: int) -> float:
        return workers[row["engine"]].call("time", problem, row["implementation"], calls)

    for problem, row in timed:
        once = run(problem, row, 1)
        row["calls"] = max(1, min(500, round(_TURN_SECONDS.value / once)))
    times: list[list[float]] = [[] for _ in timed]
    for _ in range(_TURNS.value):
        for (problem, row), seconds in zip(timed, times, strict=True):
            seconds.append(run(problem, row, row["calls"]))
    for worker, problem in itertools.product(workers.values(), group):
        worker.call("clear", problem)
    for (problem, row), turns in zip(timed, times, strict=True):
        median, flops = statistics.median(turns), attention_workers.flops(problem)
        row["milliseconds"] = 1000 * median
        row["tflops"] = flops / median / 1e12
        row["share_of_matmul_rate"] = flops / median / max(rates.values())
    return [row for _, row in timed]


def difference(outputs: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest difference of any array, relative to its largest value."""
    pairs = zip(outputs, expected, strict=True)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)


def measure_memory(length: int, engines: list[str], dtype: str) -> Iterator[dict]:
    """What one forward and backward pass adds to a fresh process, and its peak, in bytes."""
    problem = Problem("full", 1, length, _HEADS.value, _HEAD_DIM.value, dtype, PASSES[1])
    for engine in engines:
        # Without those that store the complete score matrix.
        ours = [name for name in _NAMES.value if name not in ("auto", "xla")]
        with Worker(ENGINES[engine], ours) as worker:
            names = worker.call("names", problem)
        for name in names:
            with Worker(ENGINES[engine], ours) as worker:
                memory = worker.call("memory", problem, name)
            if "error" in memory:
                print(f"  memory: {name}: {memory['error']}")
                continue
            yield {"length": length, "engine": engine, "implementation": name, **memory}


def main(argv: list[str]) -> None:
    del argv
    # For every engine.
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # engines share the GPU
    known = [*attention_workers.CASES, *attention_workers.VARIANTS]
    unknown = set(_CASES.value) - set(known)
    if unknown:
        raise app.UsageError(f"--cases must be of {known}, got {unknown}")
    engines = ["jax", *(peer for peer in _PEERS.value if importlib.util.find_spec(peer))]
    workers = {engine: Worker(ENGINES[engine], _NAMES.value) for engine in engines}
    about = {engine: worker.call("about") for engine, worker in workers.items()}
    dtype = _DTYPE.value or ("float32" if about["jax"]["platform"] == "cpu" else "bfloat16")
    rates = {engine: worker.call("matmul_rate", dtype) for engine, worker in workers.items()}
    result = {
        "about": about,
        "machine": machine.host(),
        "GLIBC_TUNABLES": os.environ["GLIBC_TUNABLES"],
        "matmul_flops_per_second": rates,
        "turns": _TURNS.value,
        "rows": [],
        "left_out": [],
        "memory": [],
    }
    print(json.dumps({k: v for k, v in result.items() if v != []}, indent=2))
    started = time.monotonic()
    shapes = list(problems(dtype))
    if _COMPILE_FIRST.value:
        workers["jax"].call("compile", shapes)
        print(f"compiled after {time.monotonic() - started:.0f} s", flush=True)
    for group in groups(shapes):
        if time.monotonic() - started > _SECONDS.value:
            result["left_out"] += [dataclasses.asdict(problem) for problem in group]
            continue
        rows = measure(group, workers, rates)
        result["rows"] += rows
        print(attention_report.lines(rows), flush=True)
        write_json(_JSON.value, result)
    for worker in workers.values():
        worker.close()
    for length in _MEMORY.value:
        for row in measure_memory(int(length), engines, dtype):
            result["memory"].append(row)
            write_json(_JSON.value, result)
    print(attention_report.table(result))
    if result["left_out"]:
        print(f"{len(result['left_out'])} shapes left out after {_SECONDS.value:.0f} s")
    if _TABLE.value or _TABLE_FILE.value:
        attention_report.write_table(result, _TABLE_FILE.value)
    write_json(_JSON.value, result)
    if _PLOT.value:
        attention_report.plot(result, _PLOT.value)


if __name__ == "__main__":
    app.run(main)
