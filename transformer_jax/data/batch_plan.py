"""Which sentence pairs make up batch `t`: a pure function of (seed, corpus, t).

Both plans work on lengths alone. `packing` puts several sentences in a row, `bucketing` one. Their
permutations are keyed and evaluated element by element, so any batch is found without the ones
before it.
"""

from transformer_jax.config import Config
from transformer_jax.data.batch_shapes import BatchPlan, divisible_rows
from transformer_jax.data.bucketing import BucketPlan
from transformer_jax.data.packing import PackPlan, balanced_source_len
from transformer_jax.data.pair_selection import CorpusSelection


def make_plan(
    selection: CorpusSelection, config: Config, like: BatchPlan | None = None
) -> BatchPlan:
    """The plan that `config.data.batching` names; it knows no devices.

    Args:
      selection: from `select_pairs`.
      config: the run's, validated.
      like: a packed plan whose shape this one shall have.
    """
    data = config.data
    if data.batching == "pack":
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
    return BucketPlan(
        selection, data.batch_tokens, data.num_buckets, config.seed, data.batch_sentences,
        data.plan_version,
    )  # fmt: skip


def padding_report(plan: BatchPlan, selection: CorpusSelection, row_multiple: int = 1) -> float:
    """Share of padding among all source and target positions of an epoch, in 0 .. 1.

    `row_multiple`: what divides the rows of a batch; the empty rows that it asks for are counted.
    """
    real = float(selection.source_lengths.sum() + selection.target_lengths.sum())
    return 1.0 - real / plan.positions_per_epoch(row_multiple)
