"""What a run says about its data: corpora, batches, and references that it cannot write."""

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence

from transformer_jax.config import Config, DataConfig
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.corpus_shares import make_stages
from transformer_jax.data.plans.batch_shapes import BatchPlan
from transformer_jax.data.plans.pair_selection import SelectionCounts
from transformer_jax.data.shards.filters import is_long
from transformer_jax.data.sources import open_corpora
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError

LEAK_PAIRS = 1_000_000  # in which sentences of the validation and test sets are looked for
REPORTED_LOSS = 0.001  # share of references changed by the tokenizer from which it is reported


def describe_corpora(
    config: Config,
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    counts: SelectionCounts,
) -> Iterator[str]:
    """Names and examples of the corpora, and which of their pairs are left out."""
    for corpus in corpora:
        yield f"{corpus.source_lang} -> {corpus.target_lang}: {corpus.name}"
        for source, target in itertools.islice(corpus.read(), 3):
            yield f"  {source}  ->  {target}"
    sizes = {tokenizers.source.vocab_size, tokenizers.target.vocab_size}
    yield (
        f"{counts.num_pairs:,} pairs, {' and '.join(map(str, sorted(sizes)))} tokens; "
        f"left out: {counts.num_empty:,} with an empty side, "
        f"{counts.num_too_long:,} above data.max_len={config.data.max_len}, "
        f"{counts.num_uneven:,} with one side over data.max_ratio={config.data.max_ratio:g} "
        "times as long as the other"
    )


def describe_mixture(
    config: DataConfig, corpora: Sequence[Corpus], sizes: Sequence[int]
) -> Iterator[str]:
    """How often the pairs of each corpus are read, compared with those that are read least.

    Args:
      config: of the data.
      corpora: of the run.
      sizes: pairs of each.
    """
    for first, shares in make_stages(config, corpora, sizes) or ():
        often = [share / max(size, 1) for share, size in zip(shares, sizes, strict=True)]
        least = min(filter(None, often))
        begin = f"from step {first} on" if first else "at first" if config.stages else "mixed"
        yield f"{begin}: " + ", ".join(
            f"each pair of {corpus.name} {rate / least:.1f} times" if rate else f"no {corpus.name}"
            for corpus, rate in zip(corpora, often, strict=True)
        )


def describe_batches(
    config: Config, plan: BatchPlan, padding: float, row_multiple: int
) -> Iterator[str]:
    """Shapes and padding of the batches."""
    largest = plan.shapes[0]
    yield (
        f"{plan.batches_per_epoch:,.1f} batches an epoch ({config.data.batching}), of "
        f"{len(plan.shapes)} shape(s), the largest {largest.rows} rows of {largest.source_len} "
        f"source and {largest.target_len} target tokens; padding {100 * padding:.1f}%"
    )
    rows = largest.padded(row_multiple).rows
    if rows > largest.rows:
        yield (
            f"  {rows - largest.rows} empty rows are added to {largest.rows}: {row_multiple} parts "
            f"of a batch (devices x accumulate_steps) have {rows // row_multiple} rows each"
        )
    if padding > 0.5:
        logging.warning("more than half of all positions are padding: lower data.max_len")


def describe_blank_pairs(pairs: Sequence[tuple[str, str]], name: str) -> Iterator[str]:
    """How many pairs of an evaluation have a blank side, which is scored like any other.

    Args:
      pairs: of the evaluation.
      name: of the setting or flag that names them.

    Raises:
      UserError: all have, so that scores would say nothing.
    """
    blank = [number for number, pair in enumerate(pairs, 1) if not all(map(str.strip, pair))]
    if blank and len(blank) == len(pairs):
        raise UserError(f"{name}: all {len(pairs):,} pairs have a blank side; name other text.")
    if blank:
        yield (
            f"{name}: {len(blank):,} of {len(pairs):,} pairs have a blank side, the first is "
            f"number {blank[0]:,}; they count in scores"
        )


def describe_leaks(
    config: DataConfig, corpora: Sequence[Corpus], validation: Iterable[tuple[str, str]]
) -> Iterator[str]:
    """How many training pairs have a long sentence of the validation or test set.

    Args:
      config: of the data.
      corpora: of the training text; of large ones the beginning is read.
      validation: pairs of the validation set.
    """
    if config.source == "prepared" or "test_leaks" in config.filters:
        return
    held_out: list[Iterable[tuple[str, str]]] = [validation]
    if config.source == "files" and config.test:
        # It may come after the training; `eval` says what is wrong with it.
        with contextlib.suppress(UserError):
            held_out += [list(corpus.read()) for corpus in open_corpora(config, "test")]
    sentences = itertools.chain.from_iterable(itertools.chain.from_iterable(held_out))
    known = {sentence.strip() for sentence in sentences if is_long(sentence)}
    num_pairs, leaks = 0, list[str]()
    pairs = itertools.chain.from_iterable(corpus.read() for corpus in corpora)
    for pair in itertools.islice(pairs, LEAK_PAIRS if known else 0):
        num_pairs += 1
        leaks += [text for text in pair if text.strip() in known][:1]
    if leaks:
        yield (
            f"WARNING: {len(leaks):,} of {num_pairs:,} training pairs have a sentence of the "
            f"validation or test set, such as {leaks[0].strip()[:60]!r}, so scores will be "
            "too good; --config.data.filters='(\"test_leaks\",)' removes such pairs"
        )


def describe_lost_references(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[str]:
    """How many references no output can equal, because the tokenizer cannot write them."""
    references = [reference for _, reference in pairs]
    # Spaces at the ends and in runs are lost in every tokenizer, and no metric counts them.
    lost = [(a, b) for a, b in tokenizer.lost_texts(references) if a.split() != b.split()]
    if lost and len(lost) > REPORTED_LOSS * len(references):
        before, after = _around_difference(*lost[0])
        yield (
            f"{100 * len(lost) / len(references):.1f}% of the validation references do not survive "
            f"the tokenizer, so no output can equal them: {before!r} becomes {after!r}"
        )


def _around_difference(first: str, second: str) -> tuple[str, str]:
    """Both texts, shortened to a few words around where they begin to differ."""
    pairs = zip(first, second, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    start = max(0, same - 30)
    ellipsis = "…" if start else ""
    return ellipsis + first[start : same + 30], ellipsis + second[start : same + 30]
