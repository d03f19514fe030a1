"""The commands: what they print, write and refuse."""

import ctypes
import errno
import glob
import importlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from absl import flags

import transformer_jax
from tests.conftest import copy_run, run_command
from transformer_jax.commands import (
    command_help,
    command_line,
    config_flags,
    eval_comparison,
    eval_run,
    main,
    text_output,
)
from transformer_jax.config import DataConfig
from transformer_jax.errors import UserError
from transformer_jax.workdir import host_memory

ROOT = Path(__file__).parent.parent


MAIN = "from transformer_jax.commands.entry import main; main()"


def command(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )


# A thread, as XLA's, allocates and frees large blocks. Prints the number of page faults.
ALLOCATE_AND_FREE = """
import resource, threading
from transformer_jax.workdir import host_memory
host_memory.ACCELERATORS = ()
if KEEP:
    assert host_memory.keep_freed_memory()
def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    def allocate():
        for _ in range(times):
            bytearray(200 << 20)
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(1)
print(faults(5))
parts = open("/proc/self/smaps").read().split("[heap]")[1:]
print(any("hg" in part.partition("VmFlags:")[2].splitlines()[0].split() for part in parts))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings are of glibc")
def test_host_memory_is_kept_after_it_is_freed():
    page_faults = []
    for keep in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", f"KEEP = {keep}{ALLOCATE_AND_FREE}"],
            cwd=ROOT,
            env={},
            capture_output=True,
            text=True,
            check=True,
        )
        faults, is_huge = done.stdout.split()
        page_faults.append(int(faults))
        if Path("/sys/kernel/mm/transparent_hugepage").exists():
            assert is_huge == str(keep)
    assert page_faults[0] < 50
    assert page_faults[1] >= 5 * 100  # huge pages of 2 MiB; small ones are 4 KiB


def test_host_memory_keeps_glibcs_defaults_with_an_accelerator_or_tunables(monkeypatch):
    monkeypatch.setattr(host_memory, "_MALLOPT", {})  # this process stays as it is
    monkeypatch.setattr(glob, "glob", lambda pattern: [pattern] if "nvidia" in pattern else [])
    assert not host_memory.keep_freed_memory()
    monkeypatch.setattr(glob, "glob", lambda pattern: [])
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    assert not host_memory.keep_freed_memory()


def test_host_memory_is_left_alone_on_other_systems(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", None)  # it refuses None there
    assert not host_memory.keep_freed_memory()
    assert host_memory.return_freed_memory() is None


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_out_of_memory_advice_names_settings_of_the_command(name, capsys, monkeypatch):
    text = importlib.import_module(command_line.module_of(name)).HELP
    message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nframes"
    with pytest.raises(SystemExit) as end, main._errors_as_sentences(text):
        raise RuntimeError(message)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "allocate 9 bytes.)" in said
    assert "frames" not in said
    assert ("accumulate_steps" in said) == (name in ("init", "train"))
    assert ("--batch_tokens" in said) == (
        name in ("decode", "eval", "serve", "translate-corpus", "distill")
    )
    with pytest.raises(SystemExit), main._errors_as_sentences(text):
        raise KeyboardInterrupt
    resumes = name in (
        "decode",
        "data",
        "prepare",
        "distill",
        "translate-corpus",
    )  # `train` says so where it saves
    said = capsys.readouterr().err
    assert said == ("interrupted; the same command resumes.\n" if resumes else "interrupted.\n")
    monkeypatch.setattr(main, "FLAGS", {"output": types.SimpleNamespace(value="-")})
    assert main._interrupted(text) == "interrupted."  # what is on the terminal is not continued


def help_of(name, *arguments):
    """What `transformer-jax NAME --help` prints, and its flags: name -> text with its meaning."""
    done = command("-m", "transformer_jax", name, *arguments, "--help")
    assert done.returncode == 0, done.stderr
    flags = {}
    for part in re.split(r"\n  --", done.stdout.partition("\nFlags")[2])[1:]:
        flag = re.match(r"(?:\[no\])?([\w.]+)", part)
        flags[flag[1]] = " ".join(part.partition("\n\n")[0].split())
    return done.stdout, flags


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_help_has_examples_every_flag_and_80_columns(name):
    text, shown = help_of(name)
    assert max(map(len, text.splitlines())) <= 80
    module = importlib.import_module(command_line.module_of(name))
    assert len(module.HELP.examples) >= 3
    one_line = " ".join(text.replace("\\\n", "").split())
    for purpose, line in module.HELP.examples:
        assert purpose in one_line
        shown_line = line.replace("transformer-jax ", "python -m transformer_jax ")
        assert " ".join(shown_line.split()) in one_line
    assert " ".join(module.HELP.about.split()) in " ".join(text.split())
    with command_help.defined_flags(name) as defined:
        assert {flag.name for flag in defined if flag.help} <= set(shown)
        for flag in defined:
            if isinstance(flag, flags.EnumFlag):
                values = flag.parser.enum_values
                fits = len(f"  --{flag.name}={'|'.join(values)}") <= 78
                assert ("|" if fits else ", ").join(values) in shown[flag.name]  # else a sentence
    assert {f"config.{path}" for path in module.HELP.fields} <= set(shown)
    for page, _ in module.HELP.pages:
        assert page in text
        assert (ROOT / page).exists()


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_help_examples_have_flags_of_their_command(name):
    for _, line in importlib.import_module(command_line.module_of(name)).HELP.examples:
        program, example, *words = shlex.split(line.rpartition("| ")[2])
        assert program == "transformer-jax"
        with command_help.defined_flags(example) as defined:
            names = {flag.name for flag in defined} | {f"no{flag.name}" for flag in defined}
        given = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
        config_flags.check_overrides(words)
        assert {flag for flag in given if not flag.startswith("config.")} <= names


def test_help_shows_the_defaults_of_the_model(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"decode": {"beam_size": 7, "stopping": "first_k"}, "parallel": {"data": 3}})
    )
    _, shown = help_of("decode", f"--workdir={tmp_path}")
    assert shown["beam_size"].startswith("beam_size=N (default: 7; >= 1) Live hypotheses")
    assert "first_k|hf_default|exact (default: first_k)" in shown["stopping"]
    assert "(default: 3)" in shown["config.parallel.data"]
    text, shown = help_of("decode", f"--workdir={tmp_path / 'none'}")
    assert "(default: 4; >= 1)" in shown["beam_size"]
    assert f"Search settings, not with the defaults of {tmp_path / 'none'}, which is not" in text
    search, shared = text.index("\nSearch settings"), text.index("\nSeveral processes\n")
    assert text.index("\n  --beam_size=") > search > text.index("--window=")
    assert text.index("\n  --coordinator_address=") > shared > text.index("--config.parallel.data")
    (tmp_path / "flags.txt").write_text("--config=quickstart")
    for given in ("--config=quickstart", f"--flagfile={tmp_path / 'flags.txt'}"):
        _, shown = help_of("train", given)
        assert "(default: 250; >= 1)" in shown["config.train.num_steps"]


@pytest.mark.parametrize("arguments", [["--version"], ["train", "--version"]])
def test_version_is_printed(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transformer-jax", *arguments])
    main.main()
    assert capsys.readouterr().out == f"transformer-jax {transformer_jax.__version__}\n"


def test_help_lists_the_commands_without_one():
    for arguments, status in ((["--help"], 0), ([], 2)):
        done = command("-m", "transformer_jax", *arguments)
        assert done.returncode == status
        text = done.stderr if status else done.stdout
        assert max(map(len, text.splitlines())) <= 80
        for name, summary in command_line.COMMANDS.items():
            assert name in text
            assert summary in " ".join(text.split())


def test_page_of_flags_is_current():
    page = (ROOT / "docs" / "commands.md").read_text()
    done = command("-m", "transformer_jax.commands")
    assert done.stdout == page, "run: python -m transformer_jax.commands > docs/commands.md"


def test_check_writable_changes_nothing(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("of last week")
    text_output.check_writable(str(path))
    text_output.check_writable(str(tmp_path / "new.json"))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "of last week"
    with pytest.raises(UserError, match="cannot be written: No such file"):
        text_output.check_writable(str(tmp_path / "none" / "scores.json"))


def test_an_output_replaces_the_former_one_when_it_is_complete(tmp_path):
    path, link = tmp_path / "scores.json", tmp_path / "link"
    path.write_text("of last week")
    path.chmod(0o640)
    link.symlink_to(path)

    def fill(name):
        with text_output.writing(name) as out:
            out.write("half")
            out.flush()
            raise OSError(errno.ENOSPC, "No space left on device")  # as `write` raises it

    with pytest.raises(UserError, match=r"link cannot be written: No space left on device\."):
        fill(str(link))
    assert path.read_text() == "of last week"
    with text_output.writing(str(link)) as out:
        out.write("ganz, 全部")
        out.flush()
        assert path.read_text() == "of last week"
    assert path.read_bytes().decode("utf-8") == "ganz, 全部"
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [link, path]
    with pytest.raises(UserError, match=r"/dev/full cannot be written: No space left"):
        fill("/dev/full")  # which is written in place


def test_commands_print_utf8_whatever_the_locale_is(monkeypatch):
    printed = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, stream in printed.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(stream, encoding="latin-1"))
    monkeypatch.setattr(sys, "argv", ["transformer-jax", "全部"])
    with pytest.raises(SystemExit):
        main.main()
    print("eins, 一", flush=True)
    sys.stderr.flush()
    assert printed["stdout"].getvalue().decode("utf-8") == "eins, 一\n"
    assert "There is no command 全部." in printed["stderr"].getvalue().decode("utf-8")


def test_names_that_are_not_utf8_are_refused_with_their_bytes(tmp_path, monkeypatch):
    name = os.fsdecode(b"r\xff")
    for arguments in (
        ["decode", f"--workdir={name}"],
        ["train", "--config=tiny", "--workdir=run", f"--config.data.train=a,{name}/b"],
    ):
        done = run_command(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert re.search(r"error: The argument --.*r\\xff.* is not UTF-8; rename", done.stderr)
    (tmp_path / name).mkdir()
    done = run_command("decode", "--workdir=run", cwd=tmp_path / name)
    assert done.returncode == 2
    assert r"error: The current folder" in done.stderr
    assert r"r\xff is not UTF-8" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.slow
def test_decode_reads_standard_input_and_writes_one_line_each(tiny_run):
    _, workdir = tiny_run
    text = "one two\n\n" + "three " * 200 + "\n🙂\n"
    done = command("decode.py", f"--workdir={workdir}", "--beam_size=2", input=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 4
    assert done.stdout.split("\n")[1] == ""
    assert "line 3: " in done.stderr
    n_best = command("decode.py", f"--workdir={workdir}", "--n_best=2", input="one\ntwo\n")
    assert [line.split(" ||| ")[0] for line in n_best.stdout.splitlines()] == ["0", "0", "1", "1"]
    assert all(float(line.split(" ||| ")[2]) < 0 for line in n_best.stdout.splitlines())


def scored_files(data, workdir, tmp_path):
    """The scores of the files of `val` with flags of `eval`, as if `val` were the test set."""
    out = tmp_path / "files.json"
    done = run_command(
        "eval",
        f"--workdir={workdir}",
        "--checkpoint=average:2",
        f"--input={data / 'val.en'}",
        f"--reference={data / 'val.de'}",
        "--beam_size=1",
        f"--ensemble={workdir}@average:2",  # of twice the same model
        f"--json={out}",
    )
    assert done.returncode == 0, done.stderr
    assert "search          beam_size=1" in done.stdout
    scores = json.loads(out.read_text())
    assert scores.pop("ensemble") == [str(workdir), f"{workdir}@average:2"]
    assert scores.pop("search") == {"beam_size": 1}
    assert scores.pop("reference") == str(data / "val.de")
    assert scores.pop("split") == str(data / "val.en")
    return json.dumps(scores | {"split": "test"}, indent=2) + "\n"


@pytest.mark.slow
def test_eval_keeps_its_scores_where_the_comparison_fails(tiny_run, tmp_path, monkeypatch):
    data, trained = tiny_run
    workdir = copy_run(trained, tmp_path / "run")
    (tmp_path / "others.txt").write_text("eins\n" * 100)

    def fail(*_):
        raise UserError("no memory")

    monkeypatch.setattr(eval_run.corpus_metrics, "compare", fail)
    arguments = (f"--workdir={workdir}", f"--json={tmp_path / 'scores.json'}", "--split=train")
    arguments += ("--beam_size=1", f"--config.data.train={tmp_path / 'some'}")
    for language in ("en", "de"):
        lines = (data / f"train.{language}").read_text().splitlines(keepends=True)[:100]
        (tmp_path / f"some.{language}").write_text("".join(lines))
    others = f"--compare={tmp_path / 'others.txt'}"
    done = run_command("eval", *arguments, others)
    assert done.returncode == 2
    assert "exact match" in done.stdout
    assert "error: no memory" in done.stderr
    assert json.loads((tmp_path / "scores.json").read_text())["num_sentences"] == 100


def test_eval_loads_the_other_model_with_its_flags_and_checks_its_languages(
    tiny_run, monkeypatch, capsys
):
    def load(path, *_, allow_pickle=False, **__):
        assert (path, allow_pickle) == ("other", True)
        raise UserError("is read")

    monkeypatch.setattr(eval_comparison.Translator, "load", load)
    with command_help.defined_flags("eval"):
        flags.FLAGS(["eval", "--compare=other", "--allow_pickle"])
        with pytest.raises(UserError, match="is read"):
            eval_comparison.other_system("test", 100)
    monkeypatch.undo()
    with command_help.defined_flags("eval"):
        flags.FLAGS(["eval", f"--compare={tiny_run[1]}", "--target_lang=fr"])
        with pytest.raises(UserError, match=r"`compare=.*`: `target_lang=fr`: this model transl"):
            eval_comparison.other_system("test", 100)


def test_source_prefix_flag_is_text_before_every_source(tiny_run):
    from transformer_jax.commands import command_help, config_flags, model_flags

    argv = ["decode", f"--workdir={tiny_run[1]}", "--source_prefix=one two "]
    with command_help.defined_flags("decode"):
        config_flags.define_config(model_flags._read_config(str(tiny_run[1])), argv)
        flags.FLAGS(argv)
        translator = model_flags.load_translator()
    (ids,) = translator.engine.encoder().source_ids(["three"])
    encode = translator.tokenizers.source.encode
    assert ids == [*encode("one two "), *encode("three")]


@pytest.mark.parametrize(
    ("references", "exact_match", "is_explained"),
    [
        (["eins", "zwei drei vier", "a b c d e"], 0.0, True),
        (["eins", "a b c d", "a b c d e"], 0.0, False),
        (["a b c d e"], 1.0, True),
    ],
)
def test_eval_explains_a_bleu_of_0(references, exact_match, is_explained, capsys):
    names = ("chrf", "loss", "perplexity", "token_accuracy", "num_sentences", "checkpoint_step")
    result = dict.fromkeys(names, 1) | {"bleu_signature": "", "chrf_signature": ""}
    result |= {"bleu": 0.0, "exact_match": exact_match}
    eval_set = eval_run.EvalSet("test", "", [("x", text) for text in references], {})
    eval_run._print_scores(result, DataConfig(), eval_set)
    assert ("shares four words in a row" in capsys.readouterr().out) == is_explained
    eval_run._print_scores(result | {"bleu": 0.1}, DataConfig(), eval_set)
    assert "four words" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input=x"], "--input and --reference go together"),
        (["--input=x", "--reference=x", "--split=test"], "--split and --input both name"),
        (["--input=none", "--reference=none"], "--input=none: there is no such file."),
        (["--target_lang=fr"], "--target_lang=fr: this model translates from en to de only"),
        (["--beam_size=0"], "--beam_size=0 must be >= 1."),
        (["--config.model.d_ff=3"], "--config.model.d_ff=3 cannot be changed after training"),
        (["--beam_size=3", "--beam_groups=2"], "--beam_groups=2"),
    ],
)
def test_eval_refuses_flags_in_one_sentence(flags, message, tiny_run):
    done = run_command("eval", f"--workdir={tiny_run[1]}", *flags)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.slow
def test_train_resumes_without_a_recipe(tiny_run, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(tiny_run[1], workdir)
    before = json.loads((workdir / "config.json").read_text())
    steps = before["train"]["num_steps"] + 2
    flags = [f"--workdir={workdir}", "--noreport", f"--config.train.num_steps={steps}"]
    done = run_command("train", *flags)
    assert done.returncode == 0, done.stderr
    assert (workdir / "checkpoints" / str(steps)).exists()
    before["train"]["num_steps"] = steps
    assert json.loads((workdir / "config.json").read_text()) == before


@pytest.mark.slow
def test_eval_writes_the_promised_fields(tiny_run, tmp_path):
    data, workdir = tiny_run
    out = tmp_path / "scores.json"
    done = command(
        "eval.py",
        f"--workdir={workdir}",
        f"--json={out}",
        "--checkpoint=average:2",
        f"--config.data.test={data / 'val'}",
        "--config.decode.beam_size=1",
        f"--output={tmp_path / 'out.txt'}",
    )
    assert done.returncode == 0, done.stderr
    assert "tok:13a" in done.stdout
    scores = json.loads(out.read_text())
    assert list(scores) == [
        "loss",
        "perplexity",
        "token_accuracy",
        "exact_match",
        "bleu",
        "bleu_signature",
        "chrf",
        "chrf_signature",
        "num_sentences",
        "checkpoint_step",
        "split",
    ]
    assert scores["num_sentences"] == 12
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 12
    assert out.read_text() == scored_files(data, workdir, tmp_path)
    before = (data / "test.de").read_text()
    refused = command("eval.py", f"--workdir={workdir}", f"--output={data / 'test.de'}")
    assert "--output and config.data.test" in refused.stderr
    assert (data / "test.de").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train.py", "--config=nowhere", "--workdir=x"], ["no recipe nowhere", "quickstart"]),
        (
            ["train.py", "--config=tiny", "--workdir=x", "--config.model.num_heads=3"],
            ["num_heads=3"],
        ),
        (["train.py", "--config=tiny", "--workdir=x", "--config.model.heads=3"], ["heads"]),
        (["eval.py", "--workdir=nowhere"], ["nowhere is no work directory"]),
        (["decode.py", "--workdir=nowhere"], ["nowhere is no work directory"]),
        (
            ["-c", MAIN, "fly"],
            ["There is no command fly", "decode"],
        ),
    ],
)
@pytest.mark.slow
def test_commands_answer_mistakes_with_one_sentence_and_a_status(arguments, words):
    done = command(*arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr
    assert not (ROOT / "x").exists()


def test_errors_of_commands_name_flags_where_the_package_names_arguments(monkeypatch):
    monkeypatch.setattr(main, "FLAGS", {"n_best": 1, "input": "-"})
    message = "`n_best=0` of `input` and `prefix` must be `at least 1`; `pip install x`."
    assert main.with_flags(message) == (
        "--n_best=0 of --input and `prefix` must be `at least 1`; `pip install x`."
    )


TRAIN = "train --config=tiny --"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (TRAIN + "stp_after=3", "There is no flag --stp_after; did you mean --stop_after?"),
        (TRAIN + "stop-after=3", "There is no flag --stop-after; did you mean --stop_after?"),
        ("decode --source-lang=en", "There is no flag --source-lang; did you mean --source_lang?"),
        ("decode --beam-size=2", "There is no flag --beam-size; did you mean --beam_size?"),
        (TRAIN + "qqq", "There is no flag --qqq."),
        (TRAIN + "stop_after=x", "--stop_after=x is not a whole number."),
        (TRAIN + "stop_after", "--stop_after=VALUE lacks its value."),
        (TRAIN + "verify_steps=3", "--verify_steps=3 must be >= 4."),
        (TRAIN + "num_processes=0", "--num_processes=0 must be >= 1."),
        (TRAIN + "process_id=-1", "--process_id=-1 must be >= 0."),
        (TRAIN + "report=maybe", "--report=maybe must be true or false."),
        (TRAIN + "config.train.num_steps=x", "--config.train.num_steps=x is not a whole number."),
        (TRAIN + "config.model.norm_epsilon=x", "--config.model.norm_epsilon=x is not a number."),
        (TRAIN + "config.model=x", "config.model is a section"),
        (TRAIN + "flagfile=/nowhere", "--flagfile: "),
        ("train --confg=tiny --workdir=x", "There is no flag --confg; did you mean --config?"),
        ("train quickstart --workdir=x", "Unexpected argument 'quickstart'; write --config=quick"),
        ("train mine.py", "Unexpected argument 'mine.py'; write --config=mine.py."),
        ("train --workdir=x --config.seed=1", "x has no run to resume. Name a recipe with --conf"),
        ("plot curves tiny --workdir=x", "Unexpected argument 'tiny'; settings are given as --"),
        ("train --config=tiny runs/x", "Unexpected argument 'runs/x'; settings are given as --"),
        ("fly", "There is no command fly. There are init, train, "),
        ("evla", "There is no command evla; did you mean eval? There are init, "),
        ("report", "There is no command report; did you mean plot report? There are init, "),
        (
            f"train --workdir={ROOT}/docz",
            f"{ROOT}/docz has no run to resume, but there is {ROOT}/docs.",
        ),
        (f"train --workdir={ROOT}/docs", f"{ROOT}/docs has no run to resume. Name a recipe"),
        (
            f"decode --workdir={ROOT}/docz",
            f"{ROOT}/docz is no work directory: there is no such folder, but there is {ROOT}/docs.",
        ),
        (f"train --config={ROOT}/tests", f"--config={ROOT}/tests is a folder without a recipe"),
        (
            f"decode --workdir={ROOT}/tests@latest",
            f"There is no {ROOT}/tests@latest; use --workdir",
        ),
        ("decode --workdir=x --config=y", "--config=y: a trained model has its own config; remo"),
        (f"train --config=tiny --workdir={ROOT}/train.py", f"{ROOT}/train.py is a file; name"),
        (f"train --workdir={ROOT}/train.py", f"{ROOT}/train.py is a file; name the folder of a"),
        ("decode", "--workdir=DIR|FILE is missing: folder of the run or of a Hugging Face model"),
        ("data", "Name the data set:\n  multi30k      captions of photo"),
        ("data wmt41 --output=x", "There is no data set wmt41; did you mean wmt14? Name the data"),
        ("data wmt14", "--output=DIR is missing: folder for the texts; "),
        ("plot curves lengths --workdir=x", "Unexpected argument 'lengths'; settings are"),
        ("plot", "Name the picture:\n  attention  what the model looks at"),
    ],
)
def test_wrong_command_lines_are_one_sentence(line, message):
    done = run_command(*line.split(" "))
    assert done.returncode == 2
    assert re.fullmatch(r"error: .+\n(  \w+ +\S.+\n)*", done.stderr)
    assert done.stderr.startswith(f"error: {message}")
