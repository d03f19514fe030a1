"""Where translations of one or two systems are wrong: worst sentences, lengths, rare words.

What compare-mt (Neubig et al., 2019) shows, without parts of speech, for text of this package.
Words are those that BLEU counts.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sacrebleu.metrics.chrf import CHRF

from transformer_jax.evaluation import bleu_tokenizers

# First words of a reference, or occurrences of a word, of each bucket.
LENGTHS = (0, 10, 20, 30, 40, 50, 60)
FREQUENCIES = (0, 1, 2, 5, 10, 100, 1000)
# First differences in words between translation and reference.
DIFFERENCES = (-20, -10, -5, -2, -1, 0, 1, 2, 3, 6, 11, 21)
# Words in the longest n-grams.
MAX_ORDER = 4

Split = Callable[[str], Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence and its translations.

    Attributes:
      number: of its line, from 1.
      source, reference: its texts.
      hypotheses: of each system.
      chrf: of each system, from 0 to 100.
    """

    number: int
    source: str
    reference: str
    hypotheses: tuple[str, ...]
    chrf: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Sentences or words of one kind.

    Attributes:
      name: such as `10-19`.
      count: how many there are.
      scores: of each system.
    """

    name: str
    count: int
    scores: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class WordErrors:
    """How often a system writes a word.

    Attributes:
      word: the word.
      in_references: how often the references have it.
      too_few: occurrences in references that the translation of the sentence lacks.
      too_many: occurrences in translations that the reference of the sentence lacks.
    """

    word: str
    in_references: int
    too_few: int
    too_many: int


@dataclasses.dataclass(frozen=True)
class NgramMatches:
    """How often two systems write some words in a row where the reference has them.

    Attributes:
      words: one to `MAX_ORDER`, with spaces.
      in_references: how often the references have them.
      right: of each system, how often its translation of the same sentence has them too.
    """

    words: str
    in_references: int
    right: tuple[int, int]


def splitter(tokenizer: str) -> Split:
    """What splits text into the words that BLEU counts, by the name of BLEU's tokenizer."""
    split = bleu_tokenizers.make_bleu(tokenizer).tokenizer
    return lambda text: split(text.rstrip()).split()


def sentences(pairs: Sequence[tuple[str, str]], systems: Sequence[Sequence[str]]) -> list[Sentence]:
    """Each sentence with its translations and their chrF.

    Args:
      pairs: (source, reference).
      systems: translations of each system, in the order of the pairs.
    """
    chrf = CHRF()
    return [
        Sentence(
            number,
            source,
            reference,
            hypotheses,
            tuple(chrf.sentence_score(text, [reference]).score for text in hypotheses),
        )
        for number, ((source, reference), hypotheses) in enumerate(
            zip(pairs, zip(*systems, strict=True), strict=True), start=1
        )
    ]


def by_length(rows: Sequence[Sentence], split: Split) -> list[Bucket]:
    """chrF of the sentences by the number of words of their reference."""
    return list(
        _buckets(rows, LENGTHS, [len(split(row.reference)) for row in rows], _chrf_of_systems)
    )


def by_length_difference(rows: Sequence[Sentence], split: Split) -> list[Bucket]:
    """How many translations of each system are longer than their reference, by words."""
    references = [len(split(row.reference)) for row in rows]
    counts = []
    for system in range(len(rows[0].hypotheses)):
        lengths = [len(split(row.hypotheses[system])) for row in rows]
        places = [_place(n - m, DIFFERENCES) for n, m in zip(lengths, references, strict=True)]
        counts.append(Counter(places))
    total: Counter[int] = sum(counts, Counter())
    names = _names(DIFFERENCES)
    return [
        Bucket(names[place], total[place], tuple(float(of[place]) for of in counts))
        for place in range(-1, len(DIFFERENCES))
        if total[place]
    ]


