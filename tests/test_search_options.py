"""Options of beam search, each against brute force or a plain loop on a tiny vocabulary."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_search import (
    EOS,
    VOCAB,
    brute_force,
    compiled,
    log_softmax,
    make_constraints,
    penalty,
    random_model,
    run,
    table_logits,
    tokens,
)
from transformer_jax.config import DecodeConfig
from transformer_jax.ops.top_k import NEVER
from transformer_jax.search.search_settings import PhraseArrays


def log_prob(table, sequence):
    return sum(log_softmax(table[sequence[:i]])[p] for i, p in enumerate(sequence))


def finished(table, limit):
    """(log-probability, sequence) of all that end."""
    return [(total, sequence) for _, total, sequence in brute_force(table, limit, 0.0, "power")]


def has_repeat(sequence, size):
    grams = [sequence[i : i + size] for i in range(len(sequence) - size + 1)]
    return len(set(grams)) < len(grams)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_no_repeat_ngrams_by_brute_force(size):
    tables, limits = random_model(3, 5, seed=11), [5, 5, 4]
    result = run(
        tables, limits, 128, num_hypotheses=4, length_penalty=0.0, no_repeat_ngram_size=size
    )
    for row, (table, limit) in enumerate(zip(tables, limits, strict=True)):
        want = sorted(
            (f for f in finished(table, limit) if not has_repeat(f[1], size)), reverse=True
        )
        for k, (total, sequence) in enumerate(want[:4]):
            assert tokens(result, row, k) == sequence
            assert float(result.log_probs[row, k]) == pytest.approx(total, abs=1e-4)


def test_beam_search_respects_min_length():
    tables, limits = random_model(3, 4, seed=12), [4, 3, 2]
    result = run(tables, limits, 64, num_hypotheses=3, length_penalty=0.0, min_decode_len=3)
    for row, (table, limit) in enumerate(zip(tables, limits, strict=True)):
        want = sorted(
            (f for f in finished(table, limit) if len(f[1]) >= min(3, limit)), reverse=True
        )
        for k, (total, sequence) in enumerate(want[:3]):
            assert tokens(result, row, k) == sequence
            assert float(result.log_probs[row, k]) == pytest.approx(total, abs=1e-4)


@pytest.mark.slow
def test_repetition_penalty_by_brute_force():
    tables, limits = random_model(3, 4, seed=13), [4, 4, 3]
    result = run(tables, limits, 64, num_hypotheses=3, length_penalty=0.0, repetition_penalty=1.7)

    def total(table, sequence):
        result = 0.0
        for i, token in enumerate(sequence):
            logits = table[sequence[:i]].copy()
            for old in set(sequence[:i]):
                logits[old] = logits[old] / 1.7 if logits[old] > 0 else logits[old] * 1.7
            result += log_softmax(logits)[token]
        return result

    for row, (table, limit) in enumerate(zip(tables, limits, strict=True)):
        want = sorted(((total(table, s), s) for _, s in finished(table, limit)), reverse=True)
        for k, (value, sequence) in enumerate(want[:3]):
            assert tokens(result, row, k) == sequence
            assert float(result.log_probs[row, k]) == pytest.approx(value, abs=1e-4)


def test_prefix_costs_its_log_probability_and_tags_cost_nothing():
    tables, limits = random_model(3, 4, seed=14), [4, 4, 4]
    prefixes = [[2, 1], [0, -1], [-1, -1]]
    config = DecodeConfig(beam_size=64, length_penalty=0.0)
    for free in (0, 1):
        constraints = make_constraints(limits, config, free=free, num_hypotheses=2)
        constraints = constraints.replace(prefix=jnp.asarray(prefixes))
        result = compiled(4, config)(table_logits(tables, 4), constraints)
        for row, table in enumerate(tables):
            forced = tuple(p for p in prefixes[row] if p >= 0)
            begin = [f for f in finished(table, 4) if f[1][: len(forced)] == forced]
            for k, (total, sequence) in enumerate(sorted(begin, reverse=True)[:2]):
                assert tokens(result, row, k) == sequence
                given = log_prob(table, forced[:free])
                assert float(result.log_probs[row, k]) == pytest.approx(total - given, abs=1e-4)


@pytest.mark.slow
def test_coverage_penalty_by_brute_force():
    tables, limits = random_model(2, 4, seed=15), [4, 3]
    logits = table_logits(tables, 4)
    rng = np.random.default_rng(0)
    attention = rng.dirichlet(np.full(3, 0.5), logits.shape[:2])
    config = DecodeConfig(beam_size=64, length_penalty=0.6, coverage_penalty=0.8)
    constraints = make_constraints(limits, config, num_hypotheses=3)
    result = compiled(4, config)(logits, constraints, jnp.asarray(attention, jnp.float32))

    def node(prefix):
        n = 0
        for token in prefix:
            n = n * VOCAB + 1 + token
        return n

    for row, (table, limit) in enumerate(zip(tables, limits, strict=True)):
        want = []
        for total, sequence in finished(table, limit):
            covered = sum(attention[row, node(sequence[:i])] for i in range(len(sequence)))
            cost = 0.8 * np.log(np.minimum(covered, 1.0)).sum()
            want.append((total / penalty(len(sequence), 0.6, "gnmt") + cost, sequence))
        for k, (score, sequence) in enumerate(sorted(want, reverse=True)[:3]):
            assert tokens(result, row, k) == sequence
            assert float(result.scores[row, k]) == pytest.approx(score, abs=1e-3)


def contains(sequence, phrase):
    return any(sequence[i : i + len(phrase)] == phrase for i in range(len(sequence)))


@pytest.mark.parametrize("beam_size", [1, pytest.param(3, marks=pytest.mark.slow), 256])
def test_phrases_appear_and_large_beams_find_the_best_output_with_them(beam_size):
    tables, limits = random_model(4, 5, seed=16), [5, 5, 5, 5]
    # Each phrase has one form or several.
    phrases = [[[(1, 1)], [(2,)]], [[(0, 2)]], [], [[(2, 2), (1, 0, 1)], [(0,), (1, 1)]]]
    array = np.full((4, 2, 2, 3), -1)
    for row, row_phrases in enumerate(phrases):
        for c, forms in enumerate(row_phrases):
            for number, form in enumerate(forms):
                array[row, c, number, : len(form)] = form
    config = DecodeConfig(beam_size=beam_size, length_penalty=0.0)
    arrays = PhraseArrays(jnp.asarray(array), jnp.zeros((4, 2, 2), bool))
    constraints = make_constraints(limits, config, phrases=arrays)
    result = compiled(5, config)(table_logits(tables, 5), constraints)

    def is_complete(sequence, row):
        return all(any(contains(sequence, form) for form in forms) for forms in phrases[row])

    for row, table in enumerate(tables):
        want = [f for f in finished(table, 5) if is_complete(f[1], row)]
        sequence = tokens(result, row, 0)
        assert is_complete(sequence, row)
        assert float(result.log_probs[row, 0]) == pytest.approx(log_prob(table, sequence), abs=1e-4)
        if beam_size == 256:
            assert sequence == max(want)[1]


def diverse(table, limit, groups, beams, strength):
    """Diverse beam search with lists; each group's finished hypotheses, best first."""
    live = [[(0.0, ())] for _ in range(groups)]
    ended = [[] for _ in range(groups)]
    done = [False] * groups
    for length in range(1, limit + 1):
        token_costs = np.zeros(VOCAB)
        for g in range(groups):
            grown = []
            for total, prefix in live[g]:
                costs = log_softmax(table[prefix])
                for token in range(VOCAB):
                    if length < limit or token == EOS:
                        sequence = (*prefix, token)
                        new = total + costs[token]
                        grown.append((new - strength * token_costs[token], new, sequence))
            grown.sort(reverse=True)
            grown = grown[: 2 * beams]
            if not done[g]:
                ended[g] += [(new, s) for _, new, s in grown[:beams] if s[-1] == EOS]
            live[g] = [(new, s) for _, new, s in grown if s[-1] != EOS][:beams]
            for _, sequence in live[g]:
                token_costs[sequence[-1]] += 1
            done[g] = done[g] or len(ended[g]) >= beams or not live[g]
    return [sorted(e, reverse=True)[:beams] for e in ended]


