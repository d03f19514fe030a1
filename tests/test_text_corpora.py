"""Text as corpora: blocks of lines, patterns, Parquet, digests, and what tokenizers are made of."""

import dataclasses
import gzip
import os
import shutil

import numpy as np
import pytest

from tests.conftest import digit_pairs, write_pairs
from tests.test_prepare import config_of
from transformer_jax.data import file_digests, text_corpora, tokenizer_training
from transformer_jax.data.shards import text_blocks
from transformer_jax.errors import UserError


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_text_blocks_are_the_lines_of_the_file(tmp_path, ending, last, monkeypatch):
    """For blocks and reads of any size, with any line end, compressed or not."""
    import zstandard

    lines = ["a", "", "ü ß", "x" * 50, "\u2028 y", "end"] * 3
    text = (ending.join(lines) + (ending if last else "")).encode()
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "zip.gz").write_bytes(gzip.compress(text))
    (tmp_path / "zip.zst").write_bytes(zstandard.compress(text))
    for name in ("plain", "zip.gz", "zip.zst"):
        for read_bytes in (3, 1 << 20):
            monkeypatch.setattr(text_blocks, "READ_BYTES", read_bytes)
            for size in (1, 4, 18, 100):
                file = text_corpora.epath.Path(tmp_path / name)
                blocks = list(text_blocks.read_file_blocks((file, file), size, num_before=2))
                texts = [block.texts()[0] for block in blocks]
                assert [line for block in texts for line in block] == lines
                assert [len(block) for block in texts[:-1]] == [size] * (len(texts) - 1)
                assert [block.first_line for block in blocks] == [
                    1 + size * i for i in range(len(blocks))
                ]
                for before, block in zip(texts, blocks[1:], strict=False):
                    assert list(block.before) == before[-2:]


def test_text_block_with_damage_names_its_line(tmp_path):
    lines = [b"good"] * 7
    for damage, words in (
        (b"bad \xff", "line 6: invalid UTF-8"),
        (b"bad \0", "line 6: a NUL byte"),
    ):
        (tmp_path / "x.en").write_bytes(b"\n".join([*lines[:5], damage, *lines[:2]]))
        (tmp_path / "x.de").write_bytes(b"\n".join([b"gut"] * 8))
        corpus = text_corpora.open_text(str(tmp_path / "x"), "en", "de", "train")
        with pytest.raises(UserError, match=words):
            [block.texts() for block in corpus.blocks(4)]
    (tmp_path / "x.en").write_bytes(b"good\n" * 6)
    corpus = text_corpora.open_text(str(tmp_path / "x"), "en", "de", "train")
    with pytest.raises(UserError, match=r"x\.en ends after line 6, but .*x\.de has 8 lines"):
        list(corpus.blocks(4))
    with gzip.open(tmp_path / "y.en.gz", "wb") as file:
        file.write(b"good\n" * 4000)
    half = (tmp_path / "y.en.gz").read_bytes()[:-20]
    (tmp_path / "y.en.gz").write_bytes(half)
    shutil.copy(tmp_path / "x.de", tmp_path / "y.de")
    corpus = text_corpora.open_text(str(tmp_path / "y"), "en", "de", "train")
    with pytest.raises(UserError, match="damaged gzip or zstd file"):
        list(corpus.blocks(10_000))


def test_pattern_names_many_files_as_one_corpus(tmp_path):
    pairs = digit_pairs(30)
    for number, part in enumerate((pairs[:10], pairs[10:14], pairs[14:])):
        write_pairs(tmp_path, f"part-{number}", part)
    corpus = text_corpora.open_text(str(tmp_path / "part-*"), "en", "de", "train")
    assert list(corpus.read()) == pairs
    for num_before, sizes in ((0, [8, 6, 8, 8]), (1, [8, 2, 4, 8, 8])):
        # Small files are joined, unless each source has those before it in its file.
        blocks = list(corpus.blocks(8, num_before))
        assert [block.number for block in blocks] == list(range(len(sizes)))
        assert [block.num_pairs for block in blocks] == sizes
        assert [p for block in blocks for p in zip(*block.texts(), strict=True)] == pairs
    first = corpus.fingerprint
    write_pairs(tmp_path, "part-1", pairs[10:13])
    again = text_corpora.open_text(str(tmp_path / "part-*"), "en", "de", "train")
    assert again.fingerprint != first
    with pytest.raises(UserError, match="matches no file; quote it"):
        text_corpora.open_text(str(tmp_path / "none-*"), "en", "de", "train")


