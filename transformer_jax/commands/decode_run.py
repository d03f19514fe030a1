"""Runs the command `decode`: lines in, translations or scores out."""

import contextlib
import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from absl import flags
from etils import epath

from transformer_jax import distributed, units, waiting
from transformer_jax.commands import model_flags, process_flags, search_flags
from transformer_jax.commands.decode_format import OutputFormat
from transformer_jax.commands.decode_input import Lines, count_lines, is_stream
from transformer_jax.commands.decode_output import ResumableOutput
from transformer_jax.commands.text_output import check_not_overwritten
from transformer_jax.data import context
from transformer_jax.data.context import Previous
from transformer_jax.errors import UserError, but_there_is
from transformer_jax.extras.documents import glossary, term_placement
from transformer_jax.extras.documents.glossary import Glossary
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.requests import PHRASES_NEED_BEAMS, Request, windows
from transformer_jax.translator.scoring import PairScores
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.translator import Translator

T = TypeVar("T")
R = TypeVar("R")
Ready = Callable[[], bool] | None  # whether the next item can be read without waiting

FLAGS = flags.FLAGS
PHRASE_SEPARATOR = "\t"
FIRST_REMINDER = 2.0  # seconds of translating; loading the model has taken some already
INPUTS = ("input", "prefixes", "phrases", "score")  # flags that name files of lines
OF_DOCUMENTS = ("document_format", "protect", "protect_usual", "guards", "sentences")
# Flags that change the output, besides those of `DecodeConfig`.
OUTPUT_FLAGS = (
    "checkpoint",
    "ensemble",
    "format",
    "n_best",
    "target_lang",
    "source_lang",
    "score",
    "per_token",
    "alignment",
    "attention",
    "confidence",
    "attention_layer",
    "attention_head",
    "context_sentences",
    "on_error",
)


def check_flags() -> None:
    """Refuses flags that conflict, before a model is read."""
    files = (*INPUTS, "glossary")
    check_not_overwritten(FLAGS.output, {f"--{name}": FLAGS[name].value for name in files})
    streams = [f"--{name}" for name in INPUTS if FLAGS[name].value == "-"]
    if len(streams) > 1:
        raise UserError(f"{' and '.join(streams)} are both standard input; name files.")
    for name in INPUTS:
        path = FLAGS[name].value
        if path not in ("", "-") and not epath.Path(path).exists():
            similar = but_there_is(path)
            raise UserError(f"--{name}={path}: there is no such file{similar}.")
    for name in ("attention", "confidence"):
        if FLAGS[name].value and FLAGS.format != "jsonl":
            raise UserError(f"--{name} needs --format=jsonl; text has no place for it.")
    if FLAGS.per_token and not FLAGS.score:
        raise UserError("--per_token needs --score=FILE.")
    of_lines = ("n_best", "alignment", "attention", "confidence")
    of_translations = (*of_lines, "prefixes", "phrases", "glossary")
    if FLAGS.score and (given := given_flags(of_translations)):
        raise UserError(f"--score translates nothing: remove {', '.join(given)}.")
    if not FLAGS.document and (given := given_flags(OF_DOCUMENTS)):
        raise UserError(f"{', '.join(given)} need --document; add it.")
    read_glossary()


def given_flags(names: Sequence[str]) -> list[str]:
    """Those of the flags that differ from their defaults, such as `--n_best`."""
    return [f"--{name}" for name in names if FLAGS[name].value != FLAGS[name].default]


def check_phrases(method: str) -> None:
    """Refuses phrases to a method that does not search, before anything is read."""
    if FLAGS.phrases and method != "beam":
        raise UserError("--phrases: " + PHRASES_NEED_BEAMS.format(method=method))


def read_glossary() -> Glossary | None:
    """The glossary that the flags name; None: there is none.

    Raises:
      UserError: it is wrong.
    """
    path = FLAGS["glossary"].value
    return glossary.read(path) if path else None


