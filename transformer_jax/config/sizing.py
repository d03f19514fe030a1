"""Chooses the settings of a run for a corpus: a table of sizes, and what the text itself decides.

The table is from published experience and from runs of this project; `docs/train_your_own.md` shows
it with its sources. `choose_sizes` takes a row, `make_config` turns it into a `Config` and gives a
reason for each setting.
"""

import dataclasses
import math
from typing import Literal

from transformer_jax.config.fields import (
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    NormPosition,
    OptimizerConfig,
    TrainConfig,
)
from transformer_jax.config.setting import all_settings

Machine = Literal["cpu", "accelerator"]

SMALL = 50_000  # pairs; up to here the sizes are the same on every machine
MIN_PAIRS = 500  # of fewer, a model learns nothing that is of use
BYTE_TOKENS, SPECIAL_TOKENS = 256, 4  # of byte_fallback, and pad, bos, eos, unk
# With more different characters than this (Chinese, Japanese), the rarest are written as bytes.
MANY_CHARACTERS = 1000
SHORTEST_ROW, LONGEST_ROW = 64, 256  # target positions of a packed row


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A row of the table: the settings for corpora of up to `up_to` pairs."""

    up_to: float
    vocab_size: int
    num_layers: int  # of the encoder, and of the decoder
    d_model: int
    num_heads: int
    d_ff: int
    norm_position: NormPosition
    dropout_rate: float
    label_smoothing: float
    batch_tokens: int
    schedule: Literal["rsqrt", "cosine"]
    peak_rate: float
    warmup_steps: int
    num_steps: int
    ema_decay: float
    patience: int
    hardware: str


# In order: vocab_size; num_layers, d_model, num_heads, d_ff, norm_position; dropout_rate,
# label_smoothing; batch_tokens; schedule, peak_rate, warmup_steps, num_steps; ema_decay, patience.
_SMALL = (
    Sizes(10_000, 3000, 2, 128, 4, 256, "pre", 0.3, 0.1, 2048,
          "cosine", 3e-3, 500, 6000, 0.0, 0, "2 CPU cores"),
    Sizes(SMALL, 8000, 4, 128, 4, 256, "post", 0.3, 0.1, 4096,
          "rsqrt", 5e-3, 2000, 8000, 0.999, 6, "2 CPU cores"),
)  # fmt: skip
SIZES: dict[Machine, tuple[Sizes, ...]] = {
    "cpu": (
        *_SMALL,
        Sizes(250_000, 10_000, 4, 256, 4, 1024, "post", 0.3, 0.1, 4096,
              "rsqrt", 2e-3, 4000, 20_000, 0.999, 6, "8 CPU cores"),
        Sizes(1e6, 16_000, 4, 256, 4, 1024, "post", 0.2, 0.1, 8192,
              "rsqrt", 2e-3, 4000, 30_000, 0.999, 6, "16 CPU cores; better a GPU"),
        Sizes(math.inf, 16_000, 4, 256, 4, 1024, "post", 0.1, 0.1, 8192,
              "rsqrt", 2e-3, 4000, 60_000, 0.999, 6, "32 CPU cores; better a GPU"),
    ),
    "accelerator": (
        *_SMALL,
        Sizes(250_000, 10_000, 6, 512, 4, 1024, "post", 0.3, 0.1, 4096,
              "rsqrt", 5e-4, 4000, 50_000, 0.999, 6, "1 GPU"),
        Sizes(1e6, 16_000, 6, 512, 8, 2048, "post", 0.2, 0.1, 16_384,
              "rsqrt", 7e-4, 4000, 60_000, 0.999, 6, "1 GPU"),
        Sizes(2e7, 32_000, 6, 512, 8, 2048, "post", 0.1, 0.1, 25_088,
              "rsqrt", 7e-4, 4000, 100_000, 0.9995, 8, "1 to 8 GPUs, or 8 TPU chips"),
        Sizes(math.inf, 32_000, 6, 1024, 16, 4096, "post", 0.1, 0.1, 32_768,
              "rsqrt", 5e-4, 4000, 300_000, 0.9995, 10, "8 or more GPUs or TPU chips"),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TextFacts:
    """What the text says about its settings.

    Attributes:
      num_pairs: different pairs to train on.
      same_script: whether both languages have the same writing system.
      num_characters: different characters of the side that has more of them.
    """

    num_pairs: int
    same_script: bool
    num_characters: int


@dataclasses.dataclass(frozen=True)
class TokenFacts:
    """Lengths of the training pairs in tokens, end symbols included.

    Attributes:
      median: of the target.
      most: of the longer side; 99.9% of the pairs are not longer.
      longest: of the longer side.
      per_epoch: target tokens of all training pairs.
    """

    median: int
    most: int
    longest: int
    per_epoch: float


Reasons = dict[str, str]  # path of a setting -> why it has its value
# Settings that a recipe states even where they have their default value.
_ALWAYS_STATED = {
    *(f"model.{name}" for name in ("num_encoder_layers", "num_decoder_layers", "d_model")),
    *(f"model.{name}" for name in ("num_heads", "d_ff", "dropout_rate")),
    *(f"data.{name}" for name in ("max_len", "batch_tokens", "vocab_size")),
    *(f"train.{name}" for name in ("num_steps", "eval_every_steps", "checkpoint_every_steps")),
    *(f"optimizer.{name}" for name in ("schedule", "learning_rate", "warmup_steps")),
}


def choose_sizes(num_pairs: int, machine: Machine) -> Sizes:
    """The row of the table for a corpus of `num_pairs` different pairs."""
    return next(sizes for sizes in SIZES[machine] if num_pairs <= sizes.up_to)


def choose_tokenizer(sizes: Sizes, facts: TextFacts) -> tuple[DataConfig, Reasons]:
    """The settings of the tokenizer, in a `DataConfig` that has nothing else."""
    coverage, characters = 1.0, facts.num_characters
    if characters > MANY_CHARACTERS:
        coverage, characters = 0.9995, round(0.7 * characters)  # the rarest are most of them
    smallest = BYTE_TOKENS + SPECIAL_TOKENS + 2 * characters
    size = max(sizes.vocab_size, math.ceil(smallest / 100) * 100)
    reasons = {
        "data.tokenizer": "Byte pair encoding, trained on the training text.",
        "data.vocab_size": f"For {facts.num_pairs:,} pairs. "
        + (
            "A larger vocabulary would have many tokens that are too rare to learn (Sennrich & "
            "Zhang 2019)."
            if facts.num_pairs <= SMALL
            else "The size of published recipes for such corpora."
        ),
    }
    if size > sizes.vocab_size:
        reasons["data.vocab_size"] = (
            f"Twice the {characters:,} characters that get tokens, and bytes for the others. "
            f"The number of pairs alone would ask for {sizes.vocab_size:,}."
        )
    if coverage < 1:
        reasons["data.character_coverage"] = (
            f"The text has {facts.num_characters:,} different characters; the rarest, one in 2,000 "
            "of the text, are written as bytes."
        )
    if not facts.same_script:
        reasons["data.shared_vocab"] = (
            "The languages have different writing systems: a vocabulary for each."
        )
    data = DataConfig(
        source="files",
        tokenizer="bpe",
        vocab_size=size,
        character_coverage=coverage,
        shared_vocab=facts.same_script,
    )
    return data, reasons


def make_config(
    sizes: Sizes, data: DataConfig, tokens: TokenFacts, num_validation: int, machine: Machine
) -> tuple[Config, Reasons]:
    """The config of the run, and the reasons for the settings that it changes.

    Args:
      sizes: from `choose_sizes`.
      data: from `choose_tokenizer`, with paths and languages.
      tokens: measured with that tokenizer.
      num_validation: pairs of the validation set.
      machine: that trains.
    """
    max_len = min(max(_up(tokens.most, 16), SHORTEST_ROW), LONGEST_ROW)
    if tokens.longest <= min(1.25 * max_len, LONGEST_ROW):
        max_len = max(max_len, _up(tokens.longest, 16))
    eval_every = _round_number(sizes.num_steps / (10 if sizes.num_steps <= 10_000 else 20))
    eval_sentences = 0 if num_validation <= 1000 or machine == "accelerator" else 1000
    config = Config(
        model=ModelConfig(
            num_encoder_layers=sizes.num_layers,
            num_decoder_layers=sizes.num_layers,
            d_model=sizes.d_model,
            num_heads=sizes.num_heads,
            d_ff=sizes.d_ff,
            dropout_rate=sizes.dropout_rate,
            norm_position=sizes.norm_position,
            tie_embeddings="all" if data.shared_vocab else "decoder",
            max_len=2 * max_len,
        ),
        data=dataclasses.replace(data, max_len=max_len, batch_tokens=sizes.batch_tokens),
        train=TrainConfig(
            num_steps=sizes.num_steps,
            label_smoothing=sizes.label_smoothing,
            eval_every_steps=eval_every,
            checkpoint_every_steps=eval_every,
            early_stopping_patience=sizes.patience,
            ema_decay=sizes.ema_decay,
            eval_sentences=eval_sentences,
        ),
        optimizer=OptimizerConfig(
            schedule=sizes.schedule,
            learning_rate=learning_rate(sizes),
            warmup_steps=sizes.warmup_steps,
            eps=1e-8,
            clip_norm=1.0 if sizes.norm_position == "pre" else 0.0,
        ),
        decode=DecodeConfig(max_decode_len=2 * max_len),
    )
    return config, _reasons(sizes, config, tokens, machine)


def learning_rate(sizes: Sizes) -> float:
    """The setting whose schedule has its peak at `sizes.peak_rate`."""
    if sizes.schedule == "cosine":
        return sizes.peak_rate
    return float(f"{sizes.peak_rate * math.sqrt(sizes.d_model * sizes.warmup_steps):.3g}")


def _reasons(sizes: Sizes, config: Config, tokens: TokenFacts, machine: Machine) -> Reasons:
    """A reason for each setting that differs from its default, or is always stated."""
    sections = {
        "model": _model_reasons(sizes, machine),
        "data": {
            "max_len": (
                f"99.9% of the pairs have at most {tokens.most} tokens, the longest has "
                f"{tokens.longest}. Longer pairs are left out."
            ),
            "batch_tokens": (
                f"About {tokens.per_epoch / sizes.batch_tokens:,.0f} steps an epoch. The smaller "
                "the corpus, the smaller the batch (Sennrich & Zhang 2019)."
            ),
        },
        **_training_reasons(sizes, tokens.per_epoch / sizes.batch_tokens),
        "decode": {"max_decode_len": "As long as the model's positions."},
    }
    changed = {s.path for s in all_settings(Config) if s.value(config) != s.default}
    every = {f"{name}.{key}": text for name, part in sections.items() for key, text in part.items()}
    return {path: reason for path, reason in every.items() if path in changed | _ALWAYS_STATED}


def _model_reasons(sizes: Sizes, machine: Machine) -> Reasons:
    """By name of the setting."""
    up_to = "more pairs than that" if math.isinf(sizes.up_to) else f"up to {sizes.up_to:,.0f} pairs"
    shape = f"The table's sizes for {up_to}, made for {sizes.hardware.partition(';')[0]}."
    if machine == "cpu" and sizes.up_to > SMALL:
        better = choose_sizes(int(min(sizes.up_to, 1e9)), "accelerator")
        shape += (
            f" A CPU limits them: with a GPU or TPU the table has {better.num_layers} layers of "
            f"width {better.d_model}."
        )
    names = ("num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "d_ff")
    return {
        **dict.fromkeys(names, shape),
        "dropout_rate": (
            "The fewer the pairs, the more dropout (Sennrich & Zhang 2019, Araabi & Monz 2020)."
        ),
        "norm_position": "Learns sooner than the paper's order, which counts in a short run.",
        "tie_embeddings": "Two vocabularies: only the decoder's matrices can be one.",
        "max_len": "Twice the longest training sentence, for longer input later.",
    }


def _training_reasons(sizes: Sizes, steps_per_epoch: float) -> dict[str, Reasons]:
    """By section and name of the setting."""
    schedule = f"The paper's schedule. Its peak, at the end of the warm-up, is {sizes.peak_rate:g}."
    longer = "To train for longer, raise it and give the same command."
    if sizes.schedule == "cosine":
        schedule = "The rate falls from its peak to 0 at the last step: best for a short run."
        longer = "For another length start again, as the rate falls to 0 at the last step."
    evaluations = "An evaluation writes scores and samples, and a checkpoint."
    average = f"{1 / (1 - sizes.ema_decay):,.0f}"
    return {
        "train": {
            "num_steps": f"About {sizes.num_steps / steps_per_epoch:,.0f} epochs. {longer}",
            "label_smoothing": "More than the usual 0.1, as the corpus is small.",
            "eval_every_steps": evaluations,
            "checkpoint_every_steps": evaluations,
            "early_stopping_patience": "Evaluations without a new best, after which the run ends.",
            "ema_decay": (
                f"Evaluation and decoding use an average over about {average} steps. It replaces "
                "averaging checkpoints."
            ),
            "eval_sentences": "The first of the validation set: decoding is slow on a CPU.",
        },
        "optimizer": {
            **dict.fromkeys(("schedule", "learning_rate", "warmup_steps"), schedule),
            "eps": "The usual value of Adam; the paper has 1e-9.",
            "clip_norm": "Against single steps that are far too large.",
        },
    }


def _up(value: float, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


def _round_number(value: float) -> int:
    """`value` with one or two digits: 1, 1.5, 2, 2.5, 3, 4, 5 or 7.5 times a power of ten."""
    power = 10 ** math.floor(math.log10(value))
    return int(
        min((1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10), key=lambda n: abs(n * power - value)) * power
    )
