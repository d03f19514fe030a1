"""Ctrl-C, in processes whose main thread does not handle it by itself."""

import signal
import subprocess
import sys

import pytest

# Code of the main thread: in C without an end, as a compiler; and where an error is dropped, as in
# callbacks of the garbage collector.
BUSY = "hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)"
CASES = {
    "starts": ("", BUSY),
    "compiles": ("interrupts.raise_errors('interrupted; resumes.')", BUSY),
    "drops the error": (
        "interrupts.raise_errors('interrupted; resumes.')",
        f"""
try:
    signal.pause()
except KeyboardInterrupt:
    assert interrupts.was_asked()
{BUSY}""",
    ),
    "has a handler": (
        "interrupts.raise_errors('')\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(3))",
        "signal.pause()",
    ),
    "is left to its caller": (
        "interrupts.raise_errors('')",
        """
try:
    with interrupts.left_to_caller():
        print('in', flush=True)
        signal.pause()
except KeyboardInterrupt:
    time.sleep(2 * interrupts.GRACE_SECONDS)
    sys.exit(4)""",
    ),
}
PROGRAM = """
import hashlib, signal, sys, time
from transformer_jax import interrupts
interrupts.GRACE_SECONDS = 0.1
interrupts.install()
{prepare}
print('ready', flush=True)
{wait}
"""


@pytest.mark.parametrize(
    ("case", "status", "text"),
    [
        ("starts", 130, "interrupted.\n"),
        ("compiles", 130, "interrupted; resumes.\n"),
        ("drops the error", 130, "interrupted; resumes.\n"),
        ("has a handler", 3, ""),
        ("is left to its caller", 4, ""),
    ],
)
def test_ctrl_c_ends_a_process_whatever_its_main_thread_does(case, status, text):
    prepare, wait = CASES[case]
    program = PROGRAM.format(prepare=prepare, wait=wait)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        if case == "is left to its caller":
            assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert errors == text
