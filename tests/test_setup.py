"""Setting a run up: its memory, lock and tokenizer, and what is printed about its data."""

import dataclasses
import json
import os
import shutil

import jax
import pytest
from etils import epath

from tests.conftest import begin_run, tiny_config, write_pairs
from transformer_jax import distributed
from transformer_jax.config import Config, DataConfig
from transformer_jax.data import sources, tokenizer_training
from transformer_jax.data.corpus import Corpus
from transformer_jax.errors import UserError
from transformer_jax.training import data_description, loop, runners, setup
from transformer_jax.training.loop import train
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir.checkpoint import Checkpointer
from transformer_jax.workdir.new_files import NewFiles


def live_bytes():
    """Bytes of all arrays on all devices; those of views count once."""
    buffers = {
        (shard.device.id, shard.data.unsafe_buffer_pointer()): shard.data.nbytes
        for x in jax.live_arrays()
        for shard in x.addressable_shards
    }
    return sum(buffers.values())


@pytest.mark.parametrize("runner", ["jit", "pmap"])
def test_resume_needs_memory_for_one_state(tmp_path, monkeypatch, runner):
    (tmp_path / "data").mkdir()
    config = tiny_config(tmp_path / "data", ema_decay=0.9)
    devices = 1 if runner == "jit" else 2
    config = dataclasses.replace(
        config, parallel=dataclasses.replace(config.parallel, runner=runner, data=devices)
    )
    begin_run(config, tmp_path / "run")
    before, used = live_bytes(), []

    def watched(function):
        def call(*arguments, **named):
            used.append(live_bytes() - before)
            result = function(*arguments, **named)
            used.append(live_bytes() - before)
            return result

        return call

    monkeypatch.setattr(Checkpointer, "restore", watched(Checkpointer.restore))
    monkeypatch.setattr(runners.Runner, "init", watched(runners.Runner.init))
    monkeypatch.setattr(runners, "_map_shards", watched(runners._map_shards))
    with loop.open_run(config, tmp_path / "run") as trainer:
        state = jax.tree.leaves(trainer.state)
        one = sum(s.data.nbytes for x in state for s in x.addressable_shards)
        largest = devices * max(x.nbytes for x in state)
    assert len(used) >= 2
    assert max(used) <= one + largest  # one array at a time is copied
    assert one > 3 * largest


def test_lock_refuses_a_second_process(tmp_path):
    with (
        workdir_lib.lock(tmp_path / "run"),
        pytest.raises(UserError, match=f"process {os.getpid()} on .*another `workdir`"),
        workdir_lib.lock(tmp_path / "run"),
    ):
        pass
    with workdir_lib.lock(tmp_path / "run"):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot be written"),
        workdir_lib.lock(tmp_path / "file" / "run"),
    ):
        pass


def test_lock_is_made_again_where_a_failed_start_removed_it(tmp_path, monkeypatch):
    path, original, calls = tmp_path / "run" / ".lock", workdir_lib._lock_file, []

    def lock_file(file):
        if not calls:
            shutil.rmtree(path.parent)
        calls.append(file)
        original(file)

    monkeypatch.setattr(workdir_lib, "_lock_file", lock_file)
    with workdir_lib.lock(tmp_path / "run"):
        assert f"process {os.getpid()} on" in path.read_text()
        assert workdir_lib.lock_holder(tmp_path / "run")
    assert len(calls) == 2


def bad_starts(data, tmp_path):
    """Configs that cannot start, with words of their errors."""
    config = tiny_config(data)
    (tmp_path / "file").write_text("no model")

    def changed(section, **fields):
        return dataclasses.replace(
            config, **{section: dataclasses.replace(getattr(config, section), **fields)}
        )

    return [
        (changed("data", train=str(tmp_path / "absent")), "no file"),
        (changed("data", validation=str(tmp_path / "absent")), "no file"),
        (changed("model", num_heads=7), "does not divide"),
        (changed("parallel", data=9), "8 devices"),
        (changed("data", vocab_size=3000), "vocab"),
        (changed("train", init_from=str(tmp_path / "file")), "file"),
        (changed("train", init_from=str(tmp_path / "absent" / "model")), "absent"),
    ]


