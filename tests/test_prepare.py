"""`prepare`: shards, filters and their reports, kills, damage, and runs that read the folder."""

import dataclasses
import gzip
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import digit_pairs, tiny_config, write_pairs
from transformer_jax.config import validate
from transformer_jax.data import corpus as corpus_lib
from transformer_jax.data import (
    corpus_shares,
    file_digests,
    prepared_folder,
    sources,
    text_corpora,
    token_cache,
    tokenizer_training,
)
from transformer_jax.data.shards import filters, shard_store, shard_writer, text_blocks
from transformer_jax.data.workers import IN_THIS_PROCESS, Workers
from transformer_jax.errors import UserError
from transformer_jax.training import prepare_data, setup
from transformer_jax.training.loop import train


def config_of(folder, pairs, **data):
    """A `tiny` recipe that trains on `pairs`."""
    config = tiny_config(folder, num_steps=4)
    fields = {"train": write_pairs(folder, "text", pairs), **data}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **fields))


def prepare(config, folder, workers=IN_THIS_PROCESS):
    lines = []
    prepare_data.prepare(config, Path(folder), workers, lines.append)
    return lines


def content(folder):
    """Every file of a prepared folder and its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(token_cache, "SHARD_PAIRS", 60)


# --- Shards -------------------------------------------------------------------------------------


def test_prepared_folder_has_the_ids_of_the_tokenizer_in_order(tmp_path, small_shards):
    pairs = [*digit_pairs(200), ("", "x")]
    config = config_of(tmp_path, pairs)
    lines = prepare(config, tmp_path / "out")
    assert any("201 pairs in 4 shards" in line for line in lines)
    prepared = prepared_folder.PreparedFolder.open(str(tmp_path / "out"))
    tokenizers = prepared.tokenizers()
    data = dataclasses.replace(config.data, source="prepared", train=str(tmp_path / "out"))
    corpora = sources.open_corpora(data, "train")
    corpus = token_cache.tokenize_corpora(corpora, tokenizers, data)
    assert [shard.num_pairs for shard in corpus.shards[0]] == [60, 60, 60, 21]
    for i, (source, target) in enumerate(pairs):
        np.testing.assert_array_equal(corpus.source[i], tokenizers.source.encode(source))
        np.testing.assert_array_equal(corpus.target[i], tokenizers.target.encode(target))
    chosen = np.array([199, 3, 60, 59, 200, 3])
    flat, lengths = corpus.source.take(chosen)
    ids = [tokenizers.source.encode(pairs[i][0]) for i in chosen]
    assert flat.tolist() == [i for sentence in ids for i in sentence]
    assert lengths.tolist() == [len(sentence) for sentence in ids]
    assert list(corpora[0].read())[:3] == pairs[:3]


def test_prepared_folder_does_not_depend_on_the_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache, "SHARD_PAIRS", 25)
    config = config_of(
        tmp_path, [*digit_pairs(80), *digit_pairs(20)], filters=("duplicates", "identical")
    )
    folders = [tmp_path / name for name in ("one", "two")]
    for folder, workers in zip(folders, (Workers(1), Workers(2)), strict=True):
        prepare(config, folder, workers)
    one, two = map(content, folders)
    assert one == two
    assert sum("source_tokens" in name for name in one) == 4


def test_prepare_continues_after_a_kill_and_makes_damaged_shards_again(
    tmp_path, small_shards, caplog, monkeypatch
):
    config = config_of(tmp_path, digit_pairs(200))
    folder = tmp_path / "out"
    prepare(config, folder)
    expected = content(folder)
    (tokens,) = (folder / "tokens").iterdir()
    # As a kill leaves it: shards without the file that says that the corpus is complete.
    (tokens / "corpus.json").unlink()
    shutil.rmtree(tokens / "00002")
    times = {path: path.stat().st_mtime_ns for path in tokens.rglob("*.npy")}
    written = []
    write = shard_writer.ShardWriter.write

    def spy(self, shard, block):
        written.append(block.number)
        write(self, shard, block)

    monkeypatch.setattr(shard_writer.ShardWriter, "write", spy)
    prepare(config, folder)
    assert written == [2]
    assert content(folder) == expected
    assert times == {path: path.stat().st_mtime_ns for path in times}
    file = tokens / "00001" / "target_tokens.npy"
    file.write_bytes(file.read_bytes()[:-9] + b"\7" * 9)
    with pytest.raises(UserError, match=r"00001 is damaged .*target_tokens\.npy has changed"):
        prepared_folder.open_shards(tokens)
    prepare(config, folder)
    assert content(folder) == expected
    assert "00001 is damaged (target_tokens.npy has changed" in caplog.text


def test_prepare_tokenises_only_the_corpus_that_is_new(tmp_path, monkeypatch):
    config = config_of(tmp_path, digit_pairs(100))
    folder = tmp_path / "out"
    prepare(config, folder)
    (old,) = (folder / "tokens").iterdir()
    before = {path: path.stat().st_mtime_ns for path in old.rglob("*")}
    other = write_pairs(tmp_path, "other", digit_pairs(30, seed=5))
    data = dataclasses.replace(config.data, train=f"{config.data.train},{other}")
    lines = prepare(dataclasses.replace(config, data=data), folder)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert len(list((folder / "tokens").iterdir())) == 2
    assert any("using the tokenizer in" in line for line in lines)


def test_run_reads_a_prepared_folder_and_has_the_batches_of_the_text(tmp_path):
    """The same losses, step by step, as the run that reads the text with the same tokenizer."""
    config = config_of(tmp_path, digit_pairs(200))
    prepare(config, tmp_path / "out")
    model = str(tmp_path / "out" / "tokenizer" / "shared.model")
    from_text = dataclasses.replace(config.data, tokenizer_model=model)
    from_folder = dataclasses.replace(
        config.data, source="prepared", train=str(tmp_path / "out"), vocab_size=9
    )
    losses = []
    for name, data in (("text", from_text), ("folder", from_folder)):
        train(dataclasses.replace(config, data=data), tmp_path / name)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses.append([line for line in lines if "train_loss" in line])
    digests = [[line.split("batch_digest")[1] for line in of_run] for of_run in losses]
    assert digests[0] == digests[1] != []


def test_prepared_folder_refuses_other_settings_and_is_named_where_it_is_none(tmp_path):
    config = config_of(tmp_path, digit_pairs(60))
    prepare(config, tmp_path / "out")
    data = dataclasses.replace(config.data, source="prepared", train=str(tmp_path / "out"))
    for changes, words in (
        ({"train": str(tmp_path)}, "is no prepared folder: it has no prepared.json"),
        ({"lowercase": True}, "lowercase=True, but .* prepared with False"),
        ({"subword_sampling": 0.1}, "a prepared folder has no text"),
        ({"train_weights": (1.0, 2.0)}, "has 1 corpora, but shares are given for 2"),
        ({"filters": ("empty",)}, "filters=.*, but .* was prepared with none"),
    ):
        wrong = dataclasses.replace(config, data=dataclasses.replace(data, **changes))
        with pytest.raises(UserError, match=words):
            train(wrong, tmp_path / "run")
    for changes, words in (
        ({"source": "prepared"}, "is prepared already"),
        ({"subword_sampling": 0.1}, "so it cannot be prepared"),
        ({"plan_version": 2}, "needs config.data.plan_version=3"),
        ({"lowercase": True}, "is not the tokenizer that config.data.lowercase"),
    ):
        wrong = dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))
        with pytest.raises(UserError, match=words):
            prepare(wrong, tmp_path / ("out" if changes == {"lowercase": True} else "other"))


# --- Filters ------------------------------------------------------------------------------------

GOOD = [
    (f"The {a} man sees {b} dogs in the {c}.", f"Der {x} Mann sieht {y} Hunde im {z}.")
    for a, x in (("old", "alte"), ("young", "junge"), ("tall", "große"))
    for b, y in (("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf"))
    for c, z in (("park", "Park"), ("garden", "Garten"), ("forest", "Wald"))
]


def test_filters_find_planted_faults_and_drop_nothing_good(tmp_path):
    held_out = ("A secret sentence of the test set.", "Ein geheimer Satz der Testmenge.")
    german = GOOD[5][1]
    faults = {
        "empty": [("", "Ein Hund."), ("A dog.", " ")],
        "control": [("A dog\x07.", "Ein Hund."), ("A d\ufffdg.", "Ein Hund.")],
        "identical": [("Click here to see the page.", "Click here to see the page.")],
        "language": [
            (german + " " + german, "Another sentence."),
            ("Ein Hund läuft weg.", "A dog runs away."),  # swapped
        ],
        "test_leaks": [held_out, ("a SECRET sentence of the test set", "Etwas ganz anderes.")],
        "near_duplicates": [GOOD[0], (GOOD[1][0].upper(), GOOD[1][1].replace(".", " !"))],
        "length": [("dog " * 90, "Hund " * 90)],
        "ratio": [("A dog.", "Hund " * 40), ("dog " * 40, "Hund.")],
        "function": [("Please drop me.", "Bitte weglassen.")],
    }
    pairs = list(GOOD)
    rng = np.random.default_rng(0)
    for planted in faults.values():
        for pair in planted:
            pairs.insert(int(rng.integers(len(GOOD) // 2, len(pairs))), pair)
    config = config_of(
        tmp_path,
        pairs,
        test=write_pairs(tmp_path, "held-out", [held_out]),
        filters=tuple(name for name in faults if name != "function"),
        filter_function="tests.test_prepare:keep",
        max_len=80,
        max_ratio=3.0,
        vocab_size=340,
    )
    lines = prepare(config, tmp_path / "out")
    corpora = sources.open_corpora(
        dataclasses.replace(config.data, source="prepared", train=str(tmp_path / "out")), "train"
    )
    assert list(corpora[0].read()) == GOOD
    for name, planted in faults.items():
        (line,) = [line for line in lines if f"dropped by {name}," in line]
        assert line.startswith(f"  {len(planted)} of {len(pairs)} pairs"), line
    shown = "\n".join(lines)
    assert repr(faults["control"][0][0]) in shown


def keep(source, target):
    return "drop me" not in source


def test_filters_are_part_of_the_name_of_a_corpus_and_of_runs_on_text(tmp_path, capsys):
    pairs = [*digit_pairs(60), ("same", "same")]
    config = config_of(tmp_path, pairs)
    train(config, tmp_path / "plain")
    filtered = dataclasses.replace(config.data, filters=("identical",))
    train(dataclasses.replace(config, data=filtered), tmp_path / "filtered")
    assert "1 of 61 pairs dropped by identical, such as\n  'same'  ->  'same'" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"filters": ("emtpy",)}, "no filter 'emtpy'; did you mean empty"),
        ({"filters": ("duplicates", "near_duplicates")}, "name one of the two"),
        ({"filters": ("empty",), "context_sentences": 1}, "take sentences out of documents"),
        ({"temperature": 2.0, "train_weights": (1.0,)}, "both set the shares"),
        ({"stages": ("0:1", "5:1"), "plan_version": 2}, "planned by config.data.plan_version=3"),
        ({"stages": ("1:1",)}, "must begin at step 0"),
        ({"stages": ("0:1,2",)}, "a share of at least 0 for each corpus"),
        ({"stages": ("0:0",)}, "are all 0"),
        ({"stages": ("zero",)}, "must look like"),
    ],
)
def test_wrong_filters_and_shares_are_refused(tmp_path, changes, words):
    config = config_of(tmp_path, digit_pairs(20))
    wrong = dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))
    with pytest.raises(UserError, match=words):
        validate(wrong)


def test_filter_function_that_is_none_is_refused():
    for name in ("no_module:f", "tests.test_prepare:nothing", "tests.test_prepare:GOOD", "x"):
        with pytest.raises(UserError, match=f"filter_function={name}"):
            filters.load_function(name)


def test_duplicates_of_many_parts_are_those_of_one(tmp_path, monkeypatch):
    """By brute force; parts of the digests are compared one at a time."""
    from transformer_jax.data.shards import duplicates

    pairs = [(str(i % 40), str(i % 3)) for i in np.random.default_rng(1).integers(0, 99, 300)]

    def blocks():
        return text_blocks.blocks_of_pairs("x", iter(pairs), 70)

    seen, expected = set(), []
    for pair in pairs:
        expected.append(pair in seen)
        seen.add(pair)
    for part in (1 << 20, 64):
        monkeypatch.setattr(duplicates, "PART", part)
        folder = tmp_path / str(part)
        duplicates.find(folder, blocks, False, IN_THIS_PROCESS)
        bits = [np.load(file) for file in sorted(folder.iterdir())]
        marked = [
            np.unpackbits(b, count=n) for b, n in zip(bits, (70, 70, 70, 70, 20), strict=True)
        ]
        assert np.concatenate(marked).tolist() == expected


# --- Text ---------------------------------------------------------------------------------------


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
    blocks = list(corpus.blocks(8))
    assert [block.number for block in blocks] == [0, 1, 2, 3, 4]
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


# --- Workers ------------------------------------------------------------------------------------


def square_or_die(task):
    number, marker = task
    if marker and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process")
def test_worker_that_dies_is_replaced(tmp_path):
    tasks = [(i, str(tmp_path / "died") if i == 5 else "") for i in range(12)]
    assert list(Workers(2)(square_or_die, tasks)) == [i * i for i in range(12)]
    with pytest.raises(UserError, match="died 3 times in a row"):
        list(Workers(2)(die, [0, 1, 2]))


def test_workers_raise_what_a_task_raises():
    for workers in (Workers(1), Workers(2)):
        with pytest.raises(UserError, match="filter_function=x"):
            list(workers(filters.load_function, ["x", "x"]))


def test_ray_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"ray is missing; the extra \[ray\]"):
        list(Workers(ray="auto")(square_or_die, [(1, "")]))


def test_shards_of_a_damaged_corpus_file_are_read_again(tmp_path):
    config = config_of(tmp_path, digit_pairs(40))
    prepare(config, tmp_path / "out")
    (tokens,) = (tmp_path / "out" / "tokens").iterdir()
    (tokens / shard_store.CORPUS).write_text("{")
    assert not shard_store.is_complete(tokens)
    prepare(config, tmp_path / "out")
    assert shard_store.is_complete(tokens)


def test_mixed_corpora_are_counted_in_the_metrics(tmp_path):
    """By the batches: of 1:3 shares, and of stages."""
    other = write_pairs(tmp_path, "other", digit_pairs(50, seed=9))
    config = config_of(tmp_path, digit_pairs(80))
    for name, changes in (
        ("weights", {"train_weights": (1.0, 3.0)}),
        ("stages", {"stages": ("0:1,0", "2:0,1")}),
    ):
        data = dataclasses.replace(config.data, train=f"{config.data.train},{other}", **changes)
        run = dataclasses.replace(config, data=data)
        train(run, tmp_path / name)
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        last = [line for line in lines if "pairs_of_corpus_1" in line][-1]
        _, prepared = setup.prepare(run, text_corpora.epath.Path(tmp_path / name), print, True)
        batches = prepared.batches(run)
        seen = np.concatenate([batches.pairs(t) for t in range(last["step"])])
        counts = [last["pairs_of_corpus_1"], last["pairs_of_corpus_2"]]
        np.testing.assert_allclose(counts, [(seen < 80).sum(), (seen >= 80).sum()], rtol=0.2)
    assert min(counts) > 0  # two steps of four each


def test_temperature_shares_are_powers_of_the_sizes_of_languages(tmp_path):
    """Two corpora of one language are one for it."""
    corpora = [
        corpus_lib.Corpus(str(i), "en", language, lambda: iter(()), "")
        for i, language in enumerate(("de", "de", "fr"))
    ]
    config = config_of(tmp_path, digit_pairs(20), temperature=2.0).data
    ((step, shares),) = corpus_shares.make_stages(config, corpora, (300, 600, 100))
    assert step == 0
    german, french = 900**0.5, 100**0.5
    expected = np.array([german / 3, german * 2 / 3, french])
    np.testing.assert_allclose(np.array(shares) / sum(shares), expected / expected.sum())
    by_size = dataclasses.replace(config, temperature=1.0)
    assert corpus_shares.make_stages(by_size, corpora, (300, 600, 100)) is None


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
    assert rates(data, corpora) == [1.0, 1.0, 1.0]


def test_shard_of_which_filters_leave_nothing_is_one_without_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache, "SHARD_PAIRS", 20)
    pairs = digit_pairs(60)
    pairs[20:40] = [("same", "same")] * 20
    for batching in ("pack", "bucket"):
        config = config_of(tmp_path, pairs, filters=("identical",), batching=batching)
        lines = prepare(config, tmp_path / batching)
        assert any("40 pairs in 3 shards" in line for line in lines)
        data = dataclasses.replace(config.data, source="prepared", train=str(tmp_path / batching))
        run = dataclasses.replace(config, data=data)
        (corpus,) = sources.open_corpora(data, "train")
        assert list(corpus.read()) == [*pairs[:20], *pairs[40:]]
        _, prepared = setup.prepare(run, text_corpora.epath.Path(tmp_path / f"x{batching}"), print)
        batches = prepared.batches(run)
        assert set(np.concatenate([batches.pairs(t) for t in range(300)])) == set(range(40))
    model = str(tmp_path / "pack" / "tokenizer" / "shared.model")
    same = [("same", "same")] * 30
    config = config_of(tmp_path, same, filters=("identical",), tokenizer_model=model)
    with pytest.raises(UserError, match="drop all pairs of a corpus"):
        prepare(config, tmp_path / "none")


def test_filters_of_languages_and_tests_know_variants_directions_and_marks(tmp_path):
    assert not filters.is_other_language("A colour.", "A color.", ("en_GB", "en_US"))
    with pytest.raises(UserError, match="does not know 'xx'"):
        filters.is_other_language("A", "B", ("en", "xx"))
    tests = filters.TestTexts.of([("A long sentence of the test.", "Ein langer Satz des Tests.")])
    assert tests.has("Ein langer Satz des Tests!", "A long sentence of the test.")
    assert filters.near_key("दिन") != filters.near_key("दीन")
    assert filters.near_key("Ab-C, 12!") == "abc"


def test_filter_function_that_changes_is_another_filter(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = set()
    for content in ("def keep(s, t): return True", "def keep(s, t): return False"):
        (tmp_path / "my_filter.py").write_text(content)
        digests.add(filters.PairFilter(function="my_filter:keep").fingerprint)
    assert len(digests) == 2
