"""Corpora as token ids in shards: folders of half a million pairs, written by several processes.

text_blocks   files                      -> TextBlock: the text of half a million pairs, undecoded
shard_writer  TextBlock, TokenizerPair   -> a shard: flat tokens and lengths, a manifest
shard_store   TextBlocks of a corpus     -> TokenShards: makes those that are missing or damaged
shard_files   TokenShards                -> ShardedSide: ids of any sentence
"""