def tree(folder):
    return {path: path.is_dir() or path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("number", range(7))
def test_failed_starts_leave_no_folder_and_change_no_file(tmp_path, number):
    (tmp_path / "data").mkdir()
    config, words = bad_starts(tmp_path / "data", tmp_path)[number]
    existing = tmp_path / "existing"
    existing.mkdir()
    (existing / "config.json").write_text("notes of mine")
    before = tree(tmp_path)
    for workdir in (tmp_path / "a" / "b" / "run", existing):
        with pytest.raises(UserError, match=words):
            train(config, workdir)
    cache = tmp_path / "data" / "cache"
    after = {path: content for path, content in tree(tmp_path).items() if cache not in path.parents}
    after.pop(cache, None)
    assert after == before


@pytest.mark.parametrize(
    "error", [UserError("no memory"), RuntimeError("bug"), KeyboardInterrupt()]
)
def test_start_that_fails_with_its_files_written_removes_them(tmp_path, monkeypatch, error):
    def fail(*_):
        assert (workdir / "tokenizer").exists()
        raise error

    (tmp_path / "data").mkdir()
    (tmp_path / "new" / "old").mkdir(parents=True)
    monkeypatch.setattr(loop.Trainer, "start", fail)
    for workdir in (tmp_path / "new" / "run", tmp_path / "new" / "old"):
        with pytest.raises(type(error)):
            train(tiny_config(tmp_path / "data"), workdir)
    assert [p.name for p in (tmp_path / "new").rglob("*")] == ["old"]


def test_failed_starts_keep_damaged_checkpoints_and_files_of_users(tiny_run, tmp_path, capsys):
    data, trained = tiny_run
    workdir = tmp_path / "run"
    shutil.copytree(trained, workdir)
    (workdir / ".lock").unlink()
    (workdir / "checkpoints" / "60" / "digests.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.seed was 0, is 1"):
        train(dataclasses.replace(tiny_config(data), seed=1), workdir)
    assert (workdir / "damaged_checkpoints" / "60").is_dir()
    assert not (workdir / ".lock").exists()

    # With several processes the roll call comes first. It notes which folders it has made.
    (tmp_path / "of_user").mkdir()
    for folder, is_left in ((tmp_path / "of_user", True), (tmp_path / "runs" / "it", False)):
        with distributed._RollCall(folder, 1, 0, 60):
            pass
        with pytest.raises(UserError), NewFiles(folder):
            raise UserError("no data")
        assert folder.exists() == is_left
        assert not is_left or not any(folder.iterdir())
    assert not (tmp_path / "runs").exists()

    new_files = NewFiles(tmp_path / "new")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").write_text("mine")
    (tmp_path / "new" / "config.json").write_text("")
    with pytest.raises(UserError), new_files:
        raise UserError("no data")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["notes.txt"]


def test_start_that_is_refused_by_the_lock_leaves_the_other_process_its_files(tmp_path):
    config = tiny_config(tmp_path)
    with workdir_lib.lock(tmp_path / "run"):
        (tmp_path / "run" / "metrics.jsonl").write_text("")
        with pytest.raises(UserError, match="Another process"):
            train(config, tmp_path / "run")
        assert {p.name for p in (tmp_path / "run").iterdir()} == {".lock", "metrics.jsonl"}


def test_run_that_fails_after_its_start_keeps_its_files(tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("no memory")

    monkeypatch.setattr(loop.Trainer, "compile", fail)
    with pytest.raises(UserError, match="no memory"):
        train(tiny_config(tmp_path), tmp_path / "run")
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").exists()


def test_paths_in_a_work_directory_are_true_after_it_was_moved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    data = DataConfig(
        source="files",
        train=f"{tmp_path}/run/data/train,elsewhere/train",
        validation="run/data/validation",
        test=f"{tmp_path}/run2/test",
    )
    workdir_lib.write_config("run", Config(data=data))
    for folder in ("run", tmp_path / "moved"):
        read = workdir_lib.read_config(folder).data
        here = tmp_path / folder
        assert read.train == f"{here}/data/train,elsewhere/train"
        assert read.validation == f"{here}/data/validation"
        assert read.test == f"{tmp_path}/run2/test"
        if folder == "run":
            (tmp_path / "run").rename(tmp_path / "moved")


def test_resume_refuses_another_tokenizer(tiny_run, tmp_path):
    data, trained = tiny_run
    workdir = tmp_path / "run"
    shutil.copytree(trained, workdir)
    record = json.loads((workdir / "data.json").read_text())
    assert set(record) == {"corpus", "tokenizer", "tokenizer_settings"}
    (workdir / "data.json").write_text(json.dumps({**record, "tokenizer": "other"}))
    with pytest.raises(UserError, match="The training tokenizer is not the one"):
        train(tiny_config(data, num_steps=70), workdir)
    (workdir / "data.json").write_text('{"corpus":')
    with pytest.raises(UserError, match=r"data\.json is damaged .*; restore it from a copy"):
        train(tiny_config(data, num_steps=70), workdir)


def test_tokenizer_follows_the_settings_before_the_first_checkpoint(tmp_path, monkeypatch):
    """A run that was stopped before its first checkpoint starts again with its settings."""
    workdir, trainings = epath.Path(tmp_path / "run"), []
    original = tokenizer_training.make_tokenizers
    monkeypatch.setattr(
        tokenizer_training, "make_tokenizers", lambda *a: trainings.append(1) or original(*a)
    )

    def prepare(**fields):
        config = tiny_config(tmp_path)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, **fields))
        config, data = setup.prepare(config, workdir, lambda _: None)
        stored = workdir_lib.read_tokenizers(workdir)
        assert stored.fingerprint == data.tokenizers.fingerprint
        assert config.model.source_vocab_size == data.tokenizers.source.vocab_size
        return stored

    first = prepare()
    assert prepare().fingerprint == first.fingerprint
    assert len(trainings) == 1
    assert prepare(vocab_size=290).source.vocab_size == 290
    assert prepare(lowercase=True).source.lowercase
    assert prepare(tokenizer="bpe").source.model != first.source.model
    (tmp_path / "train.en").write_text("one\n" * 400)
    assert prepare(vocab_size=286).source.vocab_size == 286
    assert prepare(vocab_size=287).source.vocab_size == 287
    assert len(trainings) == 6

    # A kill between the SentencePiece model and its description leaves no mixture.
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            prepare(vocab_size=288)
    assert prepare(vocab_size=287).source.vocab_size == 287
    # Nor does a kill between the tokenizer and the record of its settings.
    with monkeypatch.context() as patch:
        patch.setattr(workdir_lib, "write_data_record", die)
        with pytest.raises(KeyboardInterrupt):
            prepare(vocab_size=288)
    assert prepare(vocab_size=287).source.vocab_size == 287


