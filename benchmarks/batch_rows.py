"""Sentences a second of an engine by the rows of its batches: what a server can win by batches.

    python benchmarks/batch_rows.py --model=exports/int8 --text=test.en

Two threads compute batches, as in the server, without HTTP and without waiting. Batches have
sentences of similar length: each is a part of the next 64, sorted by length.
"""

import concurrent.futures
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from transformer_jax import Translator
from transformer_jax.errors import UserError
from transformer_jax.translator import batching
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.requests import EncodedText, Request
from transformer_jax.translator.scheduler import NUM_WORKERS

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Of any engine.", required=True)
flags.DEFINE_string("text", None, "Sentences.", required=True)
flags.DEFINE_integer("count", 1024, "Sentences to translate, of the first of --text.")
flags.DEFINE_list("rows", ["1", "4", "16", "64"], "Rows of a batch.")
flags.DEFINE_integer("turns", 3, "Turns of each number of rows.")
SORTED = 64


def form_batches(texts: Sequence[EncodedText], rows: int, max_len: int) -> list[tuple[Any, Any]]:
    """Batches of `rows`, with their texts."""
    by_length: list[EncodedText] = []
    for start in range(0, len(texts), SORTED):
        by_length += sorted(texts[start : start + SORTED], key=lambda one: len(one.source))
    batches = []
    for start in range(0, len(by_length), rows):
        group = by_length[start : start + rows]
        longest = max(len(one.source) for one in group)
        length = batching.padded_length(longest, max_len)
        batches.append((Batch(list(range(len(group))), rows, length), group))
    return batches


def rate(translate: Callable[..., Any], batches: Sequence[tuple[Any, Any]]) -> float:
    """Sentences a second."""
    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(NUM_WORKERS) as pool:
        results = list(pool.map(translate, *zip(*batches, strict=True)))
    return sum(map(len, results)) / (time.perf_counter() - started)


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    lines = Path(FLAGS.text).read_text().splitlines()[: FLAGS.count]
    translator = Translator.load(FLAGS.model)
    engine, settings = translator.engine, translator.settings()
    texts: list[EncodedText] = []
    for parts in engine.encoder().encode([Request(line) for line in lines], settings):
        if isinstance(parts, UserError):
            raise parts
        texts += parts
    translate = engine.runner.translate_batch(translator.params, settings)
    by_rows = {int(n): form_batches(texts, int(n), engine.max_len) for n in FLAGS.rows}
    rates: dict[int, list[float]] = {rows: [] for rows in by_rows}
    for turn in range(1 + FLAGS.turns):
        for rows, batches in by_rows.items():
            value = rate(translate, batches)
            if turn:  # in the first, programs are compiled
                rates[rows].append(value)
    for rows, values in rates.items():
        print(f"{FLAGS.model}: {rows} rows, {statistics.median(values):.0f} sentences/s")


if __name__ == "__main__":
    app.run(main)
