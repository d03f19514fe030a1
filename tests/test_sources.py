"""Reading parallel text and TFDS data sets, and messages about damaged ones."""

import dataclasses
import gzip
import threading
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds
from num2words import num2words

from tests.conftest import write_pairs
from transformer_jax.config import DataConfig
from transformer_jax.data import number_words, sources, tfds_corpora
from transformer_jax.errors import UserError

PAIRS = [("a b", "c"), ("", "leer"), ("naïve\u2028x", "Straße"), ("😀 tab", " ")]


def read(**fields):
    config = DataConfig(source="files", **fields)
    return [list(corpus.read()) for corpus in sources.open_corpora(config, "train")]


def test_plain_gzip_and_tsv_files_give_the_same_pairs(tmp_path):
    prefix = write_pairs(tmp_path, "plain", PAIRS)
    for side, lang in enumerate(("en", "de")):
        with gzip.open(tmp_path / f"zipped.{lang}.gz", "wt", encoding="utf-8") as out:
            out.write("".join(p[side] + "\r\n" for p in PAIRS))
    tsv = tmp_path / "both.tsv"
    tsv.write_text("\n".join("\t".join(p) for p in PAIRS), encoding="utf-8")  # no last newline
    assert read(train=prefix) == [PAIRS]
    assert read(train=str(tmp_path / "zipped")) == [PAIRS]
    assert read(train=str(tsv)) == [PAIRS]
    assert read(train=f"{prefix},{tsv}") == [PAIRS, PAIRS]


def test_corpus_direction_follows_the_config(tmp_path):
    prefix = write_pairs(tmp_path, "plain", PAIRS)
    swapped = read(train=prefix, source_lang="de", target_lang="en")
    assert swapped == [[(b, a) for a, b in PAIRS]]
    (tmp_path / "plain.pt-BR").write_text((tmp_path / "plain.de").read_text())
    config = DataConfig(
        source="files", train=f"{prefix},{prefix}", train_languages=("en-de", "pt-BR:en")
    )
    both = sources.open_corpora(config, "train")
    assert [(c.source_lang, c.target_lang) for c in both] == [("en", "de"), ("pt-BR", "en")]
    assert next(both[1].read()) == ("c", "a b")


def damaged(tmp_path, name):
    prefix = write_pairs(tmp_path, "data", PAIRS)
    english, german = tmp_path / "data.en", tmp_path / "data.de"
    if name == "missing":
        german.unlink()
    elif name == "longer":
        english.write_text(english.read_text() + "one\nmore\n")
    elif name == "utf8":
        german.write_bytes(b"gut\n\xff\xfe\n")
    elif name == "nul":
        english.write_bytes(b"a\nb\0c\n")
    elif name == "empty":
        english.write_text("")
        german.write_text("")
    elif name == "gzip":
        english.unlink()
        (tmp_path / "data.en.gz").write_bytes(gzip.compress(b"x\n" * 9000)[:-20])
    elif name == "columns":
        (tmp_path / "x.tsv").write_text("a\tb\na\tb\tc\n")
        return str(tmp_path / "x.tsv")
    return prefix


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", ["config.data.train: no file", "data.de", "without the language suffix"]),
        ("longer", ["data.de ends after line 4", "data.en has 6 lines"]),
        ("utf8", ["data.de, line 2", "invalid UTF-8", "iconv"]),
        ("nul", ["data.en, line 2", "NUL"]),
        ("empty", ["data.en is empty"]),
        ("gzip", ["data.en.gz", "damaged gzip"]),
        ("columns", ["x.tsv, line 2", "3 columns"]),
    ],
)
def test_damaged_text_files_are_reported_with_file_and_line(tmp_path, name, words):
    with pytest.raises(UserError) as error:
        read(train=damaged(tmp_path, name))
    for word in words:
        assert word in str(error.value)


