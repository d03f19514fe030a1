"""The command `decode`: lines in, translations or scores out; an interrupted job goes on."""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tqdm
from absl import flags
from etils import epath

from transformer_jax import processes, workdir
from transformer_jax.api import Translator
from transformer_jax.config import Config, DecodeConfig
from transformer_jax.data import sources
from transformer_jax.decoding import alignment
from transformer_jax.decoding.engine import WINDOW, PairScores
from transformer_jax.decoding.job import AttentionChoice, Translation
from transformer_jax.decoding.requests import Request
from transformer_jax.errors import UserError
from transformer_jax.text_output import as_line, writing

FLAGS = flags.FLAGS
PHRASE_SEPARATOR = "\t"
DEFINERS = {
    int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string,
    bool: flags.DEFINE_bool,
}  # fmt: skip


def define_flags() -> None:
    """Flags of the command; every field of `DecodeConfig` is one."""
    for field in dataclasses.fields(DecodeConfig):
        text = f"Instead of config.decode.{field.name}."
        if field.type in DEFINERS:
            DEFINERS[field.type](field.name, None, text)
        else:
            flags.DEFINE_list(field.name, None, text)
    flags.DEFINE_string("input", "-", "Text, one sentence a line; - is standard input.")
    flags.DEFINE_string("output", "-", "Where the translations go; - is standard output.")
    flags.DEFINE_enum("format", "text", ["text", "jsonl"], "Of the output.")
    flags.DEFINE_integer(
        "n_best", 1, "Hypotheses or samples; above 1 a line of text is `line ||| text ||| score`."
    )
    flags.DEFINE_string("prefixes", "", "File: what each line's translation begins with.")
    flags.DEFINE_string(
        "phrases", "", "File: what must appear in each line's translation, separated by tabs."
    )
    flags.DEFINE_string("score", "", "File: translations of the input, to be scored instead.")
    flags.DEFINE_bool("per_token", False, "With --score: the log-probability of every piece too.")
    flags.DEFINE_bool("alignment", False, "Add word alignments, `0-0 1-2`, source first.")
    flags.DEFINE_bool("attention", False, "Add attention to the source, with --format=jsonl.")
    flags.DEFINE_integer("attention_layer", -2, "Decoder layer that is looked at; -1: the last.")
    flags.DEFINE_integer("attention_head", -1, "Its head; -1: the mean of all.")
    flags.DEFINE_list(
        "ensemble", [], "Further models, DIR or DIR@CHECKPOINT, to average probabilities with."
    )
    flags.DEFINE_string("target_lang", "", "Language to translate into, for multilingual models.")
    flags.DEFINE_string("source_lang", "", "Language of the input, for models that are told it.")


def check_flags() -> None:
    """Refuses what cannot stand together, before a model is read."""
    if "-" not in (FLAGS.input, FLAGS.output) and (
        Path(FLAGS.input).resolve() == Path(FLAGS.output).resolve()
    ):
        raise UserError(f"--input and --output are the same file, {FLAGS.input}.")
    for name in ("input", "prefixes", "phrases", "score"):
        path = FLAGS[name].value
        if path not in ("", "-") and not epath.Path(path).exists():
            raise UserError(f"There is no file {path} (--{name}).")
    if FLAGS.attention and FLAGS.format != "jsonl":
        raise UserError("--attention needs --format=jsonl; text has no place for it.")
    if FLAGS.per_token and not FLAGS.score:
        raise UserError("--per_token is for --score=FILE.")
    if FLAGS.score and (FLAGS.n_best > 1 or FLAGS.alignment or FLAGS.attention):
        raise UserError("--score translates nothing: --n_best, --alignment and --attention have "
                        "no meaning with it.")  # fmt: skip


def ensemble() -> list[tuple[str, str]]:
    """(path, checkpoint) of the further models."""
    found = []
    for name in FLAGS.ensemble:
        path, _, checkpoint = name.rpartition("@")
        found.append((path, checkpoint) if path else (name, "best"))
    return found


def decode(translator: Translator) -> None:
    """Translates or scores the input; several processes share it, and the first writes."""
    is_primary = processes.is_primary()
    output = _Output(FLAGS.output if is_primary else os.devnull, _describe(translator))
    with contextlib.ExitStack() as stack:
        processes.together(lambda: bool(stack.enter_context(output)), "output")
        output.skip, output.expected = processes.gather((output.skip, output.expected))[0]
        results = _results(translator, output.remaining(_requests()))
        hidden = not (is_primary and sys.stderr.isatty())
        bar = tqdm.tqdm(
            results, initial=output.done, total=_count_lines(hidden), unit="line", disable=hidden
        )
        for result in bar:
            output.write(_format(output.done, result))
        output.finish()
    if not is_primary:
        return
    programs = translator.engine.programs
    print(
        f"{output.done:,} lines; batch shapes: {programs.num_compiled}, "
        f"compiled anew: {programs.num_compiled - programs.num_loaded}",
        file=sys.stderr,
    )


