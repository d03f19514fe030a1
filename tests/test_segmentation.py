"""Subword sampling: another segmentation each epoch, and random access to its batches."""

import dataclasses
import io
import itertools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import sentencepiece

from tests.conftest import digit_pairs, tiny_config, write_pairs
from transformer_jax import paths
from transformer_jax.data import epoch_data, loader, sources, token_cache
from transformer_jax.data.foreign_tokenizers import VocabularyTokenizer
from transformer_jax.data.shards import shard_store
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import SpecialIds, TokenizerPair
from transformer_jax.errors import UserError

IDS = SpecialIds(0, 2, 0, 2, 1)


@pytest.fixture(scope="module")
def bpe():
    model = io.BytesIO()
    texts = [text for pair in digit_pairs(300) for text in pair]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=80,
        model_type="bpe",
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return Tokenizer(model.getvalue())


@pytest.fixture
def run(tmp_path, bpe):
    """Config, corpora and tokenizers of a run over 400 pairs, in epochs of few batches."""
    config = tiny_config(tmp_path, num_steps=60)
    data = dataclasses.replace(config.data, subword_sampling=0.3, max_len=40, batch_tokens=640)
    config = dataclasses.replace(config, data=data)
    return config, sources.open_corpora(data, "train"), TokenizerPair(bpe, bpe)


def test_bpe_dropout_of_one_gives_letters_and_of_zero_the_best_segmentation(bpe):
    texts = ["seven three", "acht", ""]
    letters = [list(text.replace(" ", "▁")) for text in ("▁seven▁three", "▁acht", "")]
    assert [bpe.tokens(ids) for ids in bpe.sample_batch(texts, 0.999999, 0)] == letters
    assert bpe.sample_batch(texts, 1e-9, 0) == bpe.encode_batch(texts)


