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
)
from tests.test_search_options import contains, finished
from transformer_jax import Translator
from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError
from transformer_jax.search.search_settings import PhraseArrays
from transformer_jax.translator import phrases, ranking
from transformer_jax.translator.batch_translator import BatchTranslator
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.phrases import OneOf, begins_word
from transformer_jax.translator.pretrained import Pretrained
from transformer_jax.translator.requests import Request
from transformer_jax.translator.translation import Translation, distinct
from transformer_jax.translator.translation_settings import TranslationSettings

STARTS_WORD = (True, True, False, True)  # of the table models: 2 continues a word


def find(tables, limit, wanted, beam_size, word_ends=None, **settings):
    """Results of a search in which every row wants the same phrases."""
    rows = len(tables)
    array = np.full((rows, len(wanted), 1, max(map(len, wanted))), -1)
    for c, phrase in enumerate(wanted):
        array[:, c, 0, : len(phrase)] = phrase
    config = DecodeConfig(beam_size=beam_size, length_penalty=0.0, **settings)
    ends_word = np.zeros(array.shape[:3], bool)
    if word_ends is not None:
        ends_word[:, :, 0] = word_ends
    arrays = PhraseArrays(jnp.asarray(array), jnp.asarray(ends_word))
    constraints = make_constraints([limit] * rows, config, phrases=arrays)
    searcher = compiled(limit, config, None if word_ends is None else STARTS_WORD)
    return searcher(table_logits(tables, limit), constraints)


@pytest.mark.parametrize("stopping", ["exact", "first_k"])
def test_phrases_in_greedy_search_do_not_end_it(stopping):
    tables, limit = random_model(12, 6, seed=21), 6
    result = find(tables, limit, [(1,)], 1, stopping=stopping)
    lengths = set()
    for row, table in enumerate(tables):
        sequence = tokens(result, row, 0)
        for i in range(sequence.index(1) + 1, len(sequence)):
            best = EOS if i + 1 == limit else int(np.argmax(log_softmax(table[sequence[:i]])))
            assert sequence[i] == best
        lengths.add(len(sequence))
    assert len(lengths) > 2


@pytest.mark.parametrize("text", ["one two three four five six seven", "six", "two two"])
@pytest.mark.parametrize(
    "settings", [{"beam_size": 1}, {"beam_size": 4, "stopping": "first_k"}], ids=["greedy", "beam"]
)
def test_phrases_that_the_output_contains_anyway_change_nothing(translator, text, settings):
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
def test_phrases_may_start_with_another_phrase(beam_size):
    tables, limit = random_model(6, 5, seed=22), 5
    wanted = [(1,), (1, 2)]
    result = find(tables, limit, wanted, beam_size, (True, True))
    for row, table in enumerate(tables):
        sequence = tokens(result, row, 0)
        assert all(has_word(sequence, p) for p in wanted)
        if beam_size == 128:
            want = [f for f in finished(table, limit) if all(has_word(f[1], p) for p in wanted)]
            assert sequence == max(want)[1]


def test_phrases_with_forms_that_start_with_each_other():
    """The longer form stays possible, although it makes the shorter one part of a longer word."""
    tables, limit = random_model(8, 4, seed=26), 4
    rows = len(tables)
    array = np.full((rows, 1, 2, 2), -1)
    array[:, 0, 0, :1], array[:, 0, 1, :2] = (1,), (1, 2)
    arrays = PhraseArrays(jnp.asarray(array), jnp.ones((rows, 1, 2), bool))
    config = DecodeConfig(beam_size=256, length_penalty=0.0)
    constraints = make_constraints([limit] * rows, config, phrases=arrays)
    result = compiled(limit, config, STARTS_WORD)(table_logits(tables, limit), constraints)
    longer = 0
    for row, table in enumerate(tables):
        forms = ((1,), (1, 2))
        want = [f for f in finished(table, limit) if any(has_word(f[1], p) for p in forms)]
        assert tokens(result, row, 0) == max(want)[1]
        longer += not has_word(tokens(result, row, 0), (1,))
    assert longer


def test_phrases_of_several_forms_have_the_likeliest(translator):
    """One of them is in the output, and its score is that of the better form alone."""
    text, forms = "one two three", ("acht neun", "sechs")
    alone = [translator.translate(Request(text, phrases=(form,)), beam_size=8) for form in forms]
    best = translator.translate(Request(text, phrases=(OneOf(forms),)), beam_size=8)
    assert not best.unmet
    assert any(phrases.contains(best.text, form) for form in forms)
    assert best.score >= max(one.score for one in alone) - 1e-5
    (none,) = translator.translate([Request(text, phrases=(OneOf(("漢", "字")),))], beam_size=2)
    if none.unmet:
        assert none.unmet == ("phrase '漢' or '字'",)
    with pytest.raises(UserError, match=r"phrases\[0\].forms\[1\] is an int"):
        translator.translate([Request(text, phrases=(OneOf(("a", 3)),))])