def run() -> None:
    """Translates or scores the input. Several processes share it, and the first one writes."""
    check_flags()
    process_flags.connect(saves=False)
    if distributed.process_count() > 1 and (FLAGS.input == "-" or is_stream(FLAGS.input)):
        raise UserError("Several processes need --input=FILE; a stream is read by one process.")
    translator = model_flags.load_translator(needs_parameters=False)
    check_phrases(search_flags.given().get("method", translator.config.decode.method))
    is_primary = distributed.is_primary()
    output = ResumableOutput(
        FLAGS.output if is_primary else os.devnull, functools.partial(description, translator)
    )
    columns = {name: Lines(FLAGS[name].value, FLAGS.window) for name in INPUTS if FLAGS[name].value}
    if is_typed():
        print("type a line to translate; Ctrl-D ends the input", file=sys.stderr, flush=True)
    with contextlib.ExitStack() as stack:
        distributed.run_on_all(lambda: bool(stack.enter_context(output)), "output")
        output.skip, output.expected = distributed.all_gather((output.skip, output.expected))[0]
        lines = _score_lines if FLAGS.score else _translation_lines
        results = lines(translator, columns, output)
        count = functools.partial(count_lines, FLAGS.input)
        for line in with_progress(results, output, "line", count):
            output.write(line)
        output.finish()
    if is_primary:
        num_programs = translator.engine.num_compiled
        print(
            f"{units.count(output.done, 'line')}; compiled programs: {num_programs} "
            "(one a batch shape)",
            file=sys.stderr,
        )


def _translation_lines(
    translator: Translator, columns: dict[str, Lines], output: ResumableOutput
) -> Iterator[str]:
    """What is written for each line of the input that is not done yet."""
    terms = read_glossary()
    attention = None
    if FLAGS.alignment or FLAGS.attention:
        attention = _attention(translator)
    elif terms:
        attention = translator.alignment
    settings = {
        "n_best": FLAGS.n_best,
        "target_lang": FLAGS.target_lang,
        "source_lang": FLAGS.source_lang,
        "attention": attention,
        "confidence": FLAGS.confidence,
        "window": FLAGS.window,
        "on_error": FLAGS.on_error,
        **search_flags.given(),
    }

    def translate(requests: Iterator[Request], ready: Ready) -> Iterator[list[Translation]]:
        if terms is None:
            yield from translator.translate_iterable(requests, ready=ready, **settings)
            return
        for window in windows(requests, FLAGS.window, ready):
            yield from term_placement.translate(translator, terms, window, **settings)

    output_format = _output_format()
    requests = output.remaining(request for request, _ in _rows(columns, translator))
    results = shared(requests, translate, functools.partial(_ready, columns))
    for number, hypotheses in enumerate(results, start=output.skip):
        if hypotheses[0].error and distributed.is_primary():
            print(hypotheses[0].error, file=sys.stderr)
        yield output_format.translation(number, hypotheses)


def _attention(translator: Translator) -> AttentionChoice:
    """The attention that the flags name; without them, the one that links words best."""
    layer, head = FLAGS.attention_layer, FLAGS.attention_head
    best = translator.alignment
    if layer is None and head is None and best is not None:
        return best
    usual = AttentionChoice()
    chosen = usual.layer if layer is None else layer
    return AttentionChoice(chosen, None if head is None or head < 0 else head)


def _score_lines(
    translator: Translator, columns: dict[str, Lines], output: ResumableOutput
) -> Iterator[str]:
    """With --score: what is written for each given translation that is not done yet."""

    def score(
        pairs: Iterator[tuple[Request, str]], ready: Ready
    ) -> Iterator[tuple[str, PairScores]]:
        for window in windows(pairs, FLAGS.window, ready):
            sources = [request.text for request, _ in window]
            targets = [target for _, target in window]
            contexts = [request.context for request, _ in window]
            scores = translator.score_tokens(
                sources, targets, FLAGS.target_lang, FLAGS.source_lang, contexts
            )
            yield from zip(targets, scores, strict=True)

    output_format = _output_format()
    rows = _rows(columns, translator)
    pairs = output.remaining((request, target or "") for request, target in rows)
    for target, scores in shared(pairs, score, functools.partial(_ready, columns)):
        yield output_format.score(target, scores)


