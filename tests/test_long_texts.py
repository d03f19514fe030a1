"""Where texts longer than the model reads are cut, and how the parts are joined."""

import pytest

from transformer_jax.translator import long_texts
from transformer_jax.translator.translation import Translation, join_parts


def pieces_of(text):
    """A token a letter, as the worst tokenizer would have it; "|" sets nothing apart."""
    return [token for word in text.split(" ") for token in ("▁" + word[:1], *word[1:]) if token]


def cut(text, limit, tokens=None):
    tokens = tokens or pieces_of(text)
    parts = long_texts.split_ids(range(len(tokens)), tokens, limit)
    assert [i for part in parts for i in part] == list(range(len(tokens)))
    assert all(0 < len(part) <= limit for part in parts)
    return ["".join(tokens[i] for i in part).replace("▁", " ").strip() for part in parts]


# What fits, what follows it, and the first part, worked out by hand. A cut is in the second half.
TABLE = [
    # A sentence's end goes before a later clause's end, comma and word; of equals the last.
    ("Abcde fghij klm. She did; you, I", " saw", "Abcde fghij klm."),
    ("Abcde fghij klm; she did, you", " saw", "Abcde fghij klm;"),
    ("Abcde fghij klm, she did you", " saw", "Abcde fghij klm,"),
    ("Ab cd she did yo", "u saw", "Ab cd she did"),
    ("Ab cd. Ef gh? Ij kl! Mn", " op", "Ab cd. Ef gh? Ij kl!"),
    ("A. Long sentence, then", " more", "A. Long sentence,"),  # its end is in the first half
    # Not within numbers, addresses and abbreviations.
    ("It is about 3.14", "159 or so", "It is about"),
    ("It is about 3.", "14 or so", "It is about"),
    ("It is about 3,", "000 or so", "It is about"),
    ("It is about 3 0", "00 or so", "It is about"),
    ("It is about 3 ", "000 or so", "It is about"),
    ("It is all of 123 456", " 789 of it", "It is all of"),
    ("It was in 1999 ", "300 times", "It was in 1999"),  # two numbers
    ("It was room 12 3", "00.5 or so", "It was room"),
    ("It was room 12 3", "4 or so", "It was room 12"),
    # The first half, where the second has no place between words.
    ("To a, b 1234567.8901", "23 or so", "To a, b"),
    ("To abcdefghijklmnopq", "rst or so", "To"),
    ("Read this at www.a.", "com", "Read this at"),
    ("Read this page of hers at a.com/b?c=d,e;", "f", "Read this page of hers at"),
    ("He saw it (cf. e.g. a boo", "k of hers)", "He saw it (cf. e.g. a"),
    ("He saw J. Doe to", "o", "He saw J. Doe"),
    ("Es gilt z. B. fast al", "les", "Es gilt z. B. fast"),
    ("It is by E. Ab. And now", " we", "It is by E. Ab."),
    ("In the U.S. he had an", " aim", "In the U.S. he had an"),
    ("He cried no! he di", "d", "He cried no! he"),  # what follows is in lower case,
    ("he cried no! he di", "d", "he cried no!"),  # but here all is
    # Quotation marks and brackets stay with their sentence.
    ("She said: \u201cI do.\u201d (He", " too.)", "She said: \u201cI do.\u201d"),
    ('She said (or so.) "No', ' way"', "She said (or so.)"),
    # Scripts without spaces between words.
    ("他买了苹果，梨。她也买了，今", "天", "他买了苹果，梨。"),
    ("他买了苹果，梨和其他", "水果", "他买了苹果，"),
    ("他说：“我们走吧。”她", "也走了", "他说：“我们走吧。”"),
    ("他说：“我们走吧。", "”她也走了", "他说：“我们走"),  # a part begins with no mark
    ("他今天只花了1.", "5元", "他今天只花了"),
    ("他们在昨天下午１０：", "３０来到这里", "他们在昨天下午"),
    ("他用了JAX. 我", "也", "他用了JAX."),
    ("他用了JAX.我", "也", "他用了JAX."),
    ("ฉันไปตลาดน", "้ำกับเธอ", "ฉันไปตลาด"),  # never before a vowel sign
    ("हम सब घर गए। तुम", " भी", "हम सब घर गए।"),
]


@pytest.mark.parametrize(("fits", "rest", "first"), TABLE)
def test_long_texts_are_cut_at_the_best_place(fits, rest, first):
    assert cut(fits + rest, len(pieces_of(fits)))[0] == first


def test_long_texts_are_never_cut_within_characters():
    assert cut("", 3, ["x"] * 8) == ["xxx", "xxx", "xx"]
    character = ["<0xE4>", "<0xB8>", "<0x80>"]
    assert [len(part) // 6 for part in cut("", 8, character * 4)] == [6, 6]
    assert cut("ab. Cd. Ef", 100) == ["ab. Cd. Ef"]
    assert len(cut("", 2, character * 2)) == 4  # no part holds a character
    assert cut("", 1, ["▁a", "b.", "▁c"]) == ["a", "b.", "c"]


def test_long_texts_read_byte_tokens_as_characters():
    content = "他买了苹果，梨。她也买了，今天".encode()
    tokens = [f"<0x{byte:02X}>" for byte in content]
    parts = long_texts.split_ids(list(content), tokens, 3 * 14)
    assert [bytes(part).decode() for part in parts] == ["他买了苹果，梨。", "她也买了，今天"]
    broken = ["<0xE4>", "a", "<0xB8>", "<0xE4>", "<0xB8>"] * 2
    assert sum(map(len, long_texts.split_ids(range(10), broken, 3))) == 10


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        (["Eins.", "Zwei."], "Eins. Zwei."),
        (["一。", "二。", "三"], "一。二。三"),
        (["", "Eins.", "", "Zwei."], "Eins. Zwei."),
        ([], ""),
        (["하나.", "둘."], "하나. 둘."),
    ],
)
def test_long_texts_are_joined_as_their_script_requires(texts, want):
    parts = [Translation(text, -1.0, -2.0, (text,), (1,)) for text in texts]
    joined = join_parts(parts)
    assert joined.text == want
    assert joined.tokens == tuple(texts)


def test_parts_have_one_end_symbol_together():
    parts = [
        Translation("a b", -1.0, -1.0, ("a", "b"), (1, 2), token_log_probs=(-0.1, -0.2, -9.0)),
        Translation("c", -1.0, -1.0, ("c",), (3,), token_log_probs=(-0.3, -0.4)),
    ]
    assert join_parts(parts).token_log_probs == (-0.1, -0.2, -0.3, -0.4)
