"""`data.new_tokens`: tokens that a model gets for another language before it is trained on."""

import dataclasses
import io
import random

import jax
import numpy as np
import pytest
import sentencepiece

from tests.conftest import DIGITS, begin_run, tiny_config
from tests.test_frozen import paths_of
from tests.test_training import assert_same, final_params
from transformer_jax import Translator
from transformer_jax.config import DataConfig, validate
from transformer_jax.data import tokenizer_extension, tokenizer_training
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.foreign_tokenizers import ByteTokenizer, VocabularyTokenizer
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import tokenizer_writing
from transformer_jax.training import new_tokens
from transformer_jax.training.loop import train
from transformer_jax.translator import pretrained

RUSSIAN = ["ноль", "один", "два", "три", "четыре", "пять", "шесть", "семь", "восемь", "девять"]
TAGS = LanguageTags()


def russian_pairs(count, seed):
    rng = random.Random(seed)
    rows = [[rng.randrange(10) for _ in range(rng.randint(1, 5))] for _ in range(count)]
    return [(" ".join(DIGITS[n] for n in row), " ".join(RUSSIAN[n] for n in row)) for row in rows]


def extended(tokenizer, texts, count, tags=TAGS, new_tags=()):
    config = DataConfig(new_tokens=count)
    added = tokenizer_extension.learn(tokenizer, lambda: iter(texts), config)
    return tokenizer_extension.extend(tokenizer, added, tags, list(new_tags))


TEXTS = [target for _, target in russian_pairs(200, 0)]


def make_model(kind="bpe", byte_fallback=True, **options):
    model = io.BytesIO()
    texts = [" ".join(random.Random(i).choices(DIGITS, k=5)) for i in range(200)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type=kind,
        vocab_size=300 if byte_fallback else 40,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3} | options,
    )
    return model.getvalue()


def with_vocabulary(model):
    """As M2M-100 has it: other ids than the model's, tags, rows without a token at the end."""
    tokens = Tokenizer(model).tokens(range(Tokenizer(model).vocab_size))
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    names += [t for t in reversed(tokens) if t not in names] + ["__en__", "__de__"]
    special = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    vocabulary = {token: i for i, token in enumerate(names)}
    return VocabularyTokenizer(
        model, vocabulary, special, len(names) + 5, False, dropped=["__en__", "__de__"]
    )


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda model: Tokenizer(model(pad_id=-1, bos_id=-1)),  # which follow the tokens
        lambda model: Tokenizer(model(), lowercase=True),
        lambda model: with_vocabulary(model()),
    ],
)
def test_new_tokens_shorten_their_language_and_keep_all_ids(kind, byte_fallback, make):
    old = make(lambda **options: make_model(kind, byte_fallback, **options))
    # These texts have no more than 28 tokens by probability.
    added = 60 if kind == "bpe" else 25
    new, origins = extended(old, TEXTS, added)
    size = old.vocab_size
    assert new.vocab_size == len(origins) == size + added
    assert new.special_ids == old.special_ids
    assert new.tokens(range(size)) == old.tokens(range(size))
    assert origins[:size] == [[i] for i in range(size)]
    assert new.lowercase == old.lowercase
    text = "девять восемь ноль"
    assert new.decode(new.encode(text)) == text
    assert (old.decode(old.encode(text)) == text) == byte_fallback
    assert len(new.encode(text)) <= (5 if kind == "bpe" else len(text))
    assert max(new.encode(text)) >= size
    assert new.encode("seven three") == old.encode("seven three")
    # Where a new token comes from has its text, and a space only where it has one.
    for i, token in enumerate(new.tokens(range(size, size + added)), start=size):
        text = token.replace("▁", " ")
        if not byte_fallback:
            assert set(origins[i]) <= {old.token_id(c) for c in token} | {old.unk_id}
        else:
            written = b"".join(
                bytes([int(t[3:5], 16)]) if t.startswith("<0x") else t.replace("▁", " ").encode()
                for t in old.tokens(origins[i])
            )
            assert written.decode() == text


def test_letters_are_the_first_new_tokens():
    """Without bytes, a letter that has no token is lost."""
    letters = {letter for text in TEXTS for letter in text} - {" "}
    old = Tokenizer(make_model(byte_fallback=False))
    new, _ = extended(old, TEXTS, len(letters))
    assert {*new.tokens(range(old.vocab_size, new.vocab_size))} == letters
    assert new.lost_texts(TEXTS) == []


def test_new_tokens_of_byte_pairs_join_old_ones():
    """Where a text was cut before and is not cut now, a new token is; it is cut nowhere else."""
    words = [a + b + c for a in DIGITS for b in DIGITS for c in ("teen", "tieth", "s")]
    old = Tokenizer(make_model())
    new, _ = extended(old, words * 5, 200)

    def cuts(tokenizer, word):
        lengths = [len(token) for token in tokenizer.tokens(tokenizer.encode(word))]
        return {*np.cumsum(lengths).tolist()}

    for word in words:
        assert cuts(new, word) <= cuts(old, word)
    assert sum(len(new.encode(word)) for word in words) < sum(
        len(old.encode(word)) for word in words
    )


