"""The command `decode`: lines in, translations or scores out; an interrupted job goes on."""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tqdm
from absl import flags
from etils import epath

from transformer_jax import distributed
from transformer_jax.api import Translator
from transformer_jax.commands import model_flags, process_flags
from transformer_jax.commands.decode_input import Lines, count_lines, is_stream
from transformer_jax.commands.decode_output import ResumableOutput
from transformer_jax.commands.text_output import as_line, check_not_overwritten
from transformer_jax.config import Config, DecodeConfig
from transformer_jax.decoding import alignment
from transformer_jax.decoding.engine import ON_ERROR, WINDOW, PairScores
from transformer_jax.decoding.job import AttentionChoice, Translation
from transformer_jax.decoding.programs import matmul_precision
from transformer_jax.decoding.requests import Request, windows
from transformer_jax.errors import UserError
from transformer_jax.runs import digests

FLAGS = flags.FLAGS
LESS_MEMORY = "lower --batch_tokens, --beam_size or --mbr_samples"
PHRASE_SEPARATOR = "\t"
INPUTS = ("input", "prefixes", "phrases", "score")  # flags that name files of lines
DEFINERS = {
    int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string,
    bool: flags.DEFINE_bool,
}  # fmt: skip


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; every field of `DecodeConfig` is one. Returns `argv`."""
    model_flags.define(argv)
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
    flags.DEFINE_bool("per_token", False, "With --score: the log-probability of every token too.")
    flags.DEFINE_bool("alignment", False, "Add word alignments, `0-0 1-2`, source first.")
    flags.DEFINE_bool("attention", False, "Add attention to the source, with --format=jsonl.")
    flags.DEFINE_integer("attention_layer", -2, "Decoder layer that is looked at; -1: the last.")
    flags.DEFINE_integer("attention_head", -1, "Its head; -1: the mean of all.")
    flags.DEFINE_integer(
        "window", WINDOW, "Lines read ahead and sorted by length. A pipe or terminal that has no "
        "more lines at the moment gets its answers without waiting for a full window.", 1,
    )  # fmt: skip
    flags.DEFINE_enum(
        "on_error", "raise", ON_ERROR,
        "skip: a line whose phrases or prefix do not fit gives an empty translation.",
    )  # fmt: skip
    flags.DEFINE_list(
        "ensemble", [], "Further models, DIR or DIR@CHECKPOINT, to average probabilities with."
    )
    flags.DEFINE_string("target_lang", "", "Language to translate into, for multilingual models.")
    flags.DEFINE_string("source_lang", "", "Language of the input, for models that are told it.")
    process_flags.define()
    return argv


def check_flags() -> None:
    """Refuses what cannot stand together, before a model is read."""
    check_not_overwritten(FLAGS.output, {f"--{name}": FLAGS[name].value for name in INPUTS})
    streams = [f"--{name}" for name in INPUTS if FLAGS[name].value == "-"]
    if len(streams) > 1:
        raise UserError(f"{' and '.join(streams)} are both standard input; name files.")
    for name in INPUTS:
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


def run() -> None:
    """Translates or scores the input; several processes share it, and the first writes."""
    check_flags()
    process_flags.connect(saves=False)
    if distributed.process_count() > 1 and (FLAGS.input == "-" or is_stream(FLAGS.input)):
        raise UserError("Several processes need --input=FILE; a stream is read by one process.")
    translator = model_flags.load_translator(ensemble())
    is_primary = distributed.is_primary()
    name = FLAGS.output if is_primary else os.devnull
    output = ResumableOutput(name, functools.partial(_describe, translator))
    names = [name for name in INPUTS if FLAGS[name].value]
    columns = {name: Lines(FLAGS[name].value, FLAGS.window) for name in names}

    def ready() -> bool:
        return all(lines.ready() for lines in columns.values())

    with contextlib.ExitStack() as stack:
        distributed.run_on_all(lambda: bool(stack.enter_context(output)), "output")
        output.skip, output.expected = distributed.all_gather((output.skip, output.expected))[0]
        results = _results(translator, output.remaining(_requests(columns)), ready)
        hidden = not (is_primary and sys.stderr.isatty())
        bar = tqdm.tqdm(
            results, initial=output.done, unit="line", disable=hidden,
            total=None if hidden else count_lines(FLAGS.input),
        )  # fmt: skip
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


def _results(
    translator: Translator, requests: Iterator[Any], ready: Callable[[], bool]
) -> Iterator[Any]:
    if distributed.process_count() > 1:
        return _shared(translator, requests)
    return _own_results(translator, requests, ready)


def _shared(translator: Translator, requests: Iterator[Any]) -> Iterator[Any]:
    """Results of all requests, of which each process works off its share."""
    for window in windows(requests, FLAGS.window * distributed.process_count()):
        own = iter(distributed.local_share(window))
        yield from distributed.gather_shares(list(_own_results(translator, own)))


def _own_results(
    translator: Translator, requests: Iterator[Any], ready: Callable[[], bool] | None = None
) -> Iterator[Any]:
    if FLAGS.score:
        return _scores(translator, requests, ready)
    return translator.translate_n_best(
        requests, FLAGS.n_best, FLAGS.target_lang, FLAGS.source_lang, _attention_choice(),
        FLAGS.window, FLAGS.on_error, ready, **_settings(),
    )  # fmt: skip


def _scores(
    translator: Translator, pairs: Iterator[tuple[Request, str]], ready: Callable[[], bool] | None
) -> Iterator[tuple[str, PairScores]]:
    for window in windows(pairs, FLAGS.window, ready):
        sources, targets = [request.text for request, _ in window], [t for _, t in window]
        scored = translator.score_tokens(sources, targets, FLAGS.target_lang, FLAGS.source_lang)
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


def _requests(columns: dict[str, Lines]) -> Iterator[Any]:
    """Requests of the input's lines; with --score, pairs of them and the given translations."""
    for number, values in enumerate(itertools.zip_longest(*columns.values()), start=1):
        row = dict(zip(columns, values, strict=True))
        short = next((name for name, value in row.items() if value is None), None)
        if short:
            raise UserError(f"--{short} ends before line {number}, which other files have.")
        phrases = row.get("phrases", "").split(PHRASE_SEPARATOR)
        request = Request(
            row["input"], row.get("prefixes", ""), tuple(filter(None, phrases)), number
        )
        yield (request, row["score"]) if "score" in row else request


