"""A pytest plugin that measures the cost of tests and refuses tests that exceed their budget.

    make test COSTS=folder      # also test-slow, test-peers

writes `folder/TARGET.json` and prints the table by file. `python tests/costs.py FILE.json` prints
the table again. `.ci/run` uses the plugin with `REFERENCE_SECONDS`, which makes budgets binding:
they are in units of that many seconds of CPU, which is what `reference` takes on the same machine.

For each test the plugin measures wall and CPU seconds (of the process and of the programs that it
waited for) and what JAX did: traces, lowerings and compilations, with their seconds. The processes
of pytest-xdist send their figures with the reports of the tests, and the first process sums them. A
fixture of the session is charged to the test that is the first to need it.
"""

import collections
import json
import os
import resource
import statistics
import sys
import threading
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

BUDGETS = Path(__file__).parent / "budgets.toml"
# JAX's name of an event, and ours. A trace within a trace is measured with it and by itself.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
COLUMNS = ("tests", "cpu_s", "wall_s", "traces", "trace_s", "lower_s", "compiles", "compile_s")
Cost = collections.Counter[str]


class Budgets(NamedTuple):
    """Most units of CPU, of `budgets.toml`; a test or file that it does not name has `usual`."""

    targets: Mapping[str, float]
    usual: Mapping[str, float]  # of `test` and `file`
    tests: Mapping[str, float]
    files: Mapping[str, float]

    @classmethod
    def read(cls) -> "Budgets":
        table = tomllib.loads(BUDGETS.read_text())
        return cls(table["targets"], table["usual"], table["tests"], table["files"])


def cpu_seconds() -> float:
    """Seconds of CPU of all threads of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def reference() -> float:
    """CPU seconds to trace and compile a fixed program of JAX: the median of three.

    The program is no part of the package, so no change of the package changes the unit.
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_compilation_cache", False)

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            scores = jax.nn.softmax(x @ w @ x.T / 3)
            x = x + jnp.tanh(scores @ x @ w) * jax.nn.sigmoid(x)
        return jnp.sum(x**2)

    def measure(size: int) -> float:
        arrays = [jnp.zeros((size, size))] * 12, jnp.zeros((5, size))
        before = time.process_time()
        jax.jit(jax.value_and_grad(loss)).lower(*arrays).compile()
        return time.process_time() - before

    measure(7)  # loads what the first compilation needs
    return statistics.median(map(measure, (8, 9, 10)))


def by_file(tests: Mapping[str, Cost]) -> dict[str, Cost]:
    """The sums of each file, most CPU first."""
    files: dict[str, Cost] = collections.defaultdict(collections.Counter)
    for name, cost in tests.items():
        files[name.partition("::")[0]].update({"tests": 1, **cost})
    return dict(sorted(files.items(), key=lambda item: -item[1]["cpu_s"]))


def table(tests: Mapping[str, Cost]) -> str:
    """The costs by file, as Markdown."""
    files = by_file(tests)
    everything: Cost = collections.Counter()
    for cost in files.values():
        everything.update(cost)
    lines = ["| file | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for name, cost in {"all": everything, **files}.items():
        cells = (f"{cost[c]:.1f}" if c.endswith("_s") else str(int(cost[c])) for c in COLUMNS)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def above_budget(tests: Mapping[str, Cost], unit: float, budgets: Budgets) -> list[str]:
    """A sentence for each test and file that costs more than it may.

    Args:
      tests: name of each test -> its cost.
      unit: CPU seconds of `reference`.
      budgets: in units.
    """
    kinds = {
        "test": (tests, budgets.tests, "compile less (CONTRIBUTING.md, Tests that cost little)"),
        "file": (by_file(tests), budgets.files, "let its tests share programs and trainings"),
    }
    sentences = []
    for kind, (costs, named, advice) in kinds.items():
        for name, cost in costs.items():
            used, most = cost["cpu_s"] / unit, named.get(name, budgets.usual[kind])
            if used > most:
                sentences.append(
                    f"{name} takes {used:.1f} units of CPU, and a {kind} may take {most:g}: "
                    f"{advice}, or name it in tests/{BUDGETS.name} with the reason."
                )
    return sentences


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--costs", metavar="FILE", help="where to write what each test cost, as JSON")


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Costs(config), "costs-of-tests")


class Costs:
    """Measures tests in the processes that run them, and sums them in the first."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.events: Cost = collections.Counter()
        self.lock = threading.Lock()
        self.tests: dict[str, Cost] = collections.defaultdict(collections.Counter)

    def on_event(self, event: str, duration: float, **_: Any) -> None:
        if name := EVENTS.get(event):
            with self.lock:  # programs are compiled in threads too
                self.events.update({f"{name}s": 1, f"{name}_s": duration})

    def pytest_sessionstart(self) -> None:
        import jax

        jax.monitoring.register_event_duration_secs_listener(self.on_event)

    def now(self) -> Cost:
        with self.lock:
            return self.events + collections.Counter(
                wall_s=time.perf_counter(), cpu_s=cpu_seconds()
            )

    def pytest_runtest_logstart(self) -> None:
        self.before = self.now()

    def pytest_runtest_makereport(self, item: Any) -> None:
        after = self.now()
        item.user_properties.append(("cost", dict(after - self.before)))
        self.before = after

    def pytest_runtest_logreport(self, report: Any) -> None:
        # The reports of a test have its costs up to their phase.
        if report.when == "teardown":
            for name, cost in report.user_properties:
                if name == "cost":
                    self.tests[report.nodeid].update(cost)

    def pytest_sessionfinish(self, session: Any) -> None:
        if hasattr(self.config, "workerinput"):
            return
        if path := self.config.getoption("--costs"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(json.dumps(self.tests, indent=1))
        if self.sentences() and not session.exitstatus:
            session.exitstatus = 1

    def sentences(self) -> list[str]:
        unit = float(os.environ.get("REFERENCE_SECONDS") or "inf")
        return above_budget(self.tests, unit, Budgets.read())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("CPU seconds by file")
        terminalreporter.write_line(table(self.tests))
        for sentence in self.sentences():
            terminalreporter.write_line(f"over budget: {sentence}", red=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--reference"]:
        print(f"{reference():.3f}")
    else:
        costs = json.loads(Path(sys.argv[1]).read_text())
        print(table({name: collections.Counter(cost) for name, cost in costs.items()}))