def test_bpe_dropout_skips_merges_with_the_given_rate():
    """A word of two letters has one merge; skipping it gives two tokens."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab"] * 20),
        model_writer=model,
        vocab_size=7,
        model_type="bpe",
        add_dummy_prefix=False,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    tokenizer = Tokenizer(model.getvalue())
    drawn = [len(ids) for ids in tokenizer.sample_batch(["ab"] * 4000, 0.3, 5)]
    assert np.mean(np.asarray(drawn) == 2) == pytest.approx(0.3, abs=0.03)  # 4 deviations


def test_subword_sampling_depends_on_the_seed_only(bpe):
    texts = [source for source, _ in digit_pairs(200)]
    drawn: dict[int, list] = {}
    threads = [
        threading.Thread(target=lambda i=i: drawn.update({i: bpe.sample_batch(texts, 0.3, i % 2)}))
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drawn[0] == drawn[2] == drawn[4] != drawn[1] == drawn[3] == drawn[5]
    assert [bpe.decode(ids) for ids in drawn[0]] == texts


def test_subword_sampling_is_seeded_across_processes_unless_a_warning_says_so(
    bpe, run, tmp_path, caplog
):
    (tmp_path / "bpe.model").write_bytes(bpe.model)
    code = (
        "import pathlib, sys; from transformer_jax.data.tokenizer import Tokenizer; "
        "model = pathlib.Path(sys.argv[1]).read_bytes(); "
        "print(Tokenizer(model).sample_batch(['one two three four five six seven'] * 20, 0.3, 5))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "bpe.model")]
    drawn = {subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)}
    epoch_data.prepare_epochs(*reordered(run))
    assert (len(drawn) > 1) == ("ignores the seed" in caplog.text)


def test_sampled_epochs_have_all_pairs_in_other_tokens_and_the_same_shape(run):
    epochs, _ = epoch_data.prepare_epochs(*reordered(run))
    period = int(np.ceil(epochs.first.plan.batches_per_epoch))
    corpora, tokenizers = run[1], run[2].source
    texts = list(corpora[0].read())
    tokens = []
    for epoch in range(4):
        pairs = []
        for t in range(epoch * period, (epoch + 1) * period):
            part, within = epochs.at(t)
            layout = part.plan.layout(within)
            assert layout.shape == epochs.first.plan.shapes[0]
            pairs.extend(layout.pairs.tolist())
        assert len(set(pairs)) >= 0.9 * len(texts)  # a batch is a tenth of this small epoch
        for i in set(pairs):
            assert tokenizers.decode(part.corpus.source[i]) == texts[i][0]
            assert tokenizers.decode(part.corpus.target[i]) == texts[i][1]
        tokens.append(part.corpus.target.tokens)
    for earlier, later in itertools.pairwise(tokens):
        assert not np.array_equal(earlier, later)


def reordered(run):
    config, corpora, tokenizers = run
    return corpora, tokenizers, config


def test_sampled_batch_needs_no_earlier_batches(run):
    straight = loader.BatchSource(epoch_data.prepare_epochs(*reordered(run))[0], IDS, 60)
    digests = [straight.digest(t) for t in range(60)]
    assert len(set(digests)) == 60
    for t in (59, 23, 24, 0):
        fresh = loader.BatchSource(epoch_data.prepare_epochs(*reordered(run))[0], IDS, 60)
        assert fresh.digest(t) == digests[t]
        np.testing.assert_array_equal(fresh.pairs(t), straight.pairs(t))


def test_sampled_epochs_differ_in_order_even_with_equal_tokens(run):
    config, corpora, tokenizers = run
    data = dataclasses.replace(config.data, subword_sampling=1e-9)
    config = dataclasses.replace(config, data=data)
    epochs, _ = epoch_data.prepare_epochs(corpora, tokenizers, config)
    period = int(np.ceil(epochs.first.plan.batches_per_epoch))
    source = loader.BatchSource(epochs, IDS, 60)
    first, second = source.pairs(0), source.pairs(period)
    assert len(np.intersect1d(first, second)) < 0.5 * len(first)


def test_subword_sampling_depends_on_the_seed_of_the_run(run):
    config, corpora, tokenizers = run
    other = dataclasses.replace(config, seed=1)
    one, two = (epoch_data.prepare_epochs(corpora, tokenizers, c)[0] for c in (config, other))
    assert not np.array_equal(one.first.corpus.source.tokens, two.first.corpus.source.tokens)


def test_token_cache_keeps_three_sampled_epochs_and_the_first(run, tmp_path):
    epochs, _ = epoch_data.prepare_epochs(*reordered(run))
    period = int(np.ceil(epochs.first.plan.batches_per_epoch))
    last = (60 - 1) // period
    assert last >= 5
    for number in range(last + 1):
        epochs.at(number * period)
    assert epochs.at(59)[0].corpus.fingerprint
    folders = [p.name for p in (tmp_path / "cache" / "tokens").iterdir()]
    assert epochs.first.corpus.fingerprint in folders
    assert len(folders) <= 1 + epoch_data.KEPT_EPOCHS


def test_closed_epochs_leave_only_the_first_in_the_token_cache(run, tmp_path):
    epochs, _ = epoch_data.prepare_epochs(*reordered(run))
    epochs.at(59)
    epochs.close()
    folders = [p.name for p in (tmp_path / "cache" / "tokens").iterdir()]
    assert folders == [epochs.first.corpus.fingerprint]


def test_sampled_batch_after_the_last_step_is_available(run):
    """The replay of a step may need it."""
    config, corpora, tokenizers = run
    shorter = dataclasses.replace(config, train=dataclasses.replace(config.train, num_steps=5))
    sources_of = [
        loader.BatchSource(epoch_data.prepare_epochs(corpora, tokenizers, c)[0], IDS, 60)
        for c in (config, shorter)
    ]
    assert sources_of[0].digest(59) == sources_of[1].digest(59)


def test_token_cache_is_written_again_if_another_run_removes_it(run, monkeypatch):
    config, corpora, tokenizers = run
    first = token_cache.tokenize_corpora(corpora, tokenizers, config.data, seed=3)
    read, removed = shard_store.read_shards, []

    def removed_before(folder, damaged):
        if not removed:
            removed.append(folder)
            token_cache.remove(corpora, tokenizers, config.data, 3)
        return read(folder, damaged)

    monkeypatch.setattr(shard_store, "read_shards", removed_before)
    again = token_cache.tokenize_corpora(corpora, tokenizers, config.data, seed=3)
    assert removed
    np.testing.assert_array_equal(again.source.tokens, first.source.tokens)
    token_cache.remove(corpora, tokenizers, config.data, 3)
    token_cache.remove(corpora, tokenizers, config.data, 3)  # by another run already
    assert not removed[0].exists()
    assert not list(removed[0].parent.glob(paths.TEMPORARY))


def test_token_cache_removes_folders_of_killed_processes(run, tmp_path):
    config, corpora, tokenizers = run
    folders = [tmp_path / "cache" / "tokens" / f"incomplete.{name}" for name in ("old", "new")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "source.raw").write_bytes(b"x")
    for path in (folders[0] / "source.raw", folders[0]):
        os.utime(path, (0, 0))
    token_cache.tokenize_corpora(corpora, tokenizers, config.data, seed=4)
    assert [folder.exists() for folder in folders] == [False, True]


def test_subword_sampling_keeps_the_best_segmentation_of_over_long_sentences(tmp_path, bpe):
    pairs = [("seven " * 5 + "seven", "eins"), *[("one", "zwei")] * 9]
    config = tiny_config(tmp_path)
    longest = len(bpe.encode(pairs[0][0])) + 1
    data = dataclasses.replace(
        config.data,
        train=write_pairs(tmp_path, "long", pairs),
        subword_sampling=0.9,
        max_len=longest,
    )
    corpora = sources.open_corpora(data, "train")
    corpus = token_cache.tokenize_corpora(corpora, TokenizerPair(bpe, bpe), data, seed=3)
    assert list(corpus.source[0]) == bpe.encode(pairs[0][0])
    # Some versions of SentencePiece ignore the seed, and "one" stays whole in some draws.
    assert max(len(corpus.source[i]) for i in range(1, 10)) > len(bpe.encode("one"))


def test_error_in_a_sampled_epoch_ends_the_run(run):
    epochs, _ = epoch_data.prepare_epochs(*reordered(run))

    def fail(number):
        raise UserError(f"epoch {number} is damaged")

    broken = epoch_data.Epochs(epochs.first, fail, fail, 60)
    source = loader.BatchSource(broken, IDS, 60)
    with pytest.raises(UserError, match="epoch 1 is damaged"):
        list(loader.load_batches(source, 0))


def test_epochs_after_the_last_step_are_not_prepared(run):
    epochs, _ = epoch_data.prepare_epochs(*reordered(run))
    asked = []
    period = int(np.ceil(epochs.first.plan.batches_per_epoch))
    limited = epoch_data.Epochs(epochs.first, asked.append, asked.append, period)
    assert limited.at(period - 1) == (epochs.first, period - 1)
    assert not asked


def test_subword_sampling_refuses_character_models(run):
    config, corpora, _ = run
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["one two"] * 20),
        model_writer=model,
        vocab_size=20,
        model_type="char",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    letters = Tokenizer(model.getvalue())
    with pytest.raises(UserError, match="kind bpe or unigram"):
        epoch_data.prepare_epochs(corpora, TokenizerPair(letters, letters), config)


def test_subword_sampling_refuses_imported_tokenizers(run):
    config, corpora, tokenizers = run
    vocabulary = {token: i for i, token in enumerate(["</s>", "<unk>", "<pad>", "▁one"])}
    special = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
    foreign = VocabularyTokenizer(tokenizers.source.model, vocabulary, special, 4)
    with pytest.raises(UserError, match="cannot sample"):
        epoch_data.prepare_epochs(corpora, TokenizerPair(foreign, foreign), config)


def test_sampled_tokens_stay_readable_when_they_are_removed(run):
    config, corpora, tokenizers = run
    corpus = token_cache.tokenize_corpora(corpora, tokenizers, config.data, seed=3)
    token_cache.remove(corpora, tokenizers, config.data, 3)
    assert len(corpus.source[0]) == corpus.source.lengths[0]
    assert (
        corpus.target.take(np.array([5, 2]))[1].tolist() == corpus.target.lengths[[5, 2]].tolist()
    )