def test_corpus_is_also_read_by_the_name_of_one_of_its_files(tmp_path):
    prefix = write_pairs(tmp_path, "corpus", PAIRS)
    for name in ("corpus", "corpus.en", "corpus.de"):
        assert read(train=str(tmp_path / name)) == [PAIRS]
    (tmp_path / "corpus").write_text("a file with the name of the prefix")
    assert read(train=prefix) == [PAIRS]
    for language in ("en", "de"):
        text = (tmp_path / f"corpus.{language}").read_bytes()
        (tmp_path / f"packed.{language}.gz").write_bytes(gzip.compress(text))
    assert read(train=str(tmp_path / "packed.en.gz")) == [PAIRS]
    (tmp_path / "corpus.txt").write_text("x")
    with pytest.raises(
        UserError, match=r"corpus.txt is one file. Name the PREFIX of PREFIX.en and"
    ):
        read(train=str(tmp_path / "corpus.txt"))
    (tmp_path / "lone.en").write_text("x")
    with pytest.raises(UserError, match=r"no file .*lnoe.en.gz, but there is .*lone.en\. Name"):
        read(train=str(tmp_path / "lnoe"))
    with pytest.raises(UserError, match=r"no file .*lone.de or"):
        read(train=str(tmp_path / "lone.en"))


def test_corpus_name_with_a_language_is_understood_where_files_are_packed_or_missing(tmp_path):
    write_pairs(tmp_path, "corpus", PAIRS)
    for language in ("en", "de"):
        text = (tmp_path / f"corpus.{language}").read_bytes()
        (tmp_path / f"packed.{language}.gz").write_bytes(gzip.compress(text))
        (tmp_path / f"news.en.{language}").write_bytes(text)
    assert read(train=str(tmp_path / "packed.en")) == [PAIRS]
    assert read(train=str(tmp_path / "news.en")) == [PAIRS]  # a prefix that ends like a language
    with pytest.raises(UserError) as error:
        read(train=str(tmp_path / "nofile.en"))
    assert "no file" in str(error.value)
    assert "nofile.en or " in str(error.value)
    assert "nofile.en.en" not in str(error.value)


def test_byte_order_marks_and_blank_lines_of_tables_are_no_text(tmp_path):
    prefix = write_pairs(tmp_path, "marked", PAIRS)
    for language in ("en", "de"):
        path = tmp_path / f"marked.{language}"
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(train=prefix) == [PAIRS]
    tsv = tmp_path / "both.tsv"
    tsv.write_bytes("\ufeffone\teins\n\n \r\ntwo\tzwei \ufeff\n\n".encode())
    empty = ("", "")
    assert read(train=str(tsv)) == [[("one", "eins"), empty, empty, ("two", "zwei \ufeff"), empty]]


def test_corpus_fingerprint_follows_the_content(tmp_path):
    config = DataConfig(source="files", train=write_pairs(tmp_path, "a", PAIRS))
    first = sources.open_corpora(config, "train")[0].fingerprint
    assert sources.open_corpora(config, "train")[0].fingerprint == first
    write_pairs(tmp_path, "a", [*PAIRS, ("x", "y")])
    assert sources.open_corpora(config, "train")[0].fingerprint != first


@pytest.fixture
def few_numbers(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))  # no other test may read them
    monkeypatch.setattr(number_words, "SIZES", {"train": 1040, "validation": 5, "test": 6})


def test_text_files_without_their_source_are_recognised(tmp_path, monkeypatch, few_numbers):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "corpus", PAIRS)
    write_pairs(tmp_path, "train", PAIRS)
    for name in ("corpus", "corpus.en", str(tmp_path / "corpus")):
        with pytest.raises(UserError, match=r"no split .* set config.data.source=files"):
            sources.open_corpora(DataConfig(train=name), "train")
    assert len(sources.open_corpora(DataConfig(), "train")) == 1  # the split, not the files
    with pytest.raises(UserError, match="its splits are"):
        sources.open_corpora(DataConfig(train="none"), "train")


# --- The embedded corpus --------------------------------------------------------------------------


def test_number_words_splits_are_disjoint_and_train_has_small_numbers():
    splits = number_words.split_numbers()
    assert {name: len(numbers) for name, numbers in splits.items()} == number_words.SIZES
    everything = [n for numbers in splits.values() for n in set(numbers)]
    assert len(set(everything)) == len(everything)
    times = Counter(splits["train"])
    assert [times[n] for n in range(1000)] == [30] * 100 + [1] * 900
    assert {times[n] for n in times if n >= 1000} == {1}
    assert min(splits["test"]) >= 1000
    assert splits == number_words.split_numbers()


