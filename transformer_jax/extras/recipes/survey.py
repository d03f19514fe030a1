"""Looks at a parallel corpus before a run: counts, lengths, writing systems, what looks wrong.

In: a `Corpus`. Out: a `CorpusSurvey`. The corpus is read once. Counts are of all pairs; lengths,
writing systems and doubtful pairs are of a sample, which is the entire corpus if it is small.
"""

import array
import collections
import dataclasses
import functools
import hashlib
import random
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from transformer_jax import waiting
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.word_ids import SPACE
from transformer_jax.data.writing_systems import script_shares, separates_words

SAMPLE_SIZE = 100_000  # pairs
# A pair is doubtful if one side is this many times as long as the other side lets expect, and by
# this many characters.
DOUBTFUL_RATIO, DOUBTFUL_CHARACTERS = 3.0, 30
# Below this correlation of lengths, lines are hardly translations of each other.
ALIGNED_CORRELATION = 0.4
IN_PIECES = 0.01  # share of pairs with SentencePiece's mark from which the text is in pieces


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Lengths of the sentences of one side."""

    median: int
    most: int  # 99% are not longer
    longest: int

    @classmethod
    def of(cls, values: Sequence[int] | np.ndarray) -> "Lengths":
        """The statistics of at least one length."""
        return cls(*map(int, np.quantile(values, (0.5, 0.99, 1.0), method="nearest")))


@dataclasses.dataclass(frozen=True)
class SideSurvey:
    """One side of the sampled pairs.

    Attributes:
      language: suffix of its file.
      scripts: writing system -> share of the letters, the largest first.
      words: lengths in words; None for a writing system without spaces between words.
      characters: lengths in characters.
      character_counts: of every character in the sample.
    """

    language: str
    scripts: dict[str, float]
    words: Lengths | None
    characters: Lengths
    character_counts: collections.Counter[str]

    @property
    def script(self) -> str:
        """The writing system of most letters; empty if there are no letters."""
        return next(iter(self.scripts), "")


@dataclasses.dataclass(frozen=True)
class CorpusSurvey:
    """What a corpus looks like.

    Attributes:
      num_pairs: lines of each side.
      num_empty: pairs with an empty side; the counts below leave them out.
      num_identical: pairs with the same text on both sides.
      num_duplicates: pairs that are equal to an earlier one.
      sample: (source, target), in the order of the corpus.
      seen: those of the wanted digests that are of a source of the corpus.
      num_doubtful: sampled pairs whose lengths hardly fit translations.
      correlation: of the lengths of both sides in the sample; 0 if one side has one length only.
      source, target: the sides of the sample.
    """

    num_pairs: int
    num_empty: int
    num_identical: int
    num_duplicates: int
    sample: list[tuple[str, str]]
    seen: set[int]
    num_doubtful: int
    correlation: float
    source: SideSurvey
    target: SideSurvey

    @property
    def num_filled(self) -> int:
        """Pairs with text on both sides; training uses all of them, copies too."""
        return self.num_pairs - self.num_empty

    @property
    def num_usable(self) -> int:
        """Different pairs with text on both sides."""
        return self.num_filled - self.num_duplicates

    @property
    def is_sampled(self) -> bool:
        """Whether the sample leaves pairs out."""
        return len(self.sample) < self.num_filled

    @property
    def looks_misaligned(self) -> bool:
        """Whether lengths say that line n of one side is not the translation of line n."""
        varied = min(side.characters.longest for side in (self.source, self.target)) > 10
        return varied and self.correlation < ALIGNED_CORRELATION


def survey_corpus(
    corpus: Corpus, wanted: Collection[int] = (), sample_size: int = SAMPLE_SIZE
) -> CorpusSurvey:
    """Reads the corpus once and describes it. Memory: eight bytes for each pair, and the sample.

    Args:
      corpus: from `sources.open_text`.
      wanted: digests of sources to look for in the corpus.
      sample_size: most pairs to sample, always the same ones.

    Raises:
      UserError: from reading; see `sources`.
    """
    draw = random.Random(0)
    sample: list[tuple[int, str, str]] = []
    digests = array.array("Q")
    seen: set[int] = set()
    num_pairs = num_empty = num_identical = 0
    for num_pairs, (source, target) in enumerate(read_with_progress(corpus), start=1):
        source, target = source.strip(), target.strip()
        if wanted and (digest := text_digest(source)) in wanted:
            seen.add(digest)
        if not source or not target:
            num_empty += 1
            continue
        num_identical += source == target
        digests.append(text_digest(f"{source}\t{target}"))
        # Each pair so far is in the sample with the same probability (Vitter 1985, algorithm R).
        if len(sample) < sample_size:
            sample.append((num_pairs, source, target))
        elif (place := draw.randrange(len(digests))) < sample_size:
            sample[place] = (num_pairs, source, target)
    pairs = [(source, target) for _, source, target in sorted(sample)]
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    lengths = np.array([[len(text) for text in side] for side in (sources, targets)])  # [2, pairs]
    return CorpusSurvey(
        num_pairs=num_pairs,
        num_empty=num_empty,
        num_identical=num_identical,
        num_duplicates=_num_duplicates(digests),
        sample=pairs,
        seen=seen,
        num_doubtful=int(doubtful(lengths).sum()),
        correlation=_correlation(lengths),
        source=_survey_side(corpus.source_lang, sources),
        target=_survey_side(corpus.target_lang, targets),
    )


def read_with_progress(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """The pairs of a corpus; says now and again how many were read."""
    num_pairs = 0

    def line(seconds: float) -> str:
        return f"reading {corpus.name}: {num_pairs:,} pairs after {seconds:.0f} s"

    with waiting.reminded(line, functools.partial(print, flush=True)):
        for num_pairs, pair in enumerate(corpus.read(), start=1):  # noqa: B007, read by `line`
            yield pair


def _num_duplicates(digests: "array.array[int]") -> int:
    """How many digests are equal to another one; sorts them in place."""
    ranked = np.frombuffer(digests, np.uint64)
    ranked.sort()
    return int((ranked[1:] == ranked[:-1]).sum())


def text_digest(text: str) -> int:
    """A number from 0 to 2^64 - 1 that is the same for equal texts, everywhere and always."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def doubtful(lengths: np.ndarray) -> np.ndarray:
    """Which pairs have lengths that hardly fit translations, `[pairs]` booleans.

    The length that a side lets expect of the other is its own times the ratio of all text, so that
    Chinese, with few characters, is no exception.

    Args:
      lengths: `[2, pairs]` characters of source and target.
    """
    if not lengths.size:
        return np.zeros(lengths.shape[1:], bool)
    source, target = lengths[0] * (lengths[1].sum() / max(lengths[0].sum(), 1)), lengths[1]
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    return (longer > DOUBTFUL_RATIO * shorter) & (longer > shorter + DOUBTFUL_CHARACTERS)