def test_beam_groups_avoid_tokens_of_earlier_groups():
    tables = random_model(8, 4, seed=17)
    result = run(
        tables,
        [4] * 8,
        4,
        num_hypotheses=4,
        length_penalty=0.0,
        beam_groups=2,
        diversity_penalty=0.9,
        stopping="first_k",
    )
    alike = run(
        tables,
        [4] * 8,
        4,
        num_hypotheses=4,
        length_penalty=0.0,
        beam_groups=2,
        diversity_penalty=0.0,
        stopping="first_k",
    )
    for row, table in enumerate(tables):
        want = sorted(itertools.chain(*diverse(table, 4, 2, 2, 0.9)), reverse=True)
        for k, (total, _) in enumerate(want):
            assert float(result.log_probs[row, k]) == pytest.approx(total, abs=1e-4)
            assert log_prob(table, tokens(result, row, k)) == pytest.approx(total, abs=1e-4)
        assert tokens(alike, row, 0) == tokens(alike, row, 1)
    assert not np.array_equal(result.tokens, alike.tokens)


def test_beam_search_without_a_possible_output_finds_nothing():
    result = run(random_model(2, 3, seed=18), [3, 0], 2)
    assert float(result.scores[0, 0]) > NEVER
    assert float(result.scores[1, 0]) == NEVER
