"""`runs` tells state, step and scores of runs from their files; `history/` tells how they ran."""

import dataclasses
import datetime
import json
import os
import re
import shutil
import sys

import jax
import pytest

from tests.conftest import copy_run, tiny_config, transformer_jax
from transformer_jax import units
from transformer_jax.commands import runs as command
from transformer_jax.errors import UserError
from transformer_jax.training.loop import train
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir import history, machine, scores, summary

UTC = datetime.UTC
NOW = datetime.datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture
def run(tiny_run, tmp_path):
    """A copy of a finished run."""
    return copy_run(tiny_run[1], tmp_path / "runs" / "one")


def set_config(run, section, **values):
    path = run / "config.json"
    config = json.loads(path.read_text())
    config[section] |= values
    path.write_text(json.dumps(config))


def entry(name="one", evaluations=(), **fields):
    """A summary with what a test names."""
    default = summary.RunSummary(
        name,
        f"runs/{name}",
        "finished",
        "",
        5,
        10,
        "bleu",
        list(evaluations),
        [],
        None,
        "",
        "2026-05-04T11:58:00+00:00",
        None,
        1_234_567,
    )
    return dataclasses.replace(default, **fields)


def evaluation(step, bleu, loss=1.0):
    return {"step": step, "loss": loss, "bleu": bleu}


# --- States --------------------------------------------------------------------------------------


def test_runs_shows_a_finished_run_with_its_scores(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [line["eval_token_accuracy"] for line in lines if "eval_loss" in line]
    seen = summary.summarize(run)
    steps = workdir_lib.read_config(run).train.num_steps
    assert (seen.name, seen.state, seen.step, seen.num_steps) == ("one", "finished", steps, steps)
    assert seen.newest("token_accuracy") == scores[-1]
    assert seen.best("token_accuracy")["token_accuracy"] == max(scores)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert seen.size == sum(path.stat().st_size for path in files)


def test_runs_tells_stopped_from_stopped_early(run):
    num_steps = workdir_lib.read_config(run).train.num_steps
    set_config(run, "train", num_steps=num_steps + 1)
    assert summary.summarize(run).state == "stopped"
    meta = run / "checkpoints" / str(num_steps) / "meta" / "data.json"
    tree = json.loads(meta.read_text())
    tree["progress"]["evaluations_since_best"] = 3
    meta.write_text(json.dumps(tree))
    set_config(run, "train", early_stopping_patience=3)
    assert summary.summarize(run).state == "finished"
    set_config(run, "train", early_stopping_patience=4)
    assert summary.summarize(run).state == "stopped"


def test_runs_tells_a_running_run_by_its_lock(run):
    set_config(run, "train", num_steps=1000)
    with workdir_lib.lock(run):
        seen = summary.summarize(run)
        assert seen.state == "running"
        assert f"process {os.getpid()}" in seen.reason
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 900, "train_loss": 1.0}\n{"step": 901, "tr')
        assert summary.summarize(run).step == 900
    assert summary.summarize(run).state == "stopped"
    with workdir_lib.lock(run):  # looking has left no lock
        pass


def test_runs_tells_a_new_run(run):
    shutil.rmtree(run / "checkpoints")
    assert summary.summarize(run).state == "new"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda run: (run / "metrics.jsonl").write_text("{\n{}\n"), "line 1 is damaged"),
        (lambda run: (run / "metrics.jsonl").write_text("5\n{}\n"), "line 1 is damaged (not an"),
        (
            lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\n{}\n"),
            "metrics.jsonl is damaged",
        ),
        (lambda run: next((run / "checkpoints").glob("*/digests.json")).unlink(), "digests.json"),
        (
            lambda run: shutil.rmtree(
                max((run / "checkpoints").iterdir(), key=lambda p: int(p.name)) / "params"
            ),
            "params/",
        ),
    ],
    ids=["config", "metrics", "number", "bytes", "digests", "parameters"],
)
def test_runs_tells_a_damaged_run(run, damage, words):
    newest = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name))
    for path in (run / "checkpoints").iterdir():
        if path != newest:
            shutil.rmtree(path)
    damage(run)
    seen = summary.summarize(run)
    assert seen.state == "damaged"
    assert words in seen.reason