def test_phrases_without_word_boundaries_may_be_followed_by_any_token():
    tables, limit = random_model(8, 4, seed=23), 4
    result = find(tables, limit, [(0, 1)], 32, (False,))
    followed = 0
    for row, table in enumerate(tables):
        want = [f for f in finished(table, limit) if contains(f[1], (0, 1))]
        assert tokens(result, row, 0) == max(want)[1]
        followed += not has_word(tokens(result, row, 0), (0, 1))
    assert followed


def test_phrases_as_many_as_possible_if_not_all_fit():
    tables, limit = random_model(6, 5, seed=24), 5
    # The second would repeat a token.
    result = find(tables, limit, [(1,), (0, 0)], 4, no_repeat_ngram_size=1)
    for row in range(len(tables)):
        sequence = tokens(result, row, 0)
        assert 1 in sequence
        assert len(set(sequence)) == len(sequence)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("kind", ["suppressed", "repeated", "together"])
def test_phrases_that_are_impossible_are_named_and_other_lines_translated(
    translator, capsys, kind, beam_size
):
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
    result = translator.translate(texts, **settings)
    free = translator.translate([r.text for r in texts], **settings)
    assert [result[0], result[2]] == [free[0], free[2]]
    assert result[1].unmet
    assert np.isfinite(result[1].score)
    missing = [p for p in wanted if not phrases.contains(result[1].text, p)]
    assert result[1].unmet == tuple(f"phrase {p!r}" for p in missing)
    assert f"texts[1]: not met: {'; '.join(result[1].unmet)}." in capsys.readouterr().err
    if kind == "suppressed":
        assert missing == ["neun"]


@pytest.mark.parametrize("method", ["sample", "mbr"])
def test_phrases_are_refused_by_methods_that_do_not_search(translator, monkeypatch, method):
    texts = ["one", Request("two", phrases=["sechs"], line=8)]
    message = f"phrases need beam search, which `method={method}` is not. Remove the phrases"
    for given, place in ((texts, "line 8"), ([texts[0], Request("a", phrases="b")], "texts[1]")):
        with monkeypatch.context() as patch:
            patch.setattr(BatchTranslator, "translate_batch", None)  # before anything runs
            with pytest.raises(UserError) as error:
                translator.translate(given, method=method)
        assert str(error.value).startswith(f"{place}: {message}")
    lazily = translator.translate_iterable(iter(texts), window=1, method=method, mbr_samples=2)
    assert next(lazily).text
    with pytest.raises(UserError, match="line 8: phrases need beam search"):
        next(lazily)
    _, skipped = translator.translate(texts, method=method, mbr_samples=2, on_error="skip")
    assert message in skipped.error
    # A prefix they do follow.
    prefixed = Request("two", prefix="sechs")
    assert translator.translate(prefixed, method=method, mbr_samples=2).text.startswith("sechs")


@pytest.mark.parametrize(
    "kind",
    ["greedy", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("groups", "ensemble"))],
)
def test_phrases_are_found_by_every_kind_of_beam_search(translator, kind):
    settings = {
        "greedy": {"beam_size": 1},
        "groups": {"beam_size": 4, "beam_groups": 2},
        "ensemble": {"beam_size": 4},
    }[kind]
    if kind == "ensemble":
        member = Pretrained(translator.config, translator.tokenizers, translator.params, 0)
        translator = Translator(
            translator.config, translator.tokenizers, translator.params, others=[member]
        )
    free = translator.translate("one two three", **settings)
    assert not phrases.contains(free.text, "sechs")
    best = translator.translate(Request("one two three", phrases=["sechs"]), **settings)
    assert phrases.contains(best.text, "sechs")
    assert not best.unmet


def test_nan_parameters_give_a_message_for_each_line(translator, capsys):
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
            want = [best[0].text for best in engine.translate(translator.params, texts, settings)]
            assert want[1]
        result = [best[0] for best in engine.translate(broken, texts, settings)]
        said = capsys.readouterr().err
        for index, one in enumerate(result):
            if name == "source_embedding" and index % 2 == 0:
                assert one.text == want[index]
                assert f"texts[{index}]" not in said
            else:
                assert (one.text, one.score) == ("", -np.inf)
                assert "NaN" in one.unmet[0]
                assert f"texts[{index}]: not met: finite probabilities" in said


