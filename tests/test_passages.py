"""Texts split into sentences and put together again."""

import pytest

pytest.importorskip("sentencex")

from transformer_jax.serving import passages

TEXT = "  Dr. Smith came at 3.15 p.m. He left.\n\n\t- One!  Two?\r\nthree\u2028four \n"


def test_sentences_have_their_places_and_layout_is_kept():
    sentences = passages.split(TEXT, "en")
    texts = [s.text for s in sentences]
    assert texts[-4:] == ["- One!", "Two?", "three", "four"]
    # Whether "p.m." ends the first sentence is for the library to decide.
    assert " ".join(texts[:-4]) == "Dr. Smith came at 3.15 p.m. He left."
    assert all(TEXT[s.start : s.end] == s.text for s in sentences)
    assert passages.join(TEXT, sentences, texts) == TEXT
    upper = passages.join(TEXT, sentences, [t.upper() for t in texts])
    assert upper == TEXT.upper()


def test_sentences_of_other_scripts_are_joined_as_the_script_does():
    chinese = "你好。今天好！\n再见。"
    sentences = passages.split(chinese, "zh")
    assert [s.text for s in sentences] == ["你好。", "今天好！", "再见。"]
    assert passages.join(chinese, sentences, ["Hello.", "Nice!", "Bye."]) == "Hello. Nice!\nBye."
    english = "Hello. Nice!\nBye."
    parts = passages.split(english, "en")
    assert passages.join(english, parts, ["你好。", "今天好！", "再见。"]) == chinese
    assert passages.split(" \n ", "xx") == []
    assert passages.join(" \n ", [], []) == " \n "
