"""README and tutorials, followed word by word: every command runs, every printed claim is checked.

`tests/walkthrough.py` says what is run and how output is compared. There is no network, so

- `git clone URL` gives a clone of the working tree,
- pip installs this package alone; all others are those that run the tests,
- the Hugging Face Hub is a folder with a small model, as Hugging Face's tools keep downloads,
- what else is replaced is in SUBSTITUTIONS. An entry whose text is not in the document fails.

Of the prose, the statements in CLAIMS are checked and the existence of files in `runs/`. Times,
and scores of trainings that take longer than this test, are not.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from num2words import num2words

from tests.conftest import write_pairs
from tests.huggingface_models import small_model, write
from tests.walkthrough import Substitution, difference, read_blocks, run, substitute
from transformer_jax.data.number_words import split_numbers

ROOT = Path(__file__).parent.parent
README = "README.md"
TRAIN = "docs/train_your_own.md"
TRANSLATE = "docs/translate_text.md"
DOCUMENTS = "docs/translate_documents.md"
FINE_TUNE = "docs/fine_tune.md"
ADDRESS = "https://host.invalid/transformer_jax"  # git reads the working tree instead
HUB_MODEL = "Helsinki-NLP/opus-mt-en-de"
SIZES = {"corpus": 3000, "text": 8}  # pairs of the reader's files

MORE_MACHINES = 0.3  # percent by which a machine may be below the range of README
# A training of ten steps. What is printed before its first step stays the same.
SHORT = (
    "--config.train.num_steps=10 --config.optimizer.warmup_steps=5 "
    "--config.train.eval_every_steps=10 --config.train.eval_sentences=8"
)
EXPORT = "transformer-jax export --workdir=runs/tuned --format=marian --output=exported"
HAS_TORCH = all(map(importlib.util.find_spec, ("torch", "transformers")))
SUBSTITUTIONS = (
    Substitution(README, "clone URL", f"clone {ADDRESS}", "the reader knows the address"),
    Substitution(README, "git+URL", f"git+{ADDRESS}", "the reader knows the address"),
    Substitution(README, "cd ~/translator", "cd ~/translator; cp ~/corpora/* .", "own files"),
    Substitution(
        README, "--target_lang=de --workdir", "--target_lang=de --nomeasure --workdir", "faster"
    ),
    Substitution(README, "recipe.py", f"recipe.py {SHORT}", "minutes"),
    Substitution(README, "pip install huggingface_hub", ":", "the model is in the cache"),
    Substitution(
        TRAIN,
        "train --config=runs/mine/recipe.py",
        f"train --config=runs/mine/recipe.py {SHORT}",
        "minutes",
    ),
    Substitution(FINE_TUNE, "pip install huggingface_hub", ":", "the model is in the cache"),
    Substitution(FINE_TUNE, "git+URL", f"git+{ADDRESS}", "the reader knows the address"),
    Substitution(FINE_TUNE, "--config.train.num_steps=1000", SHORT, "minutes"),
    # Without torch the command says what to install.
    *[
        Substitution(FINE_TUNE, EXPORT, f"(! {EXPORT}) |& grep 'pip install'", "torch is optional")
        for _ in range(not HAS_TORCH)
    ],
)


class Walk(NamedTuple):
    """A document that was followed."""

    text: str
    printed: str
    folder: Path


class Claim(NamedTuple):
    """A statement of a document, and a function that tells whether it is true."""

    document: str
    statement: str
    holds: Callable[[Walk], bool]


def exact_match_is_in_range(walk: Walk) -> bool:
    low, high = map(float, re.search(r"([\d.]+)% to ([\d.]+)% of 1,000", walk.text).groups())
    scores = json.loads((walk.folder / "transformer_jax/runs/quickstart/eval.json").read_text())
    return low - MORE_MACHINES <= scores["exact_match"] <= high and scores["num_sentences"] == 1000


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


CLAIMS = (
    Claim(README, "of 1,000 held-out numbers", exact_match_is_in_range),
    Claim(README, "711,680 parameters", lambda walk: "model: 711,680 parameters" in walk.printed),
    Claim(
        TRAIN,
        "about 5% of the sources",
        lambda walk: abs(num_lines(walk.folder / "runs/mine/data/test.en") - 0.05 * 3000) < 40,
    ),
    Claim(
        TRANSLATE,
        "one output line for every input line",
        lambda walk: num_lines(walk.folder / "text.de") == num_lines(walk.folder / "text.en"),
    ),
)


@pytest.fixture
def newcomer(tmp_path, tokenizers) -> dict[str, str]:
    """The environment variables of a new user, whose home has a corpus and nothing else."""
    home = tmp_path / "home"
    (home / "corpora").mkdir(parents=True)
    numbers = split_numbers()["train"]
    for name, size in SIZES.items():
        drawn, numbers = numbers[-size:], numbers[:-size]
        pairs = [(num2words(n, lang="en"), num2words(n, lang="de")) for n in drawn]
        write_pairs(home / "corpora", name, pairs)
    put_model_in_hub(home / "hub", tokenizers)
    inherited = {
        name: value
        for name, value in os.environ.items()
        # Flags and variables of the `make` that runs the tests, and what tests compile with.
        if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "VENV", "XLA_FLAGS")
    }
    return inherited | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "HF_HUB_CACHE": str(home / "hub"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{clone_of_the_working_tree(tmp_path / 'project')}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "PYTHONPATH": str(link_to_packages(tmp_path / "packages")),
        "PYTHONUNBUFFERED": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the value of `build_isolation`
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def link_to_packages(folder: Path) -> Path:
    """A folder with links to all packages that run the tests, except this one."""
    folder.mkdir()
    for path in sys.path:
        if path.endswith(("site-packages", "dist-packages")):
            for package in Path(path).iterdir():
                link = folder / package.name
                # The first of a name is the one that Python finds.
                if "transformer_jax" not in package.name and not link.is_symlink():
                    link.symlink_to(package)
    return folder


def clone_of_the_working_tree(folder: Path) -> Path:
    """A repository whose only commit has the files of the working tree that git does not ignore."""

    def git(*arguments: str, cwd: Path) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout

    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():  # else it is deleted, but not committed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git("init", "--quiet", cwd=folder)
    git("add", "--all", "--force", cwd=folder)
    git("commit", "--quiet", "--message=The working tree.", cwd=folder)
    return folder


def put_model_in_hub(hub: Path, tokenizers) -> None:
    """Puts a small Marian model where Hugging Face's tools keep a download."""
    folder = hub / f"models--{HUB_MODEL.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots").mkdir()
    write(folder / "snapshots" / "c0ffee", small_model(tokenizers, max_len=128))


