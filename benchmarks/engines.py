"""Compares engines on a file: sentences a second and BLEU, through `Translator`.

    python benchmarks/engines.py --models=runs/m30k,exports/float32,exports/int8 \
        --input=test_2016_flickr.en --references=test_2016_flickr.fr --json=engines.json

The engines take turns. The first turn, in which programs are compiled, does not count.
"""

import json
import statistics
import time
from pathlib import Path

import jax
from absl import app, flags

from transformer_jax import Translator
from transformer_jax.evaluation.corpus_metrics import corpus_scores
from transformer_jax.runs import machine

FLAGS = flags.FLAGS
flags.DEFINE_list("models", None, "Folders of one model for each engine; ratios are to the first.")
flags.DEFINE_string("input", None, "Sentences.")
flags.DEFINE_string("references", None, "Their translations.")
flags.DEFINE_list("beam_sizes", ["4", "1"], "Beam sizes.")
flags.DEFINE_integer("turns", 3, "Turns of each engine.")
flags.DEFINE_string("json", "", "File for the results.")
flags.mark_flags_as_required(["models", "input", "references"])


def measure(translator: Translator, texts: list[str], beam_size: int) -> tuple[float, list[str]]:
    """Sentences a second, and the translations."""
    started = time.perf_counter()
    outputs = translator.translate(texts, beam_size=beam_size)
    return len(texts) / (time.perf_counter() - started), [output.text for output in outputs]


def main(_: list[str]) -> None:
    """Prints a row for each engine and beam size."""
    texts = Path(FLAGS.input).read_text(encoding="utf-8").splitlines()
    references = Path(FLAGS.references).read_text(encoding="utf-8").splitlines()
    translators = {name: Translator.load(name) for name in FLAGS.models}
    rows = []
    for beam_size in map(int, FLAGS.beam_sizes):
        speeds: dict[str, list[float]] = {name: [] for name in translators}
        bleu = {}
        for turn in range(FLAGS.turns + 1):
            for name, translator in translators.items():
                speed, outputs = measure(translator, texts, beam_size)
                if turn:
                    speeds[name].append(speed)
                bleu[name] = corpus_scores(outputs, references).bleu
        first = speeds[FLAGS.models[0]]
        for name, measured in speeds.items():
            ratios = [a / b for a, b in zip(measured, first, strict=True)]
            row = {
                "model": name,
                "beam_size": beam_size,
                "bleu": round(bleu[name], 2),
                "sentences_per_second": round(statistics.median(measured), 1),
                "ratio": round(statistics.median(ratios), 2),
            }
            rows.append(row)
            print(row, flush=True)
    if FLAGS.json:
        result = {"machine": machine.describe(jax.local_devices()), "rows": rows}
        Path(FLAGS.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
