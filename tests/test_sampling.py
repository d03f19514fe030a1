"""Sampling against the distribution it should draw from, and truncations against sorting."""

import collections
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from tests.test_search import (
    EOS,
    IDS,
    VOCAB,
    TableDecoder,
    brute_force,
    log_softmax,
    make_constraints,
    random_model,
    table_logits,
)
from transformer_jax.config import DecodeConfig
from transformer_jax.ops.top_k import NEVER, top_k_columns
from transformer_jax.search import sampling
from transformer_jax.search.search import search
from transformer_jax.search.search_settings import structure_of, values_of
from transformer_jax.translator import mbr


@functools.cache
def compiled(longest, config):
    def find(logits, constraints):
        decoder = TableDecoder(logits, config.beam_size)
        structure = structure_of(config)
        return search(decoder, decoder.init_cache(), constraints, IDS, structure, longest)

    return jax.jit(find)


def sample(tables, limits, longest=4, seeds=None, **settings):
    config = DecodeConfig(method="sample", **settings)
    seeds = range(len(tables)) if seeds is None else seeds
    constraints = make_constraints(limits, config, seeds=jnp.asarray(seeds, jnp.uint32))
    return compiled(longest, config)(table_logits(tables, longest), constraints)


def sequences(result, row):
    return [
        tuple(int(t) for t in result.tokens[row, k, : result.lengths[row, k]])
        for k in range(result.tokens.shape[1])
    ]


def test_sampling_frequencies_equal_probabilities():
    (table,) = random_model(1, 3, seed=1)
    result = sample([table], [3], longest=3, beam_size=4096)
    drawn = sequences(result, 0)
    # At the limit an end is forced, at its own cost.
    for _, _, sequence in brute_force(table, 3, 0.0, "power"):
        free = sequence if len(sequence) < 3 else sequence[:-1]
        likely = np.exp(sum(log_softmax(table[free[:i]])[p] for i, p in enumerate(free)))
        share = drawn.count(sequence) / len(drawn)
        assert abs(share - likely) < 5 * np.sqrt(likely / len(drawn)) + 1e-3
    for k in range(5):
        want = sum(log_softmax(table[drawn[k][:i]])[p] for i, p in enumerate(drawn[k]))
        assert float(result.log_probs[0, k]) == pytest.approx(want, abs=1e-4)


def test_sampling_depends_on_sentence_number_and_seed_only():
    tables = random_model(3, 4, seed=2)
    together = sample(tables, [4, 4, 3], seeds=[7, 8, 9], beam_size=3)
    alone = sample(tables[1:2], [4], seeds=[8], beam_size=3)
    fewer = sample(tables[1:2], [4], seeds=[8], beam_size=2)
    assert sequences(together, 1) == sequences(alone, 0)
    assert sequences(fewer, 0) == sequences(alone, 0)[:2]
    many = sample(tables[1:2], [4], seeds=[8], beam_size=16)
    assert sequences(many, 0) != sequences(sample(tables[1:2], [4], seeds=[9], beam_size=16), 0)
    other = sample(tables[1:2], [4], seeds=[8], beam_size=16, seed=5)
    assert sequences(many, 0) != sequences(other, 0)


def test_sampling_with_low_temperature_is_greedy():
    tables = random_model(2, 4, seed=3)
    result = sample(tables, [4, 4], beam_size=4, temperature=0.01)
    for row, table in enumerate(tables):
        prefix = ()
        while len(prefix) < 3 and (not prefix or prefix[-1] != EOS):
            prefix = (*prefix, int(np.argmax(table[prefix])))
        assert {s[: len(prefix)] for s in sequences(result, row)} == {prefix}


def distribution(vocab=300, seed=0):
    logits = np.random.default_rng(seed).normal(0, 2, (vocab, 2, 3))
    return (logits - np.log(np.exp(logits).sum(axis=0))).astype(np.float32)


keep_top_k, keep_top_p, keep_min_p, draw = map(
    jax.jit, (sampling.keep_top_k, sampling.keep_top_p, sampling.keep_min_p, sampling.draw)
)
top_columns = jax.jit(top_k_columns, static_argnums=2)