# --- History -------------------------------------------------------------------------------------


def write_record(run, name, **fields):
    folder = run / "history"
    folder.mkdir(exist_ok=True)
    record = {"command": "train", "started": "2026-05-04T10:00:00+00:00", **fields}
    (folder / f"{name}.json").write_text(json.dumps(record))


def test_history_records_a_training(run):
    (record,) = history.read_history(run)
    assert record["command"] == "train"
    assert record["outcome"] == "ended"
    assert record["machine"]["device"] == jax.devices()[0].device_kind
    assert record["machine"]["num_devices"] == 1
    assert record["machine"]["jax"] == jax.__version__
    started, ended = (datetime.datetime.fromisoformat(record[n]) for n in ("started", "ended"))
    assert history.training_seconds(run, [record]) == (ended - started).total_seconds()
    assert summary.summarize(run).started == record["started"]


def test_history_records_nothing_for_a_run_that_has_ended(tiny_run, run):
    train(tiny_config(tiny_run[0]), run)
    assert len(history.read_history(run)) == 1


def test_history_records_a_failure(run):
    shutil.rmtree(run / "history")
    with pytest.raises(ValueError, match="no luck"), history.record_training(run, jax.devices()):
        raise ValueError("no luck")
    set_config(run, "train", num_steps=1000)
    seen = summary.summarize(run)
    assert (seen.state, seen.reason) == ("failed", "no luck")


def test_history_completes_the_record_of_a_killed_training(run):
    """Its time ends with the checkpoint that the next one resumes from."""
    shutil.rmtree(run / "history")
    write_record(run, "1")
    newest = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name))
    ended = datetime.datetime(2026, 5, 4, 10, 30, tzinfo=UTC).timestamp()
    os.utime(newest / "digests.json", (ended, ended))
    assert history.training_seconds(run, history.read_history(run)) == 1800
    with history.record_training(run, jax.devices()):
        killed, running = history.read_history(run)
        assert killed["outcome"] == "killed"
        assert killed["ended"] == "2026-05-04T10:30:00+00:00"
        assert "ended" not in running


def test_history_adds_the_time_of_all_trainings(run):
    shutil.rmtree(run / "history")
    write_record(run, "1", ended="2026-05-04T10:00:20+00:00")
    write_record(run, "2", ended="2026-05-04T10:01:00+00:00")
    write_record(run, "3", command="eval", ended="2026-05-04T19:00:00+00:00")
    for number, text in enumerate(
        ("no JSON", "[{}]", "5", '{"command": "train", "started": "x"}'), start=4
    ):
        (run / "history" / f"{number}.json").write_text(text)
    write_record(run, "8", command="eval")  # without scores
    # A clock that was set back.
    write_record(run, "9", ended="2026-05-04T09:00:00+00:00")
    assert summary.summarize(run).evals == []
    assert history.training_seconds(run, history.read_history(run)) == 80


def evaluate(run, bleu, config=None, data="", checkpoint="best", split="test", ensemble=()):
    """Records scores as `eval` does; `config` is the one it used."""
    config = config or workdir_lib.read_config(run)
    history.add_evaluation(
        run,
        {"bleu": bleu, "split": split},
        data or config.data.test,
        config,
        jax.devices(),
        checkpoint=checkpoint,
        ensemble=ensemble,
    )


def test_history_records_evaluations_of_runs_only(run, tmp_path):
    evaluate(run, 12.5)
    (seen,) = summary.summarize(run).evals
    assert (seen["bleu"], seen["data"]) == (12.5, workdir_lib.read_config(run).data.test)
    model = tmp_path / "opus-mt"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "marian", "d_model": 512}')
    evaluate(model, 12.5, workdir_lib.read_config(run))
    assert not (model / "history").exists()


