"""The command `init`: looks at a corpus, and writes a recipe that fits it."""

import os
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from transformer_jax import paths
from transformer_jax.commands import arguments
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.errors import UserError

if TYPE_CHECKING:  # these load NumPy or JAX, which flags do not need
    from transformer_jax.config import DataConfig
    from transformer_jax.data.corpus_settings import Choice
    from transformer_jax.data.corpus_survey import CorpusSurvey
    from transformer_jax.data.set_aside import SetAside
    from transformer_jax.data.sources import Corpus

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="--train=PREFIX --source_lang=LANG --target_lang=LANG --workdir=DIR [flags]",
    about="Reads a parallel corpus, PREFIX.LANG (.gz too) or one .tsv, and prints its pairs, "
    "lengths, writing systems, copies and what looks wrong. Then it chooses the settings of a run "
    "for the corpus and the device, and writes them to DIR/recipe.py with a reason each. It takes "
    "a few training steps to estimate time and memory, and prints the next commands. Without "
    "--validation or --test it sets a fixed share of the corpus aside, in DIR/data.",
    less_memory="give --nomeasure, and lower config.data.batch_tokens in the recipe",
    examples=(
        (
            "Files corpus.en and corpus.fr, nothing else:",
            "transformer-jax init --train=corpus --source_lang=en --target_lang=fr "
            "--workdir=runs/mine",
        ),
        (
            "With validation and test sets:",
            "transformer-jax init --train=corpus --validation=dev --test=test --source_lang=en "
            "--target_lang=fr --workdir=runs/mine",
        ),
        (
            "For a run on another machine, which has a GPU:",
            "transformer-jax init --train=corpus.tsv --source_lang=de --target_lang=en "
            "--device=gpu --workdir=runs/gpu",
        ),
    ),
    pages=(("docs/train_your_own.md", "the table of sizes, from 3,000 to 100 million pairs"),),
)
RECIPE = "recipe.py"
DATA = "data"  # in the work directory: files of a corpus of which a share was set aside
DEVICES = ("here", "cpu", "gpu", "tpu")
PARTS = ("validation", "test")
GIB = 2**30


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    arguments.define_path(
        "train", None, "PREFIX", "Training text: path without the language suffix, or a .tsv file."
    )
    arguments.define_text(
        "source_lang", None, "LANG", "Language of the source: the suffix after PREFIX."
    )
    arguments.define_text(
        "target_lang", None, "LANG", "Language of the target: the suffix after PREFIX."
    )
    arguments.define_path("workdir", None, "DIR", "Folder of the run, which gets the recipe.")
    arguments.define_path(
        "validation",
        "",
        "PREFIX",
        "Validation set, files as of --train; empty: a share is set aside.",
    )
    arguments.define_path(
        "test", "", "PREFIX", "Test set, files as of --train; empty: a share is set aside."
    )
    flags.DEFINE_enum("device", "here", DEVICES, "Device that will train; here: of this machine.")
    flags.DEFINE_bool("measure", True, "Take a few training steps, to estimate time and memory.")
    return argv


def run() -> None:
    """Prints what the corpus looks like, writes the recipe, prints the next commands."""
    from transformer_jax.config import sizing
    from transformer_jax.config.recipe_file import recipe_text
    from transformer_jax.data import corpus_settings, corpus_survey, set_aside

    workdir = _check_flags()
    corpus = _open("train")
    given = {part: _open(part) for part in PARTS if FLAGS[part].value}
    missing = [part for part in PARTS if part not in given]
    if missing:
        set_aside.check_free(corpus, missing, workdir / DATA)
    _say(f"{corpus.source_lang} -> {corpus.target_lang}: {corpus.name}")
    survey = corpus_survey.survey_corpus(corpus)
    _say(*(f"  {line}" for line in corpus_survey.describe_survey(survey)))
    if survey.num_usable < sizing.MIN_PAIRS:
        raise UserError(
            f"{corpus.name} has {survey.num_usable:,} different pairs, and from fewer than "
            f"{sizing.MIN_PAIRS:,} a model learns nothing of use; fine-tune a published model "
            "(config.train.init_from)."
        )
    counts = dict(_check_leaks(corpus, given))
    counts |= dict.fromkeys(missing, set_aside.share_size(survey.num_usable))
    num_train = survey.num_usable - sum(counts[part] for part in missing)
    machine: sizing.Machine = "cpu" if _platform() == "cpu" else "accelerator"
    data = _data_settings(corpus)
    choice = corpus_settings.choose_settings(survey, data, num_train, counts["validation"], machine)
    facts = [*_describe_device(), *_describe_choice(choice, num_train)]
    _say(*facts)
    estimate = _estimate(choice, survey, counts["validation"])
    _say(*estimate)
    code = {}
    if missing:
        written = set_aside.set_aside(
            corpus, {part: counts[part] for part in missing}, workdir / DATA
        )
        _say(*_describe_set_aside(written, workdir / DATA))
        code = {f"data.{part}": f'str(HERE / "{DATA}" / "{part}")' for part in written.num_pairs}
    commands = _next_commands(workdir, missing)
    head = _recipe_head(corpus, [*facts, *estimate], commands)
    workdir.mkdir(parents=True, exist_ok=True)
    paths.write_atomically(workdir / RECIPE, recipe_text(choice.config, head, choice.reasons, code))
    _say(f"wrote {workdir / RECIPE}: every setting with its reason", "next:", *commands)


