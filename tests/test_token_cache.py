"""The cache of tokenised corpora: its content, damage, and disks that cannot be written."""

import dataclasses
import errno
import os

import numpy as np
import pytest

from tests.conftest import digit_pairs, write_pairs
from transformer_jax.config import DataConfig
from transformer_jax.data import cache_manifest, sources, token_cache
from transformer_jax.data.shards import shard_store
from transformer_jax.errors import UserError


@pytest.fixture
def small_corpus(tmp_path, tokenizers):
    pairs = [*digit_pairs(50), ("", "x")]
    config = DataConfig(
        source="files", train=write_pairs(tmp_path, "a", pairs), cache_dir=str(tmp_path / "cache")
    )
    corpora = sources.open_corpora(config, "train")
    return config, corpora, token_cache.tokenize_corpora(corpora, tokenizers, config)


def test_token_cache_has_the_ids_of_the_tokenizer(small_corpus, tokenizers, monkeypatch):
    config, corpora, corpus = small_corpus
    assert len(corpus) == 51
    for i, (source, target) in enumerate(corpora[0].read()):
        np.testing.assert_array_equal(corpus.source[i], tokenizers.source.encode(source))
        np.testing.assert_array_equal(corpus.target[i], tokenizers.target.encode(target))
    assert isinstance(corpus.source.tokens, np.memmap)
    # The second time nothing is tokenised.
    monkeypatch.setattr(shard_store, "_make_missing", None)
    again = token_cache.tokenize_corpora(corpora, tokenizers, config)
    np.testing.assert_array_equal(again.source.tokens, corpus.source.tokens)


def flip(path):
    """Another id in the middle of a file, which keeps its size."""
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "truncated": ("source_tokens.npy", lambda path: os.truncate(path, path.stat().st_size - 3)),
    "emptied": ("target_lengths.npy", lambda path: os.truncate(path, 0)),
    "flipped": ("target_tokens.npy", flip),
    "flipped length": ("source_lengths.npy", flip),
    "removed": ("target_tokens.npy", lambda path: path.unlink()),
    "no manifest": ("manifest.json", lambda path: path.unlink()),  # as of an older version
    "half a manifest": ("manifest.json", lambda path: os.truncate(path, 40)),
    "another manifest": ("manifest.json", lambda path: path.write_text('{"source_tokens.npy": 1}')),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_token_cache_is_written_again_with_one_warning(
    small_corpus, tokenizers, tmp_path, caplog, damage
):
    config, corpora, corpus = small_corpus
    folder = tmp_path / "cache" / "tokens" / corpus.fingerprint
    want = [np.array(x) for x in (corpus.source.tokens, corpus.target.tokens)]
    name, spoil = DAMAGE[damage]
    spoil(folder / "00000" / name)
    again = token_cache.tokenize_corpora(corpora, tokenizers, config)
    np.testing.assert_array_equal(again.source.tokens, want[0])
    np.testing.assert_array_equal(again.target.tokens, want[1])
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert name in warning
    assert "writing it again" in warning
    caplog.clear()
    token_cache.tokenize_corpora(corpora, tokenizers, config)
    assert not caplog.records
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_token_cache_reports_damaging_and_full_disks(small_corpus, tokenizers, monkeypatch):
    config, corpora, _ = small_corpus

    def report_damage(folder):
        raise cache_manifest.DamageError("source_tokens.npy has changed since it was written")

    def disk_full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_manifest, "check", report_damage)
    with pytest.raises(UserError, match=r"written 3 times .*\(source_tokens.npy .* another disk"):
        token_cache.tokenize_corpora(corpora, tokenizers, config)
    monkeypatch.setattr(cache_manifest, "sync", disk_full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        token_cache.tokenize_corpora(corpora, tokenizers, config)


def test_token_cache_is_synced_before_it_gets_its_name(
    small_corpus, tokenizers, tmp_path, monkeypatch
):
    config, corpora, corpus = small_corpus
    config = dataclasses.replace(config, cache_dir=str(tmp_path / "other"))
    events = []
    sync, rename = cache_manifest.sync, os.replace
    monkeypatch.setattr(cache_manifest, "sync", lambda p: (events.append(p.name), sync(p)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), rename(a, b)))
    token_cache.tokenize_corpora(corpora, tokenizers, config)
    folder = tmp_path / "other" / "tokens" / corpus.fingerprint
    files = {path.name for path in (folder / "00000").iterdir()}
    i = events.index("rename")
    assert files <= set(events[:i])
    assert events[i - 1].startswith(".incomplete.")  # the folder, after its files
    assert events[i + 1] == corpus.fingerprint
    # Then the file that says that the corpus is complete.
    assert events[i + 2].startswith(".incomplete.")
    assert events[i + 3 :] == ["rename", corpus.fingerprint]


def test_language_tags_precede_the_text(tmp_path, tokenizers, monkeypatch):
    pairs = [("one", "eins"), ("", "x")]
    monkeypatch.setattr(type(tokenizers), "language_tags", lambda self, *languages: ([7], [8]))
    config = DataConfig(
        source="files",
        train=write_pairs(tmp_path, "a", pairs),
        cache_dir=str(tmp_path / "cache"),
        target_language_tags=True,
    )
    corpus = token_cache.tokenize_corpora(sources.open_corpora(config, "train"), tokenizers, config)
    assert list(corpus.source[0]) == [7, *tokenizers.source.encode("one")]
    assert list(corpus.target[0]) == [8, *tokenizers.target.encode("eins")]
    assert len(corpus.source[1]) == 0
    # A task of T5 follows the tags; its tokens are in another folder of the cache.
    config = dataclasses.replace(config, source_prefix="two ")
    corpus = token_cache.tokenize_corpora(sources.open_corpora(config, "train"), tokenizers, config)
    two, one = map(tokenizers.source.encode, ("two ", "one"))
    assert list(corpus.source[0]) == [7, *two, *one]
    assert len(corpus.source[1]) == 0


def test_token_cache_of_empty_sentences(tmp_path, tokenizers):
    config = DataConfig(
        source="files",
        train=write_pairs(tmp_path, "a", [("one", ""), ("two", "")]),
        cache_dir=str(tmp_path / "cache"),
    )
    corpus = token_cache.tokenize_corpora(sources.open_corpora(config, "train"), tokenizers, config)
    assert corpus.target.lengths.tolist() == [0, 0]
    assert corpus.target.tokens.dtype == corpus.source.tokens.dtype == np.uint16
    assert list(corpus.source[1]) == tokenizers.source.encode("two")
