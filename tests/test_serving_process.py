"""`transformer-jax serve` as a process: its address, signals, and requests under way."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.conftest import copy_run, run_command, transformer_jax
from tests.serving_model import wait_until

ROOT = Path(__file__).parent.parent
SMALL = ("--max_tokens=8", "--batch_tokens=1024")


def test_serve_says_in_a_sentence_why_it_cannot_start(tmp_path):
    keys = tmp_path / "keys.txt"
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    cases = [
        ((), "--model=NAME=DIR is missing"),
        (("--model=a b=x",), "write NAME=DIR with a name of letters"),
        (("--model=a=x", "--model=a=y"), "another model has the name a"),
        (("--model=a=x", "--host=0.0.0.0"), "add --api_keys=FILE, or --public"),
        (("--model=a=x", f"--api_keys={keys}"), "keys.txt: No such file"),
        (("--model=a=x", "--cors_origin=example.org/x"), "is no origin"),
        (("--model=a=x", f"--port={port}"), f"port {port}: Address already in use"),
        (("--new_key=one",), "--api_keys=FILE is missing"),
    ]
    for arguments, message in cases:
        done = run_command("serve", *arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    added = run_command("serve", f"--api_keys={keys}", "--new_key=one")
    assert added.returncode == 0
    assert re.fullmatch(r"tj_[\w-]{43}\n", added.stdout)
    listener.close()


class Process:
    """A server, with the lines that it prints."""

    def __init__(self, run: Path, *arguments: str):
        command = [sys.executable, "serve.py", f"--model=tiny={run}", "--port=0", *SMALL]
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        line = self.wait_for("serving ")
        (self.address,) = re.findall(r"http://\S+:\d+", line)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    def wait_for(self, text: str) -> str:
        """The first line that has `text`."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in x for x in self.lines), 240), (
                self.lines
            )
            return next(line for line in self.lines if text in line)


@pytest.fixture
def start(tiny_run, tmp_path):
    """Starts a server of a copy of the tiny run, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            run = copy_run(tiny_run[1], tmp_path / "run")
            one = Process(run, *arguments)
            stack.callback(one.process.kill)
            return one, run

        yield start


def translate(address: str, text: str, count: int = 4) -> int | None:
    """The status of a request; None where the connection was refused or cut before an answer."""
    body = json.dumps({"texts": [text] * count}).encode()
    request = urllib.request.Request(
        f"{address}/v1/translate", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert len(json.load(answer)["translations"]) == count
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except (ConnectionError, urllib.error.URLError):
        return None


@contextlib.contextmanager
def load(address: str, statuses: list, num_clients: int = 4):
    """Clients that ask all the time; `statuses` gets what they are answered."""
    ended = threading.Event()

    def ask(number):
        while not ended.is_set():
            statuses.append(translate(address, f"one two {number % 10}"))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def metric(address: str, name: str) -> float:
    """A value of /metrics that has no labels."""
    page = urllib.request.urlopen(f"{address}/metrics", timeout=60).read().decode()
    (value,) = re.findall(rf"(?m)^transformer_jax_{name} (.*)$", page)
    return float(value)


@pytest.mark.slow
def test_sigterm_answers_texts_of_several_clients(start):
    # 14 texts are no full batch, so all of them wait when the signal comes.
    one, _ = start("--batch_wait_ms=4000")
    one.wait_for("ready")
    statuses = []

    def ask(number):
        statuses.append(translate(one.address, f"one {number}", 2))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(7)]
    for thread in threads:
        thread.start()
    wait_until(lambda: metric(one.address, "queue_texts") == 14)
    one.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert statuses == [200] * 7
    assert one.process.wait(60) == 0


_STREAM_CLIENT = """
import json, sys, urllib.request
body = json.dumps({"texts": ["one two"] * 16, "stream": True}).encode()
request = urllib.request.Request(sys.argv[1], body, {"Content-Type": "application/json"})
with urllib.request.urlopen(request) as answer:
    for line in answer:
        print(line.decode(), end="", flush=True)
"""


@pytest.mark.slow
def test_places_of_a_client_that_is_killed_in_its_stream_are_free(start):
    # 16 texts are a full batch, so one is begun, with part of them. The others would wait for
    # minutes.
    one, _ = start("--batch_wait_ms=900000", "--timeout_ms=900000")
    one.wait_for("ready")
    client = subprocess.Popen(
        [sys.executable, "-c", _STREAM_CLIENT, f"{one.address}/v1/translate"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout
    assert client.stdout.readline() == "event: translation\n"
    num_waiting = metric(one.address, "queue_texts")
    assert 8 <= num_waiting < 16
    client.kill()
    wait_until(lambda: metric(one.address, "queue_texts") == 0)
    # No other batch was computed.
    assert metric(one.address, "texts_total") == 16 - num_waiting
    client.wait(60)
    client.stdout.close()


@pytest.mark.slow
def test_sigterm_answers_what_is_accepted_and_exits_0(start):
    one, _ = start("--batch_wait_ms=8000")
    one.wait_for("ready")
    where = one.address.removeprefix("http://").split(":")
    body = json.dumps({"texts": ["one two"]}).encode()
    head = b"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sockets = [socket.create_connection((where[0], int(where[1])), 60) for _ in range(8)]
    for connection in sockets:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    wait_until(lambda: metric(one.address, "queue_texts") == 8)
    one.process.send_signal(signal.SIGTERM)
    for connection in sockets:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))  # noqa: B023  # called at once
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert b'"translations"' in answer
    assert one.process.wait(60) == 0
    assert one.wait_for("stopped by").strip() == "stopped by SIGTERM"
    assert translate(one.address, "one") is None


@pytest.mark.slow
def test_second_signal_ends_at_once(start):
    one, _ = start("--batch_wait_ms=60000", "--timeout_ms=120000")
    one.wait_for("ready")
    thread = threading.Thread(target=translate, args=(one.address, "one"))
    thread.start()

    wait_until(lambda: metric(one.address, "queue_texts") == 4)
    one.process.send_signal(signal.SIGTERM)
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(20) in (-signal.SIGTERM, -signal.SIGINT)
    thread.join()


@pytest.mark.slow
def test_signal_while_compiling_ends_with_0(start):
    one, _ = start()
    wait_until(lambda: _status(one.address, "/healthz") == 200)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) == 0


def _status(address, path):
    try:
        return urllib.request.urlopen(address + path, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@pytest.mark.slow
def test_sighup_takes_over_a_model_and_keeps_the_old_one_where_it_fails(start):
    one, run = start()
    one.wait_for("ready")
    statuses = []
    with load(one.address, statuses):
        one.process.send_signal(signal.SIGHUP)
        one.wait_for("tiny: loaded again, step")
        (run / "config.json").rename(run / "config.away")
        one.process.send_signal(signal.SIGHUP)
        one.wait_for("tiny: not loaded again, the former model stays")
        answered = len(statuses)
        wait_until(lambda: len(statuses) > answered + 8)
    assert set(statuses) == {200}
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) == 0
    assert not any("Traceback" in line for line in one.lines)


@pytest.mark.slow
def test_search_that_cannot_be_compiled_is_a_sentence(tiny_run):
    for search, message in (
        ("beam=1", "There is no search setting beam"),
        ("beam_size", "settings are NAME=VALUE"),
        ("beam_size=0", "`beam_size=0`"),
        ("n_best=9", "`n_best=9` needs"),
    ):
        done = transformer_jax("serve", f"--model={tiny_run[1]}", "--port=0", f"--search={search}")
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
