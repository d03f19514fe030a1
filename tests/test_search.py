"""Search against brute force on a tiny vocabulary, and the penalties and stopping rules."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.ops.top_k import NEVER
from transformer_jax.search.hypotheses import gather_beams, length_penalty
from transformer_jax.search.search import search
from transformer_jax.search.search_settings import SearchConstraints, structure_of, values_of

VOCAB, EOS, START, PAD = 4, 3, 0, 9
IDS = SpecialIds(0, 0, PAD, EOS, START)


def random_model(rows, longest, seed):
    """A table: next-token log-probabilities for every prefix, drawn once."""
    rng = np.random.default_rng(seed)
    return [
        {
            prefix: rng.normal(0, 1.5, VOCAB)
            for n in range(longest)
            for prefix in itertools.product(range(VOCAB), repeat=n)
        }
        for _ in range(rows)
    ]


def log_softmax(x):
    return x - np.log(np.exp(x).sum())


def penalty(length, alpha, kind):
    return ((5 + length) / 6) ** alpha if kind == "gnmt" else length**alpha


def brute_force(table, limit, alpha, kind):
    """All complete sequences, best first: (score, log-probability, tokens)."""
    result = []
    for n in range(1, limit + 1):
        for body in itertools.product([p for p in range(VOCAB) if p != EOS], repeat=n - 1):
            tokens = (*body, EOS)
            # At the limit a sequence must end, but its end costs what it costs.
            total = sum(log_softmax(table[tokens[:i]])[tokens[i]] for i in range(n))
            result.append((total / penalty(n, alpha, kind), total, tokens))
    return sorted(result, reverse=True)


def run(
    tables, limits, beam_size, num_hypotheses=1, longest=None, forced=(), free=None, **settings
):
    """Searches table models; the cache keeps each hypothesis's prefix."""
    config = DecodeConfig(beam_size=beam_size, **settings)
    free = len(forced) if free is None else free
    constraints = make_constraints(limits, config, forced, free, num_hypotheses)
    searcher = compiled(longest or max(limits), config)
    return searcher(table_logits(tables, longest or max(limits)), constraints)


def make_constraints(limits, config, forced=(), free=0, num_hypotheses=1, **more):
    rows = len(limits)
    return SearchConstraints(
        max_lens=jnp.asarray(limits),
        min_lens=jnp.minimum(config.min_decode_len, jnp.asarray(limits)),
        values=values_of([config], rows),
        num_hypotheses=jnp.full(rows, num_hypotheses),
        prefix=jnp.asarray([list(forced)] * rows, jnp.int32) if forced else None,
        num_free=jnp.full(rows, free),
        **more,
    )


def table_logits(tables, longest):
    size = sum(VOCAB**n for n in range(longest))
    logits = np.zeros((len(tables), size, VOCAB))
    for b, table in enumerate(tables):
        for prefix, values in table.items():
            if len(prefix) < longest:
                logits[b, index_of(prefix)] = values
    return jnp.asarray(logits, jnp.float32)


class TableDecoder:
    """The `Decoder` of table models: a beam's cache is the number of its prefix."""

    def __init__(self, logits, beams, attention=None):
        self.logits, self.beams, self.attention = logits, beams, attention

    @property
    def vocab_size(self):
        return self.logits.shape[-1]

    def init_cache(self):
        rows = self.logits.shape[0]
        node = jnp.full((rows, self.beams), -1)
        width = 0 if self.attention is None else self.attention.shape[-1]
        return {"node": node, "coverage": jnp.zeros((rows, self.beams, width))}

    def step(self, cache, tokens):
        rows, size, _ = self.logits.shape
        child = cache["node"] * VOCAB + 1 + tokens.reshape(rows, self.beams)
        node = jnp.where(cache["node"] < 0, 0, jnp.minimum(child, size - 1))
        logits = jnp.take_along_axis(self.logits, node[..., None], axis=1)  # --> [B, K, V]
        coverage = cache["coverage"]
        if self.attention is not None:
            coverage += jnp.take_along_axis(self.attention, node[..., None], axis=1)
        return logits.reshape(-1, VOCAB).T, {"node": node, "coverage": coverage}

    def reorder(self, cache, parents):
        return gather_beams(cache, parents)

    def grow(self, cache, size):
        return cache

    def coverage(self, cache):
        return cache["coverage"]