@pytest.mark.parametrize(
    ("language", "word"),
    [
        ("de", "vierunddreißig"),
        ("fr", "trente-quatre"),
        ("es", "treinta y cuatro"),
        ("cs", "třicet čtyři"),
    ],
)
def test_number_words_in_every_language(tmp_path, few_numbers, language, word):
    config = DataConfig(
        tfds_name=f"number_words/{language}", data_dir=str(tmp_path), target_lang=language
    )
    (corpus,) = sources.open_corpora(config, "train")
    pairs = list(corpus.read())
    assert len(pairs) == corpus.count() == 1040
    assert dict(pairs)["thirty-four"] == word
    # `writer` returns the same words as num2words.
    numbers = number_words.split_numbers()["train"][::9]
    words = [(num2words(n, lang="en"), num2words(n, lang=language)) for n in numbers]
    assert {*words} <= {*pairs}
    assert len(list(sources.open_corpora(config, "test")[0].read())) == 6


def test_concurrent_preparations_leave_one_intact_data_set(tmp_path, few_numbers):
    results, barrier = [], threading.Barrier(2)

    def prepare():
        barrier.wait()
        builder = tfds_corpora.prepared_builder("number_words/de", str(tmp_path))
        results.append(len(builder.as_data_source("train")))

    threads = [threading.Thread(target=prepare) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1040, 1040]
    assert [p.name for p in tmp_path.iterdir()] == ["number_words"]


def test_data_dir_follows_the_environment(monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", "/somewhere")
    assert tfds_corpora.data_dir(DataConfig()) == "/somewhere"
    assert tfds_corpora.data_dir(DataConfig(data_dir="/here")) == "/here"


# --- Other TFDS sets ------------------------------------------------------------------------------


class ToyTranslate(tfds.core.GeneratorBasedBuilder):
    """A data set under the feature layout of `wmt14_translate/de-en`."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name="de-en")]
    pkg_dir_path = None

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {name: self._generate_examples(n) for name, n in (("train", 5), ("validation", 2))}

    def _generate_examples(self, count):
        for i in range(count):
            yield i, {"de": f"Satz {i} ß", "en": f"sentence {i}"}


def test_tfds_reads_a_prepared_data_set_by_name(tmp_path):
    ToyTranslate(config="de-en", data_dir=str(tmp_path)).download_and_prepare(
        file_format="array_record"
    )
    config = DataConfig(tfds_name="toy_translate/de-en", data_dir=str(tmp_path))
    (corpus,) = sources.open_corpora(config, "train")
    assert sorted(corpus.read()) == [(f"sentence {i}", f"Satz {i} ß") for i in range(5)]
    part = dataclasses.replace(config, train="train[:2]")
    assert len(list(sources.open_corpora(part, "train")[0].read())) == 2
    for fields, words in (
        ({"target_lang": "fr"}, ["de, en", "'fr'"]),
        ({"train": "dev"}, ["'dev'", "train, validation"]),
        ({"train": "train[:0]"}, ["'train[:0]'", "is empty"]),
    ):
        with pytest.raises(UserError) as error:
            sources.open_corpora(dataclasses.replace(config, **fields), "train")
        for word in words:
            assert word in str(error.value)


def test_tfds_unknown_data_set_is_reported(tmp_path):
    for name, word in (("no_such_set/de-en", "no_such_set"), ("number_words/xx", "de, fr, es, cs")):
        with pytest.raises(UserError, match=word):
            sources.open_corpora(DataConfig(tfds_name=name, data_dir=str(tmp_path)), "train")


def test_tfds_failed_preparation_says_what_to_do(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("no route to host\nmore")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", refuse)
    config = DataConfig(tfds_name="wmt14_translate/de-en", data_dir=str(tmp_path))
    with pytest.raises(UserError) as error:
        sources.open_corpora(config, "train")
    message = str(error.value)
    assert "tfds build wmt14_translate/de-en --file_format=array_record" in message
    assert str(tmp_path) in message
    assert "no route to host" in message
    assert "\n" not in message
    assert not list(tmp_path.iterdir())


def test_corpus_keeps_the_order_of_lines(tmp_path):
    pairs = [(str(i), str(-i)) for i in np.random.default_rng(0).permutation(1000)]
    assert read(train=write_pairs(tmp_path, "many", pairs)) == [pairs]