def by_frequency(
    rows: Sequence[Sentence], split: Split, frequencies: Mapping[str, int]
) -> list[Bucket]:
    """F1 of the words of each frequency, in percent, and how often references have such words.

    A word of a translation is right as often as the reference of the sentence has it.

    Args:
      rows: sentences.
      split: text to words.
      frequencies: of words, in a text of your choice; others have 0.
    """
    num_systems = len(rows[0].hypotheses)
    wanted: Counter[int] = Counter()
    written: list[Counter[int]] = [Counter() for _ in range(num_systems)]
    right: list[Counter[int]] = [Counter() for _ in range(num_systems)]
    for row in rows:
        reference = Counter(split(row.reference))
        _add(wanted, reference, frequencies)
        for system, text in enumerate(row.hypotheses):
            words = Counter(split(text))
            _add(written[system], words, frequencies)
            _add(right[system], words & reference, frequencies)
    names = _names(FREQUENCIES)
    return [
        Bucket(
            names[place],
            wanted[place],
            tuple(
                200.0 * right[system][place] / max(wanted[place] + written[system][place], 1)
                for system in range(num_systems)
            ),
        )
        for place in range(len(FREQUENCIES))
        if wanted[place] or any(words[place] for words in written)
    ]


def word_errors(
    rows: Sequence[Sentence], split: Split, system: int, count: int
) -> list[WordErrors]:
    """The words that a system writes too rarely or too often, most often wrong first.

    Args:
      rows: sentences.
      split: text to words.
      system: its number.
      count: of words at most.
    """
    wanted: Counter[str] = Counter()
    too_few: Counter[str] = Counter()
    too_many: Counter[str] = Counter()
    for row in rows:
        reference, words = Counter(split(row.reference)), Counter(split(row.hypotheses[system]))
        wanted += reference
        too_few += reference - words
        too_many += words - reference
    errors = too_few + too_many
    ordered = sorted(errors, key=lambda word: (-errors[word], word))
    return [
        WordErrors(word, wanted[word], too_few[word], too_many[word]) for word in ordered[:count]
    ]


def ngram_matches(
    rows: Sequence[Sentence], split: Split, count: int
) -> tuple[list[NgramMatches], list[NgramMatches]]:
    """The n-grams of references that the first of two systems has right more often; the second.

    Each list begins with the largest difference.

    Args:
      rows: sentences with two translations.
      split: text to words.
      count: of n-grams in a list, at most.
    """
    wanted: Counter[str] = Counter()
    right: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for row in rows:
        reference = _ngrams(split(row.reference))
        wanted += reference
        for counts, text in zip(right, row.hypotheses, strict=True):
            counts += _ngrams(split(text)) & reference
    first, second = right

    def better(one: Counter[str], other: Counter[str]) -> list[NgramMatches]:
        more = one - other
        ordered = sorted(more, key=lambda words: (-more[words], words))[:count]
        return [NgramMatches(w, wanted[w], (first[w], second[w])) for w in ordered]

    return better(first, second), better(second, first)


def count_words(texts: Iterable[str], split: Split) -> Counter[str]:
    """How often each word is in the texts."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(split(text))
    return words


def _ngrams(words: Sequence[str]) -> Counter[str]:
    """The n-grams of up to `MAX_ORDER` words, joined by spaces."""
    spans = ((i, i + n) for n in range(1, MAX_ORDER + 1) for i in range(len(words) - n + 1))
    return Counter(" ".join(words[first:last]) for first, last in spans)


def _add(counts: Counter[int], words: Counter[str], frequencies: Mapping[str, int]) -> None:
    for word, count in words.items():
        counts[_place(frequencies.get(word, 0), FREQUENCIES)] += count


def _chrf_of_systems(rows: Sequence[Sentence]) -> tuple[float, ...]:
    references = [row.reference for row in rows]
    systems = zip(*(row.hypotheses for row in rows), strict=True)
    return tuple(CHRF().corpus_score(texts, [references]).score for texts in systems)


def _buckets(
    rows: Sequence[Sentence],
    starts: Sequence[int],
    values: Sequence[int],
    score: Callable[[Sequence[Sentence]], tuple[float, ...]],
) -> Iterator[Bucket]:
    places = [_place(value, starts) for value in values]
    for place, name in _names(starts).items():
        chosen = [row for row, of_row in zip(rows, places, strict=True) if of_row == place]
        if chosen:
            yield Bucket(name, len(chosen), score(chosen))


def _place(value: int, starts: Sequence[int]) -> int:
    """Number of the last start that is not above `value`; -1: all are."""
    return sum(start <= value for start in starts) - 1


def _names(starts: Sequence[int]) -> dict[int, str]:
    """Place -> its name, such as `10-19`; below the first start it is -1."""
    names = {-1: f"under {starts[0]}"}
    for place, start in enumerate(starts):
        last = starts[place + 1] - 1 if place + 1 < len(starts) else None
        if last is None:
            names[place] = f"{start} and more"
        else:
            names[place] = f"{start}" if start == last else f"{start} to {last}"
    return names
