"""Shapes of batches: their budget, their order, the rows that devices divide, those of 0.1.0."""

import dataclasses
import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_batch_plan import IDS, lengths, make
from transformer_jax.config import Config, ModelConfig
from transformer_jax.data import batch_plan, loader, token_cache
from transformer_jax.data.batch_shapes import divisible_rows, even_rows
from transformer_jax.data.epoch_data import EpochData, Epochs
from transformer_jax.data.pair_selection import select_pairs
from transformer_jax.diagnostics import dry_run
from transformer_jax.errors import UserError


def test_bucket_shapes_are_few_and_the_one_that_costs_most_comes_first():
    plan, _ = make("bucket", num_buckets=6)
    assert len(plan.shapes) <= 6
    base = Config(model=ModelConfig(target_vocab_size=32_000))
    work = [dry_run.model_flops(base, shape) for shape in plan.shapes]
    assert all(a > 0.99 * b for a, b in itertools.pairwise(work))  # but for near ties


def misaligned(count=20_000, longest=255):
    """Lengths of which 2% belong to other sentences, some as far off as can be."""
    rng = np.random.default_rng(1)
    source, target = lengths(count, longest=longest)
    wrong = rng.permutation(count)[: count // 50]
    target[wrong] = rng.permutation(target[wrong])
    source[wrong[::10]], target[wrong[::10]] = longest, 1
    return source, target


@pytest.mark.parametrize("batching", ["pack", "bucket"])
@pytest.mark.parametrize("max_ratio", [0.0, 9.0])
def test_misaligned_pairs_make_no_shape_beyond_the_budget(batching, max_ratio):
    selection = select_pairs(*misaligned(), 256, max_ratio=max_ratio)
    plan, _ = make(batching, selection=selection, max_len=256, batch_tokens=25_000)
    for shape in plan.shapes:
        assert shape.rows * max(shape.source_len, shape.target_len) <= 25_000
    assert plan.shapes[0].cost == max(shape.cost for shape in plan.shapes)


def test_uneven_pairs_are_left_out_and_counted_and_short_ones_are_not():
    source = np.array([1, 1, 1, 20, 20, 80, 8, 255])
    target = np.array([10, 19, 20, 190, 191, 7, 80, 254])
    selection = select_pairs(source, target, 256, max_ratio=9.0)
    np.testing.assert_array_equal(selection.pairs, [0, 1, 3, 6, 7])  # above 9 times and 10 more
    assert (selection.num_uneven, selection.num_too_long, selection.num_empty) == (3, 0, 0)
    assert select_pairs(source, target, 256).num_uneven == 0
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
def test_rows_of_packed_batches_divide_by_usual_numbers_of_devices(most, rows):
    assert divisible_rows(most) == rows
    plan, _ = make("pack", batch_tokens=most * 41)
    assert plan.shapes[0].rows == rows


@given(st.integers(1, 5000), st.integers(1, 3000))
@settings(max_examples=200, deadline=None)
def test_rows_of_buckets_leave_few_empty(count, most):
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
def test_a_run_of_0_1_0_keeps_its_batches(batching, sentences):
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
def test_the_padding_said_counts_the_empty_rows_of_devices(batching, version, row_multiple):
    """Against the arrays themselves."""
    source, target = lengths(4000)
    corpus = token_cache.TokenizedCorpus(
        *(
            token_cache.TokenizedSide(np.zeros(n.sum(), np.uint16), np.cumsum([0, *n]))
            for n in (source, target)
        ),
        (4000,),
        "",
    )
    selection = select_pairs(source, target, 41)
    plan, _ = make(batching, selection=selection, batch_tokens=97 * 41, plan_version=version)
    period = int(np.ceil(plan.batches_per_epoch))
    made = loader.BatchSource(Epochs(EpochData(corpus, plan)), IDS, period, row_multiple)
    batches = [made[t] for t in range(period)]
    assert all(len(batch["inputs"]) % row_multiple == 0 for batch in batches)
    filled = sum(
        (b[f"{side}_segment_ids"] > 0).sum() for b in batches for side in ("inputs", "targets")
    )
    positions = sum(b["inputs"].size + b["targets"].size for b in batches)
    reported = batch_plan.padding_report(plan, selection, row_multiple)
    # A packed stream's last batch holds the first rows of the next epoch too.
    assert reported == pytest.approx(
        1 - filled / positions, abs=1e-9 if batching == "bucket" else 0.01
    )
    if (version, row_multiple, batching) == (2, 32, "pack"):
        assert plan.shapes[0].rows == 96
        assert reported == batch_plan.padding_report(plan, selection)
