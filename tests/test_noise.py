"""Noise in texts, and in the sources of training (`data.augment`)."""

import dataclasses

import numpy as np
import pytest

from tests.conftest import tiny_config, write_pairs
from transformer_jax.config import pair_kinds
from transformer_jax.data import epoch_data, loader, noise, sources
from transformer_jax.data.tokenizer_pair import SpecialIds

IDS = SpecialIds(0, 2, 0, 2, 1)
AUGMENT = ("upper_case:0.3", "extra_spaces:0.2")


@pytest.mark.parametrize(
    ("kind", "text", "noisy"),
    [
        (
            "upper_case",
            '"Zwei große Hunde", sagt\u00a0er - die U-Bahn hält!',
            '"ZWEI GROSSE HUNDE", SAGT\u00a0ER - DIE U-BAHN HÄLT!',
        ),
        ("lower_case", "Die U-Bahn", "die u-bahn"),
        ("title_case", "zwei Hunde  sagt\u00a0er ß", "Zwei Hunde  Sagt\u00a0er SS"),
        ("title_case", '"wer" ist da', '"wer" Ist Da'),
        (
            "no_punctuation",
            '"Zwei große Hunde", sagt\u00a0er - die U-Bahn hält!',
            "Zwei große Hunde sagt er die U-Bahn hält",
        ),
        ("no_punctuation", "(Um 9:30: 3,5 km!)", "Um 9:30 3,5 km"),
        ("no_punctuation", "你好，世界。今天", "你好 世界 今天"),
        ("no_punctuation", "...", "..."),
        ("no_end_punctuation", 'Er sagt: "Ja!" .', 'Er sagt: "Ja'),
        ("no_end_punctuation", "今天。", "今天"),
        ("no_end_punctuation", "Nein", "Nein"),
        ("no_end_punctuation", "?!", "?!"),
        ("extra_spaces", "3,5 one.", "3,5 one ."),
        ("extra_spaces", "word", "wo rd"),
        ("extra_spaces", "one", "one"),
        ("extra_spaces", "is it 12", "is it 12"),
        ("typos", "und der", "und der"),
    ],
)
def test_noise_changes_what_its_name_says(kind, text, noisy):
    assert noise.add(kind, text, 0, 0) == noisy


def test_extra_spaces_are_before_some_punctuation_marks_and_next_to_no_other_space():
    text = "ab, " * 1000 + "ab"
    noisy = noise.add("extra_spaces", text, 0, 0)
    assert noisy.replace(" ,", ",") == text
    assert "  " not in noisy
    assert 150 < noisy.count(" ,") < 250  # a fifth of 1,000


def test_typing_errors_change_few_words_by_one_letter_each_and_in_the_same_way_again():
    words = ["und"] * 300 + ["abcde"] * 2000
    noisy = noise.add("typos", " ".join(words), 1, 5).split(" ")
    assert noisy == noise.add("typos", " ".join(words), 1, 5).split(" ")
    assert noisy != noise.add("typos", " ".join(words), 1, 6).split(" ")
    assert noisy != noise.add("typos", " ".join(words), 2, 5).split(" ")
    assert noisy[:300] == words[:300]  # too short
    hindi = "नमस्ते " * 100  # letters and combining marks
    assert noise.add("typos", hindi, 0, 0) != hindi
    changed = [word for word in noisy[300:] if word != "abcde"]
    assert 0.12 < len(changed) / 2000 < 0.18
    # Swapped, missing, twice: at each letter but the first and the last.
    errors = ["acbde", "abdce", "abced", "acde", "abde", "abce", "abbcde", "abccde", "abcdde"]
    assert set(changed) == set(errors)


def test_some_texts_have_noise_by_their_shares():
    shares = {"upper_case": 0.2, "no_end_punctuation": 0.1}
    noisy = noise.add_to_some(["Ein Hund."] * 5000, shares, 3)
    counts = {text: noisy.count(text) / 5000 for text in set(noisy)}
    assert counts == {
        "EIN HUND.": pytest.approx(0.2, abs=0.02),  # 3.5 deviations
        "Ein Hund": pytest.approx(0.1, abs=0.02),
        "Ein Hund.": pytest.approx(0.7, abs=0.02),
    }
    assert noisy == noise.add_to_some(["Ein Hund."] * 5000, shares, 3)
    assert noisy != noise.add_to_some(["Ein Hund."] * 5000, shares, 4)
    assert noise.add_to_some(["ein hund"] * 50, {"upper_case": 1.0}, 0) == ["EIN HUND"] * 50