def follow(document: str, folder: Path, environment: dict[str, str]) -> Walk:
    """Runs the commands of a document and compares what they print with what it shows."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = substitute(
        read_blocks(text), [item for item in SUBSTITUTIONS if item.document == document]
    )
    printed = run(blocks, folder, environment)
    last = 0
    for block in blocks:
        if block.line in printed:
            last = block.line
        elif not block.language:
            missing = difference(block.text, printed[last])
            assert not missing, f"{document}:{block.line}: not printed: {missing}\n{printed[last]}"
    return Walk(text, "".join(printed.values()), folder)


def check_claims(document: str, walk: Walk) -> None:
    prose = " ".join(walk.text.split())
    for claim in CLAIMS:
        if claim.document == document:
            assert claim.statement in prose, f"{document} no longer says {claim.statement!r}"
            assert claim.holds(walk), f"{document}: not true: {claim.statement}"
    roots = [path.parent for path in walk.folder.rglob("runs") if path.is_dir()]
    for path in set(re.findall(r"`(runs/[\w./-]+)`", walk.text)):
        assert any((root / path).exists() for root in roots), f"{document}: there is no {path}"


@pytest.mark.slow
def test_readme_and_tutorials_do_what_they_say(newcomer):
    home = Path(newcomer["HOME"])
    check_claims(README, follow(README, home, newcomer))
    folder = home / "tutorials"
    folder.mkdir()
    # As after `source .venv/bin/activate` of README.
    environment = os.path.join(home, "translator", ".venv", "bin")
    newcomer["PATH"] = os.pathsep.join([environment, newcomer["PATH"]])
    # Their models take few steps and translate little, so that compiling is most of their time.
    if "XLA_FLAGS" in os.environ:
        newcomer["XLA_FLAGS"] = os.environ["XLA_FLAGS"]
    for document in (TRAIN, TRANSLATE, FINE_TUNE):
        check_claims(document, follow(document, folder, newcomer))
    # A model that translates, unlike the one of ten steps, which cannot be calibrated.
    shutil.rmtree(folder / "runs/mine")
    shutil.copytree(home / "transformer_jax/runs/quickstart", folder / "runs/mine")
    check_claims(DOCUMENTS, follow(DOCUMENTS, folder, newcomer))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("one\n", "zero\none\ntwo\n"),  # what comes before and after is left out
        ("one\n...\nthree\n", "one\ntwo\nthree\n"),
        ("wrote ... here\n", "wrote /tmp/x/report.html here\n"),
        ("a     b\n", "a\tb\n"),
        ("loss 4.103, lr 2.50e-03", "loss 4.11, lr 2.45e-03"),
        ("20,000 pairs, 380 tokens", "20,000 pairs, 380 tokens"),
        ("13,184 target tokens/s, 17 s left", "9 target tokens/s, 1 h 2 min left"),
        ("compiled in 5.5 s, ETA 01:02", "compiled in 12 s, ETA 1:10:59"),
        ("a (b) [c] * d\n", "a (b) [c] * d\n"),
    ],
)
def test_transcript_equals_what_was_printed(shown, printed):
    assert difference(shown, printed) == ""


@pytest.mark.parametrize(
    ("shown", "printed", "missing"),
    [
        ("one\n", "two\n", "one"),
        ("one\nthree\n", "one\ntwo\nthree\n", "three"),  # lines between need `...`
        ("two\n...\none\n", "one\ntwo\n", "one"),
        ("20,000 pairs", "20,001 pairs", "20,000 pairs"),
        ("loss 4.103", "loss 4.5", "loss 4.103"),
        ("exact match 99.80%", "exact match 9.98%", "exact match 99.80%"),
        ("ETA 01:02", "left 01:02", "ETA 01:02"),
        ("one", "one two", "one"),
    ],
)
def test_transcript_differs_from_what_was_printed(shown, printed, missing):
    assert difference(shown, printed) == missing


def test_walkthrough_runs_blocks_of_a_document_in_one_shell(tmp_path):
    fence = "```"
    markdown = f"""
{fence}sh
mkdir new && cd new
NAME=reader
{fence}
{fence}python
import os
print(os.path.basename(os.getcwd()))
{fence}
{fence}
new
{fence}
{fence}text
never run
{fence}
{fence}sh
echo "hello $NAME"; echo wrong >&2
{fence}
"""
    blocks = substitute(read_blocks(markdown), [Substitution("", "hello", "bye", "a test")])
    printed = run(blocks, tmp_path, dict(os.environ))
    assert [text.strip() for text in printed.values()] == ["", "new", "bye reader\nwrong"]
    assert [block.language for block in blocks] == ["sh", "python", "", "text", "sh"]
    with pytest.raises(AssertionError, match=r"status 3 in the block of line 2:\nlast words"):
        run(read_blocks(f"\n{fence}sh\necho last words; (exit 3)\n{fence}\n"), tmp_path, os.environ)


@pytest.mark.parametrize("old", ["not there", "echo", "output"])
def test_substitution_is_for_one_place_in_a_command(old):
    blocks = read_blocks("```sh\necho one; echo two\n```\n```\noutput\n```\n")
    with pytest.raises(ValueError, match="times, not once"):
        substitute(blocks, [Substitution("README.md", old, "", "")])


@pytest.mark.parametrize("markdown", ["```yaml\na: 1\n```\n", "```\noutput of what\n```\n"])
def test_document_marks_what_is_neither_a_command_nor_output(markdown):
    with pytest.raises(ValueError, match=r"line 1: .*`text`"):
        read_blocks(markdown)


@pytest.mark.parametrize("document", [README, TRAIN, TRANSLATE, DOCUMENTS, FINE_TUNE])
def test_blocks_and_substitutions_of_documents_are_current(document):
    blocks = read_blocks((ROOT / document).read_text(encoding="utf-8"))
    substitute(blocks, [item for item in SUBSTITUTIONS if item.document == document])