def test_tokenizer_of_a_fine_tuned_model_is_not_used_without_the_model(tiny_run, tmp_path):
    """A run of fine-tuning was stopped before its first checkpoint; the next run is a fresh one."""
    data, trained = tiny_run
    config = tiny_config(data)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, vocab_size=290))
    tuned = dataclasses.replace(
        config, train=dataclasses.replace(config.train, init_from=str(trained))
    )
    for wanted, size in ((tuned, 295), (config, 290), (tuned, 295)):
        _, prepared = setup.prepare(wanted, epath.Path(tmp_path), lambda _: None)
        assert prepared.tokenizers.source.vocab_size == size


def test_references_that_the_tokenizer_cannot_write_are_reported(tmp_path):
    """Printed before step 0 if they are more than 0.1%, with the place of the difference."""
    config = tiny_config(tmp_path)

    def prepared(num_lost, **fields):
        # Spaces at the ends and in runs, which every tokenizer drops, are not reported.
        rows = [("one", " eins  zwei ")] * (2000 - num_lost) + [
            ("two", "x" * 3000 + " zwei… ")
        ] * num_lost
        write_pairs(tmp_path, "val", rows)
        lines = []
        data = dataclasses.replace(config.data, **fields)
        train = dataclasses.replace(config.train, eval_every_steps=10, eval_sentences=0)
        setup.prepare(
            dataclasses.replace(config, data=data, train=train),
            epath.Path(tmp_path / "run"),
            lines.append,
        )
        return [line for line in lines if "survive" in line]

    assert prepared(2) == []
    assert prepared(0, normalization="nfkc") == []
    (line,) = prepared(3, normalization="nfkc")
    assert "0.1% of the validation references" in line
    assert "zwei… '" in line
    assert "zwei...'" in line
    assert len(line) < 300


