"""Alignment error rate of a model's attention, on sentences of Multi30k that were aligned by hand.

    python benchmarks/text_alignment.py --workdirs=runs/m30k,runs/guided \
        --checkpoint=average:10 --data=multi30k --json=text_alignment.json

`alignment_gold.txt` has every tenth sentence of test_2016_flickr, English and German, aligned by
hand. A line has the number of the sentence (from 0), and for each German word the numbers of the
English words that it translates, with commas; `-` is none, and a number with `?` is possible, not
sure. `translator.words` divides the texts into words.

The error rate (Och and Ney, 2003) is 1 - (|A & S| + |A & P|) / (|A| + |S|): A are the links of the
model, S the sure ones, P the sure and the possible ones. A word of a translation is linked to the
source word that it attends to most.
"""

import importlib.util
import tempfile
from collections.abc import Iterable
from pathlib import Path

import jax
import text_sets
import timing
from absl import app, flags

from transformer_jax import Translator
from transformer_jax.data.token_links import symmetrize
from transformer_jax.extras.documents import attention_choice
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.words import words_of
from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
flags.DEFINE_list("workdirs", None, "Of models, English to German.")
flags.DEFINE_string("checkpoint", "best", "Of the runs.")
flags.DEFINE_string("data", "multi30k", "Folder of Multi30k.")
flags.DEFINE_string("json", "", "File for the results.")
flags.mark_flag_as_required("workdirs")
GOLD = Path(__file__).parent / "alignment_gold.txt"

Links = set[tuple[int, int]]  # (source word, word)


def read_gold() -> dict[int, tuple[Links, Links]]:
    """Number of a sentence -> its sure links, and those that are possible."""
    gold = {}
    for line in GOLD.read_text().splitlines():
        number, *columns = line.split()
        links = [
            (int(source.rstrip("?")), word, source.endswith("?"))
            for word, column in enumerate(columns)
            for source in column.split(",")
            if source != "-"
        ]
        sure = {(source, word) for source, word, is_possible in links if not is_possible}
        gold[int(number)] = (sure, {(source, word) for source, word, _ in links})
    return gold


class ErrorRate:
    """Counts links."""

    def __init__(self) -> None:
        self._right = self._total = 0

    def add(self, links: Links, sure: Links, possible: Links) -> None:
        """Adds the links of a sentence."""
        self._right += len(links & sure) + len(links & possible)
        self._total += len(links) + len(sure)

    @property
    def percent(self) -> float:
        """The error rate."""
        return round(100 * (1 - self._right / self._total), 1)


def by_choice(model: Translator, pairs: list[text_sets.Pair]) -> dict[AttentionChoice, float]:
    """The error rate of each layer, head and step."""
    rates: dict[AttentionChoice, ErrorRate] = {}
    for number, (sure, possible) in read_gold().items():
        source, target = pairs[number]
        for choice, weights in attention_choice.word_attention(model, source, target):
            links = {(int(s), word) for word, s in enumerate(weights.argmax(axis=1))}
            rates.setdefault(choice, ErrorRate()).add(links, sure, possible)
    return {choice: rate.percent for choice, rate in rates.items()}


def of_aligner(pairs: list[text_sets.Pair]) -> dict[str, float]:
    """The error rate of eflomal's words, fitted to the training data and these sentences."""
    import eflomal

    every = [*text_sets.read_pairs(f"{FLAGS.data}/train"), *pairs]
    sides = [[" ".join(words_of(pair[side])) for pair in every] for side in (0, 1)]
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / name) for name in ("forward", "reverse")]
        eflomal.Aligner().align(*sides, *names)
        lines = [Path(name).read_text().splitlines()[-len(pairs) :] for name in names]
    directions = [[_links(line.split()) for line in one] for one in lines]
    rate = ErrorRate()
    for number, (sure, possible) in read_gold().items():
        links = symmetrize(directions[0][number], directions[1][number])
        rate.add(links, sure, possible)
    return {"eflomal, grow-diag-final-and": rate.percent}


def _links(columns: Iterable[str]) -> Links:
    return {(int(s), int(t)) for s, t in (one.split("-") for one in columns)}


def main(_: list[str]) -> None:
    """Prints the error rates."""
    pairs = text_sets.read_pairs(f"{FLAGS.data}/test_2016_flickr")
    validation = text_sets.read_pairs(f"{FLAGS.data}/val")
    result: dict[str, dict[str, object]] = {}
    for workdir in FLAGS.workdirs:
        model = Translator.load(workdir, FLAGS.checkpoint)
        depth = model.config.model.num_decoder_layers
        rates = by_choice(model, pairs)
        usual = AttentionChoice(max(depth - 2, 0))
        best = min(rates, key=lambda choice: rates[choice])
        chosen = attention_choice.choose(model, validation)
        rows = {"layer -2, mean of its heads": rates[usual]}
        guided = model.engine.runner.alignment
        if guided and guided.shift:
            rows["head that was guided"] = rates[guided]
        if chosen:
            rows[f"found by calibration: {chosen[0]}"] = rates[chosen[0]]
        rows[f"the best of all: {best}"] = rates[best]
        result[workdir] = dict(rows)
        print(workdir, *(f"  {name}: {rate}%" for name, rate in rows.items()), sep="\n")
    if importlib.util.find_spec("eflomal"):
        result["aligner"] = dict(of_aligner(pairs))
        print(result["aligner"])
    timing.write_json(FLAGS.json, {"machine": machine.describe(jax.local_devices()), **result})


if __name__ == "__main__":
    app.run(main)
