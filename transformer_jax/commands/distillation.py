"""Runs the command `distill`: pairs by the teachers, then the training of the student."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from etils import epath

from transformer_jax import distributed, paths
from transformer_jax.commands import (
    command_line,
    corpus_translation,
    model_flags,
    report_file,
    search_flags,
)
from transformer_jax.commands.translation_job import Job
from transformer_jax.config import Config, DataConfig, validate
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.sources import open_corpora
from transformer_jax.errors import UserError
from transformer_jax.training import loop
from transformer_jax.workdir import folder as workdir_lib

FLAGS = flags.FLAGS
FOLDER = "distilled"  # in the work directory


def run() -> None:
    """Translates the sources of the training corpora, and trains on the pairs."""
    config = validate(FLAGS.config)
    _check(config)
    folder = Path(os.path.abspath(FLAGS.workdir)) / FOLDER  # as the stored config names it
    corpora = open_corpora(config.data, "train")
    files = [
        str(folder / _name(number, corpus) / f"{number}.{corpus.source_lang}.tsv")
        for number, corpus in enumerate(corpora, start=1)
    ]
    data = student_data(config.data, files, FLAGS.keep_corpus)
    student = validate(dataclasses.replace(config, data=data))
    _check_workdir(student)
    with workdir_lib.lock(FLAGS.workdir):
        _make_pairs(corpora, folder)
    print(f"training on {', '.join(files)}", flush=True)
    if loop.train(student, epath.Path(FLAGS.workdir)):
        report_file.write(FLAGS.workdir)


def _check(config: Config) -> None:
    """Refuses what cannot be distilled, before a teacher is read."""
    if command_line.value_of(sys.argv, "config") is None:
        raise UserError(
            "--config=RECIPE is missing: the recipe with the corpora. Once the pairs are made, "
            f"`transformer-jax train --workdir={FLAGS.workdir}` resumes the training alone."
        )
    if config.data.source != "files":
        raise UserError(
            f"config.data.source={config.data.source}: `distill` reads the sources of text files; "
            "set config.data.source=files and config.data.train (`transformer-jax data` writes "
            "public data sets as files)."
        )
    if config.data.context_sentences:
        raise UserError(
            "config.data.context_sentences: the pairs of `distill` are single sentences, which are "
            "no documents; set it to 0."
        )
    if config.data.stages and FLAGS.keep_corpus:
        raise UserError(
            "--keep_corpus has twice as many corpora as config.data.stages has shares; omit one of "
            "the two."
        )
    if distributed.launched_with_others():
        raise UserError(
            "`distill` is one process: --ray shares the translation among several. Several "
            "processes train with `train`, once the pairs are made."
        )


def _check_workdir(student: Config) -> None:
    """Refuses a work directory that cannot have the pairs, or has another run."""
    workdir = FLAGS.workdir
    if paths.is_remote(workdir) or set(workdir) & set(",*?["):
        raise UserError(
            f"--workdir={workdir} must be a local folder or a shared disk, and its name may have "
            "none of `,*?[`, which have a meaning in config.data.train."
        )
    trained = workdir_lib.has_checkpoints(workdir)
    if trained and workdir_lib.read_config(workdir).data.train != student.data.train:
        raise UserError(
            f"--workdir={workdir} has a run on other training data than {student.data.train}; name "
            "another folder."
        )


def _name(number: int, corpus: Corpus) -> str:
    """The name of the folder with the pairs of a corpus."""
    return f"{number}.{corpus.source_lang}-{corpus.target_lang}"


def _make_pairs(corpora: Sequence[Corpus], folder: Path) -> None:
    """Translates each corpus into a file of pairs.

    Raises:
      UserError: a corpus has changed since its pairs were made, or a teacher does not know its
        languages.
    """
    teachers = model_flags.models(FLAGS.teacher)
    rules = corpus_translation.pair_rules(is_back=False, tag="")
    given = {"target_lang": FLAGS.target_lang, "source_lang": FLAGS.source_lang}
    settings = search_flags.given() | {name: value for name, value in given.items() if value}
    for number, corpus in enumerate(corpora, start=1):
        sources = folder / "sources" / f"{number}.{corpus.source_lang}"
        _write_sources(corpus, sources)
        job = Job.of_models(
            teachers,
            settings,
            source_prefix=FLAGS.source_prefix,
            pairs=rules,
            text_languages={
                "source_lang": corpus.source_lang,
                "target_lang": corpus.target_lang,
            },
        )
        output = str(folder / _name(number, corpus))
        files = corpus_translation.find_files(str(sources), output, ".tsv")
        corpus_translation.run_job(files, output, job)


def _write_sources(corpus: Corpus, path: Path) -> None:
    """Writes the sources of a corpus, one a line, unless they are there."""
    record = path.with_name(f"{path.name}.fingerprint")
    if record.exists():
        if record.read_text(encoding="utf-8") != corpus.fingerprint:
            raise UserError(
                f"{corpus.name} has changed since {path} was written from it; use another work "
                "directory."
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        out.writelines(f"{_as_line(source)}\n" for source, _ in corpus.read())
    paths.write_atomically(record, corpus.fingerprint)


def _as_line(source: str) -> str:
    """A source in one line; other marks at which Python splits lines stay."""
    return source.replace("\r", " ").replace("\n", " ")


def student_data(data: DataConfig, files: Sequence[str], keep_corpus: bool) -> DataConfig:
    """The data of the student: the files of pairs in the place of the corpora, or before them."""
    times = 2 if keep_corpus else 1
    return dataclasses.replace(
        data,
        train=",".join([*files, *([data.train] if keep_corpus else [])]),
        train_weights=data.train_weights * times,
        train_languages=data.train_languages * times,
    )
