"""From parallel text to training batches, as arrays in host memory.

One training batch passes these modules, in this order:

    sources             files or a TFDS name       -> Corpus: pairs of strings, a fingerprint
    tokenizer_training  corpora or model files     -> TokenizerPair: text <-> token ids
    token_cache         Corpus, TokenizerPair      -> TokenizedCorpus: ids of all pairs, on disk
                        (`shards/` writes them)
    plans/              lengths of all pairs       -> BatchPlan: batch number -> BatchLayout
    epoch_data          all of the above           -> Epochs: step -> EpochData (corpus and plan)
    loader              Epochs, step               -> batch: dict of arrays [B, S] and [B, T]

`workers` runs functions in several processes, `ray_tasks` on several machines. `prepared_folder` is
what `prepare` writes for many runs. `corpus_shares` knows how corpora are mixed. `cache_manifest`
and `remote_cache` protect and share the token cache. `tokenizer_pair` holds the tokenizers of both
sides and their special ids, `word_ids` the ids of words, `foreign_tokenizers` reads vocabularies of
published models, `number_words` is the embedded corpus, and `writing_systems` knows which scripts
separate words by spaces. `text_corpora` and `text_lines` read text files, `tfds_corpora` data sets
of TFDS. `file_digests` knows the files that have not changed.
"""
