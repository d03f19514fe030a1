"""Runs the command `decode --document`: a document in, its translation out."""

import functools
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from transformer_jax import distributed, paths
from transformer_jax.api import Translator
from transformer_jax.commands import decode_run, model_flags, process_flags, search_flags
from transformer_jax.commands.decode_input import is_stream, read_text
from transformer_jax.commands.decode_output import ResumableOutput
from transformer_jax.commands.text_output import check_writable, writing
from transformer_jax.errors import UserError, missing_package

if TYPE_CHECKING:
    from transformer_jax.text.document import Document, DocumentSentence, SentenceTranslation

FLAGS = flags.FLAGS
# Flags of lines, which documents do not have.
_OF_LINES = (
    "format",
    "n_best",
    "prefixes",
    "phrases",
    "score",
    "per_token",
    "alignment",
    "attention",
    "on_error",
)


def run() -> None:
    """Translates the document. Several processes share it, and the first one writes."""
    given = [f"--{name}" for name in _OF_LINES if FLAGS[name].value != FLAGS[name].default]
    if given:
        raise UserError(f"--document has no lines: remove {', '.join(given)}.")
    decode_run.check_flags()
    process_flags.connect(saves=False)
    if distributed.process_count() > 1 and (FLAGS.input == "-" or is_stream(FLAGS.input)):
        raise UserError("Several processes need --input=FILE; a stream is read by one process.")
    text, document_format = read_text(FLAGS.input), _format()
    distributed.run_on_all(_check_output, "output")
    translator = model_flags.load_translator(needs_parameters=False)
    document = _read(text, document_format, translator)
    name = str(_sentences_file()) if distributed.is_primary() else os.devnull
    output = ResumableOutput(name, functools.partial(decode_run.description, translator))
    translations = _translations(translator, document, output)
    if distributed.is_primary():
        joined = document.join(translations)
        with writing(FLAGS.output) as out:
            out.write(joined)
        output.finish()
        if name != os.devnull:
            _sentences_file().unlink()
        num_programs = translator.engine.num_compiled
        print(
            f"{len(translations):,} sentences; compiled programs: {num_programs}", file=sys.stderr
        )


def _check_output() -> bool:
    if distributed.is_primary():
        check_writable(FLAGS.output)
    return True


def _format() -> str:
    try:
        from transformer_jax.text import formats
    except ModuleNotFoundError as error:
        raise missing_package(error, "documents") from error
    if not FLAGS.document_format and FLAGS.input == "-":
        raise UserError("Standard input has no name; give --document_format.")
    document_format = FLAGS.document_format or formats.of_file(FLAGS.input)
    if not document_format:
        raise UserError(
            f"--input={FLAGS.input}: its ending is none of {', '.join(formats.ENDINGS)}; give "
            f"--document_format."
        )
    return document_format


def _read(text: str, document_format: str, translator: Translator) -> "Document":
    from transformer_jax.text import formats

    data = translator.config.data
    source, target = FLAGS.source_lang or data.source_lang, FLAGS.target_lang or data.target_lang
    try:
        return formats.read(text, document_format, source, target_language=target)
    except UserError as error:
        raise UserError(f"--input={FLAGS.input}: {error}") from error


def _sentences_file() -> Path:
    """Where finished sentences are kept until all are; one that cannot be resumed is none."""
    can_resume = FLAGS.output != "-" and not paths.is_remote(FLAGS.output)
    return Path(f"{FLAGS.output}.sentences" if can_resume else os.devnull)


def _translations(
    translator: Translator, document: "Document", output: ResumableOutput
) -> list["SentenceTranslation"]:
    """Those of all sentences; an interrupted run has left the first ones."""
    done: list[SentenceTranslation] = []
    with output:
        output.skip, output.expected = distributed.all_gather((output.skip, output.expected))[0]
        if distributed.is_primary() and output.skip:
            with open(_sentences_file(), encoding="utf-8") as lines:
                done += map(_of_json, itertools.islice(lines, output.skip))
        remaining = output.remaining(iter(document.sentences))
        results = decode_run.shared(
            remaining, functools.partial(_translate, translator, document), lambda: True
        )
        count = functools.partial(len, document.sentences)
        for translation in decode_run.with_progress(results, output, "sentence", count):
            done.append(translation)
            output.write(_as_json(translation))
    return done


def _translate(
    translator: Translator,
    document: "Document",
    sentences: Iterator["DocumentSentence"],
    ready: decode_run.Ready,
) -> Iterator["SentenceTranslation"]:
    from transformer_jax.text import documents

    return documents.translate_sentences(
        translator,
        sentences,
        has_markup=document.has_markup,
        target_lang=FLAGS.target_lang,
        source_lang=FLAGS.source_lang,
        window=FLAGS.window,
        **search_flags.given(),
    )


def _as_json(translation: "SentenceTranslation") -> str:
    fields = {"text": translation.text, "links": translation.links}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _of_json(line: str) -> "SentenceTranslation":
    from transformer_jax.text.document import SentenceTranslation

    fields = json.loads(line)
    return SentenceTranslation(fields["text"], tuple(map(tuple, fields["links"])))
