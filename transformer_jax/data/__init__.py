"""From parallel text to training batches, as arrays in host memory.

One training batch passes these modules, in this order:

    sources             files or a TFDS name       -> Corpus: pairs of strings, a fingerprint
    tokenizer_training  corpora or model files     -> TokenizerPair: text <-> token ids
    token_cache         Corpus, TokenizerPair      -> TokenizedCorpus: ids of all pairs, on disk
    pair_selection      lengths of each pair       -> CorpusSelection: pairs to train on
    batch_plan          CorpusSelection, config    -> BatchPlan: batch number -> BatchLayout
                        (`packing` or `bucketing`)
    epoch_data          all of the above           -> Epochs: step -> EpochData (corpus and plan)
    loader              Epochs, step               -> batch: dict of arrays [B, S] and [B, T]

`permutation` makes batch `t` a pure function of (seed, corpus, t). `batch_shapes` declares the
shapes that batches may have. `cache_manifest` and `remote_cache` protect and share the token cache.
`tokenizer_pair` holds the tokenizers of both sides and their special ids, `foreign_tokenizers`
reads vocabularies of published models, `number_words` is the embedded corpus, and `writing_systems`
knows which scripts separate words by spaces. `text_lines` reads files, and `public/` fetches
public data sets.
"""
