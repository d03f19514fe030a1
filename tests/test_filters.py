"""Filters of sentence pairs: planted faults, their counts, and settings that are refused."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from etils import epath

from tests.conftest import digit_pairs, write_pairs
from tests.test_prepare import config_of, prepare
from transformer_jax.config import DataConfig, validate
from transformer_jax.config.pair_kinds import FILTERS, Filter
from transformer_jax.data import sources, token_cache
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.shards import filters, text_blocks
from transformer_jax.data.workers import IN_THIS_PROCESS
from transformer_jax.errors import UserError
from transformer_jax.training import setup

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
        filter_function="tests.test_filters:keep",
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
    setup.prepare(config, epath.Path(tmp_path / "plain"), print)
    filtered = dataclasses.replace(config.data, filters=("identical",))
    config = dataclasses.replace(config, data=filtered)
    setup.prepare(config, epath.Path(tmp_path / "filtered"), print)
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


def fails(source, target):
    raise ValueError("too short")


def forgets_to_return(source, target):
    assert source != target


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "for 'one' and 'eins': ValueError: too short."),
        ("forgets_to_return", "for 'one' and 'eins', returned None; return True to keep"),
    ],
)
def test_filter_function_that_fails_is_named_with_its_pair(name, message):
    pair_filter = filters.PairFilter(function=f"tests.test_filters:{name}")
    with pytest.raises(UserError, match=f"filter_function=tests.test_filters:{name}, {message}"):
        pair_filter.reasons(["one"], ["eins"], 0)


def test_filter_function_that_is_none_is_refused():
    for name in ("no_module:f", "tests.test_filters:nothing", "tests.test_filters:GOOD", "x"):
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


def test_records_of_filters_agree_with_their_tests():
    of_texts = {name for name, record in FILTERS.items() if not record.reads_tokens}
    assert of_texts - filters.TESTS.keys() == {"duplicates", "near_duplicates"}
    assert filters.TESTS.keys() <= of_texts
    settings = {name for record in FILTERS.values() for name in record.settings}
    assert settings <= {field.name for field in dataclasses.fields(DataConfig)}


def test_filter_with_a_setting_has_other_tokens_for_each_value(monkeypatch):
    """Otherwise tokens that were filtered with another value would be used again."""
    monkeypatch.setitem(FILTERS, "long_words", Filter("a word is long", ("vocab_size",)))
    corpus = Corpus("c", "en", "de", lambda: iter(()), "f")
    tokenizers = SimpleNamespace(fingerprint="t")

    def folder(**settings):
        config = DataConfig(filters=("long_words",), **settings)
        inputs = token_cache._Inputs(corpus, 0, tokenizers, config, None, None, IN_THIS_PROCESS)
        return inputs.folder

    assert folder() == folder()
    assert folder() != folder(vocab_size=9)
