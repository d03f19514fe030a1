"""The commands: what they print, write and refuse."""

import glob
import importlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from transformer_jax.commands import command_help, config_flags, main, text_output
from transformer_jax.errors import UserError
from transformer_jax.runs import host_memory

ROOT = Path(__file__).parent.parent


MAIN = "from transformer_jax.commands.main import main; main()"


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
from transformer_jax.runs import host_memory
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


@pytest.mark.parametrize("name", main.COMMANDS)
def test_out_of_memory_advice_names_settings_of_the_command(name, capsys, monkeypatch):
    less_memory = importlib.import_module(f"transformer_jax.commands.{name}").LESS_MEMORY
    message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nframes"
    with pytest.raises(SystemExit) as end, main._errors_as_sentences(less_memory):
        raise RuntimeError(message)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "allocate 9 bytes.)" in said
    assert "frames" not in said
    assert ("accumulate_steps" in said) == (name == "train")
    assert ("--batch_tokens" in said) == (name in ("decode", "eval"))


def help_of(name, *arguments):
    """What `transformer-jax NAME --help` prints, and its flags: name -> text with its meaning."""
    done = command("-m", "transformer_jax", name, *arguments, "--help")
    assert done.returncode == 0, done.stderr
    flags = {}
    for part in re.split(r"\n  --", done.stdout.partition("\nFlags\n")[2]):
        flag = re.match(r"(?:  --)?(?:\[no\])?([\w.]+)", part)
        flags[flag[1]] = " ".join(part.partition("\n\n")[0].split())
    return done.stdout, flags


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_has_examples_every_flag_and_80_columns(name):
    text, shown = help_of(name)
    assert max(map(len, text.splitlines())) <= 80
    module = importlib.import_module(f"transformer_jax.commands.{name}")
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
                assert "|".join(flag.parser.enum_values) in shown[flag.name]
    assert {f"config.{path}" for path in module.HELP.fields} <= set(shown)
    for page, _ in module.HELP.pages:
        assert page in text
        assert (ROOT / page).exists()


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_examples_have_flags_of_their_command(name):
    for _, line in importlib.import_module(f"transformer_jax.commands.{name}").HELP.examples:
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
    assert "with the defaults of" not in text
    (tmp_path / "flags.txt").write_text("--config=quickstart")
    for given in ("--config=quickstart", f"--flagfile={tmp_path / 'flags.txt'}"):
        _, shown = help_of("train", given)
        assert "(default: 300; >= 1)" in shown["config.train.num_steps"]


def test_help_lists_the_commands_without_one():
    for arguments, status in ((["--help"], 0), ([], 2)):
        done = command("-m", "transformer_jax", *arguments)
        assert done.returncode == status
        text = done.stderr if status else done.stdout
        assert max(map(len, text.splitlines())) <= 80
        for name, summary in main.COMMANDS.items():
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
    assert path.read_text() == "of last week"
    with pytest.raises(UserError, match="cannot be written: No such file"):
        text_output.check_writable(str(tmp_path / "none" / "scores.json"))


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
    done = command(
        "eval.py",
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
    done = command("eval.py", f"--workdir={tiny_run[1]}", *flags)
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
    done = command("-m", "transformer_jax", "train", *flags)
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


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("stp_after=3", "There is no flag --stp_after; did you mean --stop_after?"),
        ("qqq", "There is no flag --qqq."),
        ("stop_after=x", "--stop_after=x is not a whole number."),
        ("stop_after", "--stop_after=VALUE lacks its value."),
        ("verify_steps=3", "--verify_steps=3 must be >= 4."),
        ("num_processes=0", "--num_processes=0 must be >= 1."),
        ("process_id=-1", "--process_id=-1 must be >= 0."),
        ("report=maybe", "--report=maybe must be true or false."),
        ("config.train.num_steps=x", "--config.train.num_steps=x is not a whole number."),
        ("config.model.norm_epsilon=x", "--config.model.norm_epsilon=x is not a number."),
        ("config.model=x", "config.model is a section"),
        ("flagfile=/nowhere", "--flagfile: "),
    ],
)
def test_wrong_flags_are_named_in_one_sentence(flag, message, capsys, monkeypatch):
    arguments = ["transformer-jax", "train", "--config=tiny", f"--{flag}"]
    monkeypatch.setattr(sys, "argv", arguments)
    before = set(flags.FLAGS)
    try:
        with pytest.raises(SystemExit) as end:
            main.main()
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"error: {message}")


