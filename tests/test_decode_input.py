"""The input of `decode`: pipes, lines that arrive later, and files that it must not write."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.commands.decode_input import Lines, count_lines, is_stream
from transformer_jax.commands.text_output import check_not_overwritten
from transformer_jax.errors import UserError
from transformer_jax.translator.requests import windows

ROOT = Path(__file__).parent.parent


@pytest.fixture
def pipe():
    """(path to read from, descriptor to write to) of a pipe."""
    read, write = os.pipe()
    yield f"/dev/fd/{read}", write
    os.close(read)


def test_lines_of_a_pipe_are_read_once_and_not_counted(pipe, tmp_path):
    path, write = pipe
    os.write(write, b"one\ntwo\n")
    os.close(write)
    assert is_stream(path)
    assert count_lines(path) is None  # counting would consume the input
    assert list(Lines(path, 10)) == ["one", "two"]
    (tmp_path / "a").write_text("one\ntwo\n")
    assert not is_stream(str(tmp_path / "a"))
    assert count_lines(str(tmp_path / "a")) == 2
    assert list(Lines(str(tmp_path / "a"), 1)) == ["one", "two"]


def test_lines_of_a_pipe_are_ready_when_one_has_arrived(pipe):
    path, write = pipe
    lines = Lines(path, 10)
    os.write(write, b"one\ntwo\nthr")
    got = windows(lines, 5, lines.ready)
    assert next(got) == ["one", "two"]
    assert not lines.ready()
    os.write(write, b"ee\n" + b"x\n" * 6)
    assert next(got) == ["three", *"xxxx"]
    os.close(write)
    assert list(got) == [["x", "x"]]
    assert lines.ready()
    for _ in range(2):  # it ends again
        with pytest.raises(StopIteration):
            next(lines)


def test_lines_raise_an_unreadable_line_in_its_turn(pipe):
    path, write = pipe
    os.write(write, b"one\n\xff\n")
    os.close(write)
    lines = Lines(path, 10)
    assert next(lines) == "one"
    with pytest.raises(UserError, match="line 2: invalid UTF-8"):
        next(lines)


def test_windows_of_a_file_are_full():
    assert list(windows(iter("abcde"), 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(windows(iter(""), 2)) == []


def test_output_must_not_be_an_input(tmp_path):
    names = ["in", "prefixes", "hard", "soft", "other"]
    read, prefixes, hard, soft, other = (tmp_path / name for name in names)
    for path in (read, prefixes, other):
        path.write_text("kept\n")
    os.link(prefixes, hard)
    soft.symlink_to(prefixes)
    inputs = {"--input": str(read), "--prefixes": str(prefixes), "--phrases": "", "--score": ""}
    for same in (prefixes, hard, soft, tmp_path / "." / "prefixes"):
        with pytest.raises(UserError, match="--output and --prefixes are the same file"):
            check_not_overwritten(str(same), inputs)
    with pytest.raises(UserError, match="--input"):
        check_not_overwritten("gs://b/x", {"--input": "gs://b/x"})
    for fine in ("-", str(other), str(tmp_path / "none"), "/dev/null"):
        check_not_overwritten(fine, {**inputs, "--score": "/dev/null"})


def decode(workdir, *flags):
    return [
        sys.executable,
        str(ROOT / "decode.py"),
        f"--workdir={workdir}",
        "--beam_size=1",
        *flags,
    ]


@pytest.mark.slow
def test_decode_answers_each_line_of_an_open_pipe(tiny_run):
    command = decode(tiny_run[1])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        for text in ("one two", "three"):
            process.stdin.write(text + "\n")
            process.stdin.flush()
            assert process.stdout.readline().strip()
        process.stdin.close()
        assert process.stdout.read() == ""
    assert process.returncode == 0


@pytest.mark.slow
def test_decode_translates_a_process_substitution_at_a_terminal(tiny_run):
    terminal, stderr = pty.openpty()
    shell = f"exec {' '.join(decode(tiny_run[1]))} --input=<(printf 'one\\ntwo\\n')"
    done = subprocess.run(
        ["bash", "-c", shell], stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, check=True
    )
    os.close(stderr)
    os.close(terminal)
    assert done.stdout.count(b"\n") == 2


@pytest.mark.slow
def test_decode_refuses_two_flags_that_read_standard_input(tiny_run):
    """Each would get some of the lines, at random."""
    command = decode(tiny_run[1], "--input=-", "--prefixes=-")
    done = subprocess.run(command, input="one\n", capture_output=True, text=True)
    assert done.returncode == 2
    assert "--input and --prefixes are both standard input" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--method=sample",
            "error: --phrases: phrases need beam search, which --method=sample is not. Remove the "
            "phrases, or set --method=beam.\n",
        ),
        ("--score=FILE", "error: --score translates nothing: remove --phrases.\n"),
    ],
)
def test_decode_refuses_phrases_that_it_would_ignore(tiny_run, tmp_path, flag, message):
    path = tmp_path / "text"
    path.write_text("eins\n")
    done = subprocess.run(
        decode(tiny_run[1], f"--phrases={path}", flag.replace("FILE", str(path))),
        input="one\n",
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(message)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefixes", "phrases", "score"])
def test_decode_refuses_and_keeps_an_output_that_is_an_input(tiny_run, tmp_path, name):
    path = tmp_path / "text"
    path.write_text("eins\n")
    done = subprocess.run(
        decode(tiny_run[1], f"--{name}={path}", f"--output={path}", f"--input={ROOT}/LICENSE"),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert f"--{name} are the same file" in done.stderr
    assert path.read_text() == "eins\n"