@pytest.mark.parametrize("tag", ["<BT> ", ">>deu<< ", ">>cmn_Hans<<  "])
def test_a_tag_before_a_source_has_no_noise(tag):
    assert noise.add("upper_case", f"{tag}Ein Hund.", 0, 0) == f"{tag}EIN HUND."
    assert noise.add("no_punctuation", f"{tag}...", 0, 0) == f"{tag}..."
    assert noise.add("lower_case", "<BT>Ein Hund", 0, 0) == "<bt>ein hund"  # no word, no tag
    assert noise.add("upper_case", "<b>Ein</b> Hund", 0, 0) == "<B>EIN</B> HUND"  # HTML


def test_config_names_the_noises_there_are():
    assert [*noise.KINDS] == [*pair_kinds.NOISES]


# --- Training -----------------------------------------------------------------------------------


def batches(tmp_path, tokenizers, **changes):
    """Batch source of a run with noise, and its epochs."""
    config = tiny_config(tmp_path, num_steps=60)
    data = {"augment": AUGMENT, "max_len": 60, "batch_tokens": 960, **changes}
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **data))
    corpora = sources.open_corpora(config.data, "train")
    epochs, _ = epoch_data.prepare_epochs(corpora, tokenizers, config)
    return loader.BatchSource(epochs, IDS, 60), epochs, list(corpora[0].read())


def test_each_epoch_has_other_noise_in_its_sources_and_none_in_its_targets(tmp_path, tokenizers):
    _, epochs, texts = batches(tmp_path, tokenizers)
    period = int(np.ceil(epochs.first.plan.batches_per_epoch))
    seen = []
    for epoch in range(3):
        corpus = epochs.at(epoch * period)[0].corpus
        sources_read = [tokenizers.source.decode(ids) for ids in corpus.source]
        assert [tokenizers.target.decode(ids) for ids in corpus.target] == [t for _, t in texts]
        is_upper = np.asarray([text.isupper() for text in sources_read])
        for text, (source, _), upper in zip(sources_read, texts, is_upper, strict=True):
            assert text.replace(" ", "") == (source.upper() if upper else source).replace(" ", "")
        spaces = [
            a.count(" ") - b.count(" ") for a, (b, _) in zip(sources_read, texts, strict=True)
        ]
        assert {*spaces} == {0, 1}
        assert 0.2 < is_upper.mean() < 0.4
        assert 0.1 < np.mean(spaces) < 0.3
        seen.append(is_upper)
    assert (seen[0] != seen[1]).any()
    assert (seen[1] != seen[2]).any()


def test_batch_with_noise_needs_no_earlier_batches(tmp_path, tokenizers):
    straight = batches(tmp_path, tokenizers)[0]
    digests = [straight.digest(t) for t in range(60)]
    assert len(set(digests)) == 60
    for changes in ({}, {"cache_dir": str(tmp_path / "other"), "num_workers": 2}):
        fresh = batches(tmp_path, tokenizers, **changes)[0]
        for t in (59, 23, 0):
            assert fresh.digest(t) == digests[t]
    other = batches(tmp_path, tokenizers, augment=("upper_case:0.3",))[0]
    assert other.digest(0) != digests[0]


def test_noise_that_makes_a_source_too_long_is_left_away(tmp_path, tokenizers):
    long, short = "seven " * 11 + "seven", "seven two"
    train = write_pairs(tmp_path, "long", [(long, "eins"), (short, "zwei")] * 20)
    limit = len(tokenizers.source.encode(long)) + 1
    for max_len, noisy in ((60, [True, True]), (limit, [False, True])):
        _, epochs, _ = batches(
            tmp_path, tokenizers, train=train, augment=("extra_spaces:1",), max_len=max_len
        )
        texts = [tokenizers.source.decode(epochs.first.corpus.source[i]) for i in range(2)]
        assert [text not in (long, short) for text in texts] == noisy
        assert [text.replace(" ", "") for text in texts] == ["seven" * 12, "seventwo"]
