"""Encoding, decoding, special ids, saving, and vocabularies of published models."""

import dataclasses
import functools
import io
import re
import unicodedata

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import digit_pairs, write_pairs
from transformer_jax.config import DataConfig
from transformer_jax.data import sources, word_ids
from transformer_jax.data.foreign_tokenizers import VocabularyTokenizer
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.data.tokenizer_training import make_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.translator.requests import RequestEncoder


@pytest.fixture(scope="module")
def corpus_config(tmp_path_factory):
    prefix = write_pairs(tmp_path_factory.mktemp("tok"), "train", digit_pairs(300))
    return DataConfig(source="files", train=prefix, vocab_size=295)


def make(config, **fields):
    config = dataclasses.replace(config, **fields)
    return make_tokenizers(config, sources.open_corpora(config, "train"))


@given(text=st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_tokenizer_round_trip_equals_normalised_text(tokenizers, text):
    tokenizer = tokenizers.source
    ids = tokenizer.encode(text)
    assert tokenizer.unk_id not in ids  # byte tokens write everything
    # The space that stands for a word's start is the only thing that decoding may drop.
    assert tokenizer.decode(ids).strip() == tokenizer.normalize(text).replace("▁", " ").strip()


def test_vocabulary_follows_the_normalization_rule(tmp_path):
    pairs = [(f"{one} m²", f"{two} …") for one, two in digit_pairs(300)]
    config = DataConfig(source="files", train=write_pairs(tmp_path, "train", pairs), vocab_size=295)
    tokens = {
        rule: set(make(config, normalization=rule).source.tokens(range(295)))
        for rule in ("identity", "nfkc", "nfkc,identity")
    }
    assert {"²", "…"} <= tokens["identity"]
    assert not {"²", "…"} & tokens["nfkc"]
    assert "…" in tokens["nfkc,identity"]
    assert "²" not in tokens["nfkc,identity"]


# What SentencePiece's own default, nmt_nfkc, rewrites.
REWRITTEN = "，！？（） m² … ｶﾅ ﬁ \u00a0 \u3000 \t é"


@given(text=st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_identity_rule_changes_only_leading_trailing_and_repeated_spaces(untouched, text):
    # SentencePiece writes a space as U+2581, and ends its strings at NUL.
    text = text.replace("▁", "_").replace("\0", "")
    want = re.sub(" +", " ", text).strip(" ")
    assert untouched.decode(untouched.encode(text)) == want
    assert untouched.lost_texts([text]) == ([] if text == want else [(text, want)])


@pytest.fixture(scope="module")
def untouched(corpus_config):
    return make(corpus_config).target


def test_normalization_rules_apply_per_side(corpus_config, tmp_path):
    pair = make(corpus_config)
    assert pair.shared
    assert pair.target.decode(pair.target.encode(REWRITTEN)) == REWRITTEN
    assert pair.target.lost_texts([REWRITTEN, "drei vier"]) == []
    # Per side, with one vocabulary: sources are rewritten, targets are not.
    pair = make(corpus_config, normalization="nfkc,identity")
    pair.save(tmp_path)
    pair = TokenizerPair.load(tmp_path)
    assert not pair.shared
    ids = range(pair.source.vocab_size)
    assert pair.source.tokens(ids) == pair.target.tokens(ids)
    nfkc = unicodedata.normalize("NFKC", REWRITTEN)
    want = re.sub(" +", " ", nfkc)
    assert pair.source.normalize(REWRITTEN).replace("▁", " ").strip() == want
    assert pair.source.decode(pair.source.encode(REWRITTEN)) == want
    assert pair.target.decode(pair.target.encode(REWRITTEN)) == REWRITTEN
    assert pair.source.lost_texts([REWRITTEN]) == [(REWRITTEN, want)]
    both = make(corpus_config, normalization="nmt_nfkc", shared_vocab=False, vocab_size=284)
    for tokenizer in (both.source, both.target):
        assert tokenizer.decode(tokenizer.encode("m² …")) == "m2 ..."


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("shared", [True, False])
def test_special_ids_of_trained_models_differ(corpus_config, kind, shared):
    size = 295 if shared else 284
    pair = make(corpus_config, tokenizer=kind, shared_vocab=shared, vocab_size=size)
    assert pair.shared == shared
    for tokenizer in (pair.source, pair.target):
        assert len(set(tokenizer.special_ids)) == 4
        assert tokenizer.vocab_size == size
        text = "three four" if tokenizer is pair.source else "drei vier"
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_lowercase_is_applied_and_saved(corpus_config, tmp_path):
    pair = make(corpus_config, lowercase=True)
    pair.save(tmp_path)
    loaded = TokenizerPair.load(tmp_path)
    assert loaded.source.encode("THREE Four") == pair.source.encode("three four")
    assert loaded.source.decode(loaded.source.encode("Straße")) == "straße"
    assert loaded.fingerprint == pair.fingerprint
    assert loaded.fingerprint != make(corpus_config).fingerprint


def test_separate_models_are_saved_separately(corpus_config, tmp_path):
    pair = make(corpus_config, shared_vocab=False, vocab_size=284, target_vocab_size=286)
    assert (pair.source.vocab_size, pair.target.vocab_size) == (284, 286)
    pair.save(tmp_path)
    loaded = TokenizerPair.load(tmp_path)
    assert not loaded.shared
    assert loaded.source.encode("three") == pair.source.encode("three")
    assert loaded.target.encode("drei") == pair.target.encode("drei")
    assert loaded.source.model != loaded.target.model


def test_special_ids_missing_in_a_model_are_added_after_its_tokens():
    model = io.BytesIO()
    texts = [text for pair in digit_pairs(100) for text in pair]
    sentencepiece.SentencePieceTrainer.train(  # SentencePiece's defaults: no padding
        sentence_iterator=iter(texts), model_writer=model, vocab_size=42, bos_id=-1, minloglevel=2
    )
    tokenizer = Tokenizer(model.getvalue())
    assert (tokenizer.unk_id, tokenizer.eos_id) == (0, 2)
    assert {tokenizer.pad_id, tokenizer.bos_id} == {42, 43}
    assert tokenizer.vocab_size == 44
    ids = [tokenizer.bos_id, *tokenizer.encode("one two"), tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode(ids) == "one two"
    assert tokenizer.tokens(ids)[0] == "<s>"
    assert tokenizer.tokens(ids)[-2:] == ["</s>", "<pad>"]


def test_tokenizer_model_of_the_config_is_used(corpus_config, tokenizers, tmp_path):
    path = tmp_path / "given.model"
    path.write_bytes(tokenizers.source.model)
    pair = make(corpus_config, tokenizer_model=str(path))
    assert pair.source.model == tokenizers.source.model
    both = make(corpus_config, tokenizer_model=f"{path}, {path}", shared_vocab=False)
    assert not both.shared


NAMES = ("</s>", "<s>", "<pad>", "<unk>", "__de__", ">>de<<", "deu_Latn", "<2de>")


@pytest.fixture(scope="module")
def with_special_tokens(corpus_config, tokenizers):
    """Our tokenizers, and one like Marian's or M2M-100's whose model contains such tokens."""
    tagged = make(corpus_config, target_language_tags=True, byte_fallback=True, vocab_size=300)
    model = io.BytesIO()
    texts = [text for pair in digit_pairs(300) for text in pair] + ["< 2 > / s p u n k _ L"] * 30
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=60,
        model_type="bpe",
        user_defined_symbols=list(NAMES[4:]),
        character_coverage=1.0,
        minloglevel=2,
    )
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [*dict.fromkeys([*map(spm.id_to_piece, range(60)), "<pad>", *NAMES])]
    foreign = VocabularyTokenizer(
        model.getvalue(),
        {token: i for i, token in enumerate(tokens)},
        {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "bos": "<s>"},
        len(tokens),
        dropped=NAMES[4:],
    )
    return tokenizers.source, tagged.source, foreign


@pytest.mark.parametrize("name", NAMES)
def test_special_token_names_in_a_text_are_text(with_special_tokens, name):
    for tokenizer in with_special_tokens:
        text = f"one {name} two"
        ids = tokenizer.encode(text)
        assert tokenizer.pad_id not in ids
        assert tokenizer.bos_id not in ids
        assert tokenizer.eos_id not in ids
        assert tokenizer.token_id(name) not in set(ids) - {tokenizer.unk_id}
        assert tokenizer.decode(ids) == text


def test_marian_language_code_is_a_token_only_at_the_start(with_special_tokens):
    foreign = with_special_tokens[-1]
    assert foreign.encode(">>de<< one")[0] == foreign.token_id(">>de<<")
    assert foreign.decode(foreign.encode(">> one << two")) == ">> one << two"


def test_language_tags_are_single_tokens(corpus_config):
    pair = make(corpus_config, target_language_tags=True)
    (tag,), nothing = pair.language_tags("en", "de")
    assert nothing == []
    assert pair.source.tokens([tag]) == ["<2de>"]
    with pytest.raises(UserError, match="<2fr>"):
        pair.language_tags("en", "fr")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 5000}, ["vocab_size=5000", "cannot be trained"]),
        ({"tokenizer_model": "nowhere.model"}, ["nowhere.model"]),
        ({"tokenizer_model": "a,b"}, ["2 files", "must name 1"]),
        ({"tokenizer_model": "a", "shared_vocab": False}, ["SOURCE,TARGET"]),
        ({"tokenizer_model": __file__}, ["not a SentencePiece model"]),
    ],
)
def test_unusable_tokenizer_settings_are_reported(corpus_config, fields, words):
    with pytest.raises(UserError) as error:
        make(corpus_config, **fields)
    for word in words:
        assert word in str(error.value)


