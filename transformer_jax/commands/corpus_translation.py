"""Runs the command `translate-corpus`: chunks of lines go to processes, and come back in order."""

import contextlib
import dataclasses
import functools
import glob
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from absl import flags
from etils import epath

from transformer_jax import paths, units
from transformer_jax.commands import model_flags, search_flags
from transformer_jax.commands.decode_output import ResumableOutput
from transformer_jax.commands.translation_job import Chunk, Job
from transformer_jax.data import ray_tasks
from transformer_jax.data.text_lines import read_lines
from transformer_jax.errors import UserError
from transformer_jax.extras.documents.training_pairs import PairRules
from transformer_jax.workdir import digests

FLAGS = flags.FLAGS
REPORT_SECONDS = 30.0
RECORD = ".job.json"  # in the folder of the translations
SOURCES = ".sources"  # there too: lines with the digest of a source and the translation's name

Run = Callable[[Iterator[Chunk]], Iterator[list[str]]]


@dataclasses.dataclass(frozen=True)
class TranslatedFile:
    """A file to translate.

    Attributes:
      source: its path.
      target: the translation.
      num_lines: of it.
      digest: of the source's content.
    """

    source: epath.Path
    target: Path
    num_lines: int
    digest: str

    @property
    def unfinished(self) -> Path:
        """The translation while it is not complete."""
        return self.target.with_name(f"{self.target.name}.part")

    def is_done(self, sources: Mapping[str, str]) -> bool:
        """Whether there is a translation of this source; without a record, any counts."""
        return self.target.exists() and sources.get(self.target.name, self.digest) == self.digest

    def record_source(self) -> None:
        """Appends which source the translation has."""
        with self.target.with_name(SOURCES).open("a", encoding="utf-8") as record:
            record.write(f"{self.digest} {self.target.name}\n")


def _read_sources(folder: Path) -> dict[str, str]:
    """Name of each recorded translation -> digest of its source; the last line of a name counts."""
    record = folder / SOURCES
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else ()
    return {name: digest for digest, _, name in (line.partition(" ") for line in lines)}


class Progress:
    """Prints speed, time left and cost.

    Args:
      num_lines: of all files.
      num_processes: that translate.
      price: of each by the hour; 0: unknown.
      say: prints a line.
    """

    def __init__(
        self, num_lines: int, num_processes: int, price: float, say: Callable[[str], None]
    ):
        self._total, self._price = num_lines, price * num_processes / 3600
        self._say = say
        self._started = self._reported = time.monotonic()
        self._skipped = self._done = self._words = 0

    def skip(self, num_lines: int) -> None:
        """Lines that were done before."""
        self._skipped += num_lines

    def add(self, num_lines: int, translations: Iterable[str]) -> None:
        """Lines that are translated; now and then prints where the job is."""
        self._done += num_lines
        self._words += sum(len(text.split()) for text in translations)
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            self._say(self.line())

    def line(self) -> str:
        """Where the job is."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = self._done / seconds
        left = self._total - self._skipped - self._done
        text = (
            f"{self._skipped + self._done:,} of {self._total:,} lines; {rate:,.0f} lines/s, "
            f"{self._words / seconds:,.0f} words/s"
        )
        if left and rate:
            text += f"; {units.duration(left / rate)} left"
        if self._price:
            text += f"; cost {self._price * seconds:,.2f}"
            if left and rate:
                text += f" of {self._price * (seconds + left / rate):,.2f}"
            million = self._price * 1e6 / rate if rate else float("inf")
            text += f", {million:,.2f} per million lines"
        return text


def run() -> None:
    """Translates all files that the flags name."""
    settings = {
        **search_flags.given(),
        "target_lang": FLAGS.target_lang,
        "source_lang": FLAGS.source_lang,
    }
    pairs = None
    for name in ("tag", "n_best", "min_log_prob", "guards"):
        if FLAGS[name].present and FLAGS.write == "translations":
            raise UserError(f"--{name} is for pairs: add --write=pairs or --write=back_pairs.")
    if FLAGS.write != "translations":
        pairs = pair_rules(FLAGS.write == "back_pairs", FLAGS.tag)
    models = [(FLAGS.model, FLAGS.checkpoint), *model_flags.ensemble()]
    job = Job.of_models(models, settings, source_prefix=FLAGS.source_prefix, pairs=pairs)
    run_job(find_files(FLAGS.input, FLAGS.output, ".tsv" if pairs else ""), FLAGS.output, job)


def pair_rules(is_back: bool, tag: str) -> PairRules:
    """Those of the flags.

    Args:
      is_back: whether translations become sources.
      tag: before each source.

    Raises:
      UserError: a tag that is no single word.
    """
    if tag != "".join(tag.split()):
        raise UserError(f"--tag={tag!r} must be one word, such as <BT>.")
    rules = PairRules(is_back, tag, FLAGS.n_best, guards=FLAGS.guards)
    if FLAGS.min_log_prob is None:
        return rules
    return dataclasses.replace(rules, min_log_prob=FLAGS.min_log_prob)


def run_job(files: list[TranslatedFile], folder: str, job: Job) -> None:
    """Translates the files that are not done, in this process or on a Ray cluster.

    Args:
      files: from `find_files`.
      folder: of the translations.
      job: the model and settings.

    Raises:
      UserError: the folder has translations of another job.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    check_same_job(Path(folder), job)
    sources = _read_sources(Path(folder))
    with contextlib.ExitStack() as stack:
        num_processes, translate = 1, None
        if FLAGS.ray and not all(file.is_done(sources) for file in files):
            actors = ray_tasks.Actors[Chunk, list[str]](job, FLAGS.ray, FLAGS.cpus, FLAGS.gpus)
            stack.enter_context(contextlib.closing(actors))
            num_processes, translate = actors.num, actors.map
        translate_files(files, sources, job, translate, num_processes)