OTHER_SETTINGS = {
    "decode.beam_size": 1,
    "decode.method": "sample",
    "data.target_lang": "fr",
    "data.source_lang": "nl",
    "data.bleu_tokenizer": "char",
    "data.pretokenized": True,
}


@pytest.mark.parametrize("path", OTHER_SETTINGS)
def test_runs_keeps_evaluations_with_other_settings_apart(run, path):
    """They replace neither the score of the table nor that of the report."""
    evaluate(run, 12.5)
    section, name = path.split(".")
    config = workdir_lib.read_config(run)
    changed = dataclasses.replace(getattr(config, section), **{name: OTHER_SETTINGS[path]})
    evaluate(run, 99.0, dataclasses.replace(config, **{section: changed}))
    assert history.read_history(run)[-1]["settings"] == {path: OTHER_SETTINGS[path]}
    seen = summary.summarize(run)
    assert [one["bleu"] for one in seen.evals] == [12.5]
    assert seen.test["bleu"] == 12.5


def test_runs_shows_the_test_score_of_the_best_checkpoint(run):
    """Not of ensembles, other checkpoints, other data or where the files are."""
    evaluate(run, 11.0, checkpoint="latest")
    assert summary.summarize(run).test["bleu"] == 11.0
    evaluate(run, 12.0)
    config = workdir_lib.read_config(run)
    elsewhere = dataclasses.replace(config.data, cache_dir="/elsewhere", train="other")
    evaluate(run, 12.5, dataclasses.replace(config, data=elsewhere))
    evaluate(run, 90.0, checkpoint="average:3")
    evaluate(run, 91.0, data="news")
    evaluate(run, 92.0, split="validation")
    evaluate(run, 93.0, ensemble=["runs/other"])
    seen = summary.summarize(run)
    assert (seen.test["bleu"], seen.test["checkpoint"]) == (12.5, "best")
    assert [one["bleu"] for one in seen.evals] == [11.0, 12.0, 12.5, 90.0, 91.0, 92.0]


def test_machine_of_a_container_is_its_share(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CONTROL_GROUP", tmp_path)
    cores, memory = machine.num_cores(), machine.memory()
    for name, unlimited in (("cpu.max", "max 100000"), ("memory.max", "max\n")):
        (tmp_path / name).write_text(unlimited)
    assert (machine.num_cores(), machine.memory()) == (cores, memory)
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert (machine.num_cores(), machine.memory()) == (1, 1_000_000)
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert machine.memory() == memory


def test_history_that_cannot_be_written_stops_nothing(run, capsys):
    shutil.rmtree(run / "history")
    (run / "history").write_text("a file where the folder should be")
    evaluate(run, 1.0)
    assert "history cannot be written" in capsys.readouterr().err


@pytest.mark.slow
def test_history_records_the_command_of_an_evaluation(run):
    (run / "report.html").write_text("an old report")
    done = transformer_jax("eval", f"--workdir={run}", "--split=validation")
    assert done.returncode == 0, done.stderr
    assert f"wrote {run / 'report.html'}\n" in done.stdout
    _, record = history.read_history(run)
    assert record["command_line"].endswith(f"--workdir={run} --split=validation")
    assert record["data"] == workdir_lib.read_config(run).data.validation
    assert f"{record['scores']['chrf']:.2f}" in done.stdout
    assert record["scores"]["split"] == "validation"
    score = re.search(r"chrF +(\S+)", done.stdout)[1]
    page = (run / "report.html").read_text()
    assert f">{score}</td>" in page.partition(f"<h3>validation {record['data']}, step")[2]


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["/opt/bin/python3.11", "train.py", "--workdir=a b"], "python train.py '--workdir=a b'"),
        (
            ["/x/bin/python", "/x/bin/transformer-jax", "train", "--workdir=r"],
            "transformer-jax train --workdir=r",
        ),
        (["python3", "-m", "transformer_jax", "eval"], "python -m transformer_jax eval"),
    ],
)
def test_history_has_the_command_as_typed(monkeypatch, arguments, typed):
    monkeypatch.setattr(sys, "orig_argv", arguments)
    assert history.command_line() == typed


