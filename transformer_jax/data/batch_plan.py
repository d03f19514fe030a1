"""Chooses the pairs of batch `t`: a pure function of (seed, corpus, t).

In: the lengths of selected pairs. Out: a `BatchPlan` that maps a batch number to a `BatchLayout`.
`packing` puts several sentences in a row, `bucketing` one. Both shuffle by keyed permutations that
are evaluated element by element, so any batch is computed without the ones before it.
"""

from transformer_jax.config import Config
from transformer_jax.data.batch_shapes import BatchPlan, divisible_rows
from transformer_jax.data.bucketing import BucketPlan
from transformer_jax.data.packing import PackPlan, balanced_source_len
from transformer_jax.data.pair_selection import CorpusSelection


def make_plan(
    selection: CorpusSelection, config: Config, like: BatchPlan | None = None
) -> BatchPlan:
    """The plan that `config.data.batching` names; it does not depend on devices.

    Args:
      selection: from `select_pairs`.
      config: the run's, validated.
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
        if data.subword_sampling:  # a later epoch may have longer sentences
            source_len = max(source_len, data.max_len)
    rows = data.batch_tokens // target_len
    if data.plan_version > 1:
        rows = divisible_rows(rows)
    return PackPlan(selection, rows, target_len, config.seed, source_len)


def padding_share(plan: BatchPlan, selection: CorpusSelection, row_multiple: int = 1) -> float:
    """Share of padding among all source and target positions of an epoch, in 0 .. 1.

    Args:
      plan: made from `selection`.
      selection: from `select_pairs`.
      row_multiple: batches get empty rows up to a multiple of this number; they count as padding.
    """
    real = float(selection.source_lengths.sum() + selection.target_lengths.sum())
    return 1.0 - real / plan.positions_per_epoch(row_multiple)