def test_damaged_tokenizer_folder_is_reported(tmp_path):
    with pytest.raises(UserError, match="no usable tokenizer"):
        TokenizerPair.load(tmp_path)


@given(
    st.lists(
        st.text(
            st.sampled_from("ab cdeéA.▁ \t\u00a0\u3000 ̈漢€😀")  # spaces of all kinds
            | st.characters(exclude_categories=("Cs",), exclude_characters="\n\0"),
            max_size=30,
        ),
        min_size=100,
        max_size=110,
    )
)
@settings(max_examples=25, deadline=None)
def test_words_have_the_ids_that_sentencepiece_gives_them_in_a_text(texts):
    for byte_fallback in (True, False):
        tokenizer = word_tokenizer(byte_fallback)
        assert word_ids.separates_words(tokenizer.model)
        expected = [tokenizer._processor.encode(text) for text in texts]
        assert tokenizer.encode_batch(texts) == expected
        assert tokenizer._words


@functools.cache
def word_tokenizer(byte_fallback):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a bcd abc dé é ab abcd cdab Aa. b.", "ba dc cab bad"] * 20),
        model_writer=model,
        vocab_size=300 if byte_fallback else 40,
        model_type="bpe",
        byte_fallback=byte_fallback,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return Tokenizer(model.getvalue())


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"split_by_whitespace": False},
        {"user_defined_symbols": ["b c"]},
        {"normalization_rule_name": "nfkc"},
        {"remove_extra_whitespaces": False},
        {"add_dummy_prefix": False},
        {"treat_whitespace_as_suffix": True},
    ],
)
def test_words_of_other_models_are_not_segmented_by_themselves(options):
    model = io.BytesIO()
    settings_of_model = {"model_type": "bpe", "normalization_rule_name": "identity", **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a bcd abc ab abcd cdab b c", "ba dc cab bad b c"] * 20),
        model_writer=model,
        vocab_size=25,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings_of_model,
    )
    assert not word_ids.separates_words(model.getvalue())


