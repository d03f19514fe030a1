"""Eight simulated CPU devices, fast compilation, and the small run that many tests read."""

import os
import shutil

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests keep their caches apart from the user's, because one may prepare a small data set under the
# name of a real one.
os.environ["XDG_CACHE_HOME"] = os.path.join(os.path.dirname(__file__), "..", ".cache", "user")
# Tests wait for compilations, not for computations: LLVM's optimisations take half of their time.
# The programs that tests start inherit this.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax

jax.config.update("jax_num_cpu_devices", 8)

import contextlib
import dataclasses
import functools
import gc
import io
import logging
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece
from absl import flags
from etils import epath

from tests import gcs as gcs_server
from transformer_jax import paths
from transformer_jax.commands import main
from transformer_jax.config import Config
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.search import decoder
from transformer_jax.training import loop, runners
from transformer_jax.translator import batching

# Takes as long as a third of the slow tests. It runs first, so that no process ends up waiting
# for another one that has just begun it.
LONGEST_TEST = "test_readme_and_tutorials_do_what_they_say"

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZIFFERN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name != LONGEST_TEST)


def pytest_collection_finish() -> None:
    """Lets garbage collections pass over modules and tests, which stay: tracing starts many."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(30_000, 10, 10)


def digit_pairs(count: int, seed: int = 0, longest: int = 6) -> list[tuple[str, str]]:
    """Sentence pairs of a language whose translation is word by word, in reverse order."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        numbers = [rng.randrange(10) for _ in range(rng.randint(1, longest))]
        source = " ".join(DIGITS[n] for n in numbers)
        pairs.append((source, " ".join(ZIFFERN[n] for n in reversed(numbers))))
    return pairs


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> str:
    """Writes `name.en` and `name.de`; returns the prefix."""
    for side, language in enumerate(("en", "de")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return str(folder / name)


def tiny_config(folder: Path, **train) -> Config:
    """The `tiny` recipe on digit pairs written below `folder`, without translations in evaluations.

    Those would compile a search for each model that a test trains.
    """
    from configs import tiny

    config = tiny.get_config()
    for name, count, seed in (("train", 400, 0), ("val", 12, 1), ("test", 20, 2)):
        if not (folder / f"{name}.en").exists():
            write_pairs(folder, name, digit_pairs(count, seed))
    return dataclasses.replace(
        config,
        data=dataclasses.replace(
            config.data,
            source="files",
            vocab_size=295,
            train=str(folder / "train"),
            validation=str(folder / "val"),
            test=str(folder / "test"),
            cache_dir=str(folder / "cache"),
        ),
        train=dataclasses.replace(config.train, **{"eval_sentences": 0, **train}),
        parallel=dataclasses.replace(config.parallel, data=1),
    )


def transformer_jax(*arguments, without=(), cwd=None, **environment):
    """`transformer-jax` in a process where the modules `without` cannot be imported."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({list(without)})); "
        "sys.argv[0] = 'transformer-jax'; from transformer_jax.commands.entry import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def is_of_package(flag: str) -> bool:
    """Whether an installed package has defined the flag, such as absl or Grain."""
    module = sys.modules.get(flags.FLAGS.find_module_defining_flag(flag, ""))
    return "site-packages" in str(getattr(module, "__file__", ""))


def run_command(*arguments, cwd=".", stdin="") -> subprocess.CompletedProcess[str]:
    """`transformer-jax ARGUMENTS` in this process, which has loaded JAX already.

    For commands that neither change the process nor end it by themselves.
    """
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    # Benchmarks that tests import define flags too, with the same names.
    others = {name: flags.FLAGS[name] for name in list(flags.FLAGS) if not is_of_package(name)}
    for name in others:
        delattr(flags.FLAGS, name)
    before, level = set(flags.FLAGS), logging.getLogger().level
    (argv, keyboard), sys.argv = (sys.argv, sys.stdin), ["transformer-jax", *map(str, arguments)]
    try:
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as sys.stdin,
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(streams[0]),
            contextlib.redirect_stderr(streams[1]),
        ):
            sys.stdin.write(stdin)
            sys.stdin.seek(0)
            with pytest.raises(SystemExit) as end:
                main.main()
            texts = [stream.buffer.getvalue().decode() for stream in streams if not stream.flush()]
    finally:
        sys.argv, sys.stdin = argv, keyboard
        logging.getLogger().setLevel(level)
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
        for name, flag in others.items():
            flags.FLAGS[name] = flag
    return subprocess.CompletedProcess(arguments, end.value.code or 0, *texts)


# Settings of `train` that the compiled step does not depend on.
NOT_IN_THE_STEP = (
    "num_steps",
    "init_from",
    "eval_every_steps",
    "checkpoint_every_steps",
    "log_every_steps",
    "early_stopping_patience",
    "eval_beam_size",
    "eval_sentences",
    "loggers",
)


@functools.lru_cache(maxsize=16)
def _runner(config: Config, devices: tuple[jax.Device, ...]) -> runners.Runner:
    return runners.make_runner(config, list(devices))


def shared_runner(config: Config, devices: list[jax.Device]) -> runners.Runner:
    """A runner whose programs all runs of the same model and step share."""
    defaults = type(config.train)()
    ignored = {name: getattr(defaults, name) for name in NOT_IN_THE_STEP}
    if config.optimizer.schedule in ("linear", "cosine"):
        del ignored["num_steps"]
    config = Config(
        seed=config.seed,
        model=config.model,
        optimizer=config.optimizer,
        parallel=config.parallel,
        train=dataclasses.replace(config.train, **ignored),
    )
    return _runner(config, tuple(devices))


def two_row_options(size: int, batch_tokens: int, num_devices: int = 1) -> list[int]:
    """Numbers of rows of a batch: 16, or as many as fit."""
    full = num_devices * max(1, batch_tokens // size)
    return sorted({min(16, full), full})


# What makes the fast tests compile less. Runs of one model share their training step. A search has
# one size of cache, so one loop. Batches of short texts have one length and few numbers of rows.
FEWER_PROGRAMS = (
    (loop, "make_runner", shared_runner),
    (decoder, "STAGES", (1.0,)),
    (batching, "MIN_LEN", 24),
    (batching, "all_row_options", two_row_options),
)
ALL_PROGRAMS = [(module, name, getattr(module, name)) for module, name, _ in FEWER_PROGRAMS]


def pytest_configure(config: pytest.Config) -> None:
    """For the fast tests, from the start: fixtures of modules compile too."""
    if "not slow" in config.option.markexpr:
        for module, name, value in FEWER_PROGRAMS:
            setattr(module, name, value)


@pytest.fixture(autouse=True)
def all_programs(request, monkeypatch) -> None:
    """Lets tests that are marked `all_programs` compile what users do."""
    if request.node.get_closest_marker("all_programs") is not None:
        for module, name, value in ALL_PROGRAMS:
            monkeypatch.setattr(module, name, value)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs more rights")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, room: int = 0) -> None:
    """Fills a disk except `room` bytes, with which a checkpoint may begin."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    os.truncate(folder / "filler", (folder / "filler").stat().st_size - room)


@pytest.fixture(scope="session")
def tokenizers() -> TokenizerPair:
    """A shared tokenizer of digit words, with byte tokens."""
    model = io.BytesIO()
    texts = [text for pair in digit_pairs(300) for text in pair]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=295,
        byte_fallback=True,
        character_coverage=1.0,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    tokenizer = Tokenizer(model.getvalue())
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> tuple[Path, Path]:
    """A finished run of the `tiny` recipe: its data folder and its work directory."""
    from transformer_jax.training.loop import train

    folder = tmp_path_factory.mktemp("tiny")
    train(tiny_config(folder, eval_sentences=8), folder / "run")
    return folder, folder / "run"


def begin_run(config: Config, workdir: Path) -> None:
    """Writes a run's checkpoint of step 0, also the best, without compiling its step as `train`."""
    with loop.open_run(config, workdir) as trainer:
        scores = {config.checkpoint.best_metric: 0.0}
        trainer._saver.save_last(0, trainer.state, trainer.progress, scores, scheduled=True)


def copy_run(source: Path, target: Path) -> Path:
    """Copies a run without its evaluations, because other tests record theirs in `tiny_run`."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-eval-*.json"))
    return target


@pytest.fixture(scope="session")
def translator(tiny_run):
    from transformer_jax import Translator

    return Translator.load(tiny_run[1])


@pytest.fixture(scope="session")
def gcs(tmp_path_factory) -> Iterator[gcs_server.Server]:
    """A server of Google Cloud Storage's API, which `gs://` paths of this process go to."""
    server = gcs_server.Server(tmp_path_factory.mktemp("gcs"))
    os.environ.update(server.environment)
    paths.require("gs://")
    yield server
    for name in server.environment:
        del os.environ[name]
    server.stop()


@pytest.fixture
def bucket(gcs, request) -> epath.Path:
    """An empty folder in a bucket."""
    return epath.Path(f"gs://{gcs_server.BUCKET}/{re.sub(r'[^a-z0-9]+', '_', request.node.name)}")
