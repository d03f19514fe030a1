"""The plan that a config names: a pure function of (seed, corpus, t).

In: the lengths of all pairs. Out: a `BatchPlan` that maps a batch number to a `BatchLayout`. All
plans shuffle by keyed permutations that are evaluated element by element, so any batch is computed
without the ones before it.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from transformer_jax.config import Config
from transformer_jax.data.plans.batch_shapes import (
    BatchPlan,
    BatchShape,
    divisible_rows,
    even_rows,
)
from transformer_jax.data.plans.bucketing import BucketPlan, split_classes
from transformer_jax.data.plans.packing import PackPlan, balanced_source_len
from transformer_jax.data.plans.pair_selection import CorpusSelection
from transformer_jax.data.plans.plan_files import (
    LengthCounts,
    PlanFiles,
    RowShape,
    Shard,
)
from transformer_jax.data.plans.row_stream import PlannedShards
from transformer_jax.data.plans.stream_plan import PlannedCorpus, StreamPlan

Stages = Sequence[tuple[int, Sequence[float]]]


def make_plan(
    selection: CorpusSelection, config: Config, like: BatchPlan | None = None
) -> BatchPlan:
    """The plan of a corpus in memory, for `config.data.plan_version` 1 and 2.

    Args:
      selection: from `select_pairs`.
      config: the run's, validated; the plan does not depend on its devices.
      like: a packed plan whose batch shape is used again.
    """
    data = config.data
    if data.batching == "bucket":
        return BucketPlan(
            selection,
            data.batch_tokens,
            data.num_buckets,
            config.seed,
            data.batch_sentences,
            data.plan_version,
        )
    target_len = data.pack_len or data.max_len
    if like is not None:
        source_len = like.shapes[0].source_len
    else:
        source_len = balanced_source_len(selection, target_len)
        if data.tokens_differ_by_epoch:  # a later epoch may have longer sentences
            source_len = max(source_len, data.max_len)
    rows = data.batch_tokens // target_len
    if data.plan_version > 1:
        rows = divisible_rows(rows)
    return PackPlan(selection, rows, target_len, config.seed, source_len)


def make_stream_plan(
    corpora: Sequence[Sequence[Shard]],
    first_pairs: Sequence[Sequence[int]],
    stages: Stages,
    config: Config,
    files: PlanFiles,
    like: BatchPlan | None = None,
    fetch_ahead: Callable[[Sequence[Shard], Sequence[int]], None] | None = None,
) -> StreamPlan:
    """The plan of corpora in shards, for `config.data.plan_version` 3.

    Args:
      corpora: the shards of each.
      first_pairs: of each shard, the index of its first pair in the data of the run.
      stages: first step of each stage, and the share of each corpus in the pairs from there on.
      config: the run's, validated; the plan does not depend on its devices.
      files: where it is kept.
      like: a packed plan whose batch shape is used again.
      fetch_ahead: called with the shards of a corpus and the numbers of those that are used soon.

    Raises:
      UserError: where no pair of a corpus is left.
    """
    data = config.data
    counted = []
    for shards in corpora:
        counted.append(files.count_lengths(shards, data.max_len, data.max_ratio))
        counted[-1].counts.require_pairs(data.max_len, data.max_ratio)
    # A corpus that comes later counts as much as at its peak.
    weighted = _weighted(counted, np.max([shares for _, shares in stages], axis=0))
    choose = _packed_shape if data.batching == "pack" else _bucketed_shapes
    shapes, row_shape = choose(weighted, config)
    if like is not None and row_shape.packed:
        shapes = like.shapes
        row_shape = _row_shape(config, packed=(shapes[0].source_len, shapes[0].target_len))
    planned = []
    for shards, firsts, lengths in zip(corpora, first_pairs, counted, strict=True):
        plans, rows = files.plans(shards, row_shape)
        ahead = functools.partial(fetch_ahead, shards) if fetch_ahead else None
        content = PlannedShards(plans, firsts, ahead)
        planned.append(PlannedCorpus(content, rows, lengths.counts, lengths.positions))
    return StreamPlan(planned, stages, shapes, row_shape.packed is not None, config.seed)


def _weighted(counted: Sequence[LengthCounts], shares: np.ndarray) -> LengthCounts:
    """The lengths of a mixture of corpora; the one that is rarest for its share counts once."""
    if len(counted) == 1:
        return counted[0]
    factors = shares / [c.counts.num_selected for c in counted]
    factors /= factors[factors > 0].min()
    parts = [
        LengthCounts(c.counts, c.codes, np.ceil(c.sizes * factor).astype(np.int64))
        for c, factor in zip(counted, factors, strict=True)
    ]
    return LengthCounts.total(parts)


def _packed_shape(lengths: LengthCounts, config: Config) -> tuple[list[BatchShape], RowShape]:
    data = config.data
    target_len = data.pack_len or data.max_len
    source_positions, target_positions = lengths.positions
    longest = int(lengths.lengths[0].max())
    source_len = max(round(target_len * source_positions / target_positions), longest)
    if data.tokens_differ_by_epoch:  # a later epoch may have longer sentences
        source_len = max(source_len, data.max_len)
    shape = BatchShape(divisible_rows(data.batch_tokens // target_len), source_len, target_len)
    return [shape], _row_shape(config, packed=(source_len, target_len))


def _bucketed_shapes(lengths: LengthCounts, config: Config) -> tuple[list[BatchShape], RowShape]:
    data = config.data
    source, target = lengths.lengths
    class_buckets, shapes = np.zeros(len(lengths.codes), np.int64), []
    buckets = split_classes(source, target, np.maximum(lengths.sizes, 1), data.num_buckets)
    for number, classes in enumerate(buckets):
        class_buckets[classes] = number
        size = int(lengths.sizes[classes].sum())
        source_len, target_len = int(source[classes].max()), int(target[classes].max())
        max_rows = data.batch_sentences or data.batch_tokens // max(source_len, target_len)
        rows = min(size, max_rows) if data.batch_sentences else even_rows(max(size, 1), max_rows)
        shapes.append(BatchShape(max(rows, 1), source_len, target_len))
    return shapes, _row_shape(config, class_codes=lengths.codes, class_buckets=class_buckets)


def _row_shape(
    config: Config,
    packed: tuple[int, int] | None = None,
    class_codes: np.ndarray | None = None,
    class_buckets: np.ndarray | None = None,
) -> RowShape:
    none = np.zeros(0, np.int64)
    return RowShape(
        config.data.max_len,
        config.data.max_ratio,
        packed,
        none if class_codes is None else class_codes,
        none if class_buckets is None else class_buckets,
    )


def padding_share(
    plan: BatchPlan, selection: CorpusSelection | None = None, row_multiple: int = 1
) -> float:
    """Share of padding among all source and target positions of an epoch, in 0 .. 1.

    Args:
      plan: of any kind.
      selection: what it was made from; None for a `StreamPlan`, which knows its own pairs.
      row_multiple: batches get empty rows up to a multiple of this number; they count as padding.
    """
    if isinstance(plan, StreamPlan):
        real = plan.real_positions_per_epoch
    elif selection is not None:
        real = float(selection.source_lengths.sum() + selection.target_lengths.sum())
    else:
        raise ValueError("a plan of a corpus in memory needs its selection")
    return 1.0 - real / plan.positions_per_epoch(row_multiple)