def kept(log_probs):
    return np.asarray(log_probs) > NEVER


@pytest.mark.parametrize("count", [1, 7, 300])
def test_keep_top_k_by_sorting(count):
    x = distribution()
    ranks = np.argsort(np.argsort(-np.asarray(x), axis=0), axis=0)
    np.testing.assert_array_equal(kept(keep_top_k(x, np.full(2, count))), ranks < count)


@pytest.mark.parametrize("mass", [0.01, 0.5, 0.9, 0.999])
def test_keep_top_p_by_sorting(mass):
    x = distribution()
    probs = np.exp(np.asarray(x, np.float64))
    order = np.argsort(-probs, axis=0)
    before = np.cumsum(np.take_along_axis(probs, order, 0), axis=0)
    before -= np.take_along_axis(probs, order, 0)
    want = np.zeros(x.shape, bool)
    np.put_along_axis(want, order, before < mass, axis=0)
    np.testing.assert_array_equal(kept(keep_top_p(x, np.full(2, mass, np.float32))), want)


def test_keep_min_p_by_the_likeliest_token():
    x = distribution()
    probs = np.exp(np.asarray(x))
    want = probs >= 0.1 * probs.max(axis=0)
    np.testing.assert_array_equal(kept(keep_min_p(x, np.full(2, 0.1, np.float32))), want)


@pytest.mark.parametrize("vocab", [5, 1000, 1280, 1279])
def test_draw_inverts_the_cumulative_distribution(vocab):
    x = distribution(vocab)
    x[[3, vocab - 1]] = NEVER
    total = np.cumsum(np.exp(np.asarray(x, np.float64)), axis=0)
    for u in (0.0, 0.3, 0.77, 1 - 2**-24):
        got = np.asarray(draw(x, np.full(x.shape[1:], u, np.float32)))
        want = (total <= u * total[-1]).sum(axis=0)
        near = np.abs(total - u * total[-1]).min(axis=0) < 1e-5
        assert ((got == want) | near).all()
        assert (np.take_along_axis(x, got[None], 0) > NEVER).all()


@pytest.mark.parametrize(("vocab", "count"), [(5, 4), (1024, 9), (1280, 9), (1279, 3), (2000, 8)])
def test_top_k_columns_equals_top_k(vocab, count):
    rng = np.random.default_rng(vocab)
    x = rng.normal(size=(vocab, 3, 2)).astype(np.float32)
    offsets = rng.normal(size=(3, 2)).astype(np.float32)
    values, beams, ids = top_columns(x, offsets, count)
    for row in range(3):
        flat = (x[:, row] + offsets[row]).T.reshape(-1)
        order = np.argsort(-flat, kind="stable")[:count]
        np.testing.assert_array_equal(np.asarray(values[row]), flat[order])
        np.testing.assert_array_equal(np.asarray(beams[row]) * vocab + np.asarray(ids[row]), order)


@pytest.mark.parametrize(("vocab", "count"), [(5, 4), (1280, 9), (1279, 7)])
def test_top_k_columns_keeps_the_order_of_equal_numbers(vocab, count):
    rng = np.random.default_rng(vocab)
    x = rng.choice([0.0, 1.0, 2.0], (vocab, 4, 2), p=[0.99, 0.008, 0.002]).astype(np.float32)
    x[:, 0] = 0.0
    _, beams, ids = top_columns(x, np.zeros((4, 2), np.float32), count)
    for row in range(4):
        order = np.argsort(-x[:, row].T.reshape(-1), kind="stable")[:count]
        np.testing.assert_array_equal(np.asarray(beams[row]) * vocab + np.asarray(ids[row]), order)


def test_mbr_expected_utilities_by_hand():
    # chrF of equal texts is 100, of texts without a common character 0.
    assert mbr.expected_utilities(["aaa", "bbb", "aaa", "ccc"], "chrf") == pytest.approx(
        [50, 25, 50, 25]
    )
    bleu = mbr.expected_utilities(["the cat sat on a mat", "the cat sat on a mat", "x"], "bleu")
    assert bleu[0] == bleu[1] == pytest.approx(200 / 3)
    assert bleu[2] == pytest.approx(100 / 3)
    assert mbr.expected_utilities([], "chrf") == []
    assert VOCAB == 4


