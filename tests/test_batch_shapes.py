"""Shapes of batches: their budget, their order, their rows, and the batches of version 0.1.0."""

import dataclasses
import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_corpus import TokenizedSide

from tests.test_batch_plan import IDS, lengths, make
from transformer_jax.config import Config, ModelConfig
from transformer_jax.data import loader, token_cache
from transformer_jax.data.epoch_data import EpochData, Epochs
from transformer_jax.data.plans import batch_plan
from transformer_jax.data.plans.batch_shapes import divisible_rows, even_rows
from transformer_jax.data.plans.pair_selection import select_pairs
from transformer_jax.errors import UserError
from transformer_jax.extras.diagnostics import dry_run


def test_bucket_shapes_are_few_and_ordered_by_cost():
    plan, _ = make("bucket", num_buckets=6)
    assert len(plan.shapes) <= 6
    base = Config(model=ModelConfig(target_vocab_size=32_000))
    work = [dry_run.model_flops(base, shape) for shape in plan.shapes]
    assert all(a > 0.99 * b for a, b in itertools.pairwise(work))  # except for near ties


def misaligned(count=20_000, longest=255):
    """Lengths of which 2% belong to other sentences, some as different as possible."""
    rng = np.random.default_rng(1)
    source, target = lengths(count, longest=longest)
    wrong = rng.permutation(count)[: count // 50]
    target[wrong] = rng.permutation(target[wrong])
    source[wrong[::10]], target[wrong[::10]] = longest, 1
    return source, target


@pytest.mark.parametrize("batching", ["pack", "bucket"])
@pytest.mark.parametrize("max_ratio", [0.0, 9.0])
def test_batch_shapes_of_misaligned_pairs_stay_within_the_budget(batching, max_ratio):
    selection = select_pairs(*misaligned(), 256, max_ratio=max_ratio)
    plan, _ = make(batching, selection=selection, max_len=256, batch_tokens=25_000)
    for shape in plan.shapes:
        assert shape.rows * max(shape.source_len, shape.target_len) <= 25_000
    assert plan.shapes[0].cost == max(shape.cost for shape in plan.shapes)


def test_max_ratio_leaves_out_and_counts_uneven_pairs_except_short_ones():
    source = np.array([1, 1, 1, 20, 20, 80, 8, 255])
    target = np.array([10, 19, 20, 190, 191, 7, 80, 254])
    selection = select_pairs(source, target, 256, max_ratio=9.0)
    np.testing.assert_array_equal(selection.pairs, [0, 1, 3, 6, 7])  # above 9 times and 10 more
    counts = selection.counts
    assert (counts.num_uneven, counts.num_too_long, counts.num_empty) == (3, 0, 0)
    assert select_pairs(source, target, 256).counts.num_uneven == 0
    with pytest.raises(UserError, match=r"1 config\.data\.max_ratio=9"):
        select_pairs(source[2:3], target[2:3], 256, max_ratio=9.0)


@pytest.mark.parametrize(
    ("most", "rows"),
    [
        (97, 96),
        (98, 96),
        (95, 92),
        (90, 88),
        (64, 64),
        (63, 60),
        (24, 24),
        (23, 22),
        (16, 16),
        (11, 11),
        (10, 10),
        (7, 7),
        (3, 3),
        (1, 1),
        (2048, 2048),
        (2100, 2048),
        (1000, 992),
    ],
)
def test_divisible_rows_of_packed_batches(most, rows):
    assert divisible_rows(most) == rows
    plan, _ = make("pack", batch_tokens=most * 41)
    assert plan.shapes[0].rows == rows


@given(st.integers(1, 5000), st.integers(1, 3000))
@settings(max_examples=200, deadline=None)
def test_even_rows_of_buckets_leave_few_empty(count, most):
    rows = even_rows(count, most)
    evened = -(-count // -(-count // most))
    assert rows <= most
    assert -count % rows <= max(count / 64, -count % evened)
    assert rows > 0.93 * min(count, most) or rows == evened


# Batches 0, 50, 100, … of plans of 0.1.0, by its own code.
RELEASED = {
    ("pack", 0): "d43b76b02bf10593",
    ("bucket", 0): "a96b0f6f9148f2e2",
    ("bucket", 50): "9abe547bf6330b6a",
}


@pytest.mark.parametrize(("batching", "sentences"), RELEASED)
def test_plan_version_1_keeps_the_batches_of_0_1_0(batching, sentences):
    selection = select_pairs(*lengths(20_000), 41)
    plan, _ = make(
        batching, batch_tokens=1100, selection=selection, batch_sentences=sentences, plan_version=1
    )
    digest = hashlib.blake2b(digest_size=8)
    for t in range(0, 1000, 50):
        layout = plan.layout(t)
        for name in ("pairs", "rows", "source_starts", "target_starts", "segments"):
            digest.update(np.asarray(getattr(layout, name), np.int64).tobytes())
        digest.update(repr(dataclasses.astuple(layout.shape)).encode())
    assert digest.hexdigest() == RELEASED[batching, sentences]


@pytest.mark.parametrize("batching", ["pack", "bucket"])
@pytest.mark.parametrize(("version", "row_multiple"), [(1, 32), (2, 32), (2, 24)])
def test_padding_share_counts_empty_rows(batching, version, row_multiple):
    """Against the arrays themselves."""
    source, target = lengths(4000)
    corpus = token_cache.TokenizedCorpus(
        *(
            TokenizedSide(np.zeros(n.sum(), np.uint16), np.cumsum([0, *n]))
            for n in (source, target)
        ),
        (4000,),
        "",
    )
    selection = select_pairs(source, target, 41)
    plan, _ = make(batching, selection=selection, batch_tokens=97 * 41, plan_version=version)
    period = int(np.ceil(plan.batches_per_epoch))
    source_of_batches = loader.BatchSource(
        Epochs(EpochData(corpus, plan)), IDS, period, row_multiple
    )
    batches = [source_of_batches[t] for t in range(period)]
    assert all(len(batch["inputs"]) % row_multiple == 0 for batch in batches)
    filled = sum(
        (b[f"{side}_segment_ids"] > 0).sum() for b in batches for side in ("inputs", "targets")
    )
    positions = sum(b["inputs"].size + b["targets"].size for b in batches)
    reported = batch_plan.padding_share(plan, selection, row_multiple)
    # A packed stream's last batch holds the first rows of the next epoch too.
    assert reported == pytest.approx(
        1 - filled / positions, abs=1e-9 if batching == "bucket" else 0.01
    )
    if (version, row_multiple, batching) == (2, 32, "pack"):
        assert plan.shapes[0].rows == 96
        assert reported == batch_plan.padding_share(plan, selection)