def _say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


def _check_flags() -> Path:
    """The work directory; refuses missing flags, and a recipe that exists.

    Raises:
      UserError: names the flag.
    """
    for name in ("train", "source_lang", "target_lang", "workdir"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is missing. {FLAGS[name].help}")
    if FLAGS.source_lang == FLAGS.target_lang:
        raise UserError(f"--source_lang and --target_lang are both {FLAGS.source_lang!r}.")
    if paths.is_remote(FLAGS.workdir):
        raise UserError(f"--workdir={FLAGS.workdir}: init writes into a local folder.")
    recipe = Path(FLAGS.workdir) / RECIPE
    if recipe.exists():
        raise UserError(
            f"{recipe} exists and is not replaced; train with it, remove it, or name another "
            "--workdir."
        )
    return recipe.parent


def _open(part: str) -> "Corpus":
    """The corpus that the flag `--part` names."""
    from transformer_jax.data import sources

    return sources.open_text(FLAGS[part].value, FLAGS.source_lang, FLAGS.target_lang, part)


def _check_leaks(corpus: "Corpus", given: "dict[str, Corpus]") -> Iterator[tuple[str, int]]:
    """The size of each given set. Prints how much of it is in the training text too."""
    from transformer_jax.data.corpus_survey import text_digest

    def digests(corpus: "Corpus") -> Iterator[int]:
        return (text_digest(source.strip()) for source, _ in corpus.read())

    of_part = {part: list(digests(other)) for part, other in given.items()}
    wanted = {digest for part in of_part.values() for digest in part}
    trained = {digest for digest in digests(corpus) if digest in wanted} if wanted else set()
    for part, sources in of_part.items():
        num_shared = sum(digest in trained for digest in sources)
        _say(
            f"{part}: {len(sources):,} pairs of {given[part].name}; the training text has the "
            f"sources of {num_shared:,} of them too"
        )
        yield part, len(sources)


def _platform() -> str:
    """`cpu`, `gpu` or another platform that the sizes are for."""
    from transformer_jax.ops import platforms

    return platforms.current() if FLAGS.device == "here" else FLAGS.device


def _data_settings(corpus: "Corpus") -> "DataConfig":
    """Paths and languages. Local paths are absolute: a recipe is used from any folder."""
    from transformer_jax.config import DataConfig

    def absolute(prefix: str) -> str:
        return prefix if paths.is_remote(prefix) or not prefix else os.path.abspath(prefix)

    return DataConfig(
        source="files",
        source_lang=corpus.source_lang,
        target_lang=corpus.target_lang,
        train=absolute(FLAGS.train),
        validation=absolute(FLAGS.validation),
        test=absolute(FLAGS.test),
    )


def _describe_device() -> Iterator[str]:
    """The device that the sizes are for, in words."""
    if FLAGS.device != "here":
        yield f"device: {FLAGS.device}, as --device says"
        return
    from transformer_jax.ops import platforms

    devices = platforms.all_devices()
    stats = devices[0].memory_stats() or {}
    if platforms.current() == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield f"device: cpu, {len(os.sched_getaffinity(0))} cores, {memory / GIB:.0f} GiB of memory"
        return
    memory = stats.get("bytes_limit", 0)
    yield f"device: {len(devices)} x {devices[0].device_kind}" + (
        f", {memory / GIB:.0f} GiB of memory each" if memory else ""
    )


def _describe_choice(choice: "Choice", num_train: int) -> Iterator[str]:
    """The main settings in one sentence, and the lengths in tokens."""
    model, data, train = choice.config.model, choice.config.data, choice.config.train
    yield (
        f"sizes for {num_train:,} pairs: {model.num_encoder_layers} + {model.num_decoder_layers} "
        f"layers, width {model.d_model}, {data.vocab_size:,} tokens, dropout "
        f"{model.dropout_rate:g}; {train.num_steps:,} steps of {data.batch_tokens:,} target "
        f"tokens, about {train.num_steps * data.batch_tokens / choice.tokens.per_epoch:,.0f} epochs"
    )
    yield (
        f"lengths in tokens: {choice.tokens.median} in the median, 99.9% up to "
        f"{choice.tokens.most}, longest {choice.tokens.longest}"
    )


def _estimate(choice: "Choice", survey: "CorpusSurvey", num_validation: int) -> list[str]:
    """Time and memory of the run, measured where the device is here."""
    if not FLAGS.measure or FLAGS.device not in ("here", _platform_here()):
        return ["time and memory: not measured here; train --dry_run compiles the step"]
    from transformer_jax.diagnostics.run_estimate import estimate_run

    train = choice.config.train
    num_validation = min(num_validation, train.eval_sentences or num_validation)
    estimate = estimate_run(choice.config, survey.sample, num_validation, choice.tokens)
    memory = "" if estimate.step_bytes is None else f"; a step needs {_size(estimate.step_bytes)}"
    return [
        f"model: {estimate.num_params:,} parameters{memory}",
        f"time: about {_duration(estimate.total_seconds)} for all {train.num_steps:,} steps, from "
        f"{estimate.num_timed_steps} timed steps of {estimate.step_seconds:.2g} s and "
        f"{estimate.num_evaluations} evaluations of about {estimate.evaluation_seconds:.0f} s; "
        f"other work on this machine makes it longer{_load()}",
    ]


def _load() -> str:
    """A remark if other programs compete for the cores now."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f" (now {load:.0f} programs share {cores} cores)" if load > 1.5 * cores + 1 else ""


def _platform_here() -> str:
    from transformer_jax.ops import platforms

    return platforms.current()


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"


def _duration(seconds: float) -> str:
    """`45 s`, `13 min`, `5.2 h` or `3.1 days`."""
    for unit, size, digits in (("days", 86400, 1), ("h", 3600, 1), ("min", 60, 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def _describe_set_aside(written: "SetAside", folder: Path) -> Iterator[str]:
    """What was set aside, and where it is."""
    counts = [f"{count:,} pairs for {part}" for part, count in written.num_pairs.items()]
    yield f"set aside, by a digest of the source: {', '.join(counts[1:])}; left: {counts[0]}"
    if written.num_dropped:
        yield f"  {written.num_dropped:,} further pairs with the same sources are in no file"
    yield f"  the files are in {folder}"


def _next_commands(workdir: Path, missing: Sequence[str]) -> list[str]:
    """Commands that train, evaluate and translate, to paste."""
    folder = shlex.quote(str(workdir))
    read, source = "", f"{workdir / DATA / 'test'}.{FLAGS.source_lang}"
    if "test" not in missing:
        read, source = _how_to_read(FLAGS.test)
    output = shlex.quote(str(workdir / f"test.{FLAGS.target_lang}"))
    source = f" --input={shlex.quote(source)}" if source else ""
    return [
        f"  transformer-jax train --config={shlex.quote(str(workdir / RECIPE))} --workdir={folder}",
        f"  transformer-jax eval --workdir={folder}",
        f"  {read}transformer-jax decode --workdir={folder}{source} --output={output}",
    ]


def _how_to_read(prefix: str) -> tuple[str, str]:
    """How `decode` gets the source side of a corpus: a pipe before it, or the file for --input."""
    if prefix.endswith((".tsv", ".tsv.gz")):
        show = "gzip -dc" if prefix.endswith(".gz") else "cat"
        return f"{show} {shlex.quote(prefix)} | cut -f 1 | ", ""
    name = f"{prefix}.{FLAGS.source_lang}"
    return "", f"{name}.gz" if os.path.exists(f"{name}.gz") else name


def _recipe_head(corpus: "Corpus", facts: Sequence[str], commands: Sequence[str]) -> str:
    """The docstring of the recipe."""
    title = f"{corpus.source_lang} to {corpus.target_lang}, for {corpus.name}; by `init`."
    lines = [title, ""]
    for fact in facts:
        lines += textwrap.wrap(fact, 100)
    return "\n".join([*lines, "", *(f"  {command}" for command in commands)])