@given(st.lists(st.text("ab c.(é漢🙂\u3000\ud800", max_size=12), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_mbr_utilities_equal_sacrebleu_to_the_last_bit(texts):
    scorers = {"chrf": CHRF(), "chrf++": CHRF(word_order=2), "bleu": BLEU(effective_order=True)}
    scorers["ter"] = TER()
    for metric, scorer in scorers.items():
        sign = -1 if metric == "ter" else 1
        means = {
            text: math.fsum(
                sign * n * scorer.sentence_score(text, [other]).score
                for other, n in collections.Counter(texts).items()
            )
            / len(texts)
            for text in texts
        }
        assert mbr.expected_utilities(texts, metric) == [means[text] for text in texts]


def test_mbr_counts_ngrams_in_several_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    texts = [" ".join(rng.choice(words, 15)) for _ in range(20)]
    at_once = mbr.expected_utilities(texts, "chrf")
    monkeypatch.setattr(mbr, "COLUMNS", 64)
    assert mbr.expected_utilities(texts, "chrf") == at_once
    scores = CHRF().corpus_score([texts[0]], [[texts[1]]]).score
    assert mbr._chrf(texts[:2], 0)[0, 1] == scores


def test_mbr_by_bleu_uses_the_tokenizer_of_the_target_language():
    texts = ["两只狗在玩。", "两只狗在跑。", "一只狗在跑。"]
    assert mbr.expected_utilities(texts, "bleu") == pytest.approx([100 / 3] * 3)  # a word each
    utilities = mbr.expected_utilities(texts, "bleu", "zh")
    assert np.argmax(utilities) == 1


def warp_by_hand(log_probs, temperature, top_k, top_p, min_p):
    """Tokens that may be drawn from `[V]`, and their probabilities."""
    probs = np.exp(log_probs / temperature)
    for keep in (
        lambda p: p >= np.sort(p)[-top_k] if top_k else p >= 0,
        lambda p: np.isin(np.arange(p.size), smallest_set(p, top_p)),
        lambda p: p >= min_p * p.max(),
    ):
        probs = np.where(keep(probs), probs, 0.0)
        probs /= probs.sum()
    return probs


def smallest_set(probs, mass):
    order = np.argsort(-probs)
    return order[: np.searchsorted(np.cumsum(probs[order]), mass - 1e-12) + 1]


def test_sampling_rules_apply_row_by_row():
    """Rows use all rules, some, or none; a rule that no row uses is skipped."""
    log_probs = np.log(np.random.default_rng(3).dirichlet(np.full(40, 0.5), 6)).T[:, :, None]
    rules = {
        "all": [(0.7, 9, 0.8, 0.02)] * 6,
        "none": [(1.0, 0, 1.0, 0.0)] * 6,
        "some": [
            (1.0, 5, 1.0, 0.0),
            (1.3, 0, 0.7, 0.0),
            (1.0, 0, 1.0, 0.1),
            (1.0, 0, 1.0, 0.0),
            (0.5, 3, 0.9, 0.05),
            (2.0, 0, 1.0, 0.0),
        ],
        "one": [(1.0, 0, 0.6, 0.0), *[(1.0, 0, 1.0, 0.0)] * 5],
    }
    names = "temperature", "top_k", "top_p", "min_p"
    for rows in rules.values():
        configs = [
            DecodeConfig(method="sample", **dict(zip(names, row, strict=True))) for row in rows
        ]
        values = jax.tree.map(
            lambda *x: np.concatenate(x), *(values_of([config], 1) for config in configs)
        )
        got = np.asarray(jax.jit(sampling.warp)(jnp.asarray(log_probs, jnp.float32), values))
        weights = np.where(got > NEVER, np.exp(got - got.max(axis=0)), 0.0)[..., 0]
        for row, rules_of_row in enumerate(rows):
            want = warp_by_hand(log_probs[:, row, 0], *rules_of_row)
            np.testing.assert_array_equal(weights[:, row] > 0, want > 0)
            np.testing.assert_allclose(weights[:, row] / weights[:, row].sum(), want, atol=1e-5)
