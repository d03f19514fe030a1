"""Broken translations of damaged checkpoints, and whether the guards catch them.

    python benchmarks/text_guards.py --workdir=runs/m30k --checkpoint=average:10 \
        --data=multi30k --copier=runs/copier --json=text_guards.json

`--copier` is a work directory for a model that has learned to copy its source: the given model,
trained on for a few hundred steps with sources as targets. It is trained where it is missing.

Whether an output is broken is decided by other means than those of the guards: loops are texts that
zlib makes less than half as long and that have little in common with their reference, copies are
like their source by chrF, and empty ones have no letters. Good translations are those of the intact
model on two test sets, without those that are broken by the same rules.
"""

import collections
import dataclasses
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import sacrebleu
import text_sets
import timing
from absl import app, flags

from transformer_jax import Translator
from transformer_jax.extras.documents import document_translation
from transformer_jax.extras.documents.guards import Guards
from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", None, "Of the model, English to German.")
flags.DEFINE_string("checkpoint", "best", "Of the run.")
flags.DEFINE_string("data", "multi30k", "Folder of Multi30k.")
flags.DEFINE_string("copier", "runs/copier", "Work directory of the model that copies.")
flags.DEFINE_integer("copier_steps", 600, "Steps that it is trained for.")
flags.DEFINE_integer("count", 500, "Broken translations.")
flags.DEFINE_string("json", "", "File for the results.")
flags.mark_flag_as_required("workdir")
TESTS = ("test_2016_flickr", "test_2017_flickr")
LOOP, COPY, EMPTY = "loops", "copies", "empty"
_CHRF = sacrebleu.CHRF()

Params = dict[str, Any]


def kind_of(source: str, output: str, reference: str) -> str:
    """What is wrong with an output; "" where nothing is."""
    if not any(map(str.isalpha, output)):
        return EMPTY
    if (
        _CHRF.sentence_score(output, [source]).score
        > 80
        > _CHRF.sentence_score(reference, [source]).score
    ):
        return COPY
    data = output.encode()
    if len(data) > 2 * len(zlib.compress(data, 9)) and (
        _CHRF.sentence_score(output, [reference]).score < 30
    ):
        return LOOP
    return ""


