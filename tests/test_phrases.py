"""Phrases that outputs must hold: against brute force, and what happens where they cannot be."""

import dataclasses
import io

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from tests.test_search import (
    EOS,
    compiled,
    log_softmax,
    make_constraints,
    random_model,
    table_logits,
    tokens,
)  # fmt: skip
from tests.test_search_options import contains, finished
from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding import phrases
from transformer_jax.decoding.batch_translator import TranslationSettings
from transformer_jax.decoding.engine import Engine
from transformer_jax.decoding.phrases import begins_word
from transformer_jax.decoding.requests import Request
from transformer_jax.decoding.search_settings import PhraseArrays
from transformer_jax.decoding.translation import Translation, distinct

STARTS_WORD = (True, True, False, True)  # of the table models: 2 continues a word


def find(tables, limit, wanted, beam_size, word_ends=None, **settings):
    """Results of a search in which every row wants the same phrases."""
    rows = len(tables)
    array = np.full((rows, len(wanted), max(map(len, wanted))), -1)
    for c, phrase in enumerate(wanted):
        array[:, c, : len(phrase)] = phrase
    config = DecodeConfig(beam_size=beam_size, length_penalty=0.0, **settings)
    ends_word = np.broadcast_to([False] * len(wanted) if word_ends is None else word_ends,
                                array.shape[:2])  # fmt: skip
    arrays = PhraseArrays(jnp.asarray(array), jnp.asarray(ends_word))
    constraints = make_constraints([limit] * rows, config, phrases=arrays)
    searcher = compiled(limit, config, None if word_ends is None else STARTS_WORD)
    return searcher(table_logits(tables, limit), constraints)


@pytest.mark.parametrize("stopping", ["exact", "first_k"])
def test_after_its_phrases_greedy_search_goes_on_to_its_end(stopping):
    tables, limit = random_model(12, 6, seed=21), 6
    found = find(tables, limit, [(1,)], 1, stopping=stopping)
    lengths = set()
    for row, table in enumerate(tables):
        sequence = tokens(found, row, 0)
        for i in range(sequence.index(1) + 1, len(sequence)):
            best = EOS if i + 1 == limit else int(np.argmax(log_softmax(table[sequence[:i]])))
            assert sequence[i] == best
        lengths.add(len(sequence))
    assert len(lengths) > 2


@pytest.mark.parametrize("text", ["one two three four five six seven", "six", "two two"])
@pytest.mark.parametrize(
    "settings", [{"beam_size": 1}, {"beam_size": 4, "stopping": "first_k"}], ids=["greedy", "beam"]
)
def test_a_phrase_that_the_output_has_anyway_changes_nothing(translator, text, settings):
    (free,) = translator.translate([text], **settings)
    for word in free.text.split()[:2]:
        (same,) = translator.translate([Request(text, phrases=(word,))], **settings)
        assert same == free


def has_word(sequence, phrase):
    """Whether `phrase` is in `sequence`, and nothing that continues its last word after it."""
    size = len(phrase)
    return any(
        sequence[i : i + size] == phrase and STARTS_WORD[sequence[i + size]]
        for i in range(len(sequence) - size)
    )


@pytest.mark.parametrize("beam_size", [1, 3, 128])
def test_a_phrase_may_begin_another(beam_size):
    tables, limit = random_model(6, 5, seed=22), 5
    wanted = [(1,), (1, 2)]
    found = find(tables, limit, wanted, beam_size, (True, True))
    for row, table in enumerate(tables):
        sequence = tokens(found, row, 0)
        assert all(has_word(sequence, p) for p in wanted)
        if beam_size == 128:
            want = [f for f in finished(table, limit) if all(has_word(f[1], p) for p in wanted)]
            assert sequence == max(want)[1]


def test_a_phrase_without_word_boundaries_may_be_followed_by_anything():
    tables, limit = random_model(8, 4, seed=23), 4
    found = find(tables, limit, [(0, 1)], 32, (False,))
    followed = 0
    for row, table in enumerate(tables):
        want = [f for f in finished(table, limit) if contains(f[1], (0, 1))]
        assert tokens(found, row, 0) == max(want)[1]
        followed += not has_word(tokens(found, row, 0), (0, 1))
    assert followed


def test_the_most_of_the_phrases_is_returned_where_not_all_can_be():
    tables, limit = random_model(6, 5, seed=24), 5
    # The second would repeat a token.
    found = find(tables, limit, [(1,), (0, 0)], 4, no_repeat_ngram_size=1)
    for row in range(len(tables)):
        sequence = tokens(found, row, 0)
        assert 1 in sequence
        assert len(set(sequence)) == len(sequence)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("kind", ["suppressed", "repeated", "together"])
def test_phrases_that_cannot_be_are_named_and_the_job_goes_on(translator, capsys, kind, beam_size):
    tokenizer = translator.tokenizers.target
    settings = {"beam_size": beam_size}
    if kind == "suppressed":
        wanted: tuple[str, ...] = ("acht", "neun")
        settings["suppressed_ids"] = tuple(
            i for i in tokenizer.encode("neun") if i not in tokenizer.encode("acht")
        )
    else:
        wanted = ("neun neun",) if kind == "repeated" else ("eins zwei", "drei zwei")
        settings["no_repeat_ngram_size"] = len(tokenizer.encode("neun"))
    texts = [Request("one two"), Request("six five", phrases=wanted), Request("four")]
    found = translator.translate(texts, **settings)
    free = translator.translate([r.text for r in texts], **settings)
    assert [found[0], found[2]] == [free[0], free[2]]
    assert found[1].unmet
    assert np.isfinite(found[1].score)
    missing = [p for p in wanted if not phrases.contains(found[1].text, p)]
    assert found[1].unmet == tuple(f"phrase {p!r}" for p in missing)
    assert f"line 2: not met: {'; '.join(found[1].unmet)}." in capsys.readouterr().err
    if kind == "suppressed":
        assert missing == ["neun"]


