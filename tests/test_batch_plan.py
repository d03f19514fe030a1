"""The keyed permutation, batch plans, and the arrays of batches."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_corpus import TokenizedSide

from tests.conftest import digit_pairs, write_pairs
from transformer_jax.config import Config, DataConfig
from transformer_jax.data import loader, sources, token_cache
from transformer_jax.data.epoch_data import EpochData, Epochs
from transformer_jax.data.plans import batch_plan
from transformer_jax.data.plans.batch_shapes import BatchLayout, BatchShape
from transformer_jax.data.plans.bucketing import BucketPlan
from transformer_jax.data.plans.pair_selection import select_pairs
from transformer_jax.data.plans.permutation import make_key, permute
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.errors import UserError

# --- Permutation --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_permute_is_a_permutation_for_every_key(size):
    images = set()
    for seed in range(8):
        image = permute(np.arange(size), size, make_key(seed))
        assert sorted(image) == list(range(size))
        images.add(tuple(image))
    assert len(images) > 1 or size == 1


def test_permute_is_uniform_over_orders_and_places():
    """Each of 5 elements lands on each place about equally often, and orders vary."""
    keys = make_key(3, np.repeat(np.arange(3000), 5))
    images = permute(np.tile(np.arange(5), 3000), np.full(15_000, 5), keys).reshape(3000, 5)
    counts = np.stack([np.bincount(places, minlength=5) for places in images.T])
    orders = collections.Counter(map(tuple, images.tolist()))
    assert np.all(np.abs(counts - 600) < 5 * np.sqrt(600 * 0.8))
    assert len(orders) == 120
    assert max(orders.values()) < 60


def test_permute_broadcasts_domains_and_keys():
    index, size = np.array([0, 1, 2, 0, 1]), np.array([3, 3, 3, 2, 2])
    key = make_key(np.array([1, 1, 1, 2, 2]))
    image = permute(index, size, key)
    np.testing.assert_array_equal(image[:3], permute(np.arange(3), 3, make_key(1)))
    np.testing.assert_array_equal(image[3:], permute(np.arange(2), 2, make_key(2)))


# --- Plans --------------------------------------------------------------------------------------


def lengths(count=3000, seed=0, longest=40):
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(4, 3, count), 1, longest).astype(int)
    target = np.clip(source * rng.normal(1.1, 0.2, count), 1, longest).astype(int)
    return source, target


def make(batching, seed=0, max_len=41, batch_tokens=1024, selection=None, **data):
    config = Config(
        seed=seed,
        data=DataConfig(max_len=max_len, batching=batching, batch_tokens=batch_tokens, **data),
    )
    selection = selection or select_pairs(*lengths(), max_len)
    return batch_plan.make_plan(selection, config), selection


def pairs_of_epoch(plan, epoch):
    """Pairs of an epoch; a packed stream is cut at its rows, not at its batches."""
    if isinstance(plan, BucketPlan):
        first = epoch * plan.batches_per_epoch
        parts = [plan.layout(t).pairs for t in range(first, first + plan.batches_per_epoch)]
        return np.concatenate(parts)
    rows = plan.shapes[0].rows
    collected = []
    start, end = epoch * plan.num_rows, (epoch + 1) * plan.num_rows
    for t in range(start // rows, -(-end // rows)):
        layout = plan.layout(t)
        stream = t * rows + layout.rows
        collected.append(layout.pairs[(stream >= start) & (stream < end)])
    return np.concatenate(collected)


@pytest.mark.parametrize("batching", ["pack", "bucket"])
def test_plan_has_every_pair_once_per_epoch_in_another_order(batching):
    plan, selection = make(batching)
    first, second = pairs_of_epoch(plan, 0), pairs_of_epoch(plan, 1)
    np.testing.assert_array_equal(np.sort(first), selection.pairs)
    np.testing.assert_array_equal(np.sort(second), selection.pairs)
    assert np.mean(first == second) < 0.02
    other, _ = make(batching, seed=1)
    assert np.mean(pairs_of_epoch(other, 0) == first) < 0.02


@pytest.mark.parametrize("batching", ["pack", "bucket"])
def test_plan_groups_other_sentences_in_the_next_epoch(batching):
    """Pairs that share a row (pack) or a batch (bucket) are mostly separated in the next epoch."""
    plan, _ = make(batching)

    def companions(epoch):
        first = int(np.ceil(epoch * plan.batches_per_epoch))
        met = set()
        for t in range(first, first + int(plan.batches_per_epoch)):
            layout = plan.layout(t)
            groups = layout.rows if batching == "pack" else np.zeros_like(layout.rows)
            for group in np.unique(groups):
                members = sorted(layout.pairs[groups == group].tolist())
                met.update(itertools.combinations(members, 2))
        return met

    before, after = companions(0), companions(1)
    assert len(before & after) < 0.5 * len(before)


@pytest.mark.parametrize("batching", ["pack", "bucket"])
def test_plan_layout_needs_no_earlier_batches(batching):
    plan, _ = make(batching)
    in_order = [plan.layout(t) for t in range(12)]
    fresh, _ = make(batching)
    for t in (11, 3, 7):
        for name in ("pairs", "rows", "source_starts", "target_starts", "segments"):
            np.testing.assert_array_equal(
                getattr(fresh.layout(t), name), getattr(in_order[t], name)
            )


@pytest.mark.parametrize("batching", ["pack", "bucket"])
def test_plan_sentences_fit_their_rows_without_overlap(batching):
    plan, _ = make(batching)
    source, target = lengths()
    for t in range(30):
        layout = plan.layout(t)
        shape = layout.shape
        assert shape in plan.shapes
        assert shape.rows * shape.target_len <= 1024
        for starts, all_lengths, width in (
            (layout.source_starts, source, shape.source_len),
            (layout.target_starts, target, shape.target_len),
        ):
            used = np.zeros((shape.rows, width + 1), int)
            for row, start, pair in zip(layout.rows, starts, layout.pairs, strict=True):
                used[row, start : start + all_lengths[pair] + 1] += 1
                assert start + all_lengths[pair] + 1 <= width
            assert used.max() == 1
        assert [s for r, s in zip(layout.rows, layout.segments, strict=True) if r == 0] == list(
            range(1, 1 + int((layout.rows == 0).sum()))
        )


@pytest.mark.parametrize(("batching", "limit"), [("pack", 0.05), ("bucket", 0.15)])
def test_padding_is_low_and_reported_correctly(batching, limit):
    plan, selection = make(
        batching, selection=select_pairs(*lengths(30_000), 64), max_len=64, batch_tokens=4096
    )
    reported = batch_plan.padding_share(plan, selection)
    real = (selection.source_lengths + selection.target_lengths).sum()
    batches = int(np.ceil(plan.batches_per_epoch))
    shapes = [plan.layout(t).shape for t in range(batches)]
    positions = sum(s.rows * (s.source_len + s.target_len) for s in shapes)
    assert reported == pytest.approx(1 - real / positions, abs=0.01)
    assert reported < limit


def test_batch_sentences_sets_the_rows_of_a_batch():
    """At most 64 of similar length each, whatever their length; those of a bucket are even."""
    plan, selection = make("bucket", batch_sentences=64, num_buckets=5, batch_tokens=1)
    np.testing.assert_array_equal(np.sort(pairs_of_epoch(plan, 0)), selection.pairs)
    sizes = [len(plan.layout(t).pairs) for t in range(plan.batches_per_epoch)]
    in_bucket = dict.fromkeys(plan.shapes, 0)
    for t in range(plan.batches_per_epoch):
        in_bucket[plan.layout(t).shape] += len(plan.layout(t).pairs)
    assert len(sizes) == sum(-(-count // 64) for count in in_bucket.values())
    assert max(sizes) <= 64
    assert sum(size < plan.layout(t).shape.rows for t, size in enumerate(sizes)) <= 5


def test_select_pairs_leaves_out_and_counts_empty_and_long_pairs():
    source, target = np.array([3, 0, 5, 9, 10, 2]), np.array([2, 4, 0, 9, 3, 9])
    selection = select_pairs(source, target, 10)
    np.testing.assert_array_equal(selection.pairs, [0, 3, 5])
    np.testing.assert_array_equal(selection.source_lengths, [4, 10, 3])
    assert (*dataclasses.astuple(selection.counts)[:3],) == (6, 2, 1)
    with pytest.raises(UserError, match="6, 2 have an empty side, 4 exceed"):
        select_pairs(source, target, 2)


def test_sampling_weights_set_the_shares_and_keep_every_pair():
    source, target = lengths(1200)
    selection = select_pairs(source, target, 41, (1000, 200), (1.0, 2.0))
    counts = np.bincount(selection.pairs, minlength=1200)
    assert counts.min() == 1
    assert counts[1000:].sum() / counts[:1000].sum() == pytest.approx(2.0, rel=0.01)
    assert counts[1000:].max() - counts[1000:].min() <= 1
    plan, _ = make("pack", selection=selection)
    np.testing.assert_array_equal(np.sort(pairs_of_epoch(plan, 1)), np.sort(selection.pairs))


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_plans_take_any_lengths(pairs):
    source, target = np.array(pairs).T
    for batching in ("pack", "bucket"):
        selection = select_pairs(source, target, 13)
        plan, _ = make(batching, max_len=13, batch_tokens=64, selection=selection)
        np.testing.assert_array_equal(np.sort(pairs_of_epoch(plan, 2)), selection.pairs)


# --- Token cache and arrays ---------------------------------------------------------------------

IDS = SpecialIds(source_pad=90, source_eos=91, target_pad=92, target_eos=93, decoder_start=94)


def side(sentences):
    flat = np.array([t for s in sentences for t in s], np.uint16)
    return TokenizedSide(flat, np.cumsum([0, *map(len, sentences)]))


def test_make_batch_arrays_by_hand():
    corpus = token_cache.TokenizedCorpus(
        side([[1, 2], [3], [4, 5, 6]]), side([[11], [12, 13], [14]]), (3,), ""
    )
    layout = BatchLayout(
        shape=BatchShape(2, 6, 6),
        pairs=np.array([2, 1, 0]),
        rows=np.array([0, 0, 1]),
        source_starts=np.array([0, 4, 0]),
        target_starts=np.array([0, 2, 0]),
        segments=np.array([1, 2, 1]),
    )
    batch = loader.make_batch(corpus, layout, IDS)
    want = {
        "inputs": [[4, 5, 6, 91, 3, 91], [1, 2, 91, 90, 90, 90]],
        "inputs_positions": [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 0, 0]],
        "inputs_segment_ids": [[1, 1, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]],
        "targets": [[14, 93, 12, 13, 93, 92], [11, 93, 92, 92, 92, 92]],
        "decoder_inputs": [[94, 14, 94, 12, 13, 92], [94, 11, 92, 92, 92, 92]],
        "targets_positions": [[0, 1, 0, 1, 2, 0], [0, 1, 0, 0, 0, 0]],
        "targets_segment_ids": [[1, 1, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0]],
        "loss_mask": [[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]],
    }
    assert batch.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(batch[name], array, err_msg=name)


def test_padded_batch_has_the_same_sentences_and_empty_rows():
    """The plan does not depend on devices: for 8 of them the batch only has more empty rows."""
    corpus = token_cache.TokenizedCorpus(side([[1, 2], [3]]), side([[11], [12]]), (2,), "")
    shape = BatchShape(2, 4, 4)
    zeros, rows = np.zeros(2, int), np.arange(2)
    layout = BatchLayout(shape, rows, rows, zeros, zeros, zeros + 1)
    one = loader.make_batch(corpus, layout, IDS)
    roomy = dataclasses.replace(layout, shape=layout.shape.padded(8))
    eight = loader.make_batch(corpus, roomy, IDS)
    assert shape.padded(8) == BatchShape(8, 4, 4)
    for name, array in one.items():
        np.testing.assert_array_equal(eight[name][:2], array)
    assert not eight["loss_mask"][2:].any()
    assert not eight["inputs_segment_ids"][2:].any()


def test_load_batches_from_any_step(tmp_path, tokenizers):
    config = DataConfig(
        source="files",
        train=write_pairs(tmp_path, "a", digit_pairs(50)),
        cache_dir=str(tmp_path / "cache"),
    )
    corpora = sources.open_corpora(config, "train")
    corpus = token_cache.tokenize_corpora(corpora, tokenizers, config)
    selection = select_pairs(corpus.source.lengths, corpus.target.lengths, 40)
    plan, _ = make("pack", selection=selection, max_len=40, batch_tokens=160)
    source = loader.BatchSource(Epochs(EpochData(corpus, plan)), IDS, num_steps=9)
    straight = list(loader.load_batches(source, 0))
    assert len(straight) == 9
    later = list(loader.load_batches(source, 4))
    assert len(later) == 5
    for a, b in zip(straight[4:], later, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    text = dataclasses.asdict(IDS)
    assert straight[0]["targets"].max() <= max(295, *text.values())
