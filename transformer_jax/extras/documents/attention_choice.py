"""Which head of a decoder aligns words, found on sentence pairs without known alignments.

Layers and heads differ much in how well they align, and so does whether a head looks at the word
that it writes or at the one that it has just read.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.word_links import overlaps
from transformer_jax.translator.words import word_spans, words_of

_MOST_PAIRS = 400
LEAST_WORDS = 20  # that are equal on both sides
_LEAST_LETTERS = 4  # of a word without capital letters and digits


def choose(model: Any, pairs: Sequence[tuple[str, str]]) -> tuple[AttentionChoice, float] | None:
    """The attention that links equal words best; None where pairs have too few of them.

    Its score is the share of equal words that it links with each other, plus the share of words
    that it links at all, so that a head that always looks at a few words is not chosen.

    Args:
      model: a `Translator` of JAX, no ensemble.
      pairs: source and reference.

    Returns:
      The attention, and the share of equal words that it links with each other.
    """
    with_equal = [(pair, places) for pair in pairs if (places := equal_words(*pair))]
    scores: dict[AttentionChoice, list[tuple[int, float]]] = {}
    num_words = 0
    for (source, target), places in with_equal[:_MOST_PAIRS]:
        num_words += len(places)
        for choice, weights in word_attention(model, source, target):
            linked = weights.argmax(axis=1)
            num_right = sum(linked[word] == source_word for source_word, word in places)
            coverage = len({*linked}) / min(weights.shape)
            scores.setdefault(choice, []).append((int(num_right), coverage))
    if num_words < LEAST_WORDS:
        return None
    shares = {
        choice: (
            sum(right for right, _ in results) / num_words,
            float(np.mean([coverage for _, coverage in results])),
        )
        for choice, results in scores.items()
    }
    best = max(shares, key=lambda choice: sum(shares[choice]))
    return best, shares[best][0]


def equal_words(source: str, target: str) -> list[tuple[int, int]]:
    """(source word, target word) of names, numbers and long words that are once on both sides."""
    sides = [words_of(source), words_of(target)]
    return [
        (sides[0].index(word), sides[1].index(word))
        for word in dict.fromkeys(sides[0])
        if word.isalnum()
        and (len(word) >= _LEAST_LETTERS or not word.islower())
        and all(side.count(word) == 1 for side in sides)
    ]


def word_attention(
    model: Any, source: str, target: str
) -> Iterator[tuple[AttentionChoice, np.ndarray]]:
    """Of each layer, head and mean of heads: what words attend to, `[words, source words]`."""
    engine, tokenizers = model.engine, model.tokenizers
    encoder = engine.encoder()
    source_ids, target_ids = encoder.source_ids([source])[0], tokenizers.target.encode(target)
    num_tags = len(source_ids) - len(tokenizers.source.encode(source))
    first = len(encoder.target_tags)
    if max(len(source_ids), first + len(target_ids)) >= engine.max_len or not target_ids:
        return
    weights = engine.runner.cross_attention(
        model.device_params,
        [*source_ids, engine.ids.source_eos],
        [*encoder.target_tags, *target_ids, engine.ids.target_eos],
    )  # [L, H, T, S]
    columns = overlaps(source, tokenizers.source.tokens(source_ids[num_tags:]), word_spans(source))
    rows = overlaps(target, tokenizers.target.tokens(target_ids), word_spans(target)).T
    depth, num_heads = weights.shape[:2]
    heads: list[int | None] = [None, *range(num_heads)]
    for layer, head, shift in itertools.product(range(depth), heads, (False, True)):
        of_layer = weights[layer].mean(axis=0) if head is None else weights[layer, head]
        begin = first + shift
        part = of_layer[begin : begin + len(target_ids), num_tags : num_tags + columns.shape[0]]
        yield AttentionChoice(layer, head, shift), rows @ part @ columns
