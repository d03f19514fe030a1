"""A long run of a server at 90% of what it can do: memory, lost requests, its end by SIGTERM."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import serve_load
import serve_report
from processes import Worker
from serve_servers import Case, Server

SHARE = 0.9  # of what 32 clients got
WARM_UP = 0.2  # share of the time after which memory counts
SAMPLE_SECONDS = 1.0
SETTLE_SECONDS = 0.1  # what was sent longer than this before SIGTERM has been accepted
# Reads the first event of a stream, says so, and then hangs until it is killed.
_STREAM_CLIENT = """
import http.client, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
headers = {"Content-Type": "application/json"}
connection.request("POST", "/v1/translate", sys.stdin.buffer.read(), headers)
connection.getresponse().readline()
print("streaming", flush=True)
time.sleep(1000)
"""


def soak(case: Case, texts: list[str], seconds: float) -> dict[str, Any]:
    """Figures of a soak, printed too.

    Args:
      case: this project's server.
      texts: to send.
      seconds: of the load.
    """
    load = Worker(serve_load.Load)
    try:
        with Server(case) as server:
            server.wait_until_ready()
            warm = load.call("closed", server.target(texts), 32, min(10.0, seconds))
            capacity = serve_report.row("", "", [warm], (0.0, float("inf")), 0.0).throughput
            freed = kill_stream(server, texts)
            result = _run_at(server, load, texts, SHARE * capacity, seconds)
            result |= {"freed_seconds": freed} | _end_under_load(server, load, texts, capacity)
    finally:
        load.close()
    print(json.dumps(result, indent=1))
    return result


def _run_at(
    server: Server, load: Worker, texts: list[str], rate: float, seconds: float
) -> dict[str, Any]:
    """Memory and answers at a rate."""
    memory: list[int] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(min(SAMPLE_SECONDS, seconds / 20)):
            memory.append(server.memory)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        times = serve_load.arrivals(rate, seconds)
        answers = load.call("open", server.target(texts), times)
    finally:
        ended.set()
        sampler.join()
    row = serve_report.row(server.case.name, f"{SHARE:.0%}", [answers], (0.0, float("inf")), 0.0)
    return {
        "seconds": seconds,
        "sent": len(times),
        "answered": sum(a.status != serve_load.FAILED for a in answers),
        "translated": sum(a.status == serve_report.OK for a in answers),
        "p50_ms": row.p50,
        "p99_ms": row.p99,
        "memory_growth": growth(memory),
        "memory_mb": memory[-1] / 1e6,
    }


def growth(memory: list[int]) -> float:
    """How much the last tenth is above the first tenth after the warm-up, as a share."""
    counted = memory[int(WARM_UP * len(memory)) :]
    tenth = max(1, len(counted) // 10)
    before, after = sum(counted[:tenth]) / tenth, sum(counted[-tenth:]) / tenth
    return after / before - 1


def kill_stream(server: Server, texts: list[str]) -> float:
    """Seconds until no text waits, after the client of a long stream was killed.

    The stream has as many texts as a request may have, of a second and more.
    """
    body = json.dumps({"texts": (texts * 256)[:256], "stream": True}).encode()
    command = [sys.executable, "-c", _STREAM_CLIENT, str(server.port)]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(body)
    client.stdin.close()
    client.stdout.readline()
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    killed = time.monotonic()
    while num_waiting(server) and time.monotonic() < killed + 60:
        time.sleep(0.005)
    return time.monotonic() - killed


def num_waiting(server: Server) -> int:
    """Texts that wait, by `/metrics`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as page:
        for line in page.read().decode().splitlines():
            if line.startswith("transformer_jax_queue_texts "):
                return int(float(line.split()[1]))
    raise http.client.HTTPException("no transformer_jax_queue_texts in /metrics")


def _end_under_load(
    server: Server, load: Worker, texts: list[str], capacity: float
) -> dict[str, Any]:
    """Sends SIGTERM amid a load: whether all that was accepted is answered, and the status."""
    seconds = 3.0
    status: list[int] = []
    sent_at: list[float] = []

    def end() -> None:
        sent_at.append(time.monotonic())
        status.append(server.end())

    started = time.monotonic()
    timer = threading.Timer(seconds / 2, end)
    timer.start()
    times = serve_load.arrivals(SHARE * capacity, seconds)
    answers = load.call("open", server.target(texts), times)
    timer.join()
    ended = sent_at[0] - started - SETTLE_SECONDS
    accepted = [a for a in answers if a.sent < ended]
    lost = sum(a.status == serve_load.FAILED for a in accepted)
    return {"accepted_before_term": len(accepted), "lost_at_term": lost, "exit_status": status[0]}
