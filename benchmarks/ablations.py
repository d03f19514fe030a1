"""Trains the recipe `multi30k` with each switch of the model alone, and scores it on validation.

    transformer-jax data multi30k --output=multi30k
    python benchmarks/ablations.py --data=multi30k --folder=runs/ablations --json=ablations.json
    python benchmarks/ablations.py --times --json=times.json      # nothing is trained

Every variant has the parameters of the paper's model within 1%: the width of the feed-forward block
makes up for what a switch adds or saves. The steps, the batches and all other settings are the
same. The same command again trains what is not in the JSON file yet. `--jobs` trainings run at the
same time, so their seconds say nothing about speed.

`--times` measures a training step and decoding of every variant with random weights on this
machine, in turns, in one process: 4,096 target tokens a step in rows of 64; 32 sentences, beam 5,
exactly 16 tokens.
"""

import dataclasses
import itertools
import random
import statistics
from pathlib import Path
from typing import Any

import decode_workers
import jax
import train_step_workers
from absl import app, flags
from timing import write_json
from trainings import Training, train_all

from transformer_jax import Translator
from transformer_jax.config import Config, DataConfig, ModelConfig
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.model.transformer import init_params
from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
# Settings of the model that differ from the paper's.
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "RMSNorm": {"norm": "rms"},
    "no biases": {"use_bias": False},
    "GEGLU": {"feed_forward": "gated", "activation": "gelu", "d_ff": 171},
    "SwiGLU": {"feed_forward": "gated", "activation": "silu", "d_ff": 171},
    "2 heads of keys": {"num_kv_heads": 2, "d_ff": 320, "decoder_d_ff": 384},
    "normalized queries and keys": {"qk_norm": True},
    "capped scores": {"attention_softcap": 50.0},
    "capped logits": {"logit_softcap": 30.0},
    "rotary": {"positional": "rotary"},
    "relative": {"positional": "relative"},
    "ALiBi": {"positional": "alibi"},
    "modern": {
        "norm_position": "pre",
        "norm": "rms",
        "use_bias": False,
        "feed_forward": "gated",
        "activation": "silu",
        "num_kv_heads": 2,
        "d_ff": 213,
        "decoder_d_ff": 256,
        "qk_norm": True,
        "positional": "rotary",
    },
}


def settings(name: str) -> dict[str, Any]:
    """Settings of a variant's model that differ from the recipe's: it has rotary positions."""
    return {"positional": "interleaved"} | VARIANTS[name]


def model_config(name: str) -> ModelConfig:
    """The model of a variant, with the vocabulary of the recipe."""
    from transformer_jax.configs import multi30k

    return dataclasses.replace(
        multi30k.get_config().model,
        source_vocab_size=8000,
        target_vocab_size=8000,
        decoder_start_id=1,
        **settings(name),
    )


def num_params(name: str) -> int:
    """Number of parameters of a variant."""
    shapes = jax.eval_shape(lambda key: init_params(model_config(name), key), jax.random.key(0))
    return sum(x.size for x in jax.tree.leaves(shapes))


class Decoder(decode_workers.Ours):
    """Decoding of a variant with random weights."""

    def __init__(self, model: ModelConfig, tokenizers: TokenizerPair):
        model = dataclasses.replace(model, dtype="float32")  # as that of the steps
        params = init_params(model, jax.random.key(0))
        config = Config(model=model, data=DataConfig(max_len=model.max_len))
        self._translator = Translator(config, tokenizers, params)


def measure_times(names: list[str]) -> list[dict[str, Any]]:
    """One row for each variant: seconds of training steps, and of decoding, in `--turns` turns."""
    vocab_size = 8000
    tokenizers = decode_workers.random_tokenizers(vocab_size)
    models = {
        name: dataclasses.replace(model_config(name), decoder_start_id=tokenizers.target.bos_id)
        for name in names
    }
    task = decode_workers.Task(decode_workers.random_sentences(tokenizers, 32, 16), 5, 16)
    steps, decoders = {}, {}
    for name, model in models.items():
        steps[name] = train_step_workers.Ours(train_step_workers.Task(model, 64, 64, 64))
        decoders[name] = Decoder(model, tokenizers)
        decoders[name].translate(task)
        print(f"compiled {name}", flush=True)
    step_times: dict[str, list[float]] = {name: [] for name in names}
    decode_times: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    for _ in range(FLAGS.turns):
        for name in order.sample(names, len(names)):
            step_times[name].append(steps[name].run(2))
            decode_times[name].append(decoders[name].time(task))
    for name in names:
        step, search = (statistics.median(times[name]) for times in (step_times, decode_times))
        print(f"{name:<28} step {step:.3f} s, decoding {search:.3f} s", flush=True)
    return [
        {"variant": name, "step_seconds": step_times[name], "decode_seconds": decode_times[name]}
        for name in names
    ]


def main(argv: list[str]) -> None:
    del argv
    if unknown := set(FLAGS.variants) - set(VARIANTS):
        raise app.UsageError(f"--variants: no {sorted(unknown)}; there are {list(VARIANTS)}.")
    if FLAGS.times:
        rows = measure_times(FLAGS.variants)
        about = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
        times = {"machine": machine.host(), **about, "dtype": "float32", "rows": rows}
        write_json(FLAGS.json or "runs/ablation_times.json", times)
        return
    jax.config.update("jax_platforms", "cpu")  # accelerators are reserved for the trainings
    trainings = [
        Training(
            variant=name,
            seed=int(seed),
            recipe="multi30k",
            data=Path(FLAGS.data).absolute(),
            steps=FLAGS.steps,
            checkpoint_every_steps=100,
            settings={f"model.{field}": value for field, value in settings(name).items()},
        )
        for seed, name in itertools.product(FLAGS.seeds, FLAGS.variants)
    ]
    train_all(
        trainings,
        Path(FLAGS.folder).absolute(),
        Path(FLAGS.json or "runs/ablations.json"),
        {"steps": FLAGS.steps},
        FLAGS.jobs,
        60 * FLAGS.minutes,
        lambda training: {"parameters": num_params(training.variant)},
    )


if __name__ == "__main__":
    flags.DEFINE_string("data", "multi30k", "Folder of the corpus.")
    flags.DEFINE_string("folder", "runs/ablations", "Folder of the runs.")
    flags.DEFINE_string(
        "json", "", "File of the results; runs/ablations.json, or ablation_times.json with --times."
    )
    flags.DEFINE_list("variants", list(VARIANTS), "Variants to train.")
    flags.DEFINE_list("seeds", ["0", "1"], "Seeds of each.")
    flags.DEFINE_integer("steps", 5000, "Steps of each run.")
    flags.DEFINE_integer("jobs", 1, "Trainings at the same time.")
    flags.DEFINE_bool("times", False, "Measure the times of a step and of decoding instead.")
    flags.DEFINE_integer("turns", 5, "Turns of each variant, with --times.")
    flags.DEFINE_float("minutes", float("inf"), "Minutes after which no training begins.")
    app.run(main)
