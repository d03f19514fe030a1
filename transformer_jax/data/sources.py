"""Opens corpora of sentence pairs: text files, TFDS data sets by name, or prepared folders.

In: the config's file prefixes or data set name. Out: a `Corpus` for each, which can be read any
number of times, in order. Its fingerprint changes when its content does.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

from transformer_jax.config import DataConfig, split_paths
from transformer_jax.config.data_fields import parse_languages
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.prepared_folder import PreparedFolder
from transformer_jax.data.shards.shard_files import SIDES
from transformer_jax.data.text_corpora import open_text


def open_corpora(config: DataConfig, split: str) -> list[Corpus]:
    """The corpora of `train`, `validation` or `test`.

    Raises:
      UserError: a data set or file that is missing or unreadable.
    """
    value = getattr(config, split)
    if config.source == "tfds":
        from transformer_jax.data import tfds_corpora

        return [tfds_corpora.open_tfds(config, value)]
    if config.source == "prepared" and split == "train":
        return open_prepared(value, int(config.local_gib * 2**30))
    prefixes = split_paths(value)
    languages = config.train_languages if split == "train" else ()
    pairs = list(map(parse_languages, languages))
    pairs = pairs or [(config.source_lang, config.target_lang)] * len(prefixes)
    return [
        open_text(prefix, source, target, f"config.data.{split}")
        for prefix, (source, target) in zip(prefixes, pairs, strict=True)
    ]


def open_prepared(folder: str, max_bytes: int) -> list[Corpus]:
    """The corpora in a folder of `prepare`; their text is decoded from tokens.

    Args:
      folder: the folder.
      max_bytes: of local copies, of a folder in an object store.

    Raises:
      UserError: there is no such folder.
    """
    prepared = PreparedFolder.open(folder)
    tokenizers = prepared.tokenizers()

    def read(shards: Path) -> Iterator[tuple[str, str]]:
        decoders = tokenizers.source.decode, tokenizers.target.decode
        (corpus,) = [corpus for corpus in prepared.corpora if corpus.folder == shards]
        for shard in prepared.shards(corpus, max_bytes):
            sides = (shard.side(name).sentences() for name in SIDES)
            for pair in zip(*sides, strict=True):
                source, target = (
                    decode(ids.tolist()) for decode, ids in zip(decoders, pair, strict=True)
                )
                yield source, target

    return [
        Corpus(
            corpus.name,
            corpus.source_lang,
            corpus.target_lang,
            functools.partial(read, corpus.folder),
            corpus.fingerprint,
            prepared=corpus.folder,
        )
        for corpus in prepared.corpora
    ]