def _rows(
    columns: dict[str, Lines], translator: Translator
) -> Iterator[tuple[Request, str | None]]:
    """For each line of the input, its request and, with --score, the given translation.

    Of a model that reads sentences before a text, an empty line ends a document.

    Raises:
      UserError: a file has fewer lines than another, or the glossary is wrong.
    """
    num_context = context.num_sentences(
        translator.config.data, translator.tokenizers, FLAGS.context_sentences
    )
    before = Previous[str](num_context)
    for number, values in enumerate(itertools.zip_longest(*columns.values()), start=1):
        row = dict(zip(columns, values, strict=True))
        ended = next((name for name, value in row.items() if value is None), None)
        if ended:
            raise UserError(f"--{ended} ends before line {number}, but other files have that line.")
        phrases = row.get("phrases", "").split(PHRASE_SEPARATOR)
        text = row["input"]
        request = Request(
            text,
            row.get("prefixes", ""),
            tuple(filter(None, phrases)),
            context=before.items,
            line=number,
        )
        before.add(text.strip())
        yield request, row.get("score")


def _ready(columns: dict[str, Lines]) -> bool:
    """Whether the next line of every file can be read without waiting."""
    return all(lines.ready() for lines in columns.values())


def shared(
    items: Iterator[T], compute: Callable[[Iterator[T], Ready], Iterator[R]], ready: Ready
) -> Iterator[R]:
    """Results of `compute` for all items, in order. Each of several processes computes a share."""
    if distributed.process_count() == 1:
        yield from compute(items, ready)
        return
    for window in windows(items, FLAGS.window * distributed.process_count()):
        share = iter(distributed.local_share(window))
        yield from distributed.gather_shares(list(compute(share, None)))


def _output_format() -> OutputFormat:
    return OutputFormat(
        FLAGS.format == "jsonl", FLAGS.n_best, FLAGS.alignment, FLAGS.attention, FLAGS.per_token
    )


def is_typed() -> bool:
    """Whether the input comes from a terminal."""
    return FLAGS.input == "-" and sys.stdin is not None and sys.stdin.isatty()


def with_progress(
    items: Iterator[T], output: ResumableOutput, unit: str, total: Callable[[], int | None]
) -> Iterator[T]:
    """The items, with a line on standard error now and again that says how many are done.

    There is no line where the results themselves are on the terminal, or where the input is typed.
    A pipe gets lines only if standard error is a terminal: a program may wait between its texts.

    Args:
      items: results.
      output: says how many are done already.
      unit: what an item is.
      total: counts all; it is called for the first line.
    """
    is_shown = FLAGS.output == "-" and sys.stdout.isatty()
    waits = is_stream(FLAGS.input) and (is_typed() or not sys.stderr.isatty())
    if not distributed.is_primary() or is_shown or waits:
        yield from items
        return
    count = functools.cache(total)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def line(seconds: float) -> str:
        number = count()
        done = units.count(output.done, unit)
        if number is not None:
            done = f"{output.done:,} of {units.count(number, unit)}"
        return f"{done} after {seconds:.0f} s"

    with waiting.reminded(line, say, FIRST_REMINDER):
        yield from items


def description(translator: Translator) -> dict[str, Any]:
    """All that determines the output, except the input."""
    config = translator.config
    decode = dataclasses.asdict(config.decode) | search_flags.given()
    return {
        **translator.engine.runner.describe(translator.device_params, decode["shortlist"]),
        "checkpoint_step": translator.checkpoint_step,
        "tokenizers": translator.tokenizers.fingerprint,
        "data": dataclasses.asdict(config.data),
        "decode": decode,
        "terms": terms.digest if (terms := read_glossary()) else "",
        **{name: FLAGS[name].value for name in OUTPUT_FLAGS},
    }
