"""`translate-corpus` on one machine: order, resuming, and what it refuses."""

import pytest

from tests.conftest import digit_pairs, run_command
from transformer_jax.commands import corpus_translation
from transformer_jax.errors import UserError


def test_translate_corpus_keeps_order_and_does_nothing_twice(tiny_run, translator, tmp_path):
    sources = [source for source, _ in digit_pairs(30, seed=3)]
    (tmp_path / "a.en").write_text("\n".join(sources[:20]) + "\n")
    (tmp_path / "b.en").write_text("\n".join(sources[20:]) + "\n")
    command = ["translate-corpus", f"--model={tiny_run[1]}"]
    command += [f"--input={tmp_path}/*.en", f"--output={tmp_path / 'out'}", "--beam_size=1"]
    first = run_command(*command, "--chunk=8", "--price=2")
    assert first.returncode == 0, first.stderr
    assert "30 of 30 lines" in first.stdout
    assert "per million lines" in first.stdout
    expected = [out.text for out in translator.translate(sources, beam_size=1)]
    lines = [(tmp_path / "out" / name).read_text().splitlines() for name in ("a.en", "b.en")]
    assert [*lines[0], *lines[1]] == expected
    assert len(list((tmp_path / "out").glob("*.en"))) == 2
    other = run_command(*command, "--beam_size=2")
    assert other.returncode == 2
    assert "has translations by another model, checkpoint or settings" in other.stderr
    # One translation was removed: only this one is made again.
    kept = (tmp_path / "out" / "a.en").stat().st_mtime_ns
    (tmp_path / "out" / "b.en").unlink()
    again = run_command(*command)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out" / "b.en").read_text().splitlines() == lines[1]
    assert (tmp_path / "out" / "a.en").stat().st_mtime_ns == kept
    # A source that has changed has no translation any more.
    (tmp_path / "b.en").write_text("\n".join(sources[:10]) + "\n")
    again = run_command(*command)
    assert "b.en has changed since it was translated" in again.stdout
    assert (tmp_path / "out" / "b.en").read_text().splitlines() == expected[:10]
    assert (tmp_path / "out" / "a.en").stat().st_mtime_ns == kept
    assert "has changed" not in run_command(*command).stdout


def test_translate_corpus_refuses_files_that_clash(tmp_path):
    (tmp_path / "x").mkdir()
    for name in ("a.en", "x/a.en", "a.en.gz"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a.en.gz").unlink()
    find = corpus_translation.find_files
    with pytest.raises(UserError, match="matches no file"):
        find(f"{tmp_path}/*.fr", str(tmp_path / "out"))
    with pytest.raises(UserError, match="would both be translated into"):
        find(f"{tmp_path}/**/*.en", str(tmp_path / "out"))
    with pytest.raises(UserError, match="would replace"):
        find(f"{tmp_path}/*.en", str(tmp_path))
    with pytest.raises(UserError, match="local folder or a shared disk"):
        find(f"{tmp_path}/*.en", "gs://bucket/x")


def test_progress_estimates_time_and_cost(monkeypatch):
    clock = iter([0.0, 40.0, 40.0, 40.0])
    monkeypatch.setattr(corpus_translation.time, "monotonic", lambda: next(clock))
    lines = []
    progress = corpus_translation.Progress(1000, 4, 9.0, lines.append)  # 0.01 a second
    progress.skip(100)
    progress.add(400, ["one two"] * 400)
    (line,) = lines
    # 400 lines in 40 s; the other 500 take 50 s.
    assert line == (
        "500 of 1,000 lines; 10 lines/s, 20 words/s; 50 s left; cost 0.40 of 0.90, "
        "1,000.00 per million lines"
    )
