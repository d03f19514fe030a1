"""Ctrl-C, in processes whose main thread does not handle it by itself."""

import signal
import subprocess
import sys

import pytest

# Code of the main thread: in C without an end, as a compiler; and where an error is dropped, as in
# callbacks of the garbage collector.
BUSY = """
while True:
    try:
        print('waits', flush=True)
        hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)
    except KeyboardInterrupt:
        pass"""
CASES = {
    "starts": ("", BUSY),
    "compiles": ("interrupts.raise_errors('interrupted; resumes.')", BUSY),
    "has new files": (
        """
import os, tempfile
from transformer_jax.workdir.new_files import NewFiles
folder = tempfile.mkdtemp() + '/run'
NewFiles(folder).__enter__()
os.mkdir(folder)
open(folder + '/.lock', 'w').close()
interrupts.at_end.append(lambda: os.write(2, b'removed: %d. ' % (not os.path.exists(folder))))
interrupts.raise_errors('interrupted.')""",
        BUSY,
    ),
    "drops the error": (
        "interrupts.raise_errors('interrupted; resumes.')",
        f"""
try:
    print('waits', flush=True)
    signal.pause()
except KeyboardInterrupt:
    assert interrupts.was_asked()
{BUSY}""",
    ),
    "is in a callback": (
        "interrupts.raise_errors('')\ninterrupts.GRACE_SECONDS = 60",
        """
class Waits:
    def __del__(self):
        print('waits', flush=True)
        signal.pause()
try:
    gone = Waits()
    gone = None
    signal.pause()
except KeyboardInterrupt:
    sys.exit(5)""",
    ),
    "has a handler": (
        """
interrupts.raise_errors('')
def save(*_):
    time.sleep(3 * interrupts.GRACE_SECONDS)
    sys.exit(3)
signal.signal(signal.SIGINT, save)""",
        "print('waits', flush=True)\nsignal.pause()",
    ),
    "is left to its caller": (
        "interrupts.raise_errors('')",
        """
try:
    with interrupts.left_to_caller():
        print('waits', flush=True)
        signal.pause()
except KeyboardInterrupt:
    time.sleep(2 * interrupts.GRACE_SECONDS)
    sys.exit(4 if interrupts.goes_on() else 5)""",
    ),
}
PROGRAM = """
import hashlib, signal, sys, time
from transformer_jax import interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
interrupts.GRACE_SECONDS = 0.1
interrupts.install()
{prepare}
{wait}
"""


@pytest.mark.parametrize(
    ("case", "status", "text"),
    [
        ("starts", 130, "interrupted.\n"),
        ("compiles", 130, "interrupted; resumes.\n"),
        ("has new files", 130, "removed: 1. interrupted.\n"),
        ("drops the error", 130, "interrupted; resumes.\n"),
        ("is in a callback", 5, ""),
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
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == status, errors
    assert errors == text
