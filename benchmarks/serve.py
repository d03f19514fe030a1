"""Measures the server under load, and compares it with others on the same model and machine.

    python benchmarks/serve.py --model=runs/m30k --text=test.en \
        --json=docs/benchmarks/serving_cpu.json
    python benchmarks/serve.py --model=runs/m30k --text=test.en --soak=600   # ten minutes at 90%

All servers run as processes, and take turns. With `clients`, each client sends a sentence and waits
for its translation. With a percentage, sentences arrive at random times (a Poisson process), at
that share of what the server translated at most. A generator of this project sends them
(`serve_load.py`); Locust repeats one load.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import serve_load
import serve_report
import serve_soak
from absl import app, flags, logging
from etils import epath
from processes import Worker
from serve_report import Row
from serve_servers import Case, Server, ours, peer

from transformer_jax import Translator
from transformer_jax.extras.interop import usage_examples
from transformer_jax.extras.interop.ctranslate2 import writing
from transformer_jax.translator import pretrained

SERVERS = ("jax", "jax_single", "ct2", "ct2_int8", "fastapi", "fastapi_int8")
FIRST_SECONDS = 1.0  # of a turn, which do not count
# Wanted ratios of throughput with 32 clients.
WANTED = (("jax", "jax_single", 4.0), ("ct2", "fastapi", 1.5), ("ct2_int8", "fastapi_int8", 1.5))


class Direct:
    """Calls of `translate` with one text, in a process of its own."""

    def __init__(self, folder: str):
        self._translator = Translator.load(folder)

    def seconds(self, texts: Sequence[str]) -> list[float]:
        """Seconds of each text."""
        times = []
        for text in texts:
            started = time.perf_counter()
            self._translator.translate(text)
            times.append(time.perf_counter() - started)
        return times


def export(model: str, folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Folders of the model in each form, and CTranslate2's search for its own settings."""
    loaded = pretrained.load(model)
    params = jax.device_get(loaded.params)
    folders = {"jax": model}
    for name, kind in (("ct2", "float32"), ("ct2_int8", "int8")):
        folders[name] = str(folder / name)
        writing.write_directory(
            epath.Path(folders[name]), loaded.config, loaded.tokenizers, params, kind
        )
    search = usage_examples.ctranslate2_search(loaded.config.decode, loaded.tokenizers)
    return folders, search


def cases(folders: dict[str, str], search: dict[str, Any]) -> dict[str, Case]:
    """The servers to measure, by name."""
    options = flags.FLAGS
    wait = f"--batch_wait_ms={options.batch_wait_ms}"

    def our_case(name: str, folder: str, *more: str) -> Case:
        return ours(name, folder, wait, *more, timeout_ms=options.timeout_ms)

    every = {
        "jax": our_case("jax", folders["jax"]),
        # A batch of one position has a row.
        "jax_single": our_case("jax_single", folders["jax"], "--batch_tokens=1"),
        "ct2": our_case("ct2", folders["ct2"]),
        "ct2_int8": our_case("ct2_int8", folders["ct2_int8"]),
        "fastapi": peer("fastapi", folders["ct2"], search),
        "fastapi_int8": peer("fastapi_int8", folders["ct2_int8"], search),
    }
    return {name: every[name] for name in options.servers}


def check_outputs(
    servers: dict[str, Server], load: Worker, texts: list[str], most: int
) -> dict[str, int]:
    """How many of the first translations are those of the first server, of each server."""
    outputs: dict[str, list[str]] = {}
    for name, server in servers.items():
        answers = load.call("ask", server.target(texts[:most]))
        wrong = [a for a in answers if a.status != serve_report.OK]
        if wrong:
            raise SystemExit(f"{name} answered {wrong[0].status}: {wrong[0].body!r}")
        outputs[name] = [server.case.unwrap(json.loads(a.body)) for a in answers]
    first = next(iter(outputs.values()))
    same = {name: sum(map(str.__eq__, first, texts)) for name, texts in outputs.items()}
    for name, count in same.items():
        print(f"{name}: {count} of {len(first)} translations are those of {next(iter(same))}")
    return same


