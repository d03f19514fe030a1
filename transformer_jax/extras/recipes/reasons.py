"""Describes the chosen settings: in short for users, and a reason for each for the recipe."""

import dataclasses
import math

from transformer_jax.config import Config, all_settings
from transformer_jax.extras.recipes.sizing import (
    FEW_EPOCHS,
    SMALL,
    Machine,
    Reasons,
    Sizes,
    TokenLengths,
    choose_sizes,
)

# Settings that a recipe states even where they have their default value.
_ALWAYS_STATED = {
    *(f"model.{name}" for name in ("num_encoder_layers", "num_decoder_layers", "d_model")),
    *(f"model.{name}" for name in ("num_heads", "d_ff", "dropout_rate")),
    *(f"data.{name}" for name in ("max_len", "batch_tokens", "vocab_size")),
    *(f"train.{name}" for name in ("num_steps", "eval_every_steps", "checkpoint_every_steps")),
    *(f"optimizer.{name}" for name in ("schedule", "learning_rate", "warmup_steps")),
}


@dataclasses.dataclass(frozen=True)
class ChosenSettings:
    """A config for a corpus.

    Attributes:
      config: of the run, validated.
      reasons: path of a setting -> why it has its value.
      tokens: lengths of the corpus in the tokens of the config.
    """

    config: Config
    reasons: Reasons
    tokens: TokenLengths


def make_reasons(sizes: Sizes, config: Config, tokens: TokenLengths, machine: Machine) -> Reasons:
    """A reason for each setting that differs from its default, or is always stated.

    Args:
      sizes: the row of the table.
      config: that was made from it.
      tokens: of the corpus.
      machine: that trains.
    """
    sections = {
        "model": _model_reasons(sizes, machine),
        "data": {
            "max_len": (
                f"99.9% of the pairs have at most {tokens.most} tokens, the longest has "
                f"{tokens.longest}. Longer pairs are left out: {_percent(tokens.too_long)}."
            ),
            "batch_tokens": (
                f"About {tokens.per_epoch / sizes.batch_tokens:,.0f} steps an epoch. The smaller "
                "the corpus, the smaller the batch (Sennrich & Zhang 2019)."
            ),
        },
        "train": _training_reasons(sizes, num_epochs(config, tokens)),
        "optimizer": _optimizer_reasons(sizes),
        "decode": {"max_decode_len": "As long as the model's positions."},
    }
    changed = {s.path for s in all_settings(Config) if s.value(config) != s.default}
    every = {f"{name}.{key}": text for name, part in sections.items() for key, text in part.items()}
    return {path: reason for path, reason in every.items() if path in changed | _ALWAYS_STATED}


def num_epochs(config: Config, tokens: TokenLengths) -> float:
    """How often the run trains on each pair."""
    return config.train.num_steps * config.data.batch_tokens / tokens.per_epoch


def describe_choice(choice: ChosenSettings) -> list[str]:
    """The main settings, and the lengths in tokens."""
    model, data, train = choice.config.model, choice.config.data, choice.config.train
    tokens = choice.tokens
    target_vocab = f" and {data.target_vocab_size:,}" if data.target_vocab_size else ""
    return [
        f"sizes: {model.num_encoder_layers} + {model.num_decoder_layers} layers, width "
        f"{model.d_model}, {data.vocab_size:,}{target_vocab} tokens, dropout "
        f"{model.dropout_rate:g}",
        f"training: {train.num_steps:,} steps of {data.batch_tokens:,} target tokens, about "
        f"{_epochs(num_epochs(choice.config, tokens))} epochs",
        f"lengths in tokens: {tokens.median} in the median, 99.9% up to {tokens.most}, longest "
        f"{tokens.longest}; left out: {_percent(tokens.too_long)} for more than {tokens.max_len} "
        f"tokens, {_percent(tokens.uneven)} for uneven lengths",
    ]


def warnings(choice: ChosenSettings) -> list[str]:
    """What users should know before they train."""
    tokens, epochs, lines = choice.tokens, num_epochs(choice.config, choice.tokens), []
    if tokens.too_long > 0.01:
        lines.append(
            f"WARNING: {_percent(tokens.too_long)} of the pairs are left out, as a side has more "
            f"than {tokens.max_len} tokens. Split the text into sentences, or raise "
            "config.data.max_len."
        )
    if tokens.uneven > 0.01:
        lines.append(
            f"WARNING: {_percent(tokens.uneven)} of the pairs are left out, as one side is far "
            "longer than the other (config.data.max_ratio). Look at some of them."
        )
    if "data.bleu_tokenizer" in choice.reasons:
        lines.append(f"WARNING: {choice.reasons['data.bleu_tokenizer']}")
    if epochs < FEW_EPOCHS:
        lines.append(
            f"WARNING: {_epochs(epochs)} epochs are few; a model of this size still improves after "
            f"{FEW_EPOCHS}. Train on a GPU or a larger machine, or raise config.train.num_steps."
        )
    return lines


def _epochs(number: float) -> str:
    return f"{number:,.0f}" if number >= FEW_EPOCHS else f"{number:.1f}"


def _percent(share: float) -> str:
    return "none" if not share else f"{100 * share:.1f}%" if share >= 0.0005 else "below 0.1%"


def _model_reasons(sizes: Sizes, machine: Machine) -> dict[str, str]:
    """By name of the setting."""
    up_to = "more pairs than that" if math.isinf(sizes.up_to) else f"up to {sizes.up_to:,.0f} pairs"
    shape = f"The table's sizes for {up_to}."
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
        "norm_position": (
            "Less sensitive to the learning rate than the paper's order (Xiong et al. 2020)."
        ),
        "tie_embeddings": "Two vocabularies: only the decoder's matrices can be one.",
        "max_len": "Twice the longest training sentence, for longer input later.",
    }


def _training_reasons(sizes: Sizes, epochs: float) -> dict[str, str]:
    """By name of the setting."""
    longer = "To train for longer, raise it and give the same command."
    if sizes.schedule == "cosine":
        longer = "For another length start again, as the rate falls to 0 at the last step."
    evaluations = "An evaluation writes scores and samples, and a checkpoint."
    average = f"{1 / (1 - sizes.ema_decay):,.0f}"
    return {
        "num_steps": f"About {_epochs(epochs)} epochs. {longer}",
        "eval_every_steps": evaluations,
        "checkpoint_every_steps": evaluations,
        "early_stopping_patience": "Evaluations without a new best, after which the run ends.",
        "ema_decay": (
            f"Evaluation and decoding use an average over about {average} steps. It replaces "
            "averaging checkpoints."
        ),
        "eval_sentences": "The first of the validation set: decoding is slow on a CPU.",
    }


def _optimizer_reasons(sizes: Sizes) -> dict[str, str]:
    """By name of the setting."""
    schedule = f"The paper's schedule. Its peak, at the end of the warm-up, is {sizes.peak_rate:g}."
    if sizes.schedule == "cosine":
        schedule = "The rate falls from its peak to 0 at the last step: best for a short run."
    return {
        **dict.fromkeys(("schedule", "learning_rate", "warmup_steps"), schedule),
        "eps": "The usual value of Adam; the paper has 1e-9.",
        "clip_norm": "Against single steps that are far too large.",
    }
