"""Scripts with and without spaces between words."""

import sys
import unicodedata

import pytest

from transformer_jax.data.writing_systems import joiner, separates_words

# First words of the names that Unicode gives to letters of scripts without spaces.
UNSPACED = {
    "CJK UNIFIED",
    "CJK COMPATIBILITY",
    "HIRAGANA LETTER",
    "KATAKANA LETTER",
    "HALFWIDTH KATAKANA",
    "BOPOMOFO LETTER",
    "YI SYLLABLE",
    "TANGUT IDEOGRAPH",
    "NUSHU CHARACTER",
    "THAI CHARACTER",
    "LAO LETTER",
    "LAO VOWEL",
    "TIBETAN LETTER",
    "MYANMAR LETTER",
    "KHMER LETTER",
    "TAI LE",
    "NEW TAI",
    "TAI THAM",
    "TAI VIET",
    "BALINESE LETTER",
    "JAVANESE LETTER",
}


def test_separates_words_agrees_with_unicode_names():
    wrong = []
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) not in ("Lo", "Ll", "Lu", "Lt"):
            continue
        begin = " ".join(unicodedata.name(char, "").split("-")[0].split()[:2])
        unspaced = begin in UNSPACED
        is_known = char.isascii() or "HANGUL" in begin or unspaced
        if is_known and separates_words(char) == unspaced:
            wrong.append((hex(code), unicodedata.name(char)))
    assert not wrong


@pytest.mark.parametrize(
    ("text", "separates"),
    [
        ("Haus", True),
        ("3.14", True),
        ("한국어", True),
        ("עברית", True),
        ("हिन्दी", True),
        ("", True),
        ("東京", False),
        ("トウキョウ", False),
        ("ไทย", False),
        ("ລາວ", False),
        ("ខ្មែរ", False),
        ("မြန်မာ", False),
        ("བོད་ཡིག", False),
        ("JAX用", False),
        ("𠀋", False),
    ],
)
def test_separates_words_of_texts(text, separates):
    assert separates_words(text) == separates


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        ("One.", "Two.", " "),
        ("하나.", "둘.", " "),
        ("一。", "二。", ""),
        ("用JAX", "训练", ""),
        ("训练", "JAX", ""),
        ("他说：“一。”", "“二。”", ""),
        ("等等……", "“二。”", ""),
        ("He said “one…”", "“Two.”", " "),
        ("何ですか？", "はい", ""),
        ("หนึ่ง", "สอง", ""),
        ("หนึ่ง.", "สอง", " "),
        ("តេស្ត។", "តេស្ត", " "),
        ("བོད་", "ཡིག", ""),
        ("བོད།", "ཡིག", " "),
        ("", "Two.", ""),
        ("One.", "", ""),
    ],
)
def test_joiner_of_two_texts(left, right, want):
    assert joiner(left, right) == want
