"""Which pairs are in batch `t`: a pure function of (seed, corpus, t), computed from lengths alone.

    pair_selection  lengths of each pair         -> CorpusSelection: pairs to train on
    shard_plan      CorpusSelection of a shard   -> ShardPlan: rows of the shard, as arrays
    plan_files      the plans of all shards, made by several processes and kept in files
    row_stream      ShardPlans of a corpus       -> RowStream: number of a row -> pairs, any epoch
    mixture         shares of corpora            -> Mixture: number of a row -> corpus, and its row
    stream_plan     all of the above             -> StreamPlan: batch number -> BatchLayout
    batch_plan      chooses the plan that a config names

`permutation` shuffles without keeping an order in memory. `batch_shapes` declares the shapes that
batches may have, and `BatchLayout`. `packing` puts several sentences in a row, `bucketing` one;
their `PackPlan` and `BucketPlan` hold a corpus in memory, for runs of `data.plan_version` 1 and 2.
"""