COMPLETE = """
eval "$SCRIPT"
COMP_LINE="$1" COMP_POINT=${#1} COMP_WORDS=($1) COMP_CWORD=1
"$(complete -p transformer-jax | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script():
    return command("-m", "transformer_jax", "completion", "bash").stdout


@pytest.mark.parametrize(
    ("line", "expected", "absent"),
    [
        ("transformer-jax ", {*main.COMMANDS, "--help", "--version"}, set()),
        ("transformer-jax ex", {"export"}, {"eval"}),
        (
            "transformer-jax decode --attention",
            {"--attention", "--attention_head="},
            {"--workdir="},
        ),
        ("transformer-jax decode --noal", {"--noalignment", "--noallow_pickle"}, set()),
        ("transformer-jax export --format=", {"marian", "ctranslate2", "stablehlo"}, {"runs/"}),
        ("transformer-jax export --format=c", {"ctranslate2"}, {"marian"}),
        ("transformer-jax export --format c", {"ctranslate2"}, {"marian"}),
        ("transformer-jax train --config=wmt14_en_d", {"wmt14_en_de_base"}, {"wmt14_en_fr_big"}),
        ("transformer-jax train --config=m", {"multi30k", "mine.py"}, {"tiny"}),
        ("transformer-jax train --co", {"--config=", "--config."}, {"--config.seed="}),
        ("transformer-jax eval --config.model.pos", {"--config.model.positional="}, set()),
        ("transformer-jax eval --config.model.positional=r", {"rotary"}, {"learned"}),
        ("transformer-jax eval --config.data.lowercase=", {"True", "False"}, set()),
        ("transformer-jax decode --input=m", {"mine.py", "my folder"}, {"multi30k"}),
        ("transformer-jax decode --workdir=m", {"my folder"}, {"mine.py"}),
        ("transformer-jax decode --config.data.test=mi", {"mine.py"}, set()),
        ("transformer-jax plot ", {"attention", "curves"}, set()),
        ("transformer-jax plot attention --part=", {"cross", "encoder", "decoder"}, set()),
        ("transformer-jax runs m", {"my folder"}, {"mine.py"}),
        ("transformer-jax completion z", {"zsh"}, {"bash"}),
    ],
)
def test_completion_in_bash(line, expected, absent, bash_script, tmp_path):
    (tmp_path / "mine.py").touch()
    (tmp_path / "my folder").mkdir()
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", line],
        cwd=tmp_path,
        env=os.environ | {"SCRIPT": bash_script},
        capture_output=True,
        text=True,
        check=True,
    )
    completed = set(done.stdout.splitlines())
    assert expected <= completed, done.stderr
    assert not absent & completed
    assert not done.stderr


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_completion_for_zsh_is_a_script_of_zsh(tmp_path):
    script = command("-m", "transformer_jax", "completion", "zsh").stdout
    assert "'--format=[Format of the output]:value:(text jsonl)'" in script
    subprocess.run(["zsh", "-fc", f"autoload -U compinit; compinit -D\n{script}"], check=True)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("transformer-jax ex", {"export"}),
        ("transformer-jax export --format=ct", {"--format=ctranslate2"}),
        (
            "transformer-jax train --config.model.positional=rot",
            {"--config.model.positional=rotary"},
        ),
        ("transformer-jax plot curv", {"curves"}),
    ],
)
def test_completion_in_fish(line, expected, tmp_path):
    script = command("-m", "transformer_jax", "completion", "fish").stdout
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"{script}\ncomplete -C {shlex.quote(line)}"],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {completed.split("\t")[0] for completed in done.stdout.splitlines()} == expected