def check_same_job(folder: Path, job: Job) -> None:
    """Refuses a folder with translations by another model or with other settings.

    Raises:
      UserError: it has them.
    """
    record = folder / RECORD
    content = json.dumps(job.description(), indent=1) + "\n"
    # Without any translation, the settings may have been a mistake.
    has_some = any(
        child.name not in (RECORD, SOURCES) and (child.is_dir() or child.stat().st_size)
        for child in folder.iterdir()
    )
    if has_some and record.exists() and record.read_text(encoding="utf-8") != content:
        raise UserError(
            f"{folder} has translations by another model, checkpoint or settings ({record}); give "
            "the same, or name another folder."
        )
    paths.write_atomically(record, content)


def find_files(pattern: str, folder: str, suffix: str = "") -> list[TranslatedFile]:
    """The files that match, in the order of their names, with those of their translations.

    Args:
      pattern: of the files.
      folder: of the translations.
      suffix: of their names, after those of the files.

    Raises:
      UserError: none matches, or two would have the same translation.
    """
    if paths.is_remote(folder):
        raise UserError(f"--output={folder} must be a local folder or a shared disk.")
    names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
    sources = [epath.Path(name) for name in names if not Path(name).is_dir()]
    if not sources:
        raise UserError(f"--input={pattern} matches no file.")
    files: dict[str, TranslatedFile] = {}
    for source in sources:
        name = source.name.removesuffix(".gz").removesuffix(".zst") + suffix
        target = Path(folder) / name
        if name in files:
            raise UserError(
                f"{files[name].source} and {source} would both be translated into {target}; "
                "translate one folder at a time."
            )
        if suffix and Path(source).parent.resolve() == Path(folder).resolve():
            raise UserError(
                f"--output={folder} has the sources, so its pairs would be taken for sources; name "
                "another folder."
            )
        if target.exists() and os.path.samefile(target, source):
            raise UserError(f"--output={folder} would replace {source}; name another folder.")
        num_lines = sum(1 for _ in read_lines(source, allow_nul=True))
        files[name] = TranslatedFile(source, target, num_lines, digests.of_file(source))
    return list(files.values())


def translate_files(
    files: list[TranslatedFile],
    sources: Mapping[str, str],
    job: Job,
    translate: Run | None,
    num_processes: int,
) -> None:
    """Translates the files that are not done, one after another.

    Args:
      files: from `find_files`.
      sources: digests that earlier runs have recorded, by the names of the translations.
      job: the model and settings.
      translate: translates chunks, in order; None: in this process.
      num_processes: that translate.
    """
    total = sum(file.num_lines for file in files)
    progress = Progress(total, num_processes, FLAGS.price, lambda line: print(line, flush=True))
    for file in files:
        if file.is_done(sources):
            if file.target.name not in sources:  # an earlier version has translated it
                file.record_source()
            progress.skip(file.num_lines)
            continue
        if file.target.exists():
            print(f"{file.source} has changed since it was translated: translating it again")
        if translate is None:
            translate = functools.partial(map, job())
        _translate_file(file, job, translate, progress)
        file.record_source()
        print(f"{file.target}: {file.num_lines:,} lines{_count_pairs(file, job)}", flush=True)
    print(progress.line())


def _translate_file(file: TranslatedFile, job: Job, translate: Run, progress: Progress) -> None:
    output = ResumableOutput(str(file.unfinished), job.description)
    with output:
        progress.skip(output.skip)
        lines = output.remaining(read_lines(file.source, allow_nul=True))
        for translated in translate(_chunks(lines)):
            for line in translated:
                output.write(f"{line}\n")
            rules = job.pairs
            progress.add(len(translated), rules.translations(translated) if rules else translated)
        output.finish()
    file.unfinished.rename(file.target)


def _count_pairs(file: TranslatedFile, job: Job) -> str:
    """How many pairs a file has, and lines without one, for its line of output."""
    if job.pairs is None:
        return ""
    pairs = sum(bool(line) for line in read_lines(epath.Path(file.target)))
    left_out = file.num_lines * job.pairs.n_best - pairs
    return f", {pairs:,} pairs, {left_out:,} blank"


def _chunks(lines: Iterator[str]) -> Iterator[Chunk]:
    while chunk := list(itertools.islice(lines, FLAGS.chunk)):
        yield chunk
