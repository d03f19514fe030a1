"""Runs all targets of CI, and fails where one fails or takes more CPU than its budget.

At the end it prints the wall and CPU seconds of each target. CPU seconds are summed over all
processes of the target. The unit of the budgets (`tests/budgets.toml`) is the CPU time that one
fixed compilation takes on this machine.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

COSTS = Path(".cache/costs")
DOCS_LOG = COSTS / "docs.log"
# The tests that CI runs with the newest JAX, to end in time; `make test-newest` runs all.
NUMERICS = " ".join(
    f"tests/test_{name}.py"
    for name in (
        "attention", "checkpoints", "golden", "losses", "optimizer", "search", "step", "training"
    )
)  # fmt: skip
# `docs` before `test-slow`, which then finds the trainings of the guide done. Its pages run one
# after the other, so it runs next to `test-newest`.
TARGETS = ("lint", "types", "test", "test-newest", "docs", "test-slow", "test-peers")


def children_cpu() -> float:
    """CPU seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def start(target: str, unit: str) -> subprocess.Popen[bytes]:
    """Starts a target. The output of `docs` goes to a file, because another target prints too.

    In `test`, each test and each file has a budget too.
    """
    tests = [f"TESTS={NUMERICS}"] if target == "test-newest" else []
    output = DOCS_LOG.open("wb") if target == "docs" else None
    return subprocess.Popen(
        ["make", target, f"COSTS={COSTS}", *tests],
        env={**os.environ, "REFERENCE_SECONDS": unit if target == "test" else ""},
        stdout=output,
        stderr=output,
    )


def measure_unit() -> str:
    """Seconds of CPU of the reference, on all cores at once: cores that share parts are slower."""
    command = [".venv/bin/python", "tests/costs.py", "--reference"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    return f"{statistics.median(float(process.communicate()[0]) for process in started):.3f}"


def run(targets: Sequence[str]) -> str:
    """Runs the targets; returns what is wrong, or nothing."""
    # Installations are no part of budgets, and two at the same time would write the same file.
    extras = {"docs": "docs", "test-peers": "peers"}
    for name in ("test", *(extras[target] for target in targets if target in extras)):
        if subprocess.run(["make", f".venv/bin/.installed-{name}"]).returncode:
            return f"The packages of the extra [{name}] could not be installed."
    unit = measure_unit()
    print(f"one unit of the budgets is {unit} s of CPU here", flush=True)
    budgets = tomllib.loads(Path("tests/budgets.toml").read_text())["targets"]
    problem, lines, begun = "", [], time.monotonic()
    COSTS.mkdir(parents=True, exist_ok=True)
    started = dict.fromkeys(targets)
    for target in targets:
        before, begun_target = children_cpu(), time.monotonic()
        process = started[target] or start(target, unit)
        if target == "test-newest" and "docs" in started:
            started["docs"] = start("docs", unit)
        status = process.wait()
        # The system adds the CPU time of a process when the process is waited for. So the time of
        # `docs`, which runs next to another target, is not added to that target.
        cpu, wall = children_cpu() - before, time.monotonic() - begun_target
        lines.append(
            f"  {target:<12} {wall:6.0f} {cpu:6.0f} {cpu / float(unit):6.0f} of {budgets[target]}"
        )
        if target == "docs":
            sys.stdout.flush()
            sys.stdout.buffer.write(DOCS_LOG.read_bytes())
        if status:
            problem = f"make {target} failed with status {status}."
        elif cpu / float(unit) > budgets[target]:
            problem = (
                f"make {target} took {cpu / float(unit):.0f} units of CPU, and its budget is "
                f"{budgets[target]}. The tables above say which tests and files cost most: make "
                "them cheaper, or raise the budget in tests/budgets.toml with the reason."
            )
        if problem:
            break
    print(f"\n  {'target':<12} {'wall s':>6} {'CPU s':>6}  units", *lines, sep="\n")
    print(f"  {'all':<12} {time.monotonic() - begun:6.0f} {children_cpu():6.0f}")
    if problem and started.get("docs") and started["docs"].poll() is None:
        started["docs"].terminate()
    return problem


def main() -> int:
    """Runs the targets that the command line names, or all; returns the status of the process."""
    problem = run(sys.argv[1:] or TARGETS)
    print(problem, flush=True)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