def measure_direct(folders: dict[str, str], texts: list[str]) -> dict[str, float]:
    """Median milliseconds of a direct call, of each of our engines."""
    medians = {}
    for name, folder in folders.items():
        if name in flags.FLAGS.servers:
            with Worker(Direct, folder, keep_memory=True) as worker:
                worker.call("seconds", texts)  # compiles
                medians[name] = serve_report.percentiles(worker.call("seconds", texts))[0]
                print(f"{name}: a direct call takes {medians[name]:.1f} ms (p50)", flush=True)
    return medians


def measure_closed(
    servers: dict[str, Server], load: Worker, texts: list[str], clients: int
) -> list[Row]:
    """A row for each server, with this number of clients."""
    options = flags.FLAGS
    turns: dict[str, list[Any]] = {name: [] for name in servers}
    cpu = dict.fromkeys(servers, 0.0)
    for _ in range(options.turns):
        for name, server in servers.items():
            used = server.cpu_seconds
            turns[name].append(load.call("closed", server.target(texts), clients, options.seconds))
            cpu[name] += server.cpu_seconds - used
    label = f"{clients} client{'s' * (clients > 1)}"
    window = (FIRST_SECONDS, float("inf"))
    return [serve_report.row(name, label, turns[name], window, cpu[name]) for name in servers]


def measure_open(
    servers: dict[str, Server],
    load: Worker,
    texts: list[str],
    share: float,
    capacity: dict[str, float],
) -> list[Row]:
    """A row for each server, at a share of its capacity in sentences a second."""
    rows = []
    for name, server in servers.items():
        times = serve_load.arrivals(share * capacity[name], flags.FLAGS.open_seconds)
        used = server.cpu_seconds
        answers = load.call("open", server.target(texts), times)
        cpu = server.cpu_seconds - used
        window = (FIRST_SECONDS, float("inf"))
        rows.append(serve_report.row(name, f"{share:.0%}", [answers], window, cpu))
    return rows


