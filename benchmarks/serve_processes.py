"""Compares one server with a server for each core, which have the clients' texts in equal parts.

    python benchmarks/serve_processes.py --model=exported --text=test.en

A server of a core is bound to it, as by `taskset`. All servers run all the time, and take turns.
"""

import concurrent.futures
import contextlib
from pathlib import Path
from typing import Any

import serve_load
import serve_report
from absl import app, flags
from processes import Worker
from serve_servers import Server, cores, ours


def measure(servers: list[Server], loads: list[Worker], texts: list[str]) -> list[Any]:
    """The answers of all servers in a turn, each with its part of the clients."""
    clients = flags.FLAGS.clients // len(servers)

    def ask(server: Server, load: Worker) -> list[Any]:
        return load.call("closed", server.target(texts), clients, flags.FLAGS.seconds)

    with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
        parts = pool.map(ask, servers, loads[: len(servers)])
        return [answer for part in parts for answer in part]


def main(argv: list[str]) -> None:
    del argv
    options = flags.FLAGS
    texts = Path(options.text).read_text().splitlines()
    case = ours("one", options.model)
    with contextlib.ExitStack() as stack:
        groups = {
            "one process": [stack.enter_context(Server(case))],
            "one for each core": [stack.enter_context(Server(case, (core,))) for core in cores()],
        }
        loads = [stack.enter_context(Worker(serve_load.Load)) for _ in cores()]
        turns: dict[str, list[Any]] = {name: [] for name in groups}
        cpu = dict.fromkeys(groups, 0.0)
        for servers in groups.values():
            for server in servers:
                server.wait_until_ready()
        for _ in range(options.turns):
            for name, servers in groups.items():
                used = sum(server.cpu_seconds for server in servers)
                turns[name].append(measure(servers, loads, texts))
                cpu[name] += sum(server.cpu_seconds for server in servers) - used
        label, window = f"{options.clients} clients", (1.0, float("inf"))
        rows = [serve_report.row(name, label, turns[name], window, cpu[name]) for name in groups]
        print(serve_report.table(rows))


if __name__ == "__main__":
    flags.DEFINE_string("model", None, "Of any engine.", required=True)
    flags.DEFINE_string("text", None, "Text to send, a sentence a line.", required=True)
    flags.DEFINE_integer("clients", 32, "Clients of all servers together.")
    flags.DEFINE_float("seconds", 6.0, "Of each turn.")
    flags.DEFINE_integer("turns", 5, "Turns.")
    app.run(main)