def test_tags_of_new_languages_are_no_text_and_begin_as_the_others():
    old = with_vocabulary(make_model())
    tags = LanguageTags("__{}__", both_sides=True)
    new, origins = extended(old, TEXTS, 20, tags, ["__ru__"])
    tag = new.token_id("__ru__")
    assert tag == new.vocab_size - 1
    assert origins[tag] == [old.token_id("__en__"), old.token_id("__de__")]
    assert tag not in new.encode("__ru__ три")
    assert new.decode([tag, *new.encode("три")]) == "три"
    tokenizer_writing.refuse_extended(old, is_t5=False)
    with pytest.raises(UserError, match=r"vocabulary was extended .* Export it as ctranslate2"):
        tokenizer_writing.refuse_extended(new, is_t5=False)
    # Without any tag before, it begins as the end of a sentence.
    old = Tokenizer(make_model())
    new, origins = extended(old, TEXTS, 20, TAGS, ["<2ru>"])
    assert origins[new.token_id("<2ru>")] == [old.eos_id]
    assert new.token_id("<2ru>") not in new.encode("<2ru> три")


def test_tag_that_is_looked_up_as_a_word_is_one_token():
    """As in T5's models: the ids are the model's, and rows without a token follow."""
    model = make_model()
    names = Tokenizer(model).tokens(range(Tokenizer(model).vocab_size))
    special = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    vocabulary = {token: i for i, token in enumerate(names)}
    old = VocabularyTokenizer(model, vocabulary, special, len(names) + 12, False)
    tags = LanguageTags(is_word=True)
    new, _ = extended(old, TEXTS, 20, tags, ["<2ru>"])
    pair = TokenizerPair(new, new, tags)
    assert pair.language_tags("en", "ru") == ([new.vocab_size - 1], [])
    assert new.vocab_size - 1 not in new.encode("<2ru> три")
    tokenizer_writing.refuse_extended(old, is_t5=True)
    with pytest.raises(UserError, match="vocabulary was extended"):
        tokenizer_writing.refuse_extended(new, is_t5=True)


def test_vocabulary_of_two_normalization_rules_is_extended_once():
    """Source and target have the same ids, and each its rule."""
    models = (tokenizer_training._with_rule(make_model(), rule) for rule in ("nfkc", "identity"))
    old = [Tokenizer(model) for model in models]
    corpus = Corpus("pairs", "en", "ru", lambda: iter(russian_pairs(200, 0)), "")
    config = DataConfig(new_tokens=20, target_language_tags=True)
    result = tokenizer_extension.extend_pair(TokenizerPair(*old), {"en"}, config, [corpus])
    source, target = result.tokenizers.source, result.tokenizers.target
    assert source.tokens(range(321)) == target.tokens(range(321))
    assert source.vocab_size == target.vocab_size == old[0].vocab_size + 21
    assert result.source_origins == result.target_origins
    assert source.normalize("ﬁve") == "▁five"
    assert target.normalize("ﬁve") == "▁ﬁve"
    assert not [token for token in target.tokens(range(321)) if "▁▁" in token]


def test_new_tokens_are_refused_where_a_tokenizer_cannot_have_them():
    with pytest.raises(UserError, match="extends SentencePiece models, and this model has another"):
        extended(ByteTokenizer(b"", 384), TEXTS, 20)
    known = [" ".join(DIGITS)] * 50
    full, _ = extended(Tokenizer(make_model()), known, 500)
    with pytest.raises(UserError, match="has all tokens of this corpus"):
        extended(full, known, 20)


def write_corpus(folder, name, count, seed):
    for side, language in enumerate(("en", "ru")):
        lines = [pair[side] + "\n" for pair in russian_pairs(count, seed)]
        (folder / f"{name}.{language}").write_text("".join(lines), "utf-8")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("russian")
    for name, count, seed in (("train", 300, 0), ("val", 10, 1), ("test", 10, 2)):
        write_corpus(folder, name, count, seed)
    return folder


def fine_tuning(corpus, start, num_steps, num_tokens=25, **fields):
    tiny = tiny_config(
        corpus, num_steps=num_steps, init_from=str(start), eval_every_steps=0, **fields
    )
    data = dataclasses.replace(tiny.data, target_lang="ru", new_tokens=num_tokens)
    return dataclasses.replace(tiny, data=data)