@functools.cache
def compiled(longest, config, starts_word=None):
    """Search over logits `[rows, prefixes, V]`, compiled once for all tables of one size."""

    def find(logits, constraints, attention=None):
        decoder = TableDecoder(logits, config.beam_size, attention)
        return search(
            decoder,
            decoder.init_cache(),
            constraints,
            IDS,
            structure_of(config),
            longest,
            None if starts_word is None else jnp.array(starts_word),
        )

    return jax.jit(find)


def index_of(prefix):
    """Number of a prefix when all are counted breadth first."""
    node = 0
    for token in prefix:
        node = node * VOCAB + 1 + token
    return node


def tokens(hypotheses, row, k):
    tokens = [int(t) for t in hypotheses.tokens[row, k]]
    length = int(hypotheses.lengths[row, k])
    assert EOS not in tokens[: length - 1]
    assert all(t == PAD for t in tokens[length:])
    return tuple(tokens[:length])


@pytest.mark.parametrize("kind", ["gnmt", "power"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_beam_search_equals_brute_force_with_a_large_beam(alpha, kind):
    tables, limits = random_model(3, 4, seed=1), [4, 3, 1]
    result = run(
        tables,
        limits,
        beam_size=64,
        num_hypotheses=5,
        length_penalty=alpha,
        length_penalty_kind=kind,
    )
    for row, (table, limit) in enumerate(zip(tables, limits, strict=True)):
        want = brute_force(table, limit, alpha, kind)[:5]
        for k, (score, log_prob, sequence) in enumerate(want):
            assert tokens(result, row, k) == sequence
            assert float(result.scores[row, k]) == pytest.approx(score, abs=1e-4)
            assert float(result.log_probs[row, k]) == pytest.approx(log_prob, abs=1e-4)
        if len(want) < 5:
            assert float(result.scores[row, len(want)]) == NEVER


OPTIONS = {
    "suppressed": {"suppressed_ids": (1,)},
    "suppressed, renormalised": {"suppressed_ids": (1,), "renormalize": True},
    "prefix": {"forced": (2, 1)},
    "end free at the limit": {"at_limit": "free_end"},
    "cut at the limit": {"at_limit": "cut"},
    "all": {"suppressed_ids": (0,), "renormalize": True, "forced": (2,), "at_limit": "cut"},
}


def allowed(table, limit, suppressed_ids=(), renormalize=False, forced=(), at_limit="end"):
    """All sequences that may be written, best first: (log-probability over length, tokens)."""
    result = []

    def grow(total, sequence):
        index = len(sequence)
        log_probs = log_softmax(table[sequence])
        log_probs[list(suppressed_ids)] = -np.inf
        if renormalize:
            log_probs = log_softmax(log_probs)
        for token in range(VOCAB):
            cost = log_probs[token]
            if index < len(forced):
                cost = 0.0 if token == forced[index] else -np.inf
            if index + 1 == limit and at_limit != "cut":
                cost = (0.0 if at_limit == "free_end" else cost) if token == EOS else -np.inf
            if cost == -np.inf:
                continue
            new = (*sequence, token)
            if token == EOS or len(new) == limit:
                result.append(((total + cost) / len(new), new))
            else:
                grow(total + cost, new)

    grow(0.0, ())
    return sorted(result, reverse=True)


@pytest.mark.parametrize("name", OPTIONS)
def test_beam_search_respects_limits_and_prefixes_by_brute_force(name):
    options = OPTIONS[name]
    tables, limits = random_model(2, 4, seed=7), [4, 3]
    result = run(
        tables,
        limits,
        beam_size=64,
        num_hypotheses=5,
        length_penalty=1.0,
        length_penalty_kind="power",
        **options,
    )
    for row, (table, limit) in enumerate(zip(tables, limits, strict=True)):
        want = allowed(table, limit, **options)
        for k, (score, sequence) in enumerate(want[:5]):
            assert tokens(result, row, k) == sequence
            assert float(result.scores[row, k]) == pytest.approx(score, abs=1e-4)


def greedy(table, limit):
    sequence, total = (), 0.0
    while True:
        log_probs = log_softmax(table[sequence])
        best = EOS if len(sequence) + 1 == limit else int(np.argmax(log_probs))
        total += log_probs[best]
        sequence = (*sequence, best)
        if best == EOS:
            return sequence, total


@pytest.mark.parametrize("stopping", ["first_k", "hf_default", "exact"])
def test_beam_size_one_is_greedy_search(stopping):
    tables = random_model(6, 4, seed=2)
    result = run(tables, [4] * 6, beam_size=1, stopping=stopping, length_penalty=1.0)
    for row, table in enumerate(tables):
        sequence, total = greedy(table, 4)
        assert tokens(result, row, 0) == sequence
        assert float(result.log_probs[row, 0]) == pytest.approx(total, abs=1e-4)


def reference_beam(table, limit, beams, alpha, stopping):
    """Textbook beam search with lists, for the rules that stop early."""
    live, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        grown = []
        for total, prefix in live:
            log_probs = log_softmax(table[prefix])
            for token in range(VOCAB):
                if length < limit or token == EOS:
                    grown.append((total + log_probs[token], (*prefix, token)))
        grown.sort(key=lambda x: -x[0])
        for rank, (total, sequence) in enumerate(grown[: 2 * beams]):
            if sequence[-1] == EOS and rank < beams:
                finished.append((total / length**alpha, sequence))
        live = [g for g in grown[: 2 * beams] if g[1][-1] != EOS][:beams]
        kept = sorted(finished, reverse=True)[:beams]
        if not live:
            break
        if stopping == "first_k" and len(finished) >= beams:
            break
        full = len(kept) == beams
        if stopping == "hf_default" and full and kept[-1][0] >= live[0][0] / length**alpha:
            break
        if stopping == "exact" and kept and kept[0][0] >= live[0][0] / limit**alpha:
            break
    return sorted(finished, reverse=True)[:beams], length


@pytest.mark.parametrize("stopping", ["first_k", "hf_default", "exact"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_beam_search_stopping_rules_by_simulation(stopping, alpha):
    tables = random_model(12, 5, seed=3)
    for table in tables:
        result = run(
            [table],
            [5],
            beam_size=2,
            stopping=stopping,
            length_penalty=alpha,
            length_penalty_kind="power",
        )
        want, steps = reference_beam(table, 5, 2, alpha, stopping)
        assert int(result.steps) == steps
        assert tokens(result, 0, 0) == want[0][1]
        assert float(result.scores[0, 0]) == pytest.approx(want[0][0], abs=1e-4)


def test_beam_search_stopping_rules_differ():
    """At a high alpha the rules stop at different steps for some of the tables."""
    tables = random_model(12, 5, seed=3)
    steps = {
        rule: [reference_beam(t, 5, 2, 2.0, rule)[1] for t in tables]
        for rule in ("first_k", "hf_default", "exact")
    }
    assert steps["first_k"] != steps["exact"]
    assert steps["hf_default"] != steps["exact"]


def test_beam_search_does_not_depend_on_other_rows():
    tables, limits = random_model(5, 5, seed=4), [5, 2, 4, 5, 3]
    for rule in ("first_k", "exact"):
        together = run(tables, limits, beam_size=3, stopping=rule)
        for row in range(5):
            alone = run([tables[row]], [limits[row]], beam_size=3, stopping=rule, longest=5)
            assert tokens(alone, 0, 0) == tokens(together, row, 0)
            np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)


def test_length_penalty_by_hand():
    assert float(length_penalty(1, 0.6, "gnmt")) == pytest.approx(1.0)
    assert float(length_penalty(7, 1.0, "gnmt")) == pytest.approx(2.0)
    assert float(length_penalty(7, 0.6, "gnmt")) == pytest.approx(2**0.6)
    assert float(length_penalty(9, 0.5, "power")) == pytest.approx(3.0)
    assert float(length_penalty(9, 0.0, "power")) == 1.0


def test_gather_beams_picks_along_the_beam_axis():
    x = jnp.arange(12).reshape(2, 3, 2)
    beams = jnp.array([[2, 0], [1, 1]])
    np.testing.assert_array_equal(gather_beams(x, beams), [[[4, 5], [0, 1]], [[8, 9], [8, 9]]])
