"""Teaches a model of number words another language, by full training and by adapters.

    python benchmarks/lora.py --folder=runs/lora --json=lora.json

A model of English to German, whose tokenizer knows French and its tag, learns to write French from
`--pairs` pairs. Every row is a way to train: all parameters or adapters (`train.lora_rank`), and
how many of the pairs are old ones, in German. At each checkpoint both languages' test sets are
translated, so the row shows how fast French is learned and how much German is forgotten. The
learning rate of each way is chosen by French on the validation set. The memory is that of the
compiled step, for the large model of WMT. The same command again continues.
"""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from timing import write_json
from transformer_jax.configs.quickstart import get_config as quickstart
from transformer_jax.configs.wmt14_en_de_big import get_config as wmt14_en_de_big

from transformer_jax import Translator
from transformer_jax.config import Config
from transformer_jax.data import number_words
from transformer_jax.data.plans.batch_shapes import BatchShape
from transformer_jax.extras.diagnostics import dry_run
from transformer_jax.training import partition, runners
from transformer_jax.training.loop import train
from transformer_jax.workdir import checkpoint, machine

FLAGS = flags.FLAGS
OLD, NEW = "de", "fr"
FEW = 30  # pairs of the new language that the tokenizer and the first model have seen
# Ways to train: rank of the adapters (0: all parameters are trained), share of old pairs.
WAYS = [(0, 0.0), (4, 0.0), (16, 0.0), (0, 0.2), (16, 0.2)]
LEARNING_RATES = {"all": (0.001, 0.003, 0.01), "adapters": (0.003, 0.01, 0.03)}
VOCABULARY = 32_000


def write_corpora(folder: Path) -> None:
    """Number words, and of the pairs for training `new.LANG`, whose first ones are `few.LANG`."""
    for _ in number_words.write_texts(folder):
        pass
    for language in ("en", NEW):
        # In random order follow numbers from 1,000 on.
        lines = (folder / f"train.{language}").read_text("utf-8").splitlines()
        lines = lines[number_words.SMALL - FEW :]
        for name, part in (("new", lines[: FLAGS.pairs]), ("few", lines[:FEW])):
            text = "".join(f"{line}\n" for line in part)
            (folder / f"{name}.{language}").write_text(text, "utf-8")


def recipe(data: Path, corpora: dict[str, tuple[str, float]], steps: int, **fields: Any) -> Config:
    """A training of the quickstart's model.

    Args:
      data: folder of `write_corpora`.
      corpora: target language and share of each corpus, by its name.
      steps: of the training.
      **fields: of `TrainConfig`; `learning_rate` of the optimizer.
    """
    config = quickstart()
    languages = [language for language, _ in corpora.values()]
    shares = tuple(share for _, share in corpora.values())
    rate = fields.pop("learning_rate", config.optimizer.learning_rate)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(
            config.data,
            source="files",
            train=",".join(f"{data}/{name}" for name in corpora),
            validation=f"{data}/validation",
            train_languages=tuple(f"en-{language}" for language in languages),
            train_weights=shares if len(shares) > 1 else (),
            target_lang=languages[0],
            target_language_tags=True,
        ),
        train=dataclasses.replace(
            config.train,
            num_steps=steps,
            checkpoint_every_steps=steps // 6,
            **{"eval_every_steps": 0} | fields,
        ),
        optimizer=dataclasses.replace(
            config.optimizer, learning_rate=rate, warmup_steps=max(1, steps // 6)
        ),
        checkpoint=dataclasses.replace(config.checkpoint, max_to_keep=6),
    )


def exact_match(translator: Translator, data: Path, split: str, language: str) -> float:
    """Percent of the numbers of a set that are written right."""
    texts = (data / f"{split}.en").read_text("utf-8").splitlines()
    want = (data / f"{split}.{language}").read_text("utf-8").splitlines()
    got = translator.translate(texts, target_lang=language, beam_size=1)
    return 100 * sum(a.text == b for a, b in zip(got, want, strict=True)) / len(want)


def scores(workdir: Path, step: int, data: Path, split: str) -> dict[str, float]:
    translator = Translator.load(workdir, str(step))
    return {language: exact_match(translator, data, split, language) for language in (NEW, OLD)}


