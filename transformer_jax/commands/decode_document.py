"""Runs the command `decode --document`: a document in, its translation out."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax import distributed, paths, units
from transformer_jax.commands import decode_run, model_flags, process_flags, search_flags
from transformer_jax.commands.decode_input import is_stream, read_text
from transformer_jax.commands.decode_output import ResumableOutput, is_unknown
from transformer_jax.commands.text_output import check_not_overwritten, check_writable, writing
from transformer_jax.errors import UserError, missing_package
from transformer_jax.translator.translator import Translator

if TYPE_CHECKING:
    from transformer_jax.extras.documents.document import (
        Document,
        DocumentSentence,
        SentenceTranslation,
    )
    from transformer_jax.extras.documents.document_translation import DocumentOptions
    from transformer_jax.extras.documents.sentence_translator import SentenceTranslator

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
    "attention_layer",
    "attention_head",
    "confidence",
    "on_error",
)


def run() -> None:
    """Translates the document. Several processes share it, and the first one writes."""
    if given := decode_run.given_flags(_OF_LINES):
        raise UserError(f"--document has no lines: remove {', '.join(given)}.")
    decode_run.check_flags()
    process_flags.connect(saves=False)
    if distributed.process_count() > 1 and (FLAGS.input == "-" or is_stream(FLAGS.input)):
        raise UserError("Several processes need --input=FILE; a stream is read by one process.")
    text, document_format = read_text(FLAGS.input), _format()
    options = _options()
    distributed.run_on_all(_check_outputs, "output")
    translator = model_flags.load_translator(needs_parameters=False)
    document, sentence_translator = _read(text, document_format, translator, options)
    name = str(_sentences_file()) if distributed.is_primary() else os.devnull
    output = ResumableOutput(name, functools.partial(_description, translator, options))
    translations = _translations(sentence_translator, document, output)
    if distributed.is_primary():
        joined = document.join(translations)
        with writing(FLAGS.output) as out:
            out.write(joined)
        if FLAGS.sentences:
            _write_sentences(document, translations)
        output.finish()
        if name != os.devnull:
            _sentences_file().unlink()
        _summarize(translator, translations)


def _check_outputs() -> bool:
    if distributed.is_primary():
        check_writable(FLAGS.output)
        unfinished = _sentences_file()
        if is_unknown(str(unfinished)):
            raise UserError(
                f"{unfinished} is where finished sentences are kept until all are, but there is a "
                "file that is not of an interrupted job; move it, or give another --output."
            )
        if FLAGS.sentences:
            inputs = {f"--{name}": FLAGS[name].value for name in ("input", "output", "glossary")}
            for name, path in (("--output", FLAGS.output), ("finished sentences", unfinished)):
                if os.path.abspath(FLAGS.sentences) == os.path.abspath(path):
                    raise UserError(f"--sentences is the file of {name}; give it another name.")
            check_not_overwritten(FLAGS.sentences, inputs, "--sentences")
            check_writable(FLAGS.sentences)
    return True


def _format() -> str:
    with _documents_extra():
        from transformer_jax.extras.documents.formats import ENDINGS, readers
    if not FLAGS.document_format and FLAGS.input == "-":
        raise UserError("Standard input has no name; give --document_format.")
    document_format = FLAGS.document_format or readers.format_of(FLAGS.input)
    if not document_format:
        raise UserError(
            f"--input={FLAGS.input}: its ending is none of {', '.join(ENDINGS)}; give "
            f"--document_format."
        )
    return document_format


@contextlib.contextmanager
def _documents_extra() -> Iterator[None]:
    """Says which extra has a package that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package(error, "documents") from error


def _options() -> "DocumentOptions":
    from transformer_jax.extras.documents import document_translation

    return document_translation.options(
        FLAGS.glossary or None,
        FLAGS.protect,
        FLAGS.protect_usual,
        FLAGS.guards,
        FLAGS.context_sentences,
    )


def _read(
    text: str, document_format: str, translator: Translator, options: "DocumentOptions"
) -> "tuple[Document, SentenceTranslator]":
    """The document, and what translates its sentences."""
    from transformer_jax.extras.documents import document_translation

    try:
        source_lang = document_translation.language_of(
            translator, text, document_format, FLAGS.source_lang
        )
        document = document_translation.read(
            translator, text, document_format, options, source_lang, FLAGS.target_lang
        )
    except UserError as error:
        raise UserError(f"--input={FLAGS.input}: {error}") from error
    return document, document_translation.sentence_translator(
        translator,
        options,
        source_lang=source_lang,
        target_lang=FLAGS.target_lang,
        **search_flags.given(),
    )


def _sentences_file() -> Path:
    """Where finished sentences are kept until all are; one that cannot be resumed is none."""
    can_resume = FLAGS.output != "-" and not paths.is_remote(FLAGS.output)
    return Path(f"{FLAGS.output}.done.jsonl" if can_resume else os.devnull)


def _description(translator: Translator, options: "DocumentOptions") -> dict[str, Any]:
    """All that determines the translations, except the document."""
    return {
        **decode_run.description(translator),
        "protect": [*options.protection.shown, *options.protection.hidden],
        "guards": options.guards,
    }


def _translations(
    translator: "SentenceTranslator", document: "Document", output: ResumableOutput
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
            remaining, functools.partial(_translate, translator), lambda: True
        )
        count = functools.partial(len, document.sentences)
        for translation in decode_run.with_progress(results, output, "sentence", count):
            done.append(translation)
            output.write(_as_json(translation))
    return done


def _translate(
    translator: "SentenceTranslator",
    sentences: Iterator["DocumentSentence"],
    ready: decode_run.Ready,
) -> Iterator["SentenceTranslation"]:
    del ready  # all sentences are there
    return translator.translate(sentences, FLAGS.window)


def _as_json(translation: "SentenceTranslation") -> str:
    return json.dumps(dataclasses.asdict(translation), ensure_ascii=False) + "\n"


def _of_json(line: str) -> "SentenceTranslation":
    from transformer_jax.extras.documents.document import SentenceTranslation

    return SentenceTranslation.from_json(json.loads(line))


def _write_sentences(document: "Document", translations: list["SentenceTranslation"]) -> None:
    """Writes the file of `--sentences`."""
    from transformer_jax.extras.documents import document_translation

    with writing(FLAGS.sentences) as out:
        for sentence, translation in zip(document.sentences, translations, strict=True):
            fields = dataclasses.asdict(document_translation.translated(sentence, translation))
            out.write(json.dumps(fields, ensure_ascii=False) + "\n")


def _summarize(translator: Translator, translations: list["SentenceTranslation"]) -> None:
    """Says on standard error what was done, and what is to be looked at."""
    num_programs = translator.engine.num_compiled
    print(
        f"{units.count(len(translations), 'sentence')}; compiled programs: {num_programs} "
        "(one a batch shape)",
        file=sys.stderr,
    )
    kinds = (
        ("flagged", [one.flags for one in translations]),
        ("without a term of the glossary", [one.unmet for one in translations]),
    )
    for name, problems in kinds:
        counts = collections.Counter(itertools.chain.from_iterable(problems))
        if counts:
            listed = ", ".join(f"{what} {count}" for what, count in counts.most_common(10))
            where = "" if FLAGS.sentences else "; --sentences=FILE lists them"
            print(
                f"{sum(map(bool, problems)):,} sentences are {name}: {listed}{where}.",
                file=sys.stderr,
            )
