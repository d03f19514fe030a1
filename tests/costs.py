"""A pytest plugin that sums what tests cost: `pytest -p tests.costs --costs=FILE.json`.

For each test it measures wall and CPU seconds (of the process and of the programs that it waited
for) and what JAX did: traces, lowerings and compilations, with their seconds. The processes of
pytest-xdist send their figures with the reports of the tests, and the first process sums them. A
fixture of the session is charged to the test that was the first to need it.
"""

import collections
import json
import resource
import threading
import time
from pathlib import Path

import pytest

# JAX's name of an event, and ours. A trace within a trace is measured with it and by itself.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
UNITS = ("wall", "cpu", "traces", "trace_s", "lowers", "lower_s", "compiles", "compile_s")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="where to write what each test cost, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "costs-of-tests")


def cpu_seconds() -> float:
    """Seconds of CPU of all threads of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Costs:
    """Measures tests in the processes that run them, and sums them in the first."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.events: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()
        self.tests: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )

    def on_event(self, event: str, duration: float, **_) -> None:
        if name := EVENTS.get(event):
            with self.lock:  # programs are compiled in threads too
                self.events.update({f"{name}s": 1, f"{name}_s": duration})

    def pytest_sessionstart(self) -> None:
        import jax

        jax.monitoring.register_event_duration_secs_listener(self.on_event)

    def now(self) -> collections.Counter[str]:
        with self.lock:
            return collections.Counter(self.events, wall=time.perf_counter(), cpu=cpu_seconds())

    def pytest_runtest_logstart(self) -> None:
        self.before = self.now()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        report = yield
        after = self.now()
        cost = {unit: after[unit] - self.before[unit] for unit in UNITS}
        self.before = after
        report.user_properties = [*report.user_properties, ("cost", cost)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, cost in report.user_properties:
            if name == "cost":
                self.tests[report.nodeid].update(cost)

    def pytest_sessionfinish(self) -> None:
        if (path := self.config.getoption("--costs")) and not hasattr(self.config, "workerinput"):
            Path(path).write_text(json.dumps(self.tests, indent=1))