def _results(translator: Translator, requests: Iterator[Any]) -> Iterator[Any]:
    if processes.count() > 1:
        return _shared(translator, requests)
    return _own_results(translator, requests)


def _shared(translator: Translator, requests: Iterator[Any]) -> Iterator[Any]:
    """Results of all requests, of which each process works off its share."""
    while window := list(itertools.islice(requests, WINDOW * processes.count())):
        own = iter(processes.share(window))
        yield from processes.unite(list(_own_results(translator, own)))


def _own_results(translator: Translator, requests: Iterator[Any]) -> Iterator[Any]:
    if FLAGS.score:
        return _scores(translator, requests)
    # A person at the keyboard wants each line at once.
    window = 1 if FLAGS.input == "-" and sys.stdin.isatty() else WINDOW
    return translator.translate_n_best(
        requests, FLAGS.n_best, FLAGS.target_lang, FLAGS.source_lang, _attention_choice(), window,
        **_settings(),
    )  # fmt: skip


def _scores(
    translator: Translator, pairs: Iterator[tuple[Request, str]]
) -> Iterator[tuple[str, PairScores]]:
    while window := list(itertools.islice(pairs, WINDOW)):
        sources, targets = [request.text for request, _ in window], [t for _, t in window]
        scored = translator.score_pieces(sources, targets, FLAGS.target_lang, FLAGS.source_lang)
        yield from zip(targets, scored, strict=True)


def _settings() -> dict[str, Any]:
    """What was given on the command line of `DecodeConfig`."""
    settings = {}
    for field in dataclasses.fields(DecodeConfig):
        value = FLAGS[field.name].value
        if value is None:
            continue
        if isinstance(value, list):
            try:
                value = tuple(int(x) for x in value)
            except ValueError as error:
                raise UserError(f"--{field.name} takes ids, such as 3,17.") from error
        settings[field.name] = value
    return settings


def _attention_choice() -> AttentionChoice | None:
    if not (FLAGS.alignment or FLAGS.attention):
        return None
    layer, head = FLAGS.attention_layer, FLAGS.attention_head
    return AttentionChoice(layer, None if head < 0 else head)


def _lines(path: str) -> Iterator[str]:
    if path == "-":
        return sources.decode_lines(sys.stdin.buffer, "standard input", allow_nul=True)
    return sources.read_lines(epath.Path(path), allow_nul=True)


def _requests() -> Iterator[Any]:
    """Requests of the input's lines; with --score, pairs of them and the given translations."""
    names = [name for name in ("prefixes", "phrases", "score") if FLAGS[name].value]
    columns = [_lines(FLAGS.input), *(_lines(FLAGS[name].value) for name in names)]
    for number, row in enumerate(itertools.zip_longest(*columns), start=1):
        if None in row:
            short = ["input", *names][row.index(None)]
            raise UserError(f"--{short} ends before line {number}, which other files have.")
        more = dict(zip(names, row[1:], strict=True))
        phrases = more.get("phrases", "").split(PHRASE_SEPARATOR)
        request = Request(row[0], more.get("prefixes", ""), tuple(filter(None, phrases)))
        yield (request, more["score"]) if "score" in more else request


def _count_lines(hidden: bool) -> int | None:
    if hidden or FLAGS.input == "-":
        return None
    return sum(1 for _ in _lines(FLAGS.input))


# --- What is written -------------------------------------------------------------------------


def _format(number: int, result: Any) -> str:
    if FLAGS.score:
        return _format_score(*result)
    best: Translation = result[0]
    links = None
    if FLAGS.alignment and best.attention is not None:
        words = alignment.word_attention(best.attention, best.source_pieces, best.pieces)
        links = alignment.pharaoh(alignment.links(words))
    elif FLAGS.alignment:
        links = ""
    if FLAGS.format == "jsonl":
        return json.dumps(_as_json(result, links), ensure_ascii=False) + "\n"
    ending = "" if links is None else f" ||| {links}"
    if FLAGS.n_best == 1:
        return as_line(best.text + ending)
    return "".join(
        as_line(f"{number} ||| {' '.join(one.text.splitlines())} ||| {one.score:.6f}"
                + (ending if one is best else ""))
        for one in result
    )  # fmt: skip


def _as_json(hypotheses: Sequence[Translation], links: str | None) -> dict[str, Any]:
    best = hypotheses[0]
    found = _one_as_json(best)
    if len(hypotheses) > 1:
        found["alternatives"] = [_one_as_json(one) for one in hypotheses[1:]]
    if links is not None:
        found["alignment"] = links
    if FLAGS.attention and best.attention is not None:
        found["source_tokens"] = list(best.source_pieces)
        found["attention"] = [[round(float(x), 6) for x in row] for row in best.attention]
    return found


def _one_as_json(one: Translation) -> dict[str, Any]:
    return {"text": one.text, "score": one.score, "log_prob": one.log_prob,
            "tokens": list(one.pieces)}  # fmt: skip