@pytest.mark.parametrize(
    ("text", "features"),
    [
        (
            "model name : EPYC 9\nflags\t: sse smep avx2 fma avx512_bf16\n",
            ["avx2", "avx512_bf16", "fma"],
        ),
        ("processor : 0\nFeatures\t: fp asimd crc32 sve2\n", ["asimd", "sve2"]),
        (None, []),
    ],
    ids=["x86", "arm", "not Linux"],
)
def test_machine_has_the_instructions_that_decide_its_speed(text, features, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    if text:
        (tmp_path / "cpuinfo").write_text(text + text.replace("avx2", "avx3"))
    about = machine.host()
    assert about["cpu_features"] == features
    assert (about["cpu"] == "EPYC 9") is bool(text and "EPYC" in text)


def test_machine_is_one_line():
    about = {"cpu": "EPYC 7", "cores": 2, "platform": "cpu", "device": "cpu", "num_devices": 1}
    assert machine.sentence(about | {"num_processes": 1}) == "EPYC 7, 2 cores"
    gpus = {"platform": "gpu", "device": "NVIDIA H200", "num_devices": 8, "num_processes": 2}
    assert machine.sentence(about | gpus) == "8 × NVIDIA H200, 2 processes (EPYC 7, 2 cores)"


# --- The table -----------------------------------------------------------------------------------


def test_runs_table_is_aligned_and_fits_80_columns():
    runs = [
        entry("a", [evaluation(2, 30.0), evaluation(4, 29.5)], test={"bleu": 9}),
        entry("broken", state="damaged", reason="checkpoint 5: params/x is missing", updated=""),
        entry("a_long_name_" * 5 + "seed1", num_steps=10_000_000, step=5_000_000, size=10**12),
    ]
    lines = command.table(runs[:2], "bleu", 80, NOW)
    assert lines == [
        "run     state     step   BLEU   best  at step  test    age    size",
        "a       finished  5/10  29.50  30.00        2  9.00  2 min  1.2 MB",
        "broken  damaged   5/10      -      -        -            -  1.2 MB",
        "",
        "broken: damaged, checkpoint 5: params/x is missing",
    ]
    lines = command.table(runs, "bleu", 80, NOW)
    head, first, second, third = lines[:4]
    assert [len(line) for line in lines[:4]] == [80] * 4
    assert " ".join(head.split()) == "run state step BLEU best test age size"
    assert " ".join(first.split()) == "a finished 5/10 29.50 30.00 9.00 2 min 1.2 MB"
    assert " ".join(third.split()[1:]) == "finished 5000000/10000000 - - 2 min 1.0 TB"
    assert third.startswith("a_long")
    assert "seed1  " in third
    assert second.index("damaged") == first.index("finished") == head.index("state")
    assert lines[4:] == ["", "broken: damaged, checkpoint 5: params/x is missing"]


@pytest.mark.parametrize("metric", scores.LABELS)
def test_runs_table_of_each_score_fits_80_columns(metric):
    best = {"step": 300_000, "loss": 12.345, metric: 12.345}
    one = entry("a_long_name_" * 5, [best], num_steps=300_000, step=300_000, test=best)
    lines = command.table([one, entry("b", updated="2026-05-04T11:01:00+00:00")], metric, 80, NOW)
    assert [len(line) for line in lines] == [80] * 3


def test_runs_of_one_name_are_shown_by_their_paths():
    runs = [entry("a", path="old/a"), entry("a", path="new/a"), entry("b")]
    lines = command.table(runs, "bleu", 80, NOW)
    assert [line.split()[0] for line in lines[1:]] == ["old/a", "new/a", "runs/b"]


@pytest.mark.parametrize(
    ("order", "metric", "expected"),
    [
        ("time", "bleu", "cab"),
        ("name", "bleu", "abc"),
        ("score", "bleu", "bca"),
        ("score", "loss", "cba"),
    ],
)
def test_runs_are_sorted(order, metric, expected):
    runs = [
        entry("b", [evaluation(1, 40.0, 2.0)], updated="2026-05-01T00:00:00+00:00"),
        entry("a", [], updated="2026-05-02T00:00:00+00:00"),
        entry("c", [evaluation(1, 5.0, 1.0)], updated="2026-05-03T00:00:00+00:00"),
    ]
    assert "".join(run.name for run in command._sorted(runs, order, metric)) == expected


def test_runs_of_equal_scores_are_ranked_by_loss():
    lines = [evaluation(1, 50.0, 2.0), evaluation(2, 50.0, 1.0), evaluation(3, float("nan"), 0.1)]
    assert scores.best(lines, "bleu")["step"] == 2
    assert scores.best(lines, "loss")["step"] == 3
    assert scores.best([], "bleu") is None


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1_250_000, "1.2 MB"),
        (12_500_000, "12 MB"),
        (999_600_000, "1.0 GB"),
    ],
)
def test_sizes_have_three_digits(count, expected):
    assert units.size(count) == expected


