"""What continuous batching could bring: the share of a batch's steps that its rows need.

    python benchmarks/serve_slots.py --model=runs/m30k --text=test.en

A row of a batch is finished before the batch is. Slots that are refilled at once would compute no
step for a finished row or for padding, so the inverse of the share bounds what they bring, before
the cost of filling them. Batches are those that the scheduler forms while `--waiting` texts wait.
Steps are counted, so other programs on the machine change nothing.
"""

import concurrent.futures
import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from transformer_jax import Request, Translator
from transformer_jax.translator import batching
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.text_queue import Entry, Lane, TextQueue


@dataclasses.dataclass(frozen=True)
class Share:
    """Row-steps of batches."""

    batches: int
    rows: float  # mean of a batch, padding included
    needed: int  # row-steps before each row is finished
    computed: int
    shrunk: int  # row-steps of batches that continue with fewer rows where these suffice

    @property
    def bound(self) -> float:
        """How many times faster slots could be, if filling them took no time."""
        return self.computed / self.needed


def form_batches(
    lengths: Sequence[int], options: Any, num_waiting: int, max_len: int
) -> Iterator[tuple[int, list[int]]]:
    """(rows, indices of texts) of the scheduler's batches while `num_waiting` texts wait.

    Args:
      lengths: tokens of each text, in the order in which they come.
      options: numbers of rows, by padded length.
      num_waiting: texts, as long as there are more to come.
      max_len: longest padded length.
    """
    lane: Lane[int, int] = Lane("", options, lambda batch, items: items)
    queue, coming = TextQueue(), iter(enumerate(lengths))
    while True:
        while len(queue) < num_waiting and (one := next(coming, None)) is not None:
            index, length = one
            future: concurrent.futures.Future[int] = concurrent.futures.Future()
            padded = batching.padded_length(length, max_len)
            queue.add(Entry(None, future, 0.0, 0.0, lane=lane, item=index, length=padded))
        entries = queue.take(0.0)
        if not entries:
            return
        length = max(entry.length for entry in entries)
        rows = next(n for n in options(length) if n >= len(entries))
        yield rows, [entry.item for entry in entries]


def share(
    steps: Sequence[int], batches: Sequence[tuple[int, list[int]]], options: Sequence[int]
) -> Share:
    """Row-steps of batches.

    Args:
      steps: of each text alone.
      batches: rows, and indices of texts.
      options: numbers of rows to which a batch may shrink, rising.
    """
    needed = computed = shrunk = 0
    for rows, indices in batches:
        ends = sorted(steps[i] for i in indices)
        needed += sum(ends)
        computed += rows * ends[-1]
        for step in range(ends[-1]):
            unfinished = sum(end > step for end in ends)
            shrunk += min([rows, *(n for n in options if n >= unfinished)])
    mean_rows = sum(rows for rows, _ in batches) / len(batches)
    return Share(len(batches), mean_rows, needed, computed, shrunk)


def count_steps(translator: Translator, texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Source tokens of each text, and steps of its search alone."""
    engine, settings = translator.engine, translator.settings()
    runner: Any = engine.runner
    steps: list[int] = []
    run = runner.programs.run

    def counting(*arguments: Any, **static: Any) -> Any:
        result = run(*arguments, **static)
        steps.append(int(result.steps[0]))
        return result

    runner.programs.run = counting
    translate = runner.translate_batch(translator.params, settings)
    encoded = engine.encoder().encode([Request(text) for text in texts], settings)
    lengths = []
    for parts in encoded:
        part = parts[0]  # type: ignore[index]  # it has no prefix or phrases that could be wrong
        lengths.append(len(part.source))
        translate(Batch([0], 1, batching.padded_length(len(part.source), engine.max_len)), [part])
    return lengths, steps


def join(texts: Sequence[str], seed: int = 0) -> list[str]:
    """Texts of one to three sentences."""
    draw, left, joined = random.Random(seed), list(texts), []
    while left:
        count = draw.randint(1, 3)
        joined.append(" ".join(left[:count]))
        left = left[count:]
    return joined


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    texts = Path(options.text).read_text().splitlines()
    random.Random(0).shuffle(texts)
    translator = Translator.load(options.model)
    runner: Any = translator.engine.runner
    settings = translator.settings()
    result = {}
    for name, some in (("sentences", texts), ("one to three sentences", join(texts))):
        lengths, steps = count_steps(translator, some[: options.num_texts])
        for waiting in map(int, options.waiting):
            batches = form_batches(
                lengths,
                lambda length: runner.row_options(settings, length),
                waiting,
                translator.engine.max_len,
            )
            shares = share(steps, list(batches), batching.row_options(64))
            result[f"{name}, {waiting} wait"] = dataclasses.asdict(shares) | {"bound": shares.bound}
            print(
                f"{name}, {waiting} wait: {shares.rows:.1f} rows a batch, "
                f"{shares.needed / shares.computed:.0%} of the row-steps are needed, "
                f"bound {shares.bound:.2f}, {shares.computed / shares.shrunk:.2f} by shrinking",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    flags.DEFINE_string("model", None, "A work directory.", required=True)
    flags.DEFINE_string("text", None, "Text, a sentence a line.", required=True)
    flags.DEFINE_integer("num_texts", 400, "Texts that are translated.")
    flags.DEFINE_list("waiting", ["4", "16", "32", "128"], "Numbers of texts that wait.")
    flags.DEFINE_string("json", "", "Also write the result to this file.")
    app.run(main)
