"""Times several programs in turns, so that changes of the machine's speed affect all of them."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax


def median_milliseconds(
    programs: Mapping[str, Callable[[], object]], repeats: int, slow: float = float("inf")
) -> dict[str, float]:
    """Median time of each program, which is compiled first.

    Args:
      programs: functions that return arrays.
      repeats: turns of each program.
      slow: a program whose first turn takes more milliseconds than this gets no further turn.
    """
    for program in programs.values():
        jax.block_until_ready(program())
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(repeats):
        for name, program in programs.items():
            if turn and times[name][0] > slow:
                continue
            started = time.perf_counter()
            jax.block_until_ready(program())
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def write_json(path: str | None, results: object) -> None:
    """Writes the results to `path`, if there is one."""
    if path:
        Path(path).write_text(json.dumps(results, indent=2) + "\n")