def test_parquet_has_a_column_for_each_language_or_structs(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pairs = [("one", "eins"), ("two\nlines", "zwei"), ("", "drei")]
    wanted = [("one", "eins"), ("two lines", "zwei"), ("", "drei")]
    columns = {"en": [s for s, _ in pairs], "de": [t for _, t in pairs]}
    structs = {"id": [1, 2, 3], "translation": [{"de": t, "en": s} for s, t in pairs]}
    for name, table in (("columns", columns), ("structs", structs)):
        file = str(tmp_path / f"{name}.parquet")
        pyarrow.parquet.write_table(arrow.table(table), file)
        corpus = text_corpora.open_text(file, "en", "de", "train")
        assert list(corpus.read()) == wanted
        with pytest.raises(UserError, match="not 'fr'"):
            text_corpora.open_text(file, "fr", "de", "train")
    (tmp_path / "x.parquet").write_text("no")
    for name, words in (("x", "is no Parquet file"), ("none", "there is no file")):
        with pytest.raises(UserError, match=words):
            text_corpora.open_text(str(tmp_path / f"{name}.parquet"), "en", "de", "train")


def test_digests_of_text_are_kept_until_a_file_changes(tmp_path, monkeypatch):
    file = text_corpora.epath.Path(tmp_path / "text")
    file.write_text("one")
    os.utime(file, (1000, 1000))
    first = file_digests.digest([file])
    compute = file_digests._compute
    monkeypatch.setattr(file_digests, "_compute", None)
    assert file_digests.digest([file]) == first
    monkeypatch.setattr(file_digests, "_compute", compute)
    file.write_text("two")
    second = file_digests.digest([file])
    assert second != first
    # Just changed: it may change again within a step of the clock, so nothing is kept.
    monkeypatch.setattr(file_digests, "_compute", lambda files: "computed")
    assert file_digests.digest([file]) == "computed"


def test_tokenizer_of_much_text_is_trained_on_the_shares_of_corpora(tmp_path, monkeypatch):
    sizes = (90, 30, 40)
    corpora = []
    for number, size in enumerate(sizes):
        prefix = write_pairs(tmp_path, f"corpus-{number}", digit_pairs(size, seed=number))
        corpora.append(text_corpora.open_text(prefix, "en", "de", "train"))
        assert corpora[-1].count() == size
    data = config_of(tmp_path, digit_pairs(20)).data
    weighted = dataclasses.replace(data, train_weights=(1.0, 2.0, 5.0))
    rates = tokenizer_training.sample_rates
    assert rates(weighted, corpora) == [1.0, 1.0, 1.0]  # all text is less than SentencePiece takes
    monkeypatch.setattr(tokenizer_training, "MAX_TRAINING_SENTENCES", 96)
    # 48 pairs: 6, 12 and 30 of them.
    np.testing.assert_allclose(rates(weighted, corpora), [6 / 90, 12 / 30, 30 / 40])
    assert rates(data, corpora) == [0.3, 0.3, 0.3]  # 48 of 160
    monkeypatch.setattr(tokenizer_training, "READ_PAIRS", 7)
    for rate, corpus in zip(rates(weighted, corpora), corpora, strict=True):
        texts = list(corpus.read())
        wanted = [p for i, p in enumerate(texts) if int(i * rate) < int((i + 1) * rate)]
        assert len(wanted) == round(rate * len(texts))
        assert list(tokenizer_training.sample_pairs(corpus, rate)) == wanted