def test_settings_that_forbid_every_output_give_a_message(translator, capsys):
    vocab = translator.config.model.target_vocab_size
    texts = ["one", "two", Request("three", line=70)]
    result = translator.translate(texts, beam_size=2, suppressed_ids=tuple(range(vocab)))
    assert [one.text for one in result] == ["", "", ""]
    said = capsys.readouterr().err
    for place in ("texts[0]", "texts[1]", "line 70"):  # of a file, its line there
        assert f"{place}: not met: an output (these settings forbid every one)." in said


@pytest.mark.parametrize(
    ("output", "phrase", "want"),
    [
        ("das Haus am See", "Haus", True),
        ("die Haustür", "Haus", False),
        ("ein Rathaus. Haus!", "Haus", True),
        ("am Rathaus", "haus", False),
        ("(Haus)", "Haus", True),
        ("", "Haus", False),
        ("我在北京大学", "北京", True),
        ("東京タワー", "タワー", True),
        ("ฉันรักแมว", "รัก", True),
        ("用JAX训练", "JAX", True),
        ("하나둘", "하나", False),
    ],
)
def test_phrases_contained_in_text_by_hand(output, phrase, want):
    assert phrases.contains(output, phrase) == want


def test_phrases_that_may_continue_match_inflected_words():
    assert phrases.contains("des Hutes", "Hut", may_continue=True)
    assert not phrases.contains("Fingerhutes", "hut", may_continue=True)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_phrases_of_scripts_without_spaces_have_no_leading_space(kind):
    rng = np.random.default_rng(0)
    characters = "我们在北京大学学习中文和日本"
    lines = ["".join(rng.choice(list(characters), 12)) for _ in range(200)]
    lines += ["我们在北京", "北京大学", "北京北京"] * 50
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=60,
        model_type=kind,
        character_coverage=1.0,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    tokenizer = Tokenizer(model.getvalue())
    phrase = phrases.encode(tokenizer, "北京")
    (phrase,) = phrase.forms
    assert not phrase.ends_word
    before = tokenizer.encode("我们在")
    assert tokenizer.decode([*before, *phrase.ids, *before]).startswith("我们在北京")
    assert begins_word("北")
    assert begins_word("▁Haus")
    assert not begins_word("tür")
    spaced = phrases.encode(tokenizer, "Haus")
    assert spaced.forms[0].ends_word


def test_phrases_that_the_tokenizer_cannot_write_are_unmet():
    """Without byte fallback an unknown character would be forced as the unknown token."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["das haus", "ein baum"] * 20),
        model_writer=model,
        vocab_size=20,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    tokenizer = Tokenizer(model.getvalue())
    for text, possible in (("haus", True), ("漢字", False), ("Haus", False)):
        phrase = phrases.encode(tokenizer, text)
        assert bool(phrases.possible(phrase, DecodeConfig())) == possible
        assert phrases.missing("das baum", [phrase]) == (f"phrase {text!r}",)
    assert phrases.missing("das ⁇ aus", [phrase]) == ("phrase 'Haus'",)


def test_translation_as_json_has_unmet():
    nothing = Translation("", -np.inf, -np.inf, (), (), unmet=("phrase 'Haus'",))
    assert nothing.as_json() == {
        "text": "",
        "score": None,
        "log_prob": None,
        "tokens": [],
        "unmet": ["phrase 'Haus'"],
    }
    assert "unmet" not in dataclasses.replace(nothing, unmet=()).as_json()


def test_distinct_keeps_the_order_of_hypotheses():
    a, b = (Translation(x, -1.0, -1.0, (), (i,)) for i, x in enumerate("ab"))
    again = dataclasses.replace(a, text="a again")
    assert list(distinct([a, b, again])) == [a, b]
    assert list(distinct([b, a, a, b])) == [b, a]


def test_texts_of_hypotheses_that_are_not_wanted_are_not_written():
    written = []

    def hypotheses():
        for text in ("a", "a", "b", "c"):
            written.append(text)
            yield Translation(text, -1.0, -1.0, (), (ord(text),))

    settings = TranslationSettings(DecodeConfig(beam_size=4), num_hypotheses=2)
    best = ranking.best_translations(hypotheses(), settings, "13a")
    assert [one.text for one in best] == ["a", "b"]
    assert written == ["a", "a", "b"]
