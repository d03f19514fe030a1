"""Minimum-Bayes-risk choice: of several samples, the one most like all of them."""

import collections
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from transformer_jax.evaluation.bleu_tokenizers import DEFAULT, make_bleu

# Longest n-grams: of characters in chrF, of words in BLEU, of words in chrF++.
CHRF_ORDER, BLEU_ORDER, WORD_ORDER = 6, 4, 2
BETA = 2  # of chrF: how many times more recall counts than precision
COLUMNS = 1 << 15  # of the matrix of bits, computed at a time


def expected_utilities(texts: Sequence[str], metric: str, tokenizer: str = DEFAULT) -> list[float]:
    """Mean score of each text with every text, itself included, as its reference.

    Eikema and Aziz, 2020, equation 4, with the samples as both candidates and references.

    Args:
      texts: samples of one sentence.
      metric: `chrf`, `chrf++`, `bleu` or `ter`, as sacreBLEU scores sentences; `ter`, of which
        less is better, with a minus sign.
      tokenizer: of BLEU, from `bleu_tokenizers.choose`.
    """
    if not texts:
        return []
    counts = collections.Counter(texts)
    distinct = list(counts)
    if metric == "bleu":
        scores = _bleu(distinct, tokenizer)
    elif metric == "ter":
        ter = TER()
        scores = -np.array([[ter.sentence_score(a, [b]).score for b in distinct] for a in distinct])
    else:
        scores = _chrf(distinct, WORD_ORDER if metric == "chrf++" else 0)
    weighted = (scores * list(counts.values())).tolist()
    # The exact sum, so that equal utilities stay equal in whatever order samples come.
    utilities = {
        text: math.fsum(row) / len(texts) for text, row in zip(distinct, weighted, strict=True)
    }
    return [utilities[text] for text in texts]


def _chrf(texts: Sequence[str], word_order: int) -> np.ndarray:
    """Sentence chrF, `[texts, texts]`: of each row's text with each column's as its reference.

    With a `word_order` above 0 it is chrF++, which counts words too, punctuation marks apart. In
    the order of operations of sacreBLEU, so that its numbers are the same to the last bit.
    """
    characters = [
        np.frombuffer("".join(text.split()).encode("utf-32-le", "surrogatepass"), np.uint32)
        for text in texts
    ]
    precision = np.zeros((len(texts), len(texts)))
    recall, orders = np.zeros_like(precision), np.zeros_like(precision)
    by_order = ngram_matches(characters, CHRF_ORDER)
    if word_order:
        # sacreBLEU has no public name for it.
        split: Any = CHRF(word_order=word_order)._remove_punctuation
        by_order += ngram_matches(_word_ids([split(text) for text in texts]), word_order)
    for sizes, matches in by_order:
        both = (sizes[:, None] > 0) & (sizes > 0)
        precision += np.where(both, matches / np.maximum(sizes, 1)[:, None], 0.0)
        recall += np.where(both, matches / np.maximum(sizes, 1), 0.0)
        orders += both
    precision /= np.maximum(orders, 1)
    recall /= np.maximum(orders, 1)
    some = precision + recall > 0
    factor = BETA**2
    score = (1 + factor) * precision * recall / np.where(some, factor * precision + recall, 1.0)
    return np.where(some, 100 * score, 0.0)


def _bleu(texts: Sequence[str], tokenizer: str) -> np.ndarray:
    """Sentence BLEU by its effective order, `[texts, texts]`, as `_chrf`."""
    split = make_bleu(tokenizer).tokenizer
    words = [split(text.rstrip()).split() for text in texts]
    by_order = ngram_matches(_word_ids(words), BLEU_ORDER)
    totals = np.stack([sizes for sizes, _ in by_order], axis=-1).tolist()
    matches = np.stack([matches for _, matches in by_order], axis=-1).tolist()
    lengths = [len(text_words) for text_words in words]
    scores = [
        [
            BLEU.compute_bleu(
                matches[i][j], totals[i], lengths[i], lengths[j], "exp", effective_order=True
            ).score
            for j in range(len(texts))
        ]
        for i in range(len(texts))
    ]
    return np.asarray(scores)


def _word_ids(words: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """The words of each text as numbers, int64."""
    vocabulary = dict.fromkeys(word for of_text in words for word in of_text)
    ids = {word: number for number, word in enumerate(vocabulary)}
    return [np.array([ids[word] for word in of_text], np.int64) for of_text in words]


def ngram_matches(
    sequences: Sequence[np.ndarray], max_order: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Counts the n-grams that each two sequences share, as often as both contain them.

    Rows of a bit matrix are sequences, columns are pairs of an n-gram and a number k. A bit says
    that the sequence contains the n-gram at least k times, so the bits that two rows share are
    their matches. (A matrix product would start more threads in every thread of the search.)

    Returns:
      For each order from 1: the n-grams in each sequence, `[N]`, and the matches, `[N, N]`.
    """
    lengths = np.array([len(sequence) for sequence in sequences])
    owner = np.repeat(np.arange(len(sequences)), lengths)
    symbols = np.unique(np.concatenate(sequences), return_inverse=True)[1]
    within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids = np.zeros(len(owner), np.int64)  # of the n-gram that begins at each place
    num_symbols = int(symbols.max(initial=0)) + 1
    by_order = []
    for order in range(1, max_order + 1):
        begins = np.flatnonzero(within + order <= lengths[owner])
        ids = ids[: len(owner)]
        ids[begins] = np.unique(
            ids[begins] * num_symbols + symbols[begins + order - 1], return_inverse=True
        )[1]
        sizes = np.maximum(lengths - order + 1, 0)
        by_order.append((sizes, _shared(ids[begins], owner[begins], len(sequences))))
    return by_order


def _shared(ids: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """Matches `[count, count]` of the n-grams `ids` of the sequences `owner`."""
    order = np.lexsort((owner, ids))
    ids, owner = ids[order], owner[order]
    # How many times the sequence had the n-gram before: positions since the first of its run.
    starts = np.flatnonzero(np.r_[True, (np.diff(ids) != 0) | (np.diff(owner) != 0)][: len(ids)])
    times = np.arange(len(ids)) - np.repeat(starts, np.diff(np.r_[starts, len(ids)]))
    columns, holders = np.unique(
        ids * (len(ids) + 1) + times, return_inverse=True, return_counts=True
    )[1:]
    several = holders[columns] > 1  # the others are on the diagonal alone
    columns, owners = np.unique(columns[several], return_inverse=True)[1], owner[several]
    shared = np.zeros((count, count), np.int64)
    for first in range(0, int(columns.max(initial=-1)) + 1, COLUMNS):
        here = (columns >= first) & (columns < first + COLUMNS)
        rows = np.zeros((count, COLUMNS), bool)
        rows[owners[here], columns[here] - first] = True
        bits = np.packbits(rows[:, : -(-int(columns.max() + 1 - first) // 64) * 64], axis=1)
        words = bits.view(np.uint64)
        for row in range(count):
            shared[row] += np.bitwise_count(words & words[row]).sum(axis=1, dtype=np.int64)
    np.fill_diagonal(shared, np.bincount(owner, minlength=count))
    return shared