def measure(rank: int, old_share: float, data: Path, start: Path) -> dict[str, Any]:
    """One row: the best learning rate by the new language's validation set, and its curve."""
    corpora = {"new": (NEW, 1 - old_share)} | ({"train": (OLD, old_share)} if old_share else {})
    tried = {}
    for rate in LEARNING_RATES["adapters" if rank else "all"]:
        name = f"rank{rank}_old{old_share:g}_{FLAGS.pairs}_{FLAGS.steps}_{rate:g}"
        workdir = Path(FLAGS.folder) / name
        fields = {"init_from": str(start), "lora_rank": rank, "learning_rate": rate}
        train(recipe(data, corpora, FLAGS.steps, **fields), workdir)
        tried[rate] = (scores(workdir, FLAGS.steps, data, "validation")[NEW], workdir)
    best = max(tried, key=lambda rate: tried[rate][0])
    workdir = tried[best][1]
    curve = {step: scores(workdir, step, data, "test") for step in checkpoint.steps(workdir)}
    return {
        "rank": rank,
        "old_share": old_share,
        "validation": {f"{rate:g}": score for rate, (score, _) in tried.items()},
        "learning_rate": best,
        "curve": curve,
        **memory(rank),
    }


def memory(rank: int) -> dict[str, Any]:
    """Bytes of the compiled step of the large model, and of a checkpoint's optimizer state."""
    config = wmt14_en_de_big()
    model = dataclasses.replace(
        config.model,
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        decoder_start_id=1,
    )
    config = dataclasses.replace(
        config,
        model=model,
        train=dataclasses.replace(config.train, lora_rank=rank, init_from="model"),
    )
    runner = runners.make_runner(config, partition.choose_devices(config)[:1])
    shapes = runner.restore_target()
    compiled = runner.compile(BatchShape(rows=32, source_len=32, target_len=32))
    sizes = {
        "trained": runner.train_step.trained(shapes.params),
        "optimizer": shapes.opt_state,
    }
    numbers = {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in sizes.items()}
    return {
        "big_parameters_trained": numbers["trained"],
        "big_optimizer_bytes": 4 * numbers["optimizer"],
        "big_step_bytes": dry_run.peak_bytes(compiled),
    }


def main(argv: list[str]) -> None:
    del argv
    data = Path(FLAGS.folder) / f"numbers_{FLAGS.pairs}"
    write_corpora(data)
    start = Path(FLAGS.folder) / f"start_{FLAGS.start_steps}"
    corpora = {"train": (OLD, 0.98), "few": (NEW, 0.02)}
    # `init_from` reads the best checkpoint.
    train(recipe(data, corpora, FLAGS.start_steps, eval_every_steps=FLAGS.start_steps), start)
    about = {"pairs": FLAGS.pairs, "steps": FLAGS.steps, "start_steps": FLAGS.start_steps}
    results: dict[str, Any] = about | {"machine": machine.describe(jax.local_devices()), "rows": []}
    if Path(FLAGS.json).exists():
        results = json.loads(Path(FLAGS.json).read_text())
        if wrong := [key for key, value in about.items() if results[key] != value]:
            raise SystemExit(f"{FLAGS.json} has other {wrong[0]}: name another file.")
    results["start"] = scores(start, FLAGS.start_steps, data, "test")
    done = {(row["rank"], row["old_share"]) for row in results["rows"]}
    for rank, old_share in itertools.filterfalse(done.__contains__, WAYS):
        results["rows"].append(measure(rank, old_share, data, start))
        print(json.dumps(results["rows"][-1]), flush=True)
        write_json(FLAGS.json, results)


if __name__ == "__main__":
    flags.DEFINE_string("folder", "runs/lora", "Folder of corpora and runs.")
    flags.DEFINE_string("json", "runs/lora.json", "File of the results.")
    flags.DEFINE_integer("pairs", 2000, "Pairs of the new language.")
    flags.DEFINE_integer("steps", 300, "Steps that teach the new language.")
    flags.DEFINE_integer("start_steps", 600, "Steps of the first model.")
    app.run(main)