def run_locust(server: Server, texts: list[str], clients: int, seconds: float) -> dict[str, Any]:
    """What Locust measures at a server."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\n".join(serve_load.bodies(texts, server.case.wrap)))
        file.flush()
        environment = os.environ | {"SERVE_BODIES": file.name, "SERVE_PATH": server.case.path}
        script = Path(__file__).with_name("serve_locust.py")
        command = [sys.executable, "-m", "locust", "-f", str(script), "--headless", "--json"]
        command += ["--host", f"http://127.0.0.1:{server.port}", "-u", str(clients)]
        command += ["-r", str(clients), "-t", f"{seconds:.0f}s", "--loglevel=ERROR"]
        command += ["--exit-code-on-error=0"]  # failures are counted
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (stats,) = json.loads(done.stdout)
    span = stats["last_request_timestamp"] - stats["start_time"]
    return {"throughput": stats["num_requests"] / span, "failed": stats["num_failures"]}


def print_targets(rows: Sequence[Row], direct: dict[str, float]) -> list[dict[str, Any]]:
    """Prints the measured figures and the wanted ones."""
    checks = []
    for server, other, wanted in WANTED:
        value = serve_report.ratio(rows, "32 clients", server, other)
        if value is not None:
            checks.append(
                {"what": f"{server} / {other}, 32 clients", "value": value, "at least": wanted}
            )
    for row in rows:
        if row.load == "1 client" and row.server in direct:
            bound = direct[row.server] + flags.FLAGS.batch_wait_ms
            what = f"{row.server}: p50 / (direct call + batch_wait_ms), 1 client"
            checks.append({"what": what, "value": row.p50 / bound, "at most": 1.2})
        if row.load == "200%" and row.refused:
            what = f"{row.server}: p99 of 429, 200%, ms"
            checks.append({"what": what, "value": row.refused_p99, "at most": 50.0})
            what = f"{row.server}: p99 of the translated, 200%, ms"
            checks.append({"what": what, "value": row.p99, "at most": flags.FLAGS.timeout_ms})
    for one in checks:
        side = "at least" if "at least" in one else "at most"
        print(f"{one['what']}: {one['value']:.2f} (wanted: {side} {one[side]:g})")
    return checks


def describe_machine() -> dict[str, Any]:
    """What the figures depend on."""
    packages = ("jax", "ctranslate2", "fastapi", "uvicorn", "uvloop", "httptools", "locust")
    versions: dict[str, str | None] = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {"python": platform.python_version(), "cpus": os.cpu_count(), "packages": versions}


def measure(every: dict[str, Case], folders: dict[str, str], texts: list[str]) -> dict[str, Any]:
    """All figures."""
    options = flags.FLAGS
    result = describe_machine() | {"direct_ms": measure_direct(folders, texts[:100])}
    servers: dict[str, Server] = {}
    load = Worker(serve_load.Load)
    try:
        for name, case in every.items():
            servers[name] = Server(case)
            servers[name].wait_until_ready()
            print(f"{name} is ready", flush=True)
        result["same_outputs"] = check_outputs(servers, load, texts, options.num_checked)
        rows: list[Row] = []
        for clients in map(int, options.clients):
            rows += (new := measure_closed(servers, load, texts, clients))
            print(serve_report.table(new), flush=True)
        capacity = {name: max(r.throughput for r in rows if r.server == name) for name in servers}
        for share in map(float, options.shares):
            rows += (new := measure_open(servers, load, texts, share, capacity))
            print(serve_report.table(new), flush=True)
        if options.locust_clients:
            result["locust"] = {
                name: run_locust(server, texts, options.locust_clients, options.seconds)
                for name, server in servers.items()
            }
            print(f"Locust, {options.locust_clients} clients: {json.dumps(result['locust'])}")
    finally:
        load.close()
        for server in servers.values():
            server.stop()
    result["rows"] = serve_report.as_json(rows)
    result["targets"] = print_targets(rows, result["direct_ms"])
    return result


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    texts = Path(options.text).read_text().splitlines()
    with tempfile.TemporaryDirectory() as name:
        every_folder, search = export(options.model, Path(name))
        every = cases(every_folder, search)
        if options.soak:
            result = serve_soak.soak(next(iter(every.values())), texts, options.soak)
        else:
            result = measure(every, every_folder, texts)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    flags.DEFINE_string("model", None, "A work directory.", required=True)
    flags.DEFINE_string("text", None, "Text to send, a sentence a line.", required=True)
    flags.DEFINE_list("servers", list(SERVERS), "Servers to measure.")
    flags.DEFINE_list("clients", ["1", "8", "32", "128"], "Numbers of clients.")
    flags.DEFINE_list("shares", ["0.5", "0.9", "2"], "Shares of capacity.")
    flags.DEFINE_float("seconds", 6.0, "Of each turn with clients.")
    flags.DEFINE_float("open_seconds", 12.0, "Of each turn with a share.")
    flags.DEFINE_integer("turns", 3, "Turns of each server with each number of clients.")
    flags.DEFINE_integer("num_checked", 100, "Translations that are compared first.")
    flags.DEFINE_integer("locust_clients", 32, "Clients of Locust; 0: it is not run.")
    flags.DEFINE_float("timeout_ms", 1000.0, "Deadline of each text at our servers.")
    flags.DEFINE_float("batch_wait_ms", 3.0, "Of our servers.")
    flags.DEFINE_float("soak", 0.0, "Seconds of a soak of the first of --servers instead.")
    flags.DEFINE_string("json", "", "Also write the result to this file.")
    app.run(main)
