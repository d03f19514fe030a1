"""Plans of corpora in shards: epochs, mixtures by weight, stages, padding, files."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from transformer_jax.config import Config, DataConfig
from transformer_jax.data.plans import batch_plan, plan_files, row_stream
from transformer_jax.data.plans.mixture import CYCLE, Mixture
from transformer_jax.data.plans.plan_files import PlanFiles
from transformer_jax.data.workers import Workers
from transformer_jax.errors import UserError

BATCHINGS = ["pack", "bucket"]


@dataclasses.dataclass(frozen=True)
class MemoryShard:
    """A shard that is nothing but lengths."""

    seed: int
    num_pairs: int
    longest: int = 40

    @property
    def fingerprint(self) -> str:
        return repr(self)

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        source = np.clip(rng.gamma(4, 3, self.num_pairs), 0, self.longest).astype(np.uint16)
        target = np.clip(source * rng.normal(1.1, 0.2, self.num_pairs), 0, self.longest)
        return source, target.astype(np.uint16)


def shards_of(*sizes, seed=0):
    return [MemoryShard(seed + i, size) for i, size in enumerate(sizes)]


def make(corpora, batching="pack", stages=None, files=None, seed=0, **data):
    """The plan of lists of shards; pairs are numbered shard by shard."""
    settings = {"max_len": 41, "batch_tokens": 512, "num_buckets": 4, "max_ratio": 3.0, **data}
    config = Config(seed=seed, data=DataConfig(batching=batching, **settings))
    sizes = [shard.num_pairs for shards in corpora for shard in shards]
    firsts = iter(np.concatenate([[0], np.cumsum(sizes)]).tolist())
    first_pairs = [[next(firsts) for _ in shards] for shards in corpora]
    stages = stages or [(0, [1.0] * len(corpora))]
    return batch_plan.make_stream_plan(
        corpora, first_pairs, stages, config, files or PlanFiles(None)
    )


def all_lengths(corpora):
    """Positions of all pairs `[2, pairs]`, and which of them are selected, by the definition."""
    lengths = [shard.lengths() for shards in corpora for shard in shards]
    both = np.stack([np.concatenate(side) for side in zip(*lengths, strict=True)]).astype(int) + 1
    uneven = both.max(axis=0) - 1 > 3 * (both.min(axis=0) - 1) + 10
    return both, (both > 1).all(axis=0) & (both <= 41).all(axis=0) & ~uneven


@pytest.mark.parametrize("batching", BATCHINGS)
def test_stream_has_every_pair_once_per_epoch_in_another_order(batching, monkeypatch):
    """Of each bucket, too: its rows are a stream of its own."""
    monkeypatch.setattr(row_stream, "GROUP_SHARDS", 2)
    shards = shards_of(300, 500, 1, 250, 400)
    plan = make([shards], batching)
    _, selected = all_lengths([shards])
    seen = [[], []]
    for streams in plan._streams:
        (stream,) = streams
        for epoch in range(2):
            numbers = np.arange(stream.rows_per_epoch) + epoch * stream.rows_per_epoch
            seen[epoch].append(stream.pairs(numbers))
    orders = []
    for parts in seen:
        in_rows = [part.pairs[np.argsort(part.owners, kind="stable")] for part in parts]
        orders.append(np.concatenate(in_rows))
        np.testing.assert_array_equal(np.sort(orders[-1]), np.flatnonzero(selected))
    assert np.mean(orders[0] == orders[1]) < 0.02


def test_stream_groups_other_sentences_in_the_next_epoch():
    """Pairs that share a row are mostly separated in the next epoch."""
    ((stream,),) = make([shards_of(900, 700)])._streams
    met = []
    for epoch in range(2):
        part = stream.pairs(np.arange(stream.rows_per_epoch) + epoch * stream.rows_per_epoch)
        rows = [part.pairs[part.owners == row].tolist() for row in range(stream.rows_per_epoch)]
        met.append({pair for row in rows for pair in itertools.combinations(sorted(row), 2)})
    assert len(met[0] & met[1]) < 0.5 * len(met[0])


def test_stream_reads_a_group_of_shards_at_a_time(monkeypatch):
    monkeypatch.setattr(row_stream, "GROUP_SHARDS", 2)
    shards = shards_of(*[200] * 6)
    plan = make([shards])
    ((stream,),) = plan._streams
    shard_of_row = stream._locate(np.arange(stream.rows_per_epoch))[1]
    boundaries = stream._order_of_epoch(0)[1][[0, 2, 4, 6]]
    groups = [shard_of_row[start:end] for start, end in itertools.pairwise(boundaries)]
    assert [len(set(group.tolist())) for group in groups] == [2, 2, 2]
    assert set.union(*(set(group.tolist()) for group in groups)) == set(range(6))
    # Rows of both shards alternate, rather than following each other.
    assert all(np.count_nonzero(np.diff(group)) > len(group) / 4 for group in groups)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_stream_layouts_fit_their_rows_and_need_no_earlier_batches(batching):
    corpora = [shards_of(700, 300), shards_of(200, seed=9)]
    plan = make(corpora, batching, [(0, [1.0, 3.0])])
    lengths, selected = all_lengths(corpora)
    for t in (0, 1, 7, 50, 10**6):
        layout = plan.layout(t)
        shape = layout.shape
        assert shape in plan.shapes
        assert selected[layout.pairs].all()
        for starts, side, width in (
            (layout.source_starts, lengths[0], shape.source_len),
            (layout.target_starts, lengths[1], shape.target_len),
        ):
            used = np.zeros((shape.rows, width), int)
            for row, start, pair in zip(layout.rows, starts, layout.pairs, strict=True):
                assert start + side[pair] <= width
                used[row, start : start + side[pair]] += 1
            assert used.max() == 1
        for row in range(shape.rows):
            segments = layout.segments[layout.rows == row].tolist()
            assert segments == list(range(1, len(segments) + 1)) != []
        again = make(corpora, batching, [(0, [1.0, 3.0])]).layout(t)
        np.testing.assert_array_equal(again.pairs, layout.pairs)
        np.testing.assert_array_equal(again.rows, layout.rows)
    other = make(corpora, batching, [(0, [1.0, 3.0])], seed=1)
    assert np.mean(np.isin(other.layout(0).pairs, plan.layout(0).pairs)) < 0.5


@pytest.mark.parametrize("batching", BATCHINGS)
def test_stream_shares_of_corpora_are_their_weights_in_pairs(batching):
    """A corpus of 10 pairs and one of 3,000; sentences of the first are longer."""
    small = MemoryShard(3, 10, longest=40)
    corpora = [[small], shards_of(3000, seed=5)]
    plan = make(corpora, batching, [(0, [1.0, 9.0])], batch_tokens=2048)
    counts = collections.Counter()
    num_batches = 400
    for t in range(num_batches):
        counts.update((plan.layout(t).pairs >= 10).tolist())
    share = counts[False] / counts.total()
    assert share == pytest.approx(0.1, abs=0.002)
    reported = plan.pairs_before(num_batches)
    np.testing.assert_allclose(reported, [counts[False], counts[True]], rtol=0.02)


def test_buckets_of_a_mixture_fit_the_lengths_that_are_seen_most():
    """A corpus of 10 pairs does not decide the shapes of one of 40,000."""
    large = [MemoryShard(1, 40_000, longest=60)]
    settings = {"batching": "bucket", "max_len": 64, "batch_tokens": 4096, "num_buckets": 20}
    alone = make([large], **settings)
    mixed = make([[MemoryShard(2, 10)], large], stages=[(0, [0.001, 0.999])], **settings)
    assert batch_plan.padding_share(mixed) < batch_plan.padding_share(alone) + 0.02
    later = make([[MemoryShard(2, 10)], large], stages=[(0, [1, 0]), (9, [0, 1])], **settings)
    rows = [shape.rows for shape in later.shapes]
    assert np.median(rows) > 30


@pytest.mark.parametrize("batching", BATCHINGS)
def test_stream_stages_change_the_shares_at_their_step(batching):
    corpora = [shards_of(600), shards_of(500, seed=7)]
    stages = [(0, [1.0, 0.0]), (30, [1.0, 1.0]), (60, [0.0, 2.0])]
    plan = make(corpora, batching, stages, batch_tokens=1024)
    share = [np.mean(plan.layout(t).pairs < 600) for t in range(90)]
    assert set(share[:30]) == {1.0}
    assert set(share[60:]) == {0.0}
    assert np.mean(share[30:60]) == pytest.approx(0.5, abs=0.1)
    # The stream of each corpus continues where it was.
    seen = np.concatenate([p[p < 600] for p in (plan.layout(t).pairs for t in range(60))])
    counts = np.bincount(seen, minlength=600)
    assert counts.max() - counts[counts > 0].min() <= (2 if batching == "pack" else 4)


def test_mixture_counts_are_those_of_its_elements():
    """By brute force: ranks of a component are 0, 1, 2, … over all elements, across stages."""
    stages = [(0, [0.5, 3.0, 0.01, 1.2]), (2 * CYCLE + 77, [1.0, 0.0, 1.0, 1.0])]
    mixture = Mixture(stages, seed=4)
    numbers = np.arange(4 * CYCLE)
    components, ranks = mixture.locate(numbers)
    for number in (0, 1, CYCLE - 1, CYCLE, 2 * CYCLE + 77, 2 * CYCLE + 78, 4 * CYCLE):
        expected = np.bincount(components[:number], minlength=4)
        np.testing.assert_array_equal(mixture.counts(number), expected)
    for component in range(4):
        of_component = ranks[components == component]
        np.testing.assert_array_equal(of_component, np.arange(len(of_component)))
    assert not (components[2 * CYCLE + 77 :] == 1).any()
    shares = np.bincount(components[: 2 * CYCLE]) / (2 * CYCLE)
    np.testing.assert_allclose(shares, np.array([0.5, 3.0, 0.01, 1.2]) / 4.71, atol=1 / CYCLE)
    # 500 small components, whose counts are not all rounded up in the same cycle.
    many = Mixture([(0, [1.0] * 500 + [0.7])], seed=0)
    counts = np.diff([many.counts(i * 501 * 64) for i in range(40)], axis=0)[:, :500]
    assert 62 <= counts.min() <= counts.max() <= 67
    far = mixture.locate(np.array([10**13]))
    assert far[1][0] == pytest.approx(10**13 / 3, rel=1e-6)


def test_stream_padding_is_low_and_reported_correctly():
    shards = [MemoryShard(i, 20_000, longest=63) for i in range(2)]
    for batching, limit in (("pack", 0.05), ("bucket", 0.15)):
        plan = make([shards], batching, max_len=64, batch_tokens=4096, num_buckets=20)
        lengths, _ = all_lengths([shards])
        layouts = [plan.layout(t) for t in range(int(plan.batches_per_epoch))]
        real = sum(lengths[:, layout.pairs].sum() for layout in layouts)
        shapes = [layout.shape for layout in layouts]
        positions = sum(s.rows * (s.source_len + s.target_len) for s in shapes)
        reported = batch_plan.padding_share(plan)
        assert reported == pytest.approx(1 - real / positions, abs=0.01)
        assert reported < limit


@pytest.mark.parametrize("batching", BATCHINGS)
def test_plan_files_are_made_once_and_by_any_number_of_processes(batching, tmp_path, monkeypatch):
    corpora = [shards_of(300, 200, 100)]
    in_memory = make(corpora, batching)
    stores = [PlanFiles(tmp_path / str(n), Workers(n)) for n in (1, 2)]
    plans = [make(corpora, batching, files=store) for store in stores]
    files = [
        {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("0*.npy"))}
        for folder in (tmp_path / "1", tmp_path / "2")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 3
    monkeypatch.setattr(plan_files, "select_shard", None)  # nothing is computed again
    kept = make(corpora, batching, files=PlanFiles(tmp_path / "1"))
    for plan in (*plans, kept):
        for t in (0, 5, 1000):
            expected, layout = in_memory.layout(t), plan.layout(t)
            assert layout.shape == expected.shape
            np.testing.assert_array_equal(layout.pairs, expected.pairs)
            np.testing.assert_array_equal(layout.target_starts, expected.target_starts)


def test_plan_files_continue_after_a_kill(tmp_path):
    corpora = [shards_of(300, 200, 100)]
    make(corpora, files=PlanFiles(tmp_path))
    *_, last = sorted(tmp_path.rglob("0*.npy"))
    content = last.read_bytes()
    last.unlink()
    untouched = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("0*.npy")}
    make(corpora, files=PlanFiles(tmp_path))
    assert last.read_bytes() == content
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched


def test_stream_of_a_corpus_without_usable_pairs_is_refused():
    with pytest.raises(UserError, match="No sentence pair is left to train on: of 20, 20 have"):
        make([shards_of(50), [MemoryShard(0, 20, longest=0)]])
