"""Chooses the settings of a run for a corpus: a table of sizes, and what the text itself decides.

The table is from published experience and from runs of this project; `docs/train_your_own.md` shows
it with its sources. `settings` makes a `Config` of them.
"""

import collections
import dataclasses
import math
from typing import Literal

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.config.fields import NormPosition

Machine = Literal["cpu", "accelerator"]
Reasons = dict[str, str]  # path of a setting -> why it has its value

SMALL = 50_000  # pairs; up to here the sizes are the same on every machine
MIN_PAIRS = 500  # of fewer, a model learns nothing that is of use
FEW_EPOCHS = 10  # of fewer, users are warned
BYTE_TOKENS, SPECIAL_TOKENS = 256, 4  # of byte_fallback, and pad, bos, eos, unk
# (different characters, share of the text whose characters get tokens). Alphabets of two languages
# have fewer than 200: more are stray symbols. Chinese and Japanese have thousands.
COVERAGE = ((1000, 0.9995), (200, 0.9999), (0, 1.0))
SHORTEST_ROW, LONGEST_ROW = 64, 256  # target positions of a packed row
# (target tokens of the corpus, times that it is trained on), with a power law in between. In order:
# own runs on 3,000 and 29,000 pairs of Multi30k; fairseq's IWSLT 2014; Vaswani et al. 2017 on WMT
# 2014, German and French.
EPOCHS = ((57_400, 214.0), (489_000, 67.0), (4e6, 50.0), (1.3e8, 20.0), (1.1e9, 9.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """A row of the table: the settings for corpora of up to `up_to` pairs.

    Attributes:
      up_to: different training pairs.
      num_layers: of the encoder, and of the decoder.
      peak_rate: largest learning rate of the schedule.
      steps: fewest and most steps.
      made_for: CPU cores, or accelerators. With fewer of them there are fewer steps, but enough
        for a few epochs.
    """

    up_to: float
    vocab_size: int
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    norm_position: NormPosition
    dropout_rate: float
    batch_tokens: int
    schedule: Literal["rsqrt", "cosine"] = "rsqrt"
    peak_rate: float
    warmup_steps: int = 4000
    steps: tuple[int, int]
    ema_decay: float = 0.999
    patience: int = 6
    made_for: int


_SMALL = (
    Sizes(
        up_to=10_000, vocab_size=3000, num_layers=2, d_model=128, num_heads=4, d_ff=256,
        norm_position="pre", dropout_rate=0.3, batch_tokens=2048, schedule="cosine",
        peak_rate=3e-3, warmup_steps=500, steps=(2000, 20_000), ema_decay=0.0, patience=0,
        made_for=2,
    ),
    Sizes(
        up_to=SMALL, vocab_size=8000, num_layers=4, d_model=128, num_heads=4, d_ff=256,
        norm_position="post", dropout_rate=0.3, batch_tokens=4096,
        peak_rate=5e-3, warmup_steps=2000, steps=(6000, 30_000), made_for=2,
    ),
)  # fmt: skip
SIZES: dict[Machine, tuple[Sizes, ...]] = {
    "cpu": (
        *_SMALL,
        Sizes(
            up_to=250_000, vocab_size=10_000, num_layers=4, d_model=256, num_heads=4, d_ff=1024,
            norm_position="pre", dropout_rate=0.3, batch_tokens=4096,
            peak_rate=2e-3, steps=(12_000, 50_000), made_for=8,
        ),
        Sizes(
            up_to=1e6, vocab_size=16_000, num_layers=4, d_model=256, num_heads=4, d_ff=1024,
            norm_position="pre", dropout_rate=0.2, batch_tokens=8192,
            peak_rate=2e-3, steps=(12_000, 60_000), made_for=16,
        ),
        Sizes(
            up_to=math.inf, vocab_size=16_000, num_layers=4, d_model=256, num_heads=4, d_ff=1024,
            norm_position="pre", dropout_rate=0.1, batch_tokens=8192,
            peak_rate=2e-3, steps=(12_000, 100_000), made_for=32,
        ),
    ),
    "accelerator": (
        *(dataclasses.replace(row, made_for=1) for row in _SMALL),
        Sizes(
            up_to=250_000, vocab_size=10_000, num_layers=6, d_model=512, num_heads=4, d_ff=1024,
            norm_position="post", dropout_rate=0.3, batch_tokens=4096,
            peak_rate=5e-4, steps=(12_000, 100_000), made_for=1,
        ),
        Sizes(
            up_to=1e6, vocab_size=16_000, num_layers=6, d_model=512, num_heads=8, d_ff=2048,
            norm_position="pre", dropout_rate=0.2, batch_tokens=16_384,
            peak_rate=7e-4, steps=(12_000, 150_000), made_for=1,
        ),
        Sizes(
            up_to=2e7, vocab_size=32_000, num_layers=6, d_model=512, num_heads=8, d_ff=2048,
            norm_position="post", dropout_rate=0.1, batch_tokens=25_088,
            peak_rate=7e-4, steps=(12_000, 300_000), ema_decay=0.9995, patience=8, made_for=1,
        ),
        Sizes(
            up_to=math.inf, vocab_size=32_000, num_layers=6, d_model=1024, num_heads=16, d_ff=4096,
            norm_position="post", dropout_rate=0.1, batch_tokens=32_768,
            peak_rate=5e-4, steps=(12_000, 500_000), ema_decay=0.9995, patience=10, made_for=4,
        ),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TokenLengths:
    """Lengths of the training pairs in tokens, end symbols included.

    Attributes:
      median: of the target.
      most: of the longer side; 99.9% of the pairs are not longer.
      longest: of the longer side.
      max_len: the setting; longer pairs are left out.
      too_long, uneven: shares of the pairs that are left out, by `data.max_len` and
        `data.max_ratio`.
      per_epoch: target tokens of all pairs that are trained on.
    """

    median: int
    most: int
    longest: int
    max_len: int
    too_long: float
    uneven: float
    per_epoch: float


def choose_sizes(num_pairs: int, machine: Machine, num_units: float = math.inf) -> Sizes:
    """The row of the table for a corpus.

    Args:
      num_pairs: different pairs to train on.
      machine: that trains.
      num_units: its cores or accelerators. The largest models need several accelerators.
    """
    rows = SIZES[machine]
    if machine == "accelerator":
        rows = tuple(row for row in rows if row.made_for <= max(num_units, 1))
    return next((row for row in rows if num_pairs <= row.up_to), rows[-1])


def choose_num_steps(sizes: Sizes, tokens_per_epoch: float, num_units: float = math.inf) -> int:
    """The steps that train `EPOCHS` times on a corpus, within the limits of the row.

    Args:
      sizes: the row.
      tokens_per_epoch: target tokens of the corpus.
      num_units: cores or accelerators that train.
    """
    tokens, epochs = np.log(np.array(EPOCHS).T)
    wanted = math.exp(np.interp(math.log(tokens_per_epoch), tokens, epochs)) * tokens_per_epoch
    fewest, most = sizes.steps
    a_few = 1.2 * FEW_EPOCHS * tokens_per_epoch / sizes.batch_tokens
    on_machine = max(most * num_units / sizes.made_for, a_few)
    return max(round_number(min(wanted / sizes.batch_tokens, on_machine, most)), fewest)


def choose_max_len(most: int, longest: int) -> int:
    """`data.max_len` for pairs of at most `longest` tokens, 99.9% of them at most `most`."""
    max_len = min(max(round_up(most, 16), SHORTEST_ROW), LONGEST_ROW)
    if longest <= min(1.25 * max_len, LONGEST_ROW):
        max_len = max(max_len, round_up(longest, 16))
    return max_len


def choose_tokenizer(
    sizes: Sizes,
    num_pairs: int,
    source: collections.Counter[str],
    target: collections.Counter[str],
    same_script: bool,
) -> tuple[DataConfig, Reasons]:
    """The settings of the tokenizer, in a `DataConfig` that has nothing else.

    Args:
      sizes: the row.
      num_pairs: different pairs to train on.
      source, target: counts of the characters of each side.
      same_script: whether both languages have the same writing system; they share a vocabulary.
    """
    sides = [source + target] if same_script else [source, target]
    num_characters = max(map(len, sides))
    coverage = next(share for more_than, share in COVERAGE if num_characters > more_than)
    kept = [num_covered(side, coverage) for side in sides]
    vocab_sizes = [max(sizes.vocab_size, round_up(smallest_vocab(n), 100)) for n in kept]
    by_pairs = f"For {num_pairs:,} pairs. " + (
        "A larger vocabulary would have many tokens that are too rare to learn (Sennrich & Zhang "
        "2019)."
        if num_pairs <= SMALL
        else "The size of published recipes for such corpora."
    )
    reasons = {"data.tokenizer": "Byte pair encoding, trained on the training text."}
    names = ("data.vocab_size", "data.target_vocab_size")
    for name, count, size in zip(names, kept, vocab_sizes, strict=False):
        reasons[name] = by_pairs
        if size > sizes.vocab_size:
            reasons[name] = (
                f"Twice the {count:,} characters that get tokens, and bytes for the others. The "
                f"number of pairs alone would ask for {sizes.vocab_size:,}."
            )
    if coverage < 1:
        reasons["data.character_coverage"] = (
            f"The text has {num_characters:,} different characters. The rarest, one in "
            f"{round(1 / (1 - coverage)):,} of the text, are written as bytes."
        )
    if not same_script:
        reasons["data.shared_vocab"] = (
            "The languages have different writing systems: a vocabulary for each."
        )
    data = DataConfig(
        source="files",
        tokenizer="bpe",
        vocab_size=vocab_sizes[0],
        target_vocab_size=0 if vocab_sizes[-1] == vocab_sizes[0] else vocab_sizes[-1],
        character_coverage=coverage,
        shared_vocab=same_script,
    )
    return data, reasons


def num_covered(counts: collections.Counter[str], coverage: float) -> int:
    """How many of the most frequent characters make up a share `coverage` of the text."""
    ranked = np.array(sorted(counts.values(), reverse=True))
    return int(np.searchsorted(ranked.cumsum(), coverage * ranked.sum()) + 1)


def smallest_vocab(num_characters: int) -> int:
    """The smallest vocabulary of use for text of `num_characters` different characters."""
    return BYTE_TOKENS + SPECIAL_TOKENS + 2 * num_characters


def learning_rate(sizes: Sizes) -> float:
    """The setting whose schedule has its peak at `sizes.peak_rate`."""
    if sizes.schedule == "cosine":
        return sizes.peak_rate
    return float(f"{sizes.peak_rate * math.sqrt(sizes.d_model * sizes.warmup_steps):.3g}")


def round_up(value: float, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


def round_number(value: float) -> int:
    """`value` with one or two digits: 1, 1.2, 1.5, 2, 2.5, … times a power of ten."""
    power = 10 ** math.floor(math.log10(value))
    digits = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return int(min(digits, key=lambda digit: abs(digit * power - value)) * power)