def test_a_model_with_new_tokens_starts_as_it_was_and_learns_them(tiny_run, corpus, tmp_path):
    start = Translator.load(tiny_run[1])
    begin_run(fine_tuning(corpus, tiny_run[1], 1), tmp_path / "run")
    begun = Translator.load(tmp_path / "run", "latest")
    size, tokens = start.tokenizers.target.vocab_size, begun.tokenizers.target
    assert begun.config.model.target_vocab_size == tokens.vocab_size == size + 25
    before, after = paths_of(start.params), paths_of(begun.params)
    for name, table in before.items():
        if table.shape[:1] != (size,):
            np.testing.assert_array_equal(after[name], table)
            continue
        np.testing.assert_array_equal(after[name][:size], table)
        for i, token in enumerate(tokens.tokens(range(size, size + 25)), start=size):
            # By hand: bytes, or tokens of old letters, of which these words have none but a space.
            parts = [f"<0x{byte:02X}>" for byte in token.removeprefix("▁").encode()]
            parts = ["▁"] * token.startswith("▁") + parts
            ids = [start.tokenizers.target.token_id(part) for part in parts]
            want = np.asarray(table, np.float64)[ids].mean(0)
            np.testing.assert_allclose(after[name][i], want, rtol=1e-5, atol=1e-7)

    train(fine_tuning(corpus, tiny_run[1], 9), tmp_path / "straight")
    train(fine_tuning(corpus, tiny_run[1], 5), tmp_path / "resumed")
    train(fine_tuning(corpus, tiny_run[1], 9), tmp_path / "resumed")
    assert_same(final_params(tmp_path / "resumed"), final_params(tmp_path / "straight"))
    table = paths_of(Translator.load(tmp_path / "straight", "latest").params)["target_embedding"]
    assert np.all(np.abs(table[size:] - after["target_embedding"][size:]).max(1) > 0)
    wrong = fine_tuning(corpus, tiny_run[1], 12, num_tokens=41)
    with pytest.raises(UserError, match="new_tokens"):
        train(wrong, tmp_path / "resumed")


def test_settings_that_contradict_new_tokens_are_refused(tiny_run, corpus, tmp_path):
    with pytest.raises(UserError, match="new_tokens=25 changes a trained model: name it by"):
        train(fine_tuning(corpus, "", 1), tmp_path / "run")
    with pytest.raises(UserError, match=r"are rows of target_embedding, which .*frozen has"):
        train(fine_tuning(corpus, tiny_run[1], 1, frozen=("*embedding",)), tmp_path / "run")
    with pytest.raises(UserError, match=r"would not be trained with config\.train\.lora_rank=2"):
        validate(fine_tuning(corpus, "x", 1, lora_rank=2))
    config = fine_tuning(corpus, "x", 1)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, source="prepared"))
    with pytest.raises(UserError, match="is tokenised already"):
        validate(config)


def test_languages_of_all_corpora_of_a_model_are_known(tiny_run, monkeypatch):
    start = pretrained.load(tiny_run[1])
    data = dataclasses.replace(start.config.data, train_languages=("en-de", "fr-cs"))
    start = dataclasses.replace(start, config=dataclasses.replace(start.config, data=data))
    seen = []

    def note(pair, known, config, corpora):
        seen.append(known)
        raise UserError("seen")

    monkeypatch.setattr(tokenizer_extension, "extend_pair", note)
    with pytest.raises(UserError, match="seen"):
        new_tokens.add_new_tokens(start, start.config, [])
    assert seen == [{"en", "de", "fr", "cs"}]


def test_tables_of_both_sides_get_their_own_rows(tmp_path, corpus):
    """Separate vocabularies, and tags: the source is longer by a tag."""
    first = tiny_config(tmp_path, num_steps=1, eval_every_steps=1)
    first = dataclasses.replace(
        first,
        data=dataclasses.replace(
            first.data, vocab_size=280, shared_vocab=False, target_language_tags=True
        ),
        model=dataclasses.replace(first.model, tie_embeddings="none", output_bias=True),
    )
    begin_run(first, tmp_path / "start")
    begin_run(fine_tuning(corpus, tmp_path / "start", 1), tmp_path / "run")
    old, new = (Translator.load(tmp_path / name, "latest") for name in ("start", "run"))
    sizes = [
        (m.source_vocab_size, m.target_vocab_size) for m in (old.config.model, new.config.model)
    ]
    shapes = jax.tree.map(np.shape, new.params)
    assert shapes["source_embedding"][0] == sizes[1][0]
    for name in ("target_embedding", "output_embedding", "output_bias"):
        assert shapes[name][0] == sizes[1][1]
    assert sizes[1][1] - sizes[0][1] == 25
    # English is known: the source gets the tag alone, and segments as before.
    assert sizes[1][0] - sizes[0][0] == 1
    assert new.tokenizers.languages == ["de", "ru"]
    assert new.tokenizers.source.tokens([sizes[1][0] - 1]) == ["<2ru>"]