def damaged(params: Params, eos_id: int, first_id: int) -> Iterator[tuple[str, Params]]:
    """Checkpoints with a defect, each with a name.

    Args:
      params: of the intact model.
      eos_id: its end symbol.
      first_id: the token that most translations begin with.
    """
    rng = np.random.default_rng(0)

    def change(names: str, function: Callable[[np.ndarray], np.ndarray]) -> Params:
        def leaf(path: Any, value: Any) -> Any:
            name = jax.tree_util.keystr(path)
            return function(np.asarray(value)) if names in name else value

        return jax.tree_util.tree_map_with_path(leaf, params)

    def of_end(factor: float) -> Callable[[np.ndarray], np.ndarray]:
        def function(table: np.ndarray) -> np.ndarray:
            table = table.copy()
            table[eos_id] *= factor
            return table

        return function

    def without(share: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: x * (rng.random(x.shape) > share)

    def with_noise(scale: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: x + scale * x.std() * rng.normal(size=x.shape)

    for share in (0.5, 0.7, 0.9):
        name = f"{share:.0%} of the cross-attention zero"
        yield name, change("cross_attention", without(share))
    for scale in (0.3, 0.5):
        name = f"noise of {scale} on the decoder"
        yield name, change("decoder_layers", with_noise(scale))
    for factor in (-1.0, 0.0):
        yield f"end symbol times {factor}", change("embedding", of_end(factor))

    def ends_at_once(table: np.ndarray) -> np.ndarray:
        table = table.copy()
        table[eos_id] = 1.5 * table[first_id]
        return table

    yield "end symbol like the first token", change("embedding", ends_at_once)
    yield "encoder of another seed", change("encoder_layers_0", lambda x: rng.permutation(x))


def out_of_domain(count: int) -> list[str]:
    """Texts that a model of captions has never seen."""
    rng = random.Random(3)
    words = ["the", "of", "to", "and", "in", "is", "it", "for", "was", "on", "as", "his", "at"]
    texts = []
    for _ in range(count):
        size = rng.randint(4, 30)
        texts.append(
            rng.choice(
                [
                    " ".join(rng.choices(words, k=size)),
                    " ".join([rng.choice(words)] * size),
                    "".join(rng.choices("abcdefghij klmnop qrstuvw xyz", k=4 * size)),
                    "".join(chr(rng.randrange(0x4E00, 0x5000)) for _ in range(size)),
                    " ".join(f"{rng.randrange(10**6)}" for _ in range(size)),
                    "Процесс завершён с ошибкой номер " * rng.randint(1, 3),
                    f"def f{size}(x): return [y for y in x if y % {size} == 0]",
                ]
            )
        )
    return texts


def copier(model: Translator, pairs: Sequence[text_sets.Pair]) -> Translator:
    """The model that copies, trained if it is not there."""
    from transformer_jax.training.loop import train

    workdir = Path(FLAGS.copier)
    folder = workdir.parent / f"{workdir.name}_data"
    folder.mkdir(parents=True, exist_ok=True)
    for name, some in (("train", pairs), ("val", pairs[:100])):
        for language in ("en", "de"):
            text = "".join(f"{source}\n" for source, _ in some)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    config = model.config
    train(
        dataclasses.replace(
            config,
            data=dataclasses.replace(
                config.data,
                train=str(folder / "train"),
                validation=str(folder / "val"),
                test=str(folder / "val"),
            ),
            train=dataclasses.replace(
                config.train,
                init_from=FLAGS.workdir,
                num_steps=FLAGS.copier_steps,
                eval_every_steps=0,
                checkpoint_every_steps=200,
            ),
            optimizer=dataclasses.replace(config.optimizer, warmup_steps=100, learning_rate=0.5),
        ),
        workdir,
    )
    return Translator.load(workdir, "latest")


def broken_outputs(model: Translator) -> list[tuple[str, str, str]]:
    """(kind, source, output) of as many broken outputs as asked for, kinds in equal parts."""
    pairs = text_sets.read_pairs(f"{FLAGS.data}/{TESTS[0]}")[:300]
    sources = [source for source, _ in pairs]
    broken: dict[str, list[tuple[str, str, str]]] = collections.defaultdict(list)

    def add(translator: Translator, name: str, texts: list[str], references: list[str]) -> None:
        outputs = [one.text for one in translator.translate(texts, beam_size=1)]
        counts: collections.Counter[str] = collections.Counter()
        for source, output, reference in zip(texts, outputs, references, strict=True):
            kind = kind_of(source, output, reference)
            counts[kind] += 1
            if kind:
                broken[kind].append((kind, source, output))
        print(f"{name}: {dict(counts)}", flush=True)

    references = [reference for _, reference in pairs]
    target = model.tokenizers.target
    firsts = collections.Counter(target.encode(reference)[0] for reference in references)
    ((first_id, _),) = firsts.most_common(1)
    for name, params in damaged(model.params, target.eos_id, first_id):
        add(Translator(model.config, model.tokenizers, params), name, sources, references)
    strange = out_of_domain(400)
    add(model, "intact, out of domain", strange, ["-"] * len(strange))
    add(copier(model, text_sets.read_pairs(f"{FLAGS.data}/train")), "copier", sources, references)
    rng = random.Random(4)
    share = -(-FLAGS.count // len(broken))
    chosen = [one for some in broken.values() for one in rng.sample(some, min(share, len(some)))]
    return chosen[: FLAGS.count]


def main(_: list[str]) -> None:
    """Prints how many broken outputs are caught, and how many good ones are flagged."""
    model = Translator.load(FLAGS.workdir, FLAGS.checkpoint)
    guards = Guards("en", "de")
    broken = broken_outputs(model)
    by_kind: dict[str, list[bool]] = collections.defaultdict(list)
    for kind, source, output in broken:
        flags_found = guards.problems(source, output)
        by_kind[kind].append(bool(flags_found))
        if not flags_found:
            print(f"missed, {kind}: {source!r} -> {output!r}")
    num_good = 0
    flagged: collections.Counter[str] = collections.Counter()
    num_flagged = 0
    for name in TESTS:
        pairs = text_sets.read_pairs(f"{FLAGS.data}/{name}")
        translations = model.translate([source for source, _ in pairs])
        for (source, reference), one in zip(pairs, translations, strict=True):
            if kind_of(source, one.text, reference):
                continue
            num_good += 1
            problems = guards.problems(source, one.text)
            num_flagged += bool(problems)
            flagged.update(problems)
            if problems:
                print(f"flagged, {problems}: {source!r} -> {one.text!r}")
    repaired = repair(model)
    result = {
        "machine": machine.describe(jax.local_devices()),
        "broken": {kind: len(caught) for kind, caught in by_kind.items()},
        "caught": {kind: sum(caught) for kind, caught in by_kind.items()},
        "caught_percent": 100 * float(np.mean([one for some in by_kind.values() for one in some])),
        "good": num_good,
        "flagged": num_flagged,
        "flagged_percent": 100 * num_flagged / num_good,
        "flags_of_good": dict(flagged),
        "repaired": repaired,
    }
    print(result)
    timing.write_json(FLAGS.json, result)


def repair(model: Translator) -> dict[str, int]:
    """Of texts out of domain, caught translations, and those that stay so after new searches."""
    texts = out_of_domain(400)
    counts = {}
    for name, guards in (("before", False), ("after", True)):
        translator = document_translation.sentence_translator(
            model, document_translation.options(guards=guards)
        )
        sentences = [document_translation.DocumentSentence(text, False) for text in texts]
        results = list(translator.translate(sentences))
        check = Guards("en", "de")
        counts[name] = sum(
            bool(check.problems(text, one.text)) for text, one in zip(texts, results, strict=True)
        )
    return counts


if __name__ == "__main__":
    app.run(main)