def _format_score(text: str, pair: PairScores) -> str:
    if FLAGS.format == "jsonl":
        found: dict[str, Any] = {"text": text, "log_prob": pair.log_prob}
        if FLAGS.per_token:
            found |= {"tokens": list(pair.pieces), "token_log_probs": list(pair.log_probs)}
        return json.dumps(found, ensure_ascii=False) + "\n"
    pieces = zip(pair.pieces, pair.log_probs, strict=True)
    more = "".join(f"\t{piece} {x:.6f}" for piece, x in pieces) if FLAGS.per_token else ""
    return as_line(f"{pair.log_prob:.6f}{more}")


# --- Going on after an interruption ----------------------------------------------------------


def _describe(translator: Translator) -> dict[str, Any]:
    """All that decides what comes out."""
    config: Config = translator.config
    names = ("workdir", "format", "n_best", "target_lang", "source_lang", "score", "per_token",
             "alignment", "attention", "attention_layer", "attention_head", "ensemble")  # fmt: skip
    return {
        "decode": dataclasses.asdict(config.decode) | _settings(),
        "checkpoint_step": translator.checkpoint_step,
        **{name: FLAGS[name].value for name in names},
    }


class _Output:
    """Where results go. Beside a local file, a record says how far it has come.

    The record is there while the job is not finished; the same command then goes on behind it.
    """

    SAVE_EVERY_SECONDS = 1.0

    def __init__(self, name: str, description: dict[str, Any]):
        self._name = name
        path = epath.Path(name)
        self._record = path.parent / f"{path.name}.unfinished"
        # Standard output, a device or pipe, and remote files cannot be gone on with.
        self._resumable = name != "-" and "://" not in name and (
            not path.exists() or Path(name).is_file()
        )  # fmt: skip
        self._description = json.loads(json.dumps(description))
        self._digest = hashlib.sha256()  # of the requests that are done
        self._pending: collections.deque[Any] = collections.deque()
        self._saved = time.monotonic()
        self._written = 0  # bytes
        self.done = 0

    def __enter__(self) -> "_Output":
        record = self._read_record() if self._resumable else None
        self.skip = record["lines"] if record else 0
        self.expected = record["input"] if record else ""
        self._files = contextlib.ExitStack()
        if record:
            self._out = self._files.enter_context(open(self._name, "r+", encoding="utf-8"))
            self._written = record["bytes"]
            self._out.seek(self._written)
            self._out.truncate()
        else:
            self._out = self._files.enter_context(writing(self._name))
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._resumable and exception[0] is not None and self.done > self.skip:
            self._save()
        self._files.close()

    def remaining(self, requests: Iterator[Any]) -> Iterator[Any]:
        """Requests that are not done yet.

        Raises:
          UserError: where those that are done are not these.
        """
        for request in itertools.islice(requests, self.skip):
            self._digest.update(repr(request).encode())
            self.done += 1
        if self.done < self.skip or (self.skip and self._digest.hexdigest() != self.expected):
            raise UserError(
                f"{self._record} belongs to a job whose first {self.skip} lines of input were "
                f"others; delete it to begin {self._name} anew."
            )
        if self.skip and processes.is_primary():
            print(f"going on with {self._name} behind line {self.skip:,}", file=sys.stderr)
        return self._noting(requests)

    def _noting(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            self._pending.append(request)
            yield request

    def write(self, text: str) -> None:
        """Writes what belongs to the next request."""
        self._out.write(text)
        self._out.flush()
        self._written += len(text.encode("utf-8"))
        self._digest.update(repr(self._pending.popleft()).encode())
        self.done += 1
        if self._resumable and time.monotonic() - self._saved > self.SAVE_EVERY_SECONDS:
            self._save()

    def finish(self) -> None:
        """All is done."""
        if self._resumable:
            self._record.unlink(missing_ok=True)

    def _save(self) -> None:
        record = {"lines": self.done, "bytes": self._written, "input": self._digest.hexdigest(),
                  "settings": self._description}  # fmt: skip
        workdir.write_atomically(self._record, json.dumps(record) + "\n")
        self._saved = time.monotonic()

    def _read_record(self) -> dict[str, Any] | None:
        if not self._record.exists():
            return None
        try:
            record = json.loads(self._record.read_text())
            old = record["settings"]
            size = Path(self._name).stat().st_size
            differs = [name for name in {**old, **self._description}
                       if old.get(name) != self._description.get(name)]  # fmt: skip
            if size < record["bytes"]:
                raise ValueError("the output is shorter than it says")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(
                f"{self._record} cannot be used ({error}); delete it to begin {self._name} anew."
            ) from error
        if differs:
            raise UserError(
                f"{self._name} holds part of a job with other settings ({', '.join(differs)}); "
                f"use the same ones to go on, or delete {self._record} to begin anew."
            )
        return record