def describe_survey(survey: CorpusSurvey) -> Iterator[str]:
    """The survey as lines for users, warnings last."""
    of_sample = f" of {len(survey.sample):,} sampled pairs" if survey.is_sampled else ""
    yield (
        f"{survey.num_pairs:,} pairs: {survey.num_empty:,} with an empty side, "
        f"{_count(survey.num_duplicates, survey.num_pairs)} equal to an earlier pair, "
        f"{_count(survey.num_identical, survey.num_pairs)} with the same text on both sides"
    )
    for side in (survey.source, survey.target):
        scripts = ", ".join(f"{name} {100 * share:.0f}%" for name, share in side.scripts.items())
        words = "no spaces between words" if side.words is None else _lengths(side.words, "words")
        yield f"{side.language}: {scripts or 'no letters'}; {words}; " + _lengths(
            side.characters, "characters"
        )
    yield (
        f"lengths of both sides correlate by {survey.correlation:.2f}; "
        f"{_count(survey.num_doubtful, len(survey.sample))}{of_sample} have a side over "
        f"{DOUBTFUL_RATIO:g} times as long as expected"
    )
    if survey.looks_misaligned:
        yield (
            "WARNING: the lengths hardly correlate. Check that each line is the translation of the "
            "line with the same number."
        )
    in_pieces = sum(SPACE in source or SPACE in target for source, target in survey.sample)
    if in_pieces > IN_PIECES * len(survey.sample):
        yield (
            f"WARNING: {_count(in_pieces, len(survey.sample))}{of_sample} have {SPACE} (U+2581), "
            "with which SentencePiece marks a space: this text is cut into pieces already. Give it "
            "as people write it, or no output can equal a reference."
        )
    if survey.num_duplicates > 0.1 * survey.num_pairs:
        yield (
            "WARNING: many pairs are copies, and a run trains on each of them. Remove copies that "
            "the text has by accident."
        )
    if survey.num_identical > 0.05 * survey.num_pairs:
        yield "WARNING: models learn to copy from pairs with the same text on both sides."


def _count(count: int, total: int) -> str:
    """`1,234 (5.6%)`, or without a share below 0.1%."""
    return f"{count:,}" + (f" ({100 * count / total:.1f}%)" if count >= 0.001 * total > 0 else "")


def _lengths(lengths: Lengths, unit: str) -> str:
    return (
        f"{lengths.median} {unit} in the median, 99% up to {lengths.most}, longest "
        f"{lengths.longest}"
    )


def _survey_side(language: str, texts: list[str]) -> SideSurvey:
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    has_words = sum(map(separates_words, texts)) > len(texts) / 2
    return SideSurvey(
        language,
        script_shares(counts),
        Lengths.of([len(text.split()) for text in texts]) if has_words else None,
        Lengths.of([len(text) for text in texts] or [0]),
        counts,
    )


def _correlation(lengths: np.ndarray) -> float:
    """Pearson's correlation of the rows of `[2, pairs]`; 0 if a row has one value only."""
    if not lengths.size or not (lengths.std(axis=1) > 0).all():
        return 0.0
    return float(np.corrcoef(lengths)[0, 1])