def test_parameters_that_are_nan_give_a_message_a_line(translator, capsys):
    source = translator.tokenizers.source
    (bad,) = set(source.encode("six")) - set(source.encode("one two five"))
    broken = dict(translator.params)
    name = "source_embedding" if "source_embedding" in broken else "target_embedding"
    broken[name] = broken[name].at[bad].set(jnp.nan)
    engine = Engine(translator.config, translator.tokenizers)
    texts = ["one two", "six", "five", "six two"]
    for method in ("beam", "mbr"):
        decode = dataclasses.replace(
            translator.config.decode, method=method, beam_size=2, mbr_samples=2
        )
        settings = TranslationSettings(decode)
        if name == "source_embedding":
            want = [own[0].text for own in engine.translate(translator.params, texts, settings)]
            assert want[1]
        found = [own[0] for own in engine.translate(broken, texts, settings)]
        said = capsys.readouterr().err
        for number, one in enumerate(found, start=1):
            if name == "source_embedding" and number % 2:
                assert one.text == want[number - 1]
                assert f"line {number}" not in said
            else:
                assert (one.text, one.score) == ("", -np.inf)
                assert "NaN" in one.unmet[0]
                assert f"line {number}: not met: finite probabilities" in said


def test_settings_that_allow_nothing_give_a_message(translator, capsys):
    vocab = translator.config.model.target_vocab_size
    texts = ["one", "two", Request("three", line=70)]
    found = translator.translate(texts, beam_size=2, suppressed_ids=tuple(range(vocab)))
    assert [one.text for one in found] == ["", "", ""]
    said = capsys.readouterr().err
    for number in (1, 2, 70):  # a request of a file has the number of its line there
        assert f"line {number}: not met: an output (these settings forbid every one)." in said


@pytest.mark.parametrize(
    ("output", "phrase", "want"),
    [
        ("das Haus am See", "Haus", True), ("die Haustür", "Haus", False),
        ("ein Rathaus. Haus!", "Haus", True), ("am Rathaus", "haus", False),
        ("(Haus)", "Haus", True), ("", "Haus", False), ("我在北京大学", "北京", True),
        ("東京タワー", "タワー", True), ("ฉันรักแมว", "รัก", True), ("用JAX训练", "JAX", True),
        ("하나둘", "하나", False),
    ],
)  # fmt: skip
def test_phrases_in_text_by_hand(output, phrase, want):
    assert phrases.contains(output, phrase) == want


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_phrase_of_a_script_without_spaces_fits_inside_a_sentence(kind):
    rng = np.random.default_rng(0)
    characters = "我们在北京大学学习中文和日本"
    lines = ["".join(rng.choice(list(characters), 12)) for _ in range(200)]
    lines += ["我们在北京", "北京大学", "北京北京"] * 50
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=60, model_type=kind,
        character_coverage=1.0, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    tokenizer = Tokenizer(model.getvalue())
    phrase = phrases.encode(tokenizer, "北京")
    assert not phrase.ends_word
    before = tokenizer.encode("我们在")
    assert tokenizer.decode([*before, *phrase.ids, *before]).startswith("我们在北京")
    assert begins_word("北")
    assert begins_word("▁Haus")
    assert not begins_word("tür")
    spaced = phrases.encode(tokenizer, "Haus")
    assert spaced.ends_word


def test_a_phrase_that_the_tokenizer_cannot_write_is_not_met():
    """Without byte fallback an unknown character would be forced as the unknown token."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["das haus", "ein baum"] * 20), model_writer=model, vocab_size=20,
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    tokenizer = Tokenizer(model.getvalue())
    for text, possible in (("haus", True), ("漢字", False), ("Haus", False)):
        phrase = phrases.encode(tokenizer, text)
        assert phrases.is_possible(phrase, DecodeConfig()) == possible
        assert phrases.missing("das baum", [phrase]) == (f"phrase {text!r}",)
    assert phrases.missing("das ⁇ aus", [phrase]) == ("phrase 'Haus'",)


def test_what_is_not_met_is_in_the_json():
    nothing = Translation("", -np.inf, -np.inf, (), (), unmet=("phrase 'Haus'",))
    assert nothing.as_json() == {
        "text": "", "score": None, "log_prob": None, "tokens": [], "unmet": ["phrase 'Haus'"],
    }  # fmt: skip
    assert "unmet" not in dataclasses.replace(nothing, unmet=()).as_json()


def test_equal_hypotheses_keep_their_order():
    a, b = (Translation(x, -1.0, -1.0, (), (i,)) for i, x in enumerate("ab"))
    again = dataclasses.replace(a, text="a again")
    assert distinct([a, b, again]) == [a, b]
    assert distinct([b, a, a, b]) == [b, a]