def _describe(translator: Translator) -> dict[str, Any]:
    """All that decides the output, except the input."""
    config: Config = translator.config
    names = ("checkpoint", "ensemble", "format", "n_best", "target_lang", "source_lang", "score",
             "per_token", "alignment", "attention", "attention_layer", "attention_head",
             "on_error")  # fmt: skip
    return {
        "parameters": digests.of_arrays(translator.params),  # of every model of an ensemble
        "checkpoint_step": translator.checkpoint_step,
        "tokenizers": translator.tokenizers.fingerprint,
        "matmul_precision": str(matmul_precision()),
        "models": {str(i): dataclasses.asdict(m) for i, m in enumerate(translator.engine.models)},
        "data": dataclasses.asdict(config.data),
        "decode": dataclasses.asdict(config.decode) | _settings(),
        **{name: FLAGS[name].value for name in names},
    }


# --- What is written -------------------------------------------------------------------------


def _format(number: int, result: Any) -> str:
    if FLAGS.score:
        return _format_score(*result)
    best: Translation = result[0]
    if best.error and distributed.is_primary():
        print(f"line {number + 1}: {best.error}", file=sys.stderr)
    links = None
    if FLAGS.alignment and best.attention is not None:
        words = alignment.word_attention(best.attention, best.source_tokens, best.tokens)
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
    if best.error:
        return {"text": "", "error": best.error}
    found = best.as_json()
    if len(hypotheses) > 1:
        found["alternatives"] = [one.as_json() for one in hypotheses[1:]]
    if links is not None:
        found["alignment"] = links
    if FLAGS.attention and best.attention is not None:
        found["source_tokens"] = list(best.source_tokens)
        found |= _attention_as_json(best.attention)
    return found


def _attention_as_json(attention: Any) -> dict[str, Any]:
    """Rows of attention; of a text in parts, the weights of each row's part and where it starts."""
    if isinstance(attention, np.ndarray):
        return {"attention": np.round(attention.astype(float), 6).tolist()}
    begins = attention.indptr[:-1]
    if not len(begins):
        return {"attention": [], "attention_starts": []}
    rows = np.split(np.round(attention.data.astype(float), 6), begins[1:])
    return {"attention": [row.tolist() for row in rows],
            "attention_starts": attention.indices[begins].tolist()}  # fmt: skip


def _format_score(text: str, pair: PairScores) -> str:
    if FLAGS.format == "jsonl":
        found: dict[str, Any] = {"text": text, "log_prob": pair.log_prob}
        if FLAGS.per_token:
            found |= {"tokens": list(pair.tokens), "token_log_probs": list(pair.log_probs)}
        return json.dumps(found, ensure_ascii=False) + "\n"
    tokens = zip(pair.tokens, pair.log_probs, strict=True)
    more = "".join(f"\t{token} {x:.6f}" for token, x in tokens) if FLAGS.per_token else ""
    return as_line(f"{pair.log_prob:.6f}{more}")
