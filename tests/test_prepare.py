"""`prepare`: shards, filters and their reports, kills, damage, and runs that read the folder."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import digit_pairs, tiny_config, write_pairs
from tests.worker_tasks import die, square_or_die
from transformer_jax.data import corpus as corpus_lib
from transformer_jax.data import corpus_shares, prepared_folder, sources, text_corpora, token_cache
from transformer_jax.data.shards import filters, shard_store, shard_writer
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
    leak = next(pair for pair in pairs if filters.is_long(pair[0]))
    data = dataclasses.replace(config.data, validation=write_pairs(tmp_path, "held_out", [leak]))
    lines = prepare(dataclasses.replace(config, data=data), tmp_path / "out")
    assert any(
        f"training pairs have a sentence of the validation or test set, such as "
        f"{leak[0][:60]!r}" in line
        for line in lines
    )
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
    # Starts of runs do not compare the digests of a large corpus, but this command does.
    monkeypatch.setattr(shard_store, "CHECKED_BYTES", 0)
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
        ({"augment": ("typos:0.1",)}, "augment=.*typos.* and a prepared folder has no text"),
        ({"train_weights": (1.0, 2.0)}, "has 1 corpora, but shares are given for 2"),
        ({"filters": ("empty",)}, "filters=.*, but .* was prepared with none"),
    ):
        wrong = dataclasses.replace(config, data=dataclasses.replace(data, **changes))
        with pytest.raises(UserError, match=words):
            train(wrong, tmp_path / "run")
    for changes, words in (
        ({"source": "prepared"}, "is prepared already"),
        ({"subword_sampling": 0.1}, "so it cannot be prepared"),
        ({"augment": ("typos:0.1",)}, "augment=.*typos.*so it cannot be prepared"),
        ({"plan_version": 2}, "needs config.data.plan_version=3"),
        ({"lowercase": True}, "is not the tokenizer that config.data.lowercase"),
    ):
        wrong = dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))
        with pytest.raises(UserError, match=words):
            prepare(wrong, tmp_path / ("out" if changes == {"lowercase": True} else "other"))


def test_prepared_folder_refuses_other_limits_of_its_filters(tmp_path):
    config = config_of(tmp_path, digit_pairs(60))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, filters=("length",)))
    prepare(config, tmp_path / "out")
    data = dataclasses.replace(config.data, source="prepared", train=str(tmp_path / "out"))
    longer = dataclasses.replace(data, max_len=data.max_len - 1, filters=())
    with pytest.raises(UserError, match=r"max_len=.*, but .* was prepared with"):
        train(dataclasses.replace(config, data=longer), tmp_path / "run")


# --- Workers ------------------------------------------------------------------------------------


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
        assert set(np.concatenate([batches.pairs(t) for t in range(120)])) == set(range(40))
    model = str(tmp_path / "pack" / "tokenizer" / "shared.model")
    same = [("same", "same")] * 30
    config = config_of(tmp_path, same, filters=("identical",), tokenizer_model=model)
    with pytest.raises(UserError, match="drop all pairs of a corpus"):
        prepare(config, tmp_path / "none")