def test_table_of_words_is_emptied_before_it_is_too_large(monkeypatch):
    monkeypatch.setattr(word_ids, "MAX_WORDS", 7)
    tokenizer = Tokenizer(word_tokenizer(True).model)
    texts = [f"a{i} b{i % 5}" for i in range(200)]
    assert tokenizer.encode_batch(texts) == [tokenizer._processor.encode(text) for text in texts]
    assert len(tokenizer._words) <= 8


def test_a_vocabulary_without_room_for_all_characters_names_our_settings(tmp_path):
    pairs = [("".join(map(chr, range(0x4E00 + 60 * n, 0x4E3C + 60 * n))), "a") for n in range(9)]
    prefix = write_pairs(tmp_path, "train", pairs)
    config = DataConfig(source="files", train=prefix, vocab_size=50, source_lang="en")
    with pytest.raises(
        UserError, match=r"vocab_size=50 .* or decrease .* config\.data\.character_"
    ):
        make(config)


def test_a_text_may_begin_with_the_tag_of_its_language(corpus_config):
    pair = make(corpus_config, target_language_tags=True)
    config = dataclasses.replace(corpus_config, target_language_tags=True)
    assert pair.languages == [config.target_lang] == ["de"]
    tags, _ = pair.language_tags("", "de")
    assert pair.split_tag(" <2de>  1 2") == (tags, "1 2")
    assert pair.split_tag("<2fr> 1") == ([], "<2fr> 1")
    assert pair.split_tag("1 <2de>") == ([], "1 <2de>")
    assert pair.num_tags([*tags, *pair.source.encode("1")]) == len(tags)
    assert pair.num_tags(pair.source.encode("1 2")) == 0
    assert not pair.needs_tag(config, "")
    other = dataclasses.replace(config, target_lang="target")
    assert pair.needs_tag(other, "")
    assert not pair.needs_tag(other, "de")
    encoder = RequestEncoder(pair, ([], []), 16, pair.source.eos_id, needs_tag=True)
    named = RequestEncoder(pair, pair.language_tags("", "de"), 16, pair.source.eos_id)
    assert encoder.source_ids(["<2de> 1 2", ""]) == named.source_ids(["1 2", ""])