def test_one_thing_is_not_several():
    numbers = [units.count(number, "line") for number in (0, 1, 1234)]
    assert numbers == ["0 lines", "1 line", "1,234 lines"]


@pytest.mark.parametrize(
    ("seconds", "parts", "expected"),
    [
        (0, 2, "0 s"),
        (-3, 1, "0 s"),
        (51.4, 2, "51 s"),
        (60, 2, "1 min"),
        (7919, 2, "2 h 11 min"),
        (90_000, 2, "1 d 1 h"),
        (7199, 1, "1 h"),
        (200_000, 1, "2 d"),
    ],
)
def test_durations_have_their_largest_units(seconds, parts, expected):
    assert units.duration(seconds, parts) == expected


def test_runs_say_how_old_they_are():
    runs = [entry(updated=written) for written in ("", "2026-05-04T11:59:55+00:00")]
    rows = command.table([*runs, entry()], "bleu", 80, NOW)
    assert [re.split("  +", row)[-2] for row in rows] == ["age", "-", "5 s", "2 min"]


def test_runs_command_takes_runs_and_folders_without_jax(run):
    shutil.copytree(run, run.parent / "two")
    (run.parent / "notes").mkdir()
    done = transformer_jax("runs", run.parent, run, "--sort=name", without=["jaxlib"], COLUMNS="80")
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.startswith("run ")
    assert [row.split()[:2] for row in rows] == [["one", "finished"], ["two", "finished"]]
    assert "no run is in notes" in done.stderr
    done = transformer_jax("runs", run, "--json")
    (tree,) = json.loads(done.stdout)
    assert tree["state"] == "finished"
    assert tree["best"]["loss"]["loss"] == min(line["loss"] for line in tree["evaluations"])


def test_runs_command_says_what_is_no_run(tmp_path):
    done = transformer_jax("runs", tmp_path / "nowhere", tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nowhere is no work directory: there is no such folder" in done.stderr
    assert "is no work directory: it has no config.json" in done.stderr
    assert done.stdout == ""


def test_find_runs_refuses_a_published_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(UserError, match="Hugging Face model"):
        summary.find_runs(tmp_path)


def test_runs_reads_a_bucket(run, bucket):
    for path in run.rglob("*"):
        if path.is_file():
            target = bucket / "one" / path.relative_to(run)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    ((remote,), others) = summary.find_runs(str(bucket))
    assert not others
    seen, local = summary.summarize(remote), summary.summarize(run)
    assert (seen.state, seen.step, seen.size) == (local.state, local.step, local.size)
    assert seen.evaluations == local.evaluations
    with workdir_lib.lock(remote):
        assert summary.summarize(remote).state == "running"
    assert summary.summarize(remote).state == "finished"
