"""Compares engines, or a student with its teachers, on a file: sentences a second and BLEU.

    python benchmarks/engines.py --models=runs/m30k,exports/float32,exports/int8 \
        --input=test_2016_flickr.en --references=test_2016_flickr.fr --json=engines.json

All models and beam sizes take turns. The first turn, in which programs are compiled, does not
count.
"""

import json
import statistics
import time
from pathlib import Path

import jax
from absl import app, flags

from transformer_jax import Translator
from transformer_jax.commands import model_flags
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.evaluation.corpus_metrics import corpus_scores
from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "models",
    None,
    "Folders, DIR or DIR@CHECKPOINT; DIR+DIR is an ensemble. Ratios are to the first.",
)
flags.DEFINE_string("input", None, "Sentences.")
flags.DEFINE_string("references", None, "Their translations.")
flags.DEFINE_list("beam_sizes", ["4", "1"], "Beam sizes.")
flags.DEFINE_integer("turns", 3, "Turns of each engine.")
flags.DEFINE_string("json", "", "File for the results.")
flags.mark_flags_as_required(["models", "input", "references"])


def load(name: str) -> Translator:
    """A model of `--models`."""
    first, *others = model_flags.models(name.split("+"))
    return Translator.load(*first, ensemble=others)


def measure(translator: Translator, texts: list[str], beam_size: int) -> tuple[float, list[str]]:
    """Sentences a second, and the translations."""
    started = time.perf_counter()
    outputs = translator.translate(texts, beam_size=beam_size)
    return len(texts) / (time.perf_counter() - started), [output.text for output in outputs]


def main(_: list[str]) -> None:
    """Prints a row for each engine and beam size."""
    texts = Path(FLAGS.input).read_text(encoding="utf-8").splitlines()
    references = Path(FLAGS.references).read_text(encoding="utf-8").splitlines()
    loaded = [load(name) for name in FLAGS.models]
    translators = dict(zip(FLAGS.models, loaded, strict=True))
    tokenizer = bleu_tokenizers.for_data(loaded[0].config.data)
    beam_sizes = [int(size) for size in FLAGS.beam_sizes]
    cases = [(name, size) for size in beam_sizes for name in translators]
    speeds: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    bleu = {}
    for turn in range(FLAGS.turns + 1):
        for name, size in cases:
            speed, outputs = measure(translators[name], texts, size)
            if turn:
                speeds[name, size].append(speed)
            bleu[name, size] = corpus_scores(outputs, references, tokenizer).bleu

    def ratio(case: tuple[str, int], other: tuple[str, int]) -> float:
        by_turn = zip(speeds[case], speeds[other], strict=True)
        return round(statistics.median(a / b for a, b in by_turn), 2)

    rows = []
    for name, size in cases:
        row = {
            "model": name,
            "beam_size": size,
            "bleu": round(bleu[name, size], 2),
            "sentences_per_second": round(statistics.median(speeds[name, size]), 1),
            "ratio": ratio((name, size), (FLAGS.models[0], size)),
            "ratio_to_first_beam_size": ratio((name, size), cases[0]),
        }
        rows.append(row)
        print(row, flush=True)
    if FLAGS.json:
        result = {"machine": machine.describe(jax.local_devices()), "rows": rows}
        Path(FLAGS.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