def test_blank_pairs_of_an_evaluation_are_counted_and_refused_where_there_are_no_others():
    pairs = [("one", "eins"), ("two", " "), ("", "drei")]
    (line,) = data_description.describe_blank_pairs(pairs, "config.data.validation")
    assert line.startswith("config.data.validation: 2 of 3 pairs have a blank side, the first is ")
    assert "number 2;" in line
    assert list(data_description.describe_blank_pairs(pairs[:1], "x")) == []
    with pytest.raises(UserError, match="x: all 2 pairs have a blank side; name other"):
        list(data_description.describe_blank_pairs(pairs[1:], "x"))


def test_a_mixture_says_how_often_the_pairs_of_each_corpus_are_read():
    corpora = [Corpus(name, "en", "de", list, name) for name in ("news", "web")]

    def lines(**fields):
        config = DataConfig(source="files", train="news,web", **fields)
        return list(data_description.describe_mixture(config, corpora, (1000, 4000)))

    assert lines() == []
    assert lines(train_weights=(1.0, 1.0)) == [
        "mixed: each pair of news 4.0 times, each pair of web 1.0 times"
    ]
    assert lines(stages=("0:0,1", "500:1,1")) == [
        "at first: no news, each pair of web 1.0 times",
        "from step 500 on: each pair of news 4.0 times, each pair of web 1.0 times",
    ]


def test_sentences_of_the_test_set_in_the_training_text_are_reported(tmp_path, monkeypatch):
    long_one, long_two = "one two three four five", "eins zwei drei vier fünf"
    pairs = [
        ("one", "eins"),
        (f" {long_one} ", "x"),
        ("y", long_two),
        (long_one, long_two),
        ("z", "z"),
    ]
    write_pairs(tmp_path, "train", pairs)
    config = DataConfig(
        source="files",
        train=str(tmp_path / "train"),
        test=str(tmp_path / "test"),
        source_lang="en",
        target_lang="de",
    )
    write_pairs(tmp_path, "test", [(long_one, "x")])
    corpora = sources.open_corpora(config, "train")

    def lines(*validation, **fields):
        fields = dataclasses.replace(config, **fields)
        return list(data_description.describe_leaks(fields, corpora, validation))

    (line,) = lines(("one", "eins"), ("a", long_two))
    assert line.startswith(
        "WARNING: 3 of 5 training pairs have a sentence of the validation or test set, such as "
        f"{long_one!r}, so scores will be too good"
    )
    (line,) = lines(("a", long_two), test="")
    assert "2 of 5 training pairs" in line
    assert lines(("one", "eins"), test="") == []
    assert lines(("one", "eins"), test="not there") == []
    assert lines(("a", long_two), filters=("test_leaks",)) == []
    monkeypatch.setattr(data_description, "LEAK_PAIRS", 3)
    assert "2 of 3 training pairs" in lines(("a", long_two))[0]


def test_processes_do_not_draw_tokens_that_differ(tmp_path, monkeypatch):
    config = tiny_config(tmp_path)
    drawn = dataclasses.replace(config.data, subword_sampling=0.1)
    monkeypatch.setattr(setup.distributed, "process_count", lambda: 2)
    monkeypatch.setattr(setup, "UNSEEDED_SAMPLING", True)
    with pytest.raises(UserError, match=r"subword_sampling=0\.1: .*each process would draw other"):
        setup.prepare(
            dataclasses.replace(config, data=drawn), epath.Path(tmp_path / "run"), lambda _: None
        )


def test_pairs_of_a_program_train_as_the_same_pairs_in_files(tmp_path, capsys):
    config = tiny_config(tmp_path, num_steps=3, eval_every_steps=0)
    (corpus,) = sources.open_corpora(config.data, "train")
    pairs = [*corpus.read()]
    losses = []
    for name, given in (("files", None), ("pairs", iter(pairs))):
        assert train(config, tmp_path / name, train_pairs=given)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["train_loss"] for line in lines])
    assert losses[0] == losses[1]
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, num_steps=4))
    with pytest.raises(UserError, match="training corpus is not the one that the run"):
        train(longer, tmp_path / "pairs", train_pairs=pairs[1:])
    assert train(longer, tmp_path / "pairs", train_pairs=pairs)
    with pytest.raises(TypeError, match="item 1 is 'one', not a source and a target text"):
        train(config, tmp_path / "new", train_pairs=[("a", "b"), "one"])
    prepared = dataclasses.replace(config.data, source="prepared", train=str(tmp_path))
    with pytest.raises(UserError, match="they need config"):
        train(dataclasses.replace(config, data=prepared), tmp_path / "new", train_pairs=pairs)
