"""Guards: what they catch, what they leave alone, and searches that are done again."""

import dataclasses

import pytest

pytest.importorskip("sentencex")

from transformer_jax import Translator
from transformer_jax.extras.documents import document_translation, guards
from transformer_jax.extras.documents.document import DocumentSentence
from transformer_jax.extras.documents.guards import Guards
from transformer_jax.translator.requests import Request

LONG = "A dog runs over the green grass in the park with its owner and a ball."
CAUGHT = [
    ("A dog runs.", "", guards.EMPTY),
    ("A dog runs.", "...", guards.EMPTY),
    ("A dog runs.", "Ein Hund Hund Hund Hund rennt.", guards.LOOP),
    ("A man in a hat.", "Ein Mann in einem Hut in einem Hut in einem Hut.", guards.LOOP),
    ("one", "einssssssss", guards.LOOP),
    ("one", "Wer-Preis-P-P-P-P-P-P-P", guards.LOOP),
    ("12 34", "1 333333333333", guards.LOOP),
    ("12 34", "7080808080808080808080", guards.LOOP),
    (LONG, " ".join(["Hund und Katze", "Maus und Katze", "Hund und Maus"] * 3), guards.LOOP),
    (LONG, LONG, guards.COPY),
    (LONG, LONG.replace("grass", "Gras"), guards.COPY),
    (LONG, "Ein Hund.", guards.SHORT),
    ("A dog.", LONG.replace("dog", "Hund").replace("the", "den"), guards.LONG),
    ("A dog runs.", "Собака бежит.", guards.SCRIPT),
    ("A dog runs.", "狗在公园里跑步", guards.SCRIPT),
    ("A dog runs.", "Ein ⁇ rennt.", guards.UNKNOWN),
]
LEFT = [
    ("A dog runs.", "Ein Hund rennt."),
    ("", ""),
    ("...", "…"),
    ("12, 13, 14, 15", "12, 13, 14, 15"),
    ("I visited New York and Los Angeles.", "Ich besuchte New York und Los Angeles."),
    ("BMW, Audi, Opel, Ford, Fiat", "BMW, Audi, Opel, Ford, Fiat"),
    ("no no no no", "nein nein nein nein"),
    ("soooooooo big", "soooooooo groß"),
    ("What??? !!!!", "Was??? !!!!"),
    ("He said Собака бежит.", "Er sagte Собака бежит."),
    ("sand hand arm", "Sand Hand Arm"),
    ("thirty-four", "vierunddreißig"),
    ("Yes.", "Ja."),
    ("The ⁇ sign.", "Das Zeichen ⁇."),
    ("One million people", "1000000 Menschen"),
]


@pytest.mark.parametrize(("source", "translation", "wanted"), CAUGHT)
def test_guards_catch_by_hand(source, translation, wanted):
    assert wanted in Guards("en", "de").problems(source, translation)
    assert wanted in guards.MEANINGS


@pytest.mark.parametrize(("source", "translation"), LEFT)
def test_guards_leave_alone_by_hand(source, translation):
    assert Guards("en", "de").problems(source, translation) == ()


def test_guards_know_other_scripts():
    english = "The weather is nice today and we are going to the park."
    assert Guards("en", "zh").problems(english, "今天天气很好，我们要去公园。") == ()
    assert Guards("zh", "en").problems("今天天气很好，我们要去公园。", english) == ()
    assert guards.COPY in Guards("zh", "ja").problems(
        "今天天气很好我们要去公园", "今天天气很好我们要去公园"
    )
    assert guards.LOOP in Guards("en", "zh").problems(english, "今天" + "很好" * 9)
    assert Guards("en", "sr").problems("A dog runs.", "Pas trči.") == ()  # written in both
    assert Guards("en", "sr").problems("A dog runs.", "Пас трчи.") == ()
    assert guards.SCRIPT in Guards("en", "ru").problems("A dog runs.", "Sobaka bezhit")
    # Of a language that is not known, any script is right.
    assert Guards("en", "xx").problems("A dog runs.", "Собака бежит.") == ()
    assert Guards("de", "de").problems(LONG, LONG) == ()


class Scripted(Translator):
    """Gives translations from a table, by the settings of the search."""

    def __init__(self, translator, by_search):
        super().__init__(translator.config, translator.tokenizers, translator.params)
        self.by_search, self.asked = by_search, []

    def translate_iterable(self, texts, **settings):
        texts = [one.text if isinstance(one, Request) else one for one in texts]
        method = settings.get("method", "own")
        self.asked.append((method, texts))
        for best in super().translate_iterable(texts, beam_size=1):
            answer = self.by_search[method]
            yield dataclasses.replace(best, text=answer, tokens=("▁x",), ids=(4,))


@pytest.mark.parametrize(
    ("by_search", "wanted", "flags", "searches"),
    [
        ({"own": "eins"}, "eins", (), ["own"]),
        ({"own": "", "beam": "zwei"}, "zwei", (), ["own", "beam"]),
        ({"own": "", "beam": "", "mbr": "drei"}, "drei", (), ["own", "beam", "mbr"]),
        ({"own": "", "beam": "", "mbr": ""}, "", ("empty",), ["own", "beam", "mbr"]),
        # One that is better, but not good, is taken.
        (
            {"own": "狗 狗 狗 狗 狗 狗 狗", "beam": "狗在跑步", "mbr": ""},
            "狗在跑步",
            ("script",),
            ["own", "beam", "mbr"],
        ),
    ],
)
def test_caught_translations_are_searched_again(translator, by_search, wanted, flags, searches):
    model = Scripted(translator, by_search)
    options = document_translation.options(guards=True)
    one = document_translation.sentence_translator(model, options)
    (result,) = one.translate([DocumentSentence("one two", False)])
    assert (result.text, result.flags) == (wanted, flags)
    assert [method for method, _ in model.asked] == searches


def test_only_caught_sentences_are_searched_again_and_order_stays(translator):
    class Some(Scripted):
        def translate_iterable(self, texts, **settings):
            items = list(texts)
            results = super().translate_iterable(items, **settings)
            for request, result in zip(items, results, strict=True):
                is_bad = request.text == "two" and settings.get("method") is None
                yield dataclasses.replace(result, text="" if is_bad else f"<{request.text}>")

    model = Some(translator, {"own": "", "beam": ""})
    one = document_translation.sentence_translator(model, document_translation.options())
    sentences = [DocumentSentence(text, False) for text in ("one", "two", "three")]
    results = one.translate(sentences)
    assert next(results).text == "<one>"  # before the others are searched again
    assert [result.text for result in results] == ["<two>", "<three>"]
    assert model.asked == [("own", ["one", "two", "three"]), ("beam", ["two"])]
    without = document_translation.sentence_translator(
        model, document_translation.options(guards=False)
    )
    assert [r.text for r in without.translate(sentences)] == ["<one>", "", "<three>"]
    assert len(model.asked) == 3


def test_searches_that_conflict_with_the_settings_are_left_out(translator):
    model = Scripted(translator, {"own": "", "beam": ""})
    # MBR has no coverage penalty.
    one = document_translation.sentence_translator(
        model, document_translation.options(), coverage_penalty=0.1
    )
    (result,) = one.translate([DocumentSentence("one two", False)])
    assert result.flags == ("empty",)
    assert [method for method, _ in model.asked] == ["own", "beam"]
